"""`refold replay`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]
Invoke = Callable[..., Result]


@pytest.fixture
def journal(jobs: Path, tmp_path: Path, stdout_of: TextOf) -> Path:
    """A journal of las with overheads and a node fault."""
    path = tmp_path / "las.jsonl"
    options = ("--policy", "las", "--set", "threshold_gpu_seconds=20", "--start-cost", "2s", "--stop-cost", "1s")
    faults = ("--faults", "5m", "--repair", "1m", "--fault-seed", "1", "--checkpoint-every", "10s")
    machines = ("--cluster", "2x4", "--gpus-per-instance", "4")
    stdout_of("simulate", str(jobs), *machines, *options, *faults, "--journal", str(path))
    return path


def change_line(journal: Path, index: int, change: dict[str, Any]) -> None:
    lines = journal.read_text().splitlines()
    lines[index] = json.dumps(json.loads(lines[index]) | change)
    journal.write_text("\n".join([*lines, ""]))


def test_a_journal_replays_to_the_same_orders(journal: Path, stdout_of: TextOf, json_of: JsonOf) -> None:
    entries = len(journal.read_text().splitlines()) - 1
    assert stdout_of("replay", str(journal)).startswith(f"{entries} entries, ")
    document = json_of("replay", str(journal))
    assert (document["identical"], document["entries"], document["policy"]) == (True, entries, "las")


def test_the_first_difference_is_shown_and_the_status_is_1(journal: Path, invoke: Invoke) -> None:
    change_line(journal, 1, {"orders": []})
    result = invoke("replay", str(journal))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "entry 1 at 0 s differs",
        "replay: start run 1 of job a on node0 (GPUs 0, 1, 2, 3)",
    ]
    result = invoke("replay", str(journal), "--json")
    assert (result.exit_code, json.loads(result.stdout)["identical"]) == (1, False)


def test_the_report_of_the_recorded_run(journal: Path, tmp_path: Path, stdout_of: TextOf) -> None:
    assert "report: " in stdout_of("replay", str(journal), "--out", str(tmp_path / "out"))
    assert "las (recorded)" in (tmp_path / "out" / "report.html").read_text()


def test_another_policy_is_simulated_and_compared_with_the_recorded_run(
    journal: Path, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf
) -> None:
    printed = stdout_of(
        "replay", str(journal), "--policy", "srtf", "--placement", "fgd", "--out", str(tmp_path / "out")
    )
    assert "las (recorded)" in printed
    assert "srtf/fgd (simulated)" in printed
    assert (tmp_path / "out" / "report.html").exists()
    runs = json_of("replay", str(journal), "--policy", "srtf")["runs"]
    assert [run["measures"]["outcomes"]["finished"] for run in runs] == [6, 6]


def test_the_same_policy_with_the_same_overheads_gives_the_recorded_result(
    jobs: Path, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf
) -> None:
    path = tmp_path / "srtf.jsonl"
    costs = ("--start-cost", "2s", "--stop-cost", "1s", "--restart-cost", "4s")
    stdout_of("simulate", str(jobs), "--cluster", "2x4", "--policy", "srtf", *costs, "--journal", str(path))
    recorded, again = json_of("replay", str(path), "--policy", "srtf", *costs)["runs"]
    assert recorded["measures"] == again["measures"]


def test_jobs_of_unknown_work_are_simulated_with_their_recorded_run_time(tmp_path: Path, json_of: JsonOf) -> None:
    path = tmp_path / "live.jsonl"
    header = {"cluster": {"nodes": [{"name": "here", "gpus": 1, "gpu_type": "slot"}]}, "policy": "fifo"}
    gpu = {"placement": [{"node": 0, "gpus": [0]}]}

    def entry(now: float, *events: dict[str, Any], start: str = "") -> dict[str, Any]:
        orders = [{"type": "StartRun", "job": start, "run": 1, "allocation": gpu}] if start else []
        return {"now": now, "events": events, "orders": orders}

    def event(kind: str, job: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "job": job, "run": 1, **more}

    submitted = [{"type": "JobSubmitted", "job": {"id": name}} for name in ("long", "short", "late")]
    lines = [
        header,
        entry(0.0, *submitted, start="long"),
        entry(1.0, event("RunStarted", "long")),
        entry(101.0, event("RunFinished", "long"), start="short"),
        entry(102.0, event("RunStarted", "short")),
        entry(112.0, event("RunFailed", "short", why="exit 1"), start="late"),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = json_of("replay", str(path), "--policy", "sjf")
    assert document["notes"] == ["skipped 1 job that did not end in the journal"]
    measures = document["runs"][1]["measures"]
    assert (measures["outcomes"]["finished"], measures["makespan"]) == (2, 110.0)
    assert measures["completion"]["mean"] == 60.0  # the short job first: 10 and 110


@pytest.mark.parametrize("garbage", [b"", b"\n", b"\x00\xff", b"{}\n", b'{"now": 0.0}\n', b"[1, 2]\n", b"\x1f\x8b\x00"])
def test_garbage_gives_a_one_line_error(tmp_path: Path, garbage: bytes, error_of: TextOf) -> None:
    for name in ("garbage.jsonl", "garbage.jsonl.gz"):
        path = tmp_path / name
        path.write_bytes(garbage)
        assert name in error_of("replay", str(path))


@pytest.mark.parametrize(
    "option",
    [("--placement", "fgd"), ("--set", "seed=1"), ("--seed", "1"), ("--start-cost", "1s"), ("--stop-cost", "0")],
)
def test_options_without_effect_are_rejected(journal: Path, option: tuple[str, str], error_of: TextOf) -> None:
    assert f"{option[0]} needs --policy: " in error_of("replay", str(journal), *option)


def test_bad_input_gives_a_one_line_error(journal: Path, tmp_path: Path, error_of: TextOf) -> None:
    assert "cannot be read" in error_of("replay", str(tmp_path / "nothing.jsonl"))
    assert "did you mean 'srtf'?" in error_of("replay", str(journal), "--policy", "strf")
    journal.write_text(journal.read_text() + "garbage\n")
    assert "is not an entry" in error_of("replay", str(journal))
    change_line(journal, 0, {"policy": "no-such-policy"})
    assert "unknown policy 'no-such-policy'" in error_of("replay", str(journal))
    change_line(journal, 0, {"version": 99})
    assert "version 99" in error_of("replay", str(journal))
