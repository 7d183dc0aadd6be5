"""`refold replay`, as it is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Said = Callable[..., str]
Told = Callable[..., Any]
Typed = Callable[..., Result]


@pytest.fixture
def journal(jobs: Path, tmp_path: Path, said: Said) -> Path:
    """las, with costs and a node that is lost."""
    path = tmp_path / "las.jsonl"
    options = ("--policy", "las", "--set", "threshold_gpu_seconds=20", "--start-cost", "2s", "--stop-cost", "1s")
    faults = ("--faults", "5m", "--repair", "1m", "--fault-seed", "1", "--checkpoint-every", "10s")
    machines = ("--cluster", "2x4", "--gpus-per-instance", "4")
    said("simulate", str(jobs), *machines, *options, *faults, "--journal", str(path))
    return path


def rewritten(journal: Path, place: int, change: dict[str, Any]) -> None:
    lines = journal.read_text().splitlines()
    lines[place] = json.dumps(json.loads(lines[place]) | change)
    journal.write_text("\n".join([*lines, ""]))


def test_a_journal_replays_to_the_same_orders(journal: Path, said: Said, told: Told) -> None:
    entries = len(journal.read_text().splitlines()) - 1
    assert said("replay", str(journal)).startswith(f"{entries} entries, ")
    document = told("replay", str(journal))
    assert (document["identical"], document["entries"], document["policy"]) == (True, entries, "las")


def test_one_that_does_not_says_where_and_exits_with_1(journal: Path, typed: Typed) -> None:
    rewritten(journal, 1, {"orders": []})
    result = typed("replay", str(journal))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "entry 1, at 0 s, differs",
        "replay gives: start run 1 of job a on node0 (GPUs 0, 1, 2, 3)",
    ]
    result = typed("replay", str(journal), "--json")
    assert (result.exit_code, json.loads(result.stdout)["identical"]) == (1, False)


def test_the_report_of_what_was_recorded(journal: Path, tmp_path: Path, said: Said) -> None:
    assert "report: " in said("replay", str(journal), "--out", str(tmp_path / "out"))
    assert "las (recorded)" in (tmp_path / "out" / "report.html").read_text()


def test_another_policy_is_simulated_beside_what_was_recorded(
    journal: Path, tmp_path: Path, said: Said, told: Told
) -> None:
    printed = said("replay", str(journal), "--policy", "srtf", "--placement", "fgd", "--out", str(tmp_path / "out"))
    assert "las (recorded)" in printed
    assert "srtf/fgd (simulated)" in printed
    assert (tmp_path / "out" / "report.html").exists()
    runs = told("replay", str(journal), "--policy", "srtf")["runs"]
    assert [run["measures"]["outcomes"]["finished"] for run in runs] == [6, 6]


def test_the_same_policy_at_the_same_costs_comes_out_as_recorded(
    jobs: Path, tmp_path: Path, said: Said, told: Told
) -> None:
    path = tmp_path / "srtf.jsonl"
    costs = ("--start-cost", "2s", "--stop-cost", "1s", "--restart-cost", "4s")
    said("simulate", str(jobs), "--cluster", "2x4", "--policy", "srtf", *costs, "--journal", str(path))
    recorded, again = told("replay", str(path), "--policy", "srtf", *costs)["runs"]
    assert recorded["measures"] == again["measures"]


def test_jobs_of_unknown_work_are_simulated_as_long_as_they_ran(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "live.jsonl"
    header = {"cluster": {"nodes": [{"name": "here", "gpus": 1, "gpu_type": "slot"}]}, "policy": "fifo"}
    gpu = {"placement": [{"node": 0, "gpus": [0]}]}

    def entry(now: float, *events: dict[str, Any], start: str = "") -> dict[str, Any]:
        orders = [{"type": "StartRun", "job": start, "run": 1, "allocation": gpu}] if start else []
        return {"now": now, "events": events, "orders": orders}

    def about(kind: str, job: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "job": job, "run": 1, **more}

    submitted = [{"type": "JobSubmitted", "job": {"id": name}} for name in ("long", "short", "late")]
    lines = [
        header,
        entry(0.0, *submitted, start="long"),
        entry(1.0, about("RunStarted", "long")),
        entry(101.0, about("RunFinished", "long"), start="short"),
        entry(102.0, about("RunStarted", "short")),
        entry(112.0, about("RunFailed", "short", why="exit 1"), start="late"),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = told("replay", str(path), "--policy", "sjf")
    assert document["notes"] == ["left out 1 job not seen to end"]
    measures = document["runs"][1]["measures"]
    assert (measures["outcomes"]["finished"], measures["makespan"]) == (2, 110.0)
    assert measures["completion"]["mean"] == 60.0  # the short one first: 10 and 110


@pytest.mark.parametrize("garbage", [b"", b"\n", b"\x00\xff", b"{}\n", b'{"now": 0.0}\n', b"[1, 2]\n", b"\x1f\x8b\x00"])
def test_garbage_is_one_line(tmp_path: Path, garbage: bytes, refuses: Said) -> None:
    for name in ("garbage.jsonl", "garbage.jsonl.gz"):
        path = tmp_path / name
        path.write_bytes(garbage)
        assert name in refuses("replay", str(path))


@pytest.mark.parametrize(
    "option",
    [("--placement", "fgd"), ("--set", "seed=1"), ("--seed", "1"), ("--start-cost", "1s"), ("--stop-cost", "0")],
)
def test_options_that_would_change_nothing_are_refused(journal: Path, option: tuple[str, str], refuses: Said) -> None:
    assert f"{option[0]} needs --policy: " in refuses("replay", str(journal), *option)


def test_bad_input_is_one_line(journal: Path, tmp_path: Path, refuses: Said) -> None:
    assert "cannot be read" in refuses("replay", str(tmp_path / "nothing.jsonl"))
    assert "did you mean 'srtf'?" in refuses("replay", str(journal), "--policy", "strf")
    journal.write_text(journal.read_text() + "garbage\n")
    assert "is not an entry" in refuses("replay", str(journal))
    rewritten(journal, 0, {"policy": "nobody"})
    assert "no policy 'nobody'" in refuses("replay", str(journal))
    rewritten(journal, 0, {"version": 99})
    assert "version 99" in refuses("replay", str(journal))
