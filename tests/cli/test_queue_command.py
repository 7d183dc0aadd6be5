"""`refold queue`, as it is typed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from refold.cli.inputs import journal_state
from refold.cli.views import screen
from refold.core import Entry, Header
from refold.core.events import JobCancelled, JobSubmitted, RunFinished
from refold.core.orders import StartRun
from refold.journal.files import JournalFile
from refold.model import Allocation, Reason, Share, StartEstimate, Wait
from refold.testing import make_cluster, make_job

Said = Callable[..., str]
Told = Callable[..., Any]

RUNS = make_job("runs", gpus=3, work=500.0, tenant="vision")
WIDE = make_job("wide", at=10.0, gpus=4, tenant="speech")
NARROW = make_job("narrow", at=20.0, tenant="vision")
HUGE = make_job("huge", at=30.0, gpus=8)

ENTRIES = (
    Entry(0.0, (JobSubmitted(RUNS),), (StartRun("runs", 1, Allocation((Share(0, (0, 1, 2)),))),)),
    Entry(10.0, (JobSubmitted(WIDE),), waits=(Wait("wide", Reason.RESOURCES),)),
    Entry(20.0, (JobSubmitted(NARROW),), waits=(Wait("narrow", Reason.AHEAD),)),
    Entry(30.0, (JobSubmitted(HUGE),)),
)


def written(path: Path, *entries: Entry, policy: str = "fifo") -> str:
    with JournalFile(path, Header(make_cluster(4), policy)) as file:
        for entry in entries:
            file.write(entry)
    return str(path)


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return written(tmp_path / "j.jsonl", *ENTRIES)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_who_waits_is_listed_with_since_when_and_why(journal: str, said: Said) -> None:
    assert lines(said("queue", journal)) == [
        "3 jobs wait at 00:00:30, under fifo; 1 run, 1 of 4 GPUs free",
        "job GPUs tenant waits for reason",
        "1 wide 4 GPU speech 20 s (Resources: 0 of 1 nodes fit: 1 × less than 4 GPUs free)",
        "2 narrow 1 GPU vision 10 s (Ahead: 1 job before it)",
        "3 huge 8 GPU default 0 s (Never: 0 of 1 nodes fit: 1 × too few GPUs at all)",
    ]


def test_the_same_for_programs(journal: str, told: Told) -> None:
    document = told("queue", journal, "--at", "25s")
    assert document == {
        "journal": journal,
        "policy": "fifo",
        "now": 25.0,
        "free_gpus": 1.0,
        "gpus": 4,
        "waiting": [
            {
                "place": 1,
                "job": "wide",
                "demand": "4 GPU",
                "gpus": 4.0,
                "tenant": "speech",
                "since": 10.0,
                "waited": 15.0,
                "reason": "Resources",
                "why": "(Resources: 0 of 1 nodes fit: 1 × less than 4 GPUs free)",
            },
            {
                "place": 2,
                "job": "narrow",
                "demand": "1 GPU",
                "gpus": 1.0,
                "tenant": "vision",
                "since": 20.0,
                "waited": 5.0,
                "reason": "Ahead",
                "why": "(Ahead: 1 job before it)",
            },
        ],
        "notes": [],
    }


def test_when_they_may_start_is_seen_by_looking_ahead(journal: str, told: Told) -> None:
    document = told("queue", journal, "--start", "--futures", "10")
    wide, narrow, huge = document["waiting"]
    assert [one["by"] for one in document["waiting"]] == ["10 futures", "10 futures", ""]
    assert 30.0 <= wide["soonest"] <= wide["expected"] <= wide["latest"]
    assert narrow["expected"] >= wide["expected"]  # nobody overtakes under fifo
    assert (huge["expected"], huge["soonest"], huge["latest"]) == (None, None, None)
    assert document["notes"] == ["in these futures nobody else arrives; who comes later may come first (--arrivals)"]


def test_in_the_futures_others_may_arrive_as_they_did(journal: str, told: Told, refuses: Said) -> None:
    document = told("queue", journal, "--start", "--futures", "3", "--arrivals")
    assert document["notes"] == ["in these futures others arrive as they did in the past"]
    assert "--arrivals needs --start" in refuses("queue", journal, "--arrivals")


PROMISED = (
    StartEstimate("wide", 500.0, 400.0, 900.0),
    StartEstimate("narrow", 3_600.0, latest=90_000.0),
)


def test_what_was_promised_is_told_as_it_was(tmp_path: Path, said: Said, told: Told) -> None:
    path = written(tmp_path / "j.jsonl", *ENTRIES[:3], Entry(30.0, start_estimates=PROMISED))
    assert lines(said("queue", path, "--start"))[2:] == [
        "1 wide 4 GPU speech 20 s 00:08:20 00:06:40 – 00:15:00 promise "
        "(Resources: 0 of 1 nodes fit: 1 × less than 4 GPUs free)",
        "2 narrow 1 GPU vision 10 s 01:00:00 – 1 d 01:00:00 promise (Ahead: 1 job before it)",
    ]
    assert [one["by"] for one in told("queue", path, "--futures", "3")["waiting"]] == ["3 futures", "3 futures"]


def test_a_promise_that_has_passed_is_said_to_have(tmp_path: Path, told: Told) -> None:
    path = written(tmp_path / "j.jsonl", *ENTRIES[:3], Entry(30.0, start_estimates=PROMISED), Entry(901.0), Entry(9e4))
    for at, by in (("500", "promise"), ("501", "promise, late"), ("900", "promise, late"), ("901", "promise, passed")):
        told_of = [one["by"] for one in told("queue", path, "--start", "--at", at)["waiting"]]
        assert told_of == [by, "promise"]


def test_who_runs_is_listed_with_when_that_may_end(journal: str, said: Said, told: Told) -> None:
    [runs] = told("queue", journal, "--running")["running"]
    assert (runs["job"], runs["gpus"], runs["ran"], runs["where"]) == ("runs", 3.0, 30.0, "n0 (GPUs 0, 1, 2)")
    assert 30.0 <= runs["soonest"] <= runs["expected"] <= runs["latest"]
    assert "Running" in said("queue", journal, "--running")


def test_only_the_first_are_listed_where_that_was_asked_for(journal: str, said: Said) -> None:
    assert lines(said("queue", journal, "--limit", "1"))[-1] == "… and 2 jobs more"


def test_where_nobody_waits_that_is_said(tmp_path: Path, said: Said) -> None:
    ended = Entry(40.0, (RunFinished("runs", 1), JobCancelled("wide"), JobCancelled("narrow")))
    path = written(tmp_path / "j.jsonl", *ENTRIES[:3], ended)
    assert lines(said("queue", path, "--start"))[0] == "nobody waits at 00:00:40, under fifo; 0 runs, 4 of 4 GPUs free"


def test_a_journal_in_which_nothing_has_happened_yet_has_nobody_waiting(tmp_path: Path, said: Said) -> None:
    path = written(tmp_path / "j.jsonl")
    for more in ([], ["--start"], ["--running"]):
        assert "nobody waits at 00:00:00, under fifo; 0 runs, 4 of 4 GPUs free" in said("queue", path, *more)


def test_a_journal_is_read_while_it_is_written(tmp_path: Path, said: Said) -> None:
    path = written(tmp_path / "j.jsonl", *ENTRIES[:2])
    with Path(path).open("a", encoding="utf-8") as file:
        file.write('{"now": 20.0, "events": [{"type": "JobSub')
    assert lines(said("queue", path, "--start"))[0].startswith("1 job waits at 00:00:10")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("1h30m", 5_400.0), ("00:01:30", 90.0), ("1 d 02:00:03", 93_603.0), ("2d 1:30", 178_200.0)],
)
def test_a_moment_is_written_as_a_duration_or_as_tables_show_it(text: str, seconds: float) -> None:
    assert journal_state.moment_from_text(text) == seconds


def test_a_moment_outside_of_the_journal_is_refused(journal: str, tmp_path: Path, refuses: Said) -> None:
    assert refuses("queue", journal, "--at", "2h") == f"error: --at 2h: {journal} goes from 00:00:00 to 00:00:30\n"
    later = written(tmp_path / "later.jsonl", Entry(100.0, (JobSubmitted(NARROW),)))
    assert refuses("queue", later, "--at", "5") == f"error: --at 5: {later} goes from 00:01:40 to 00:01:40\n"
    empty = written(tmp_path / "empty.jsonl")
    assert refuses("queue", empty, "--at", "0") == f"error: --at 0: {empty} has no entries yet\n"


def test_garbage_is_refused_in_one_line(journal: str, tmp_path: Path, refuses: Said) -> None:
    assert "'yesterday' is not a moment; write it as 90s" in refuses("queue", journal, "--at", "yesterday")
    assert "cannot be read" in refuses("queue", str(tmp_path / "absent.jsonl"))
    (tmp_path / "no.jsonl").write_text("hello\n")
    assert "is not a journal" in refuses("queue", str(tmp_path / "no.jsonl"))
    unknown = written(tmp_path / "u.jsonl", *ENTRIES, policy="no-such-policy")
    assert "no policy 'no-such-policy'" in refuses("queue", unknown, "--start")
    other = written(tmp_path / "o.jsonl", *ENTRIES, policy="sjf")
    assert "decides otherwise now than it did then" in refuses("queue", other, "--start")
    assert "leave --json out" in refuses("queue", journal, "--watch", "--json")
    assert "leave --at out" in refuses("queue", journal, "--watch", "--at", "1")


def test_now_is_as_long_after_the_last_entry_as_nothing_was_written(journal: str, told: Told) -> None:
    written_at = Path(journal).stat().st_mtime
    os.utime(journal, (written_at, written_at - 1_000))
    document = told("queue", journal, "--at", "now", "--running")
    assert 1_030.0 <= document["now"] < 2_000.0
    assert document["running"][0]["ran"] == document["now"]
    os.utime(journal, (written_at, written_at + 1_000))  # by a clock that goes wrong
    assert told("queue", journal, "--at", "now")["now"] == 30.0


def test_the_policy_is_not_needed_to_know_who_waits(tmp_path: Path, said: Said) -> None:
    assert "3 jobs wait" in said("queue", written(tmp_path / "u.jsonl", *ENTRIES, policy="no-such-policy"))


def test_watching_looks_again_until_interrupted(
    journal: str, typed: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def interrupted(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(screen, "sleep", interrupted)
    result = typed("queue", journal, "--watch")
    assert result.stdout.count("3 jobs wait at") == 2
    assert looks == [2.0, 2.0]


def test_of_a_simulated_journal_any_moment_can_be_asked_about(
    jobs: Path, tmp_path: Path, said: Said, told: Told
) -> None:
    path = str(tmp_path / "las.jsonl.gz")
    said("simulate", str(jobs), "--cluster", "2x4", "--gpus-per-instance", "4", "--policy", "las", "--journal", path)
    for at in ("0", "3", "60", "120"):
        document = told("queue", path, "--at", at, "--futures", "4", "--running")
        assert all(one["expected"] >= float(at) for one in document["waiting"] + document["running"])
