"""`refold why`, as it is typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.core import Entry, Header
from refold.core.events import JobCancelled, JobSubmitted, RunFailed, RunFinished, RunStarted, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.journal.files import JournalFile
from refold.model import Allocation, End, Flag, Plan, Reason, Share, Shortage, StartEstimate, Wait
from refold.testing import make_cluster, make_job

Said = Callable[..., str]
Told = Callable[..., Any]

TRAINED = make_job("train", gpus=4, work=100.0, tenant="A", reshapable=True, workload="gpt2", plan=Plan(4), steps=1_000)
OTHER = make_job("trial", at=5.0)


def on(*gpus: int, node: int = 0, plan: Plan | None = None) -> Allocation:
    return Allocation((Share(node, gpus),), plan)


FULL = Shortage(nodes=2, few_gpus=2)
ENTRIES = (
    Entry(0, (JobSubmitted(TRAINED),), waits=(Wait("train", Reason.AHEAD, ahead=2),)),
    Entry(30, waits=(Wait("train", Reason.RESOURCES, shortage=FULL), Wait("other", Reason.AHEAD))),
    Entry(60, waits=(Wait("train", Reason.RESOURCES, shortage=FULL),)),
    Entry(90, orders=(StartRun("train", 1, on(0, 1, 2, 3)),)),
    Entry(100, (RunStarted("train", 1), JobSubmitted(OTHER)), (StartRun("trial", 1, on(0, node=1)),)),
    Entry(120, (RunFinished("trial", 1),), (StopRun("train", 1, "half as many GPUs are as fast"),)),
    Entry(130, (RunStopped("train", 1, 20.0, 200),), (StartRun("train", 2, on(0, 1, plan=Plan(1, 2))),)),
    Entry(150, (RunFailed("train", 2, "node lost", 20.0, True),)),
    Entry(86_490, orders=(StartRun("train", 3, on(3, node=1)),)),
    Entry(86_590, (RunFinished("train", 3),)),
)


def written(path: Path, *entries: Entry) -> str:
    with JournalFile(path, Header(make_cluster(4, 4), "las")) as file:
        for entry in entries:
            file.write(entry)
    return str(path)


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return written(tmp_path / "j.jsonl", *ENTRIES)


def test_the_story_of_a_job_line_by_line(journal: str, said: Said) -> None:
    lines = [" ".join(line.split()) for line in said("why", journal, "train").splitlines() if line.strip()]
    assert lines == [
        "train, under las",
        "at",
        "00:00:00 submitted 4 GPU, gpt2, DP4, guaranteed, tenant A, 1,000 steps, 1 min 40 s of work, reshapable",
        "00:01:30 waited 1 min 30 s: Resources × 2, Ahead × 1; at last: 0 of 2 nodes fit: 2 × less than 4 GPUs free",
        "00:01:30 started 4 GPUs, DP4, on n0 (GPUs 0, 1, 2, 3)",
        "00:01:40 computes after 10 s of starting up",
        "00:02:00 told to stop half as many GPUs are as fast; next, after 10 s: 2 GPUs, DP1 TP2, on n0 (GPUs 0, 1)",
        "00:02:10 stopped with 200 steps done",
        "00:02:10 started 2 GPUs, DP1 TP2, on n0 (GPUs 0, 1)",
        "00:02:30 failed node lost; it waits again, with 20 s of work done",
        "1 d 00:01:30 waited 23 h 59 min; no reason was said",
        "1 d 00:01:30 started 1 GPU, DP4, on n1 (GPU 3)",
        "1 d 00:03:10 finished 1 d after it was submitted",
    ]


def test_the_same_for_programs(journal: str, told: Told) -> None:
    document = told("why", journal, "train")
    assert (document["job"]["id"], document["policy"]) == ("train", "las")
    stop = next(one for one in document["events"] if one["event"] == "told to stop")
    assert (stop["at"], stop["run"], stop["why"]) == (120, 1, "half as many GPUs are as fast")
    assert stop["next"] == {"run": 2, "gpus": 2.0, "plan": "DP1 TP2", "where": "n0 (GPUs 0, 1)"}


def test_a_job_that_did_not_wait_has_nothing_said_of_it(journal: str, told: Told) -> None:
    assert [one["event"] for one in told("why", journal, "trial")["events"]] == ["submitted", "started", "finished"]


@pytest.mark.parametrize(("entries", "still"), [(3, "waits"), (5, "runs"), (8, "waits")])
def test_a_journal_that_ends_before_the_job_says_how_it_stands(
    entries: int, still: str, tmp_path: Path, told: Told
) -> None:
    last = told("why", written(tmp_path / "j.jsonl", *ENTRIES[:entries]), "train")["events"][-1]
    assert (last["event"], last["text"]) == ("the end", f"of the journal; it still {still}")


def test_a_cancelled_job_does_not_wait_again(tmp_path: Path, told: Told) -> None:
    cancelled = Entry(110, (JobCancelled("train"),), (StopRun("train", 1, "cancelled"),))
    stopped = Entry(111, (RunStopped("train", 1),))
    events = told("why", written(tmp_path / "j.jsonl", *ENTRIES[:5], cancelled, stopped), "train")["events"]
    assert [one["event"] for one in events][-3:] == ["cancelled", "told to stop", "stopped"]


def test_without_a_job_those_with_the_most_runs_are_listed(journal: str, said: Said, told: Told) -> None:
    assert "4 → 2 → 1" in said("why", journal)
    assert told("why", journal)["jobs"] == [
        {"job": "train", "runs": 3, "stopped": 1, "failed": 1, "gpus": [4.0, 2.0, 1.0], "waited": 86_430.0}
    ]


def test_where_nobody_was_changed_that_is_said(tmp_path: Path, said: Said) -> None:
    assert "no job was started more than once" in said("why", written(tmp_path / "j.jsonl", *ENTRIES[:6]))


def test_an_unknown_job_is_told_with_the_nearest(journal: str, refuses: Said) -> None:
    assert refuses("why", journal, "trane") == "error: no job 'trane'; did you mean 'train'? (train, trial)\n"


def test_of_a_real_journal_every_run_is_told(jobs: Path, tmp_path: Path, said: Said, told: Told) -> None:
    path = str(tmp_path / "las.jsonl.gz")
    options = ("--policy", "las", "--set", "threshold_gpu_seconds=20", "--start-cost", "2s", "--stop-cost", "1s")
    said("simulate", str(jobs), "--cluster", "2x4", "--gpus-per-instance", "4", *options, "--journal", path)
    [most, *_] = told("why", path)["jobs"]
    events = [one["event"] for one in told("why", path, most["job"])["events"]]
    assert (events.count("started"), events.count("stopped"), events[-1]) == (
        most["runs"],
        most["stopped"],
        "finished",
    )


def test_a_report_about_a_run_that_is_over_is_not_told(tmp_path: Path, told: Told) -> None:
    late = written(
        tmp_path / "late.jsonl",
        Entry(0.0, (JobSubmitted(OTHER),), (StartRun("trial", 1, on(0)),)),
        Entry(5.0, (RunFinished("trial", 1),)),
        Entry(9.0, (RunFailed("trial", 1, "late"), RunStopped("trial", 1))),
    )
    assert [one["event"] for one in told("why", late, "trial")["events"]] == ["submitted", "started", "finished"]


def test_a_job_that_never_fits_is_told_so(tmp_path: Path, said: Said) -> None:
    huge = written(tmp_path / "never.jsonl", Entry(0.0, (JobSubmitted(make_job("huge", gpus=8)),)), Entry(9.0))
    assert "the whole cluster, empty, has no room for it" in " ".join(said("why", huge, "huge").split())


def promised(job: str, at: float, soonest: float | None, latest: float | None) -> tuple[StartEstimate, ...]:
    return (StartEstimate(job, at, soonest, latest),)


def test_what_a_job_was_promised_is_told_with_what_came_of_it(tmp_path: Path, said: Said) -> None:
    path = written(
        tmp_path / "promised.jsonl",
        Entry(0.0, (JobSubmitted(TRAINED),), start_estimates=promised("train", 60.0, 30.0, 120.0)),
        Entry(50.0, start_estimates=promised("train", 55.0, 50.0, 110.0)),  # sooner: nobody minds
        Entry(100.0, start_estimates=promised("train", 160.0, 150.0, 300.0)),
        Entry(150.0, orders=(StartRun("train", 1, on(0, 1, 2, 3)),)),
        Entry(200.0, orders=(StopRun("train", 1, "for others"),)),
        Entry(201.0, (RunStopped("train", 1, 20.0),), start_estimates=promised("train", 260.0, None, 600.0)),
        Entry(260.0, orders=(StartRun("train", 2, on(0, 1, 2, 3)),)),
    )
    lines = [" ".join(line.split()) for line in said("why", path, "train").splitlines() if line.strip()]
    assert [line for line in lines if "promise" in line or "renewed" in line] == [
        "00:00:00 promised to start at 00:01:00, between 00:00:30 and 00:02:00",
        "00:01:40 renewed to start at 00:02:40, between 00:02:30 and 00:05:00",
        "00:02:30 promise broken 30 s after its bound, 1 min 30 s later than expected",
        "00:03:21 promised to start at 00:04:20, not after 00:10:00",
        "00:04:20 promise kept just when it was expected",
    ]


def test_a_promise_that_has_passed_is_told_while_its_job_waits(tmp_path: Path, told: Told) -> None:
    entry = Entry(0.0, (JobSubmitted(TRAINED),), start_estimates=promised("train", 60.0, None, 120.0))
    waits = [one["event"] for one in told("why", written(tmp_path / "a.jsonl", entry, Entry(90.0)), "train")["events"]]
    broken = [
        one["event"] for one in told("why", written(tmp_path / "b.jsonl", entry, Entry(130.0)), "train")["events"]
    ]
    assert waits == ["submitted", "promised", "waited", "the end"]
    assert broken == ["submitted", "promised", "waited", "promise broken", "the end"]


def test_what_is_expected_without_a_bound_is_no_promise(tmp_path: Path, told: Told) -> None:
    path = written(
        tmp_path / "expected.jsonl",
        Entry(0.0, (JobSubmitted(TRAINED),), start_estimates=promised("train", 60.0, None, None)),
        Entry(50.0, orders=(StartRun("train", 1, on(0, 1, 2, 3)),)),
    )
    told_of = [(one["event"], one["text"]) for one in told("why", path, "train")["events"]]
    assert told_of[1] == ("expected", "to start at 00:01:00")
    assert told_of[3] == ("waited", "10 s sooner than expected")


def test_a_run_that_was_flagged_and_ended_by_a_rule_does_not_wait_again(tmp_path: Path, told: Told) -> None:
    why = "no progress for 10 min"
    path = written(
        tmp_path / "ended.jsonl",
        Entry(0.0, (JobSubmitted(OTHER),), (StartRun("trial", 1, on(0)),)),
        Entry(600.0, flags=(Flag("trial", f"{why}; it is ended in 5 min"),)),
        Entry(900.0, orders=(StopRun("trial", 1, why),), ends=(End("trial", why),)),
        Entry(905.0, (RunStopped("trial", 1, 3.0),)),
    )
    assert [(one["event"], one["why"]) for one in told("why", path, "trial")["events"][1:]] == [
        ("started", None),
        ("flagged", f"{why}; it is ended in 5 min"),
        ("told to end", why),
        ("stopped", None),
    ]
