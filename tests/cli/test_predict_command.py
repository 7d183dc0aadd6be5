"""`refold predict`: evaluation of run-time predictions on a trace."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.errors import BadFile, BadInput

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]

SMALL = ("predict", "demo", "--limit", "200")
METHODS = [
    "refold",
    "limit",
    "limit + its past errors",
    "last two",
    "last two + its past errors",
    "group mean",
    "group mean + its past errors",
    "group's last 1000",
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Ten jobs without time limits, and one without a duration."""
    rows = [f"j{index},{100 * index},{60 + index},1" for index in range(10)]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["job_id,submit_s,duration_s,num_gpu", *rows, "unknown,2000,,1"]) + "\n")
    return str(path)


def test_every_method_is_scored_on_all_jobs_and_on_the_second_half(stdout_of: TextOf) -> None:
    text = stdout_of(*SMALL)
    titles = re.findall(r"^demo: .*$", text, re.MULTILINE)
    assert titles == ["demo: all jobs, 200 jobs", "demo: the second half, 100 jobs"]
    for method in METHODS:
        assert len(re.findall(rf"^{re.escape(method)}  ", text, re.MULTILINE)) == 2
    assert "refold: predictions for running jobs" in text


def test_scores_as_json(json_of: JsonOf) -> None:
    document = json_of(*SMALL, "--json")
    assert [method["name"] for method in document["methods"]] == METHODS
    ours, limit = document["methods"][:2]
    assert ours["whole"]["jobs"] == 200
    assert ours["second_half"]["jobs"] == 100
    assert 0.0 < ours["whole"]["pinball_log10"] < limit["whole"]["pinball_log10"]
    assert list(document["while_running"]) == ["10 min", "1 h"]
    assert document["predictions"] is None


def test_limits_are_compared_only_if_the_trace_has_them_or_they_are_drawn(json_of: JsonOf, trace: str) -> None:
    def with_limits(seed: int) -> Any:
        return json_of("predict", trace, "--draw-limits", str(seed), "--json")

    without, drawn = json_of("predict", trace, "--json"), with_limits(1)
    assert [one["name"] for one in without["methods"]] == [name for name in METHODS if not name.startswith("limit")]
    assert [one["name"] for one in drawn["methods"]] == METHODS
    assert drawn["notes"][-1] == "random time limits for 10 jobs, random seed 1"
    assert with_limits(1)["methods"][0]["whole"] == drawn["methods"][0]["whole"]
    assert with_limits(2)["methods"][1]["whole"] != drawn["methods"][1]["whole"]


def test_jobs_without_a_duration_are_skipped_with_a_note(json_of: JsonOf, trace: str) -> None:
    document = json_of("predict", trace, "--json")
    assert document["jobs"] == 10
    assert document["notes"][-1] == "skipped 1 job without a duration"


def test_predictions_are_written_to_a_file(stdout_of: TextOf, trace: str, tmp_path: Path) -> None:
    text = stdout_of("predict", trace, "--out", str(tmp_path / "out"))
    path = tmp_path / "out" / "predictions.csv"
    assert f"predictions: {path}" in text
    header, *rows = csv.reader(path.read_text().splitlines())
    assert header[:5] == ["job_id", "submit_s", "duration_s", "q2.5", "q5"]
    assert [row[0] for row in rows] == [f"j{index}" for index in range(10)]
    for row in rows:
        quantiles = [float(cell) for cell in row[3:]]
        assert quantiles == sorted(quantiles)


def test_a_trace_without_durations_is_rejected(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,num_gpu\na,0,1\n")
    with pytest.raises(BadInput, match=r"no job of jobs has a duration"):
        raise invoke("predict", str(path)).exception or AssertionError


def test_an_error_names_a_folder_that_cannot_be_created(invoke: Invoke, trace: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match=r"predictions.csv: cannot be written"):
        raise invoke("predict", trace, "--out", str(tmp_path / "file")).exception or AssertionError
