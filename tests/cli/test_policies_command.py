"""`refold policies`, and shell completion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.placement import RULES
from refold.policies.table import POLICIES

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]


def test_every_policy_and_placement_is_listed(stdout_of: TextOf) -> None:
    printed = stdout_of("policies")
    for name in (*POLICIES, *RULES):
        assert name in printed
    assert "threshold_gpu_seconds=57600" in printed


def test_policies_as_json(json_of: JsonOf) -> None:
    document = json_of("policies")
    assert [one["name"] for one in document["policies"]] == list(POLICIES)
    assert [one["name"] for one in document["placements"]] == list(RULES)
    las = next(one for one in document["policies"] if one["name"] == "las")
    assert las["preempts"]
    assert not las["oracle"]
    assert las["settings"]["placement"] == "best-fit"


def test_a_file_in_the_policies_folder_is_listed_and_can_be_used_by_name(
    own_policy: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch, stdout_of: TextOf, json_of: JsonOf
) -> None:
    monkeypatch.setenv("REFOLD_POLICIES", str(own_policy.parent))
    own = json_of("policies")["policies"][-1]
    assert (own["name"], own["summary"], own["where"]) == ("mine", "Narrow jobs first.", str(own_policy))
    assert own["settings"] == {"placement": "best-fit", "patience": 2.5}
    assert "mine" in stdout_of("policies")
    assert json_of("simulate", str(jobs), "--cluster", "2x4", "--policy", "mine")["policy"] == "mine"


def test_a_missing_folder_and_a_file_that_cannot_be_loaded_are_reported(
    own_policy: Path, monkeypatch: pytest.MonkeyPatch, error_of: TextOf, stdout_of: TextOf, json_of: JsonOf
) -> None:
    monkeypatch.setenv("REFOLD_POLICIES", str(own_policy))
    assert "expected a folder" in error_of("policies")
    monkeypatch.setenv("REFOLD_POLICIES", str(own_policy.parent))
    own_policy.write_text("class is not Python")
    assert f"cannot load {own_policy}: cannot be loaded: SyntaxError" in stdout_of("policies")
    assert "SyntaxError" in json_of("policies")["policies"][-1]["problem"]
    assert json_of("policies")["policies"][0]["problem"] is None


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("refold simulate demo --policy s", {"sia", "sjf", "slurm", "srtf", "synergy"}),
        ("refold simulate demo --placement w", {"worst-fit", "worth"}),
        ("refold compare --policies fifo,l", {"fifo,las"}),
        ("refold compare --placements first-fit,t", {"first-fit,tetris"}),
        ("refold comp", {"compare"}),
        ("refold simulate demo --policy las/w", {"las/worst-fit", "las/worth"}),
        ("refold compare --policies fifo,las/t", {"fifo,las/tetris"}),
        ("refold simulate demo --policy mi", {"mine"}),
        ("refold simulate de", {"demo"}),
        ("refold compare dem", {"demo"}),
        ("refold compare demo --format he", {"helios"}),
        ("refold simulate demo --policy las --set thr", {"threshold_gpu_seconds=57600.0"}),
        ("refold simulate demo --policy mine --set p", {"placement=best-fit", "patience=2.5"}),
    ],
)
def test_the_shell_completes_names(
    line: str,
    completed: set[str],
    own_policy: Path,
    completions_of: Callable[[str], set[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_policy.rename(own_policy.with_name("a_file.py"))  # completion uses the policy's name, not the file's
    monkeypatch.setenv("REFOLD_POLICIES", str(own_policy.parent))
    assert completions_of(line) == completed
