"""The history that is derived from a journal."""

from __future__ import annotations

from math import isnan

import pytest
from journals import start, step, submitted

from refold.core import Entry, Header, ListJournal
from refold.core.events import (
    GpuLost,
    GpuReturned,
    JobCancelled,
    NodeLost,
    NodeReturned,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.errors import BadJournal
from refold.journal.changes import NodeChange
from refold.journal.history import History, HistoryJournal, Outcome
from refold.journal.records import Ending
from refold.policies.queueing.srtf import Srtf
from refold.simulator import simulate
from refold.testing import make_cluster, make_job

CLUSTER = make_cluster(4)


def make_history(*entries: Entry) -> History:
    return History.from_entries(CLUSTER, entries)


def outcomes(history: History) -> dict[str, Outcome]:
    return {job.id: Outcome(code) for job, code in zip(history.jobs.jobs, history.jobs.outcome, strict=True)}


def test_a_job_that_ran_once_has_one_run_from_order_to_end() -> None:
    history = make_history(
        step(5, submitted(make_job("a", at=5, work=10))), step(7, start("a")), step(17, RunFinished("a", 1))
    )
    jobs, runs = history.jobs, history.runs
    assert (jobs.submitted[0], jobs.first_start[0], jobs.ended[0], jobs.work[0]) == (5, 7, 17, 10)
    assert (runs.start[0], runs.end[0], runs.number[0], runs.ending[0]) == (7, 17, 1, Ending.FINISHED)
    assert history.runs.allocations[0].placement[0].gpus == (0,)
    assert outcomes(history) == {"a": Outcome.FINISHED}
    assert history.until == 17


def test_a_stopped_job_is_queued_again_and_resumes_from_saved_work() -> None:
    history = make_history(
        step(0, submitted(make_job("a", work=10)), start("a")),
        step(4, StopRun("a", 1)),
        step(5, RunStopped("a", 1, done=4)),
        step(8, start("a", 2)),
        step(9, RunStarted("a", 2)),
        step(15, RunFinished("a", 2)),
    )
    runs = history.runs
    assert runs.ending.tolist() == [Ending.STOPPED, Ending.FINISHED]
    assert runs.stop_ordered[0] == 4 and isnan(runs.stop_ordered[1])
    assert runs.saved_before.tolist() == [0, 4] and runs.saved[0] == 4
    assert runs.computing_since.tolist() == [0, 9]
    assert history.time_running.tolist() == [12]


def test_late_reports_have_no_effect() -> None:
    history = make_history(
        step(0, submitted(make_job("a", work=10)), start("a")),
        step(2, RunStopped("a", 1, done=2), start("a", 2)),
        step(3, RunFinished("a", 1), RunFailed("a", 1), RunStopped("a", 1, done=9), RunStarted("a", 1)),
        step(4, RunFinished("b", 1), JobCancelled("b"), submitted(make_job("a", work=99))),
        step(10, RunFinished("a", 2)),
        step(11, RunFinished("a", 2), JobCancelled("a")),
    )
    assert history.runs.end.tolist() == [2, 10]
    assert history.jobs.ended.tolist() == [10]
    assert history.jobs.work.tolist() == [10]
    assert outcomes(history) == {"a": Outcome.FINISHED}


def test_every_job_has_one_outcome() -> None:
    history = make_history(
        step(0, *(submitted(make_job(name)) for name in ("finished", "failed", "retried", "running", "waiting"))),
        step(0, submitted(make_job("never", gpus=5)), submitted(make_job("stopped")), submitted(make_job("gone"))),
        step(1, start("finished"), start("failed"), start("retried"), start("running"), start("stopped")),
        step(2, RunFinished("finished", 1), RunFailed("failed", 1), RunFailed("retried", 1, retry=True)),
        step(3, JobCancelled("gone"), JobCancelled("stopped"), StopRun("stopped", 1)),
        step(4, RunStopped("stopped", 1)),
    )
    assert outcomes(history) == {
        "finished": Outcome.FINISHED,
        "failed": Outcome.FAILED,
        "retried": Outcome.WAITING,
        "running": Outcome.RUNNING,
        "waiting": Outcome.WAITING,
        "never": Outcome.INFEASIBLE,
        "stopped": Outcome.CANCELLED,
        "gone": Outcome.CANCELLED,
    }
    ended = dict(zip(outcomes(history), history.jobs.ended.tolist(), strict=True))
    assert (ended["gone"], ended["stopped"], ended["failed"]) == (3, 4, 2)
    assert history.runs.ending.tolist() == [
        Ending.FINISHED,
        Ending.FAILED,
        Ending.FAILED,
        Ending.OPEN,
        Ending.CANCELLED,
    ]


def test_a_run_that_is_still_open_is_counted_up_to_the_end_of_the_history() -> None:
    history = make_history(step(0, submitted(make_job("a")), start("a", gpus=(0, 1))), step(9))
    assert history.time_running.tolist() == [9]
    assert history.gpu_seconds.tolist() == [18]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (start("a", node=1), "run 1 of job 'a' is on node 1, but the cluster has 1 node, numbered from 0"),
        (start("a", node=-1), "run 1 of job 'a' is on node -1"),
        (start("a", gpus=(0, 4)), r"run 1 of job 'a' is on GPUs \[0, 4\] of node 'n0', which has 4"),
        (start("a", gpus=(-1,)), r"run 1 of job 'a' is on GPUs \[-1\]"),
        (start("a", gpus=(2**70,)), "of node 'n0', which has 4"),
        (NodeLost(7), "node 7 went down at 1 s, but the cluster has"),
        (NodeReturned(-2), "node -2 came up at 1 s"),
        (GpuLost(7, 0), "node 7 went down at 1 s, but the cluster has"),
        (GpuLost(0, 4), "GPU 4 of node 'n0' went down at 1 s, but the node has 4 GPUs"),
        (GpuReturned(0, -1), "GPU -1 of node 'n0' came up at 1 s, but the node has 4 GPUs"),
    ],
)
def test_nodes_and_gpus_that_do_not_exist_are_rejected(order: StartRun | NodeLost | GpuLost, message: str) -> None:
    with pytest.raises(BadJournal, match=message):
        make_history(step(0, submitted(make_job("a"))), step(1, order))


