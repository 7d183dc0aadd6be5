"""`refold compare`, as it is typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.policies import POLICIES

Said = Callable[..., str]
Told = Callable[..., Any]


@pytest.fixture
def tiny(jobs: Path, tmp_path: Path) -> tuple[str, ...]:
    return ("compare", str(jobs), "--cluster", "2x4", "--gpus-per-instance", "4", "--out", str(tmp_path / "out"))


def names(document: Any) -> list[str]:
    return [run["name"] for run in document["runs"]]


def test_every_policy_is_compared_and_the_report_is_named(tiny: tuple[str, ...], tmp_path: Path, said: Said) -> None:
    lines = said(*tiny).splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + len(POLICIES)]] == list(POLICIES)
    assert "* the best of its column" in [line.strip() for line in lines]
    assert lines[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


def test_without_arguments_it_is_the_shipped_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.chdir(tmp_path)
    document = told("compare", "--limit", "40")
    assert names(document) == list(POLICIES)
    assert (document["trace"], document["report"]) == ("demo", "refold-report/report.html")
    assert (tmp_path / "refold-report" / "report.html").exists()


def test_policies_can_be_names_names_with_a_placement_and_files(tiny: tuple[str, ...], mine: Path, told: Told) -> None:
    document = told(*tiny, "--policies", f"fifo, las/fgd,{mine}", "--placements", "first-fit,random")
    assert names(document) == [
        "fifo/first-fit",
        "fifo/random",
        "las/fgd",
        "mine/first-fit",
        "mine/random",
    ]
    assert document["runs"][2]["settings"] == {"placement": "fgd"}


def test_settings_go_to_all_or_to_one(tiny: tuple[str, ...], mine: Path, told: Told) -> None:
    options = ("--set", "placement=tetris", "--set", "las.threshold_gpu_seconds=20", "--set", "mine.patience=1")
    document = told(*tiny, "--policies", f"fifo,las,{mine}", *options)
    assert [run["settings"] for run in document["runs"]] == [
        {"placement": "tetris"},
        {"placement": "tetris", "threshold_gpu_seconds": 20},
        {"placement": "tetris", "patience": 1},
    ]


def test_two_policies_of_one_name_are_told_apart_by_their_files(
    tiny: tuple[str, ...], mine: Path, tmp_path: Path, told: Told
) -> None:
    other = tmp_path / "better.py"
    other.write_text(mine.read_text())
    assert names(told(*tiny, "--policies", f"fifo,{mine},{other}")) == ["fifo", str(mine), str(other)]


def test_the_same_twice_is_compared_once(tiny: tuple[str, ...], told: Told) -> None:
    assert names(told(*tiny, "--policies", "fifo,fifo,fifo")) == ["fifo"]


def test_several_processes_give_the_same(tiny: tuple[str, ...], told: Told) -> None:
    options = ("--policies", "fifo,las", "--stop-cost", "3s")
    assert told(*tiny, *options, "--processes", "2") == told(*tiny, *options)


def test_narrow_terminals_get_all_columns_below_each_other(
    tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    printed = said(*tiny, "--policies", "fifo,srtf")
    assert max(len(line.rstrip()) for line in printed.splitlines()[:-1]) <= 60
    assert "…" not in printed
    for title in ("makespan", "fragmentation", "preemptions"):
        assert title in printed


def test_without_the_library_for_reports_the_table_is_still_printed(
    tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    printed = said(*tiny, "--policies", "fifo")
    assert "mean completion" in printed
    assert "report:" not in printed


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--policies", "fifo,sfj"], "did you mean 'sjf'?"),
        (["--policies", "fifo/bestfit"], "did you mean 'best-fit'?"),
        (["--policies", " , "], "--policies is empty"),
        (["--placements", ""], "--placements is empty"),
        (["--placements", "best"], "best-fit"),
        (["--set", "lass.seed=1"], "did you mean 'las'?"),
        (["--policies", "fifo", "--set", "threshold_gpu_seconds=1"], "no setting of fifo"),
    ],
)
def test_bad_input_is_one_line(tiny: tuple[str, ...], options: list[str], text: str, refuses: Said) -> None:
    assert text in refuses(*tiny, *options)


def test_what_a_policy_does_wrong_in_another_process_is_one_line_too(
    tiny: tuple[str, ...], tmp_path: Path, refuses: Said
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from refold.model import Decision, Stop\n"
        "class Bad:\n"
        "    name = 'bad'\n"
        "    def decide(self, view):\n"
        "        return Decision(stops=(Stop('nobody'),))\n"
    )
    assert "bad" in refuses(*tiny, "--policies", f"fifo,{bad}", "--processes", "2")
