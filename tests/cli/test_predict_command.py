"""`refold predict`: how well the durations of a trace are foreseen."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.errors import BadFile, BadInput

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]

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
    """Ten jobs, none with a limit, one without a duration."""
    rows = [f"j{index},{100 * index},{60 + index},1" for index in range(10)]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["job_id,submit_s,duration_s,num_gpu", *rows, "unknown,2000,,1"]) + "\n")
    return str(path)


def test_every_method_has_a_line_for_all_jobs_and_for_the_second_half(said: Said) -> None:
    text = said(*SMALL)
    titles = re.findall(r"^demo: .*$", text, re.MULTILINE)
    assert titles == ["demo: all jobs, 200 jobs", "demo: the second half, 100 jobs"]
    for method in METHODS:
        assert len(re.findall(rf"^{re.escape(method)}  ", text, re.MULTILINE)) == 2
    assert "asked again of jobs that still run" in text


def test_json_has_the_same_for_programs(told: Told) -> None:
    document = told(*SMALL, "--json")
    assert [method["name"] for method in document["methods"]] == METHODS
    ours, limit = document["methods"][:2]
    assert ours["whole"]["jobs"] == 200
    assert ours["second_half"]["jobs"] == 100
    assert 0.0 < ours["whole"]["pinball_log10"] < limit["whole"]["pinball_log10"]
    assert list(document["after"]) == ["10 min", "1 h"]
    assert document["predictions"] is None


def test_a_trace_without_limits_is_not_compared_with_limits_unless_they_are_drawn(told: Told, trace: str) -> None:
    bare = told("predict", trace, "--json")
    drawn = told("predict", trace, "--draw-limits", "1", "--json")
    assert [method["name"] for method in bare["methods"]] == [name for name in METHODS if not name.startswith("limit")]
    assert [method["name"] for method in drawn["methods"]] == METHODS
    assert drawn["notes"][-1] == "limits of 10 jobs are drawn, seed 1"
    assert told("predict", trace, "--draw-limits", "1", "--json")["methods"][0]["whole"] == drawn["methods"][0]["whole"]
    assert told("predict", trace, "--draw-limits", "2", "--json")["methods"][1]["whole"] != drawn["methods"][1]["whole"]


def test_jobs_without_a_duration_are_left_out_and_told(told: Told, trace: str) -> None:
    document = told("predict", trace, "--json")
    assert document["jobs"] == 10
    assert document["notes"][-1] == "left out 1 job without a duration"


def test_what_was_foreseen_can_be_kept(said: Said, trace: str, tmp_path: Path) -> None:
    text = said("predict", trace, "--out", str(tmp_path / "kept"))
    path = tmp_path / "kept" / "predictions.csv"
    assert f"predictions: {path}" in text
    header, *rows = csv.reader(path.read_text().splitlines())
    assert header[:5] == ["job_id", "submit_s", "duration_s", "q2.5", "q5"]
    assert [row[0] for row in rows] == [f"j{index}" for index in range(10)]
    for row in rows:
        quantiles = [float(cell) for cell in row[3:]]
        assert quantiles == sorted(quantiles)


def test_a_trace_without_durations_has_nothing_to_compare_with(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_s,num_gpu\na,0,1\n")
    with pytest.raises(BadInput, match=r"no job of jobs has a duration"):
        raise typed("predict", str(path)).exception or AssertionError


def test_a_folder_that_cannot_be_made_is_named(typed: Typed, trace: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFile, match=r"predictions.csv: cannot be written"):
        raise typed("predict", trace, "--out", str(tmp_path / "file")).exception or AssertionError
