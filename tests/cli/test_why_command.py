"""`refold why`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from journals import write_entries

from refold.core import Entry, Header
from refold.core.events import JobCancelled, JobSubmitted, RunFailed, RunFinished, RunProgressed, RunStarted, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.model import (
    Allocation,
    Demand,
    End,
    Flag,
    Job,
    Level,
    Plan,
    Reason,
    Share,
    Shortage,
    StartEstimate,
    TopologyRequest,
    Wait,
)
from refold.placement import FreeResources
from refold.testing import make_cluster, make_job

TextOf = Callable[..., str]
JsonOf = Callable[..., Any]

TRAIN = make_job("train", gpus=4, work=100.0, tenant="A", reshapable=True, workload="gpt2", plan=Plan(4), steps=1_000)
TRIAL = make_job("trial", at=5.0)


def on(*gpus: int, node: int = 0, plan: Plan | None = None) -> Allocation:
    return Allocation((Share(node, gpus),), plan)


FULL = Shortage(nodes=2, too_few_gpus=2)
ENTRIES = (
    Entry(0, (JobSubmitted(TRAIN),), waits=(Wait("train", Reason.PRIORITY, ahead=2),)),
    Entry(30, waits=(Wait("train", Reason.RESOURCES, shortage=FULL), Wait("other", Reason.PRIORITY))),
    Entry(60, waits=(Wait("train", Reason.RESOURCES, shortage=FULL),)),
    Entry(90, orders=(StartRun("train", 1, on(0, 1, 2, 3)),)),
    Entry(100, (RunStarted("train", 1), JobSubmitted(TRIAL)), (StartRun("trial", 1, on(0, node=1)),)),
    Entry(120, (RunFinished("trial", 1),), (StopRun("train", 1, "half as many GPUs are as fast"),)),
    Entry(130, (RunStopped("train", 1, 20.0, 200),), (StartRun("train", 2, on(0, 1, plan=Plan(1, 2))),)),
    Entry(150, (RunFailed("train", 2, "node lost", 20.0, True),)),
    Entry(86_490, orders=(StartRun("train", 3, on(3, node=1)),)),
    Entry(86_590, (RunFinished("train", 3),)),
)


def write_journal(path: Path, *entries: Entry) -> str:
    return write_entries(path, Header(make_cluster(4, 4), "las"), entries)


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return write_journal(tmp_path / "j.jsonl", *ENTRIES)


def test_the_timeline_of_a_job(journal: str, stdout_of: TextOf) -> None:
    lines = [" ".join(line.split()) for line in stdout_of("why", journal, "train").splitlines() if line.strip()]
    assert lines == [
        "train, policy las",
        "time event details",
        "00:00:00 submitted 4 GPUs, gpt2, DP4, guaranteed, tenant A, 1,000 steps, 1 min 40 s of work, reshapable",
        "00:01:30 waited 1 min 30 s: Resources × 2, Priority × 1; "
        "last: 0 of 2 nodes fit: 2 have fewer than 4 free GPUs",
        "00:01:30 started 4 GPUs, DP4, on n0 (GPUs 0, 1, 2, 3)",
        "00:01:40 running after 10 s of start-up",
        "00:02:00 stop requested half as many GPUs are as fast; "
        "restarted after 10 s: 2 GPUs, DP1 TP2, on n0 (GPUs 0, 1)",
        "00:02:10 stopped with 200 steps done",
        "00:02:10 started 2 GPUs, DP1 TP2, on n0 (GPUs 0, 1)",
        "00:02:30 failed node lost; requeued with 20 s of work done",
        "1 d 00:01:30 waited 23 h 59 min; no reason recorded",
        "1 d 00:01:30 started 1 GPU, DP4, on n1 (GPU 3)",
        "1 d 00:03:10 finished 1 d after submission",
    ]


def test_the_timeline_as_json(journal: str, json_of: JsonOf) -> None:
    document = json_of("why", journal, "train")
    assert (document["job"]["id"], document["policy"]) == ("train", "las")
    stop = next(one for one in document["events"] if one["event"] == "stop requested")
    assert (stop["at"], stop["run"], stop["reason"]) == (120, 1, "half as many GPUs are as fast")
    assert stop["next"] == {"run": 2, "gpus": 2.0, "plan": "DP1 TP2", "placement": "n0 (GPUs 0, 1)"}


def test_a_job_that_did_not_wait_has_no_waiting_entry(journal: str, json_of: JsonOf) -> None:
    assert [one["event"] for one in json_of("why", journal, "trial")["events"]] == ["submitted", "started", "finished"]


@pytest.mark.parametrize(("entries", "state"), [(3, "waiting"), (5, "running"), (8, "waiting")])
def test_the_last_entry_is_the_state_at_the_end_of_the_journal(
    entries: int, state: str, tmp_path: Path, json_of: JsonOf
) -> None:
    last = json_of("why", write_journal(tmp_path / "j.jsonl", *ENTRIES[:entries]), "train")["events"][-1]
    assert (last["event"], last["text"]) == ("journal ends", f"job is still {state}")


def test_a_cancelled_job_does_not_wait_again(tmp_path: Path, json_of: JsonOf) -> None:
    cancelled = Entry(110, (JobCancelled("train"),), (StopRun("train", 1, "cancelled"),))
    stopped = Entry(111, (RunStopped("train", 1),))
    events = json_of("why", write_journal(tmp_path / "j.jsonl", *ENTRIES[:5], cancelled, stopped), "train")["events"]
    assert [one["event"] for one in events][-3:] == ["cancelled", "stop requested", "stopped"]


def test_without_a_job_those_with_the_most_runs_are_listed(journal: str, stdout_of: TextOf, json_of: JsonOf) -> None:
    assert "4 → 2 → 1" in stdout_of("why", journal)
    assert json_of("why", journal)["jobs"] == [
        {"job": "train", "runs": 3, "stopped": 1, "failed": 1, "gpus": [4.0, 2.0, 1.0], "waited": 86_430.0}
    ]


def test_a_footnote_says_that_no_job_was_restarted(tmp_path: Path, stdout_of: TextOf) -> None:
    assert "no job was started more than once" in stdout_of("why", write_journal(tmp_path / "j.jsonl", *ENTRIES[:6]))


def test_an_unknown_job_gives_the_most_similar_one(journal: str, error_of: TextOf) -> None:
    assert (
        error_of("why", journal, "trane") == "error: unknown job 'trane'; did you mean 'train'? (known: train, trial)\n"
    )


def test_every_run_of_a_simulated_journal_is_shown(
    jobs: Path, tmp_path: Path, stdout_of: TextOf, json_of: JsonOf
) -> None:
    path = str(tmp_path / "las.jsonl.gz")
    policy = ("--policy", "las", "--set", "threshold_gpu_seconds=20", "--preemption", "always")
    costs = ("--start-cost", "2s", "--stop-cost", "1s", "--restart-cost", "2s")
    cluster = ("--cluster", "2x4", "--gpus-per-instance", "4")
    stdout_of("simulate", str(jobs), *cluster, *policy, *costs, "--journal", path)
    [most, *_] = json_of("why", path)["jobs"]
    events = [one["event"] for one in json_of("why", path, most["job"])["events"]]
    assert (events.count("started"), events.count("stopped"), events[-1]) == (
        most["runs"],
        most["stopped"],
        "finished",
    )


def test_a_late_report_of_an_ended_run_is_ignored(tmp_path: Path, json_of: JsonOf) -> None:
    late = write_journal(
        tmp_path / "late.jsonl",
        Entry(0.0, (JobSubmitted(TRIAL),), (StartRun("trial", 1, on(0)),)),
        Entry(5.0, (RunFinished("trial", 1),)),
        Entry(9.0, (RunFailed("trial", 1, "late"), RunStopped("trial", 1))),
    )
    assert [one["event"] for one in json_of("why", late, "trial")["events"]] == ["submitted", "started", "finished"]


def test_an_infeasible_job_is_reported(tmp_path: Path, stdout_of: TextOf) -> None:
    huge = write_journal(tmp_path / "never.jsonl", Entry(0.0, (JobSubmitted(make_job("huge", gpus=8)),)), Entry(9.0))
    assert "does not fit the empty cluster" in " ".join(stdout_of("why", huge, "huge").split())


def test_a_gang_that_no_domain_has_room_for_says_how_much_fits_there_and_anywhere(
    tmp_path: Path, stdout_of: TextOf
) -> None:
    """Three racks of four nodes; one node of each is in use."""
    cluster = make_cluster(*[4] * 12).with_levels([Level("rack")], [[f"r{number // 4}"] for number in range(12)])
    job = Job("wide", demand=Demand(4, 4, topology=TopologyRequest("rack")))
    free = FreeResources(cluster)
    free.take(tuple(Share(node, (0,)) for node in (0, 4, 8)))
    wait = Wait("wide", Reason.RESOURCES, shortage=free.shortage(job.demand))
    path = write_entries(
        tmp_path / "racks.jsonl",
        Header(cluster, "fifo"),
        (Entry(0.0, (JobSubmitted(job),)), Entry(1.0, waits=(wait,)), Entry(9.0)),
    )
    text = " ".join(stdout_of("why", path, "wide").split())
    assert "3 of 4 instances fit in one rack, 4 in any domains: 3 have fewer than 4 free GPUs" in text


def start_estimate(job: str, at: float, soonest: float | None, latest: float | None) -> tuple[StartEstimate, ...]:
    return (StartEstimate(job, at, soonest, latest),)


def test_start_bounds_are_shown_with_their_outcome(tmp_path: Path, stdout_of: TextOf) -> None:
    path = write_journal(
        tmp_path / "start_estimate.jsonl",
        Entry(0.0, (JobSubmitted(TRAIN),), start_estimates=start_estimate("train", 60.0, 30.0, 120.0)),
        Entry(50.0, start_estimates=start_estimate("train", 55.0, 50.0, 110.0)),  # an earlier bound is not shown
        Entry(100.0, start_estimates=start_estimate("train", 160.0, 150.0, 300.0)),
        Entry(150.0, orders=(StartRun("train", 1, on(0, 1, 2, 3)),)),
        Entry(200.0, orders=(StopRun("train", 1, "for others"),)),
        Entry(201.0, (RunStopped("train", 1, 20.0),), start_estimates=start_estimate("train", 260.0, None, 600.0)),
        Entry(260.0, orders=(StartRun("train", 2, on(0, 1, 2, 3)),)),
    )
    lines = [" ".join(line.split()) for line in stdout_of("why", path, "train").splitlines() if line.strip()]
    assert [line for line in lines if "bound" in line] == [
        "00:00:00 start bound start at 00:01:00, between 00:00:30 and 00:02:00",
        "00:01:40 bound postponed start at 00:02:40, between 00:02:30 and 00:05:00",
        "00:02:30 bound missed 30 s after the bound, 1 min 30 s later than estimated",
        "00:03:21 start bound start at 00:04:20, not after 00:10:00",
        "00:04:20 bound met exactly as estimated",
    ]


def test_a_missed_bound_is_shown_while_the_job_waits(tmp_path: Path, json_of: JsonOf) -> None:
    entry = Entry(0.0, (JobSubmitted(TRAIN),), start_estimates=start_estimate("train", 60.0, None, 120.0))

    def events_at(end: float) -> list[str]:
        path = write_journal(tmp_path / f"{end:g}.jsonl", entry, Entry(end))
        return [one["event"] for one in json_of("why", path, "train")["events"]]

    before_bound, after_bound = events_at(90.0), events_at(130.0)
    assert before_bound == ["submitted", "start bound", "waited", "journal ends"]
    assert after_bound == ["submitted", "start bound", "waited", "bound missed", "journal ends"]


def test_an_estimate_without_a_bound_is_shown_as_an_estimate(tmp_path: Path, json_of: JsonOf) -> None:
    path = write_journal(
        tmp_path / "expected.jsonl",
        Entry(0.0, (JobSubmitted(TRAIN),), start_estimates=start_estimate("train", 60.0, None, None)),
        Entry(50.0, orders=(StartRun("train", 1, on(0, 1, 2, 3)),)),
    )
    events = [(one["event"], one["text"]) for one in json_of("why", path, "train")["events"]]
    assert events[1] == ("start estimate", "start at 00:01:00")
    assert events[3] == ("waited", "10 s earlier than estimated")


def test_a_run_that_was_flagged_and_ended_by_a_rule_does_not_wait_again(tmp_path: Path, json_of: JsonOf) -> None:
    why = "no progress for 10 min"
    path = write_journal(
        tmp_path / "ended.jsonl",
        Entry(0.0, (JobSubmitted(TRIAL),), (StartRun("trial", 1, on(0)),)),
        Entry(600.0, flags=(Flag("trial", f"{why}; it is ended in 5 min"),)),
        Entry(900.0, orders=(StopRun("trial", 1, why),), ends=(End("trial", why),)),
        Entry(905.0, (RunStopped("trial", 1, 3.0),)),
    )
    assert [(one["event"], one["reason"]) for one in json_of("why", path, "trial")["events"][1:]] == [
        ("started", None),
        ("flagged", f"{why}; it is ended in 5 min"),
        ("end requested", why),
        ("stopped", None),
    ]


def test_the_plan_in_use_is_shown_if_a_job_cannot_use_the_chosen_one(tmp_path: Path, stdout_of: TextOf) -> None:
    entries = (
        Entry(0, (JobSubmitted(TRAIN),), (StartRun("train", 1, on(0, 1, plan=Plan(1, 2))),)),
        *(Entry(at, (RunProgressed("train", 1, steps=at, plan=Plan(2, zero=1)),)) for at in (5, 6)),
        Entry(9, (RunFinished("train", 1),)),
    )
    lines = stdout_of("why", write_journal(tmp_path / "j.jsonl", *entries), "train").splitlines()
    assert [" ".join(line.split()) for line in lines if "plan" in line] == [
        "00:00:05 plan replaced DP2 ZeRO-1; the job cannot use DP1 TP2"
    ]