def test_node_changes_are_recorded() -> None:
    history = make_history(step(3, NodeLost(0)), step(8, NodeReturned(0)))
    assert history.node_changes == [NodeChange(3, 0, False), NodeChange(8, 0, True)]


def test_changes_of_gpus_are_recorded() -> None:
    history = make_history(step(3, GpuLost(0, 0, "fan")), step(8, GpuReturned(0, 0)), step(9, GpuLost(0, 3)))
    assert history.node_changes == [
        NodeChange(3, 0, False, 0, "fan"),
        NodeChange(8, 0, True, 0),
        NodeChange(9, 0, False, 3),
    ]


def test_a_run_of_a_job_that_was_never_submitted_is_rejected() -> None:
    with pytest.raises(BadJournal, match="run 1 of job 'ghost', which was never submitted"):
        make_history(step(0, start("ghost")))


def test_an_empty_journal_gives_an_empty_history() -> None:
    history = make_history()
    assert (len(history.jobs), len(history.runs), history.until) == (0, 0, 0)
    assert history.time_running.tolist() == []


def test_a_history_built_while_writing_equals_one_built_from_entries() -> None:
    jobs = [make_job(f"j{n}", at=n, work=20 - n, gpus=1 + n % 4) for n in range(12)]
    entries, direct = ListJournal(), HistoryJournal()
    simulate(jobs, CLUSTER, Srtf(placement="best-fit"), journal=entries)
    for entry in entries.entries:
        direct.write(entry)
    while_writing = direct.history(Header(CLUSTER, "srtf"))
    from_entries = History.from_entries(CLUSTER, entries.entries)
    assert while_writing.runs.start.tolist() == from_entries.runs.start.tolist()
    assert while_writing.runs.end.tolist() == from_entries.runs.end.tolist()
    assert while_writing.runs.allocations == from_entries.runs.allocations
    assert set(outcomes(while_writing).values()) == {Outcome.FINISHED}
