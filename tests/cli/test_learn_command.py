"""`refold learn` trains weights, continues an interrupted training, and refuses wrong input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.errors import BadFile, BadInput
from refold.registry import make_policy

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]

QUICK = ("--cluster", "1x8", "--slices", "2", "--jobs-per-slice", "100", "--population", "4", "--batch", "1")


def test_weights_are_written_and_training_continues_where_it_ended(
    json_of: JsonOf, stdout_of: TextOf, tmp_path: Path
) -> None:
    out = tmp_path / "weights.yaml"
    first = json_of("learn", "demo", *QUICK, "--generations", "1", "--out", str(out), "--json")
    assert (first["generations"], first["resumed_at"], len(first["slices"])) == (1, 0, 2)
    assert first["weights"] == str(out)
    make_policy("learned", {"weights": str(out)})
    longer = json_of("learn", "demo", *QUICK, "--generations", "3", "--out", str(out), "--json")
    assert (longer["generations"], longer["resumed_at"]) == (3, 1)
    at_once = json_of("learn", "demo", *QUICK, "--generations", "3", "--out", str(tmp_path / "other.yaml"), "--json")
    assert at_once["cost_after"] == longer["cost_after"]
    assert (tmp_path / "other.yaml").read_text() == out.read_text()
    compared = stdout_of(
        "simulate", "demo", "--limit", "50", "--policy", "learned", "--set", f"weights={out}", "--out", str(tmp_path)
    )
    assert "learned" in compared


def test_a_state_of_another_training_is_refused(invoke: Invoke, json_of: JsonOf, tmp_path: Path) -> None:
    out = tmp_path / "weights.yaml"
    json_of("learn", "demo", *QUICK, "--generations", "1", "--out", str(out), "--json")
    ended = invoke("learn", "demo", *QUICK, "--seed", "5", "--out", str(out))
    assert isinstance(ended.exception, BadFile)
    assert "other traces or with other options" in str(ended.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("demo", "--cluster", "1x8", "--cluster", "2x8"), "1 trace and 2 clusters: give one, or one each"),
        (("demo", "--cluster", "400x8", "--slices", "1", "--jobs-per-slice", "50"), "jobs wait in only 0"),
        (("demo", "--cluster", "1x8", "--jobs-per-slice", "99999"), "the number of jobs of a slice"),
    ],
)
def test_wrong_input_is_refused(invoke: Invoke, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    ended = invoke("learn", *words, "--out", str(tmp_path / "weights.yaml"))
    assert isinstance(ended.exception, BadInput)
    assert message in str(ended.exception)
