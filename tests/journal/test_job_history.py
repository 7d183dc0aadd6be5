"""Records and changes of jobs: what a report means."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from journals import start, step, submitted

from refold.core import Entry
from refold.core.events import (
    Event,
    JobCancelled,
    JobContinued,
    JobHeld,
    JobReleased,
    NodeLost,
    NodeReturned,
    RunAdopted,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunRecalled,
    RunStarted,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.errors import BadJournal
from refold.journal.changes import Change, NodeChange
from refold.journal.job_history import JobHistories
from refold.journal.records import Ending, JobRecord, RunRecord
from refold.model import Allocation, End, Flag, Plan, Reason, StartEstimate
from refold.testing import make_job

ALLOCATION = start("a").allocation
RUNNING = (step(0, submitted(make_job("a"))), step(1, start("a")))


def changes_of(*entries: Entry, histories: JobHistories | None = None) -> list[tuple[str, ...]]:
    """Apply entries; return the changes of the last one: their names, and the runs that they are about."""
    histories = histories or JobHistories()
    changes: list[Change] = []
    for entry in entries:
        changes = histories.apply(entry)
    return [(type(change).__name__, *_run_texts(change)) for change in changes]


def _run_texts(change: Change) -> Sequence[str]:
    run = getattr(change, "run", 0)
    number = run.number if isinstance(run, RunRecord) else run
    return (f"run {number}",) if number else ()


def record_of(*entries: Entry) -> JobRecord:
    """Return the record of the first job after these entries."""
    histories = JobHistories()
    for entry in entries:
        histories.write(entry)
    return histories.jobs[0]


def test_the_record_of_a_job_that_failed_once_and_finished() -> None:
    record = record_of(
        *RUNNING,
        step(3, RunStarted("a", 1)),
        step(5, RunFailed("a", 1, "exit 1", done=2.0, retry=True, steps=20)),
        step(7, start("a", 2)),
        step(8, RunStarted("a", 2)),
        step(20, RunFinished("a", 2)),
    )
    assert record == JobRecord(
        make_job("a"),
        state="finished",
        last=RunRecord(2, ALLOCATION, 7, 5, 2.0, started=8, end=20, end_step=7, ending=Ending.FINISHED),
        runs=2,
        first_placed=1,
        first_started=3,
        ended=20,
        saved=2.0,
        steps=20,
        earlier_run_time=4.0,
        failures=1,
        why="exit 1",
    )
    assert (record.run_time, record.known_duration, record.message, record.exit_code) == (17.0, 17.0, "", 0)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([RunStarted("a", 1)], [("RunBegan", "run 1")]),
        ([RunStarted("a", 1), RunStarted("a", 1)], [("RunBegan", "run 1")]),
        ([RunStarted("a", 2), RunFinished("a", 2), RunStopped("a", 0), RunFailed("b", 1)], []),
        ([RunFinished("a", 1), RunFinished("a", 1)], [("RunEnded", "run 1"), ("JobEnded",)]),
        ([RunStopped("a", 1), RunFinished("a", 1), RunStarted("a", 1)], [("RunEnded", "run 1")]),
        ([RunFailed("a", 1), RunFailed("a", 1)], [("RunEnded", "run 1"), ("JobEnded",)]),
        ([submitted(make_job("a")), JobCancelled("b"), JobHeld("b"), JobReleased("b")], []),
        ([JobReleased("a")], []),
        ([JobHeld("a"), JobHeld("a"), JobReleased("a")], [("Held", "run 1"), ("Released", "run 1")]),
        ([JobHeld("a", Reason.BACKOFF)], []),
        ([RunAdopted("a", 2, ALLOCATION, 0.0), JobContinued("a", 7)], []),
        ([JobCancelled("a"), JobCancelled("a", "dependency failed")], [("Cancelled",)]),
        ([NodeLost(0), NodeLost(0), NodeReturned(0), NodeReturned(0)], [("NodeChange",), ("NodeChange",)]),
    ],
)
def test_late_and_duplicate_events_change_nothing(events: list[Event], expected: list[tuple[str, ...]]) -> None:
    assert changes_of(*RUNNING, step(9, *events)) == expected


def test_an_id_can_be_used_again_after_its_job_has_ended() -> None:
    histories = JobHistories()
    for entry in (*RUNNING, step(2, RunFinished("a", 1)), step(3, submitted(make_job("a", gpus=2)))):
        histories.write(entry)
    assert [(record.state, record.job.demand.total_gpus) for record in histories.jobs] == [
        ("finished", 1),
        ("waiting", 2),
    ]


@pytest.mark.parametrize("event", [JobCancelled("a"), JobHeld("a"), RunRecalled("a", 1)])
def test_the_stop_that_an_event_orders_precedes_the_end_of_the_run_in_the_same_entry(event: Event) -> None:
    histories = JobHistories()
    changes = changes_of(*RUNNING, step(9, event, RunStopped("a", 1), StopRun("a", 1)), histories=histories)
    assert changes.index(("StopOrdered", "run 1")) < changes.index(("RunEnded", "run 1"))


def test_a_restart_in_the_same_entry_is_applied_before_later_events() -> None:
    entry = step(9, RunStopped("a", 1), JobCancelled("a"), start("a", 2), StopRun("a", 2))
    assert changes_of(*RUNNING, step(8, StopRun("a", 1)), entry) == [
        ("RunEnded", "run 1"),
        ("Placed", "run 2"),
        ("Cancelled",),
        ("StopOrdered", "run 2"),
    ]


@pytest.mark.parametrize(
    ("ends", "state", "message"),
    [
        ((), "cancelled", ""),
        ((End("a", "stuck", "no progress"),), "cancelled", "stuck"),
        ((End("a", "too long", "time limit"),), "timed out", "too long"),
    ],
)
@pytest.mark.parametrize("report", [RunStopped("a", 1), RunFailed("a", 1, "exit 3"), RunFailed("a", 1, retry=True)])
def test_a_job_whose_run_ends_after_its_cancellation_is_cancelled(
    ends: tuple[End, ...], state: str, message: str, report: Event
) -> None:
    cancelled = Entry(5, () if ends else (JobCancelled("a"),), (StopRun("a", 1),), ends=ends)
    late = step(6, JobCancelled("a", "too late to be the reason"))
    record = record_of(*RUNNING, cancelled, late, step(7, report))
    assert (record.state, record.message, record.exit_code, record.known_duration) == (state, message, None, None)
    assert record.last is not None and record.last.ending is Ending.CANCELLED


def test_a_run_that_finishes_after_the_cancellation_of_its_job_has_finished() -> None:
    record = record_of(*RUNNING, step(5, JobCancelled("a"), StopRun("a", 1)), step(6, RunFinished("a", 1)))
    assert (record.state, record.message) == ("finished", "")


def test_the_end_of_a_failed_job_is_that_of_its_last_run() -> None:
    record = record_of(*RUNNING, step(9, RunFailed("a", 1, "exit 3", exit_code=3)))
    assert (record.state, record.message, record.exit_code, record.run_time) == ("failed", "exit 3", 3, 8.0)


def test_a_hold_of_a_running_job_takes_effect_when_its_run_has_ended() -> None:
    record = record_of(*RUNNING, step(5, JobHeld("a"), StopRun("a", 1)), step(6, RunStopped("a", 1, 2.0)))
    assert (record.state, record.hold, record.saved) == ("waiting", Reason.HELD, 2.0)


def test_back_off_does_not_replace_the_hold_of_a_user() -> None:
    record = record_of(*RUNNING[:1], step(5, JobHeld("a")), step(6, JobHeld("a", Reason.BACKOFF)))
    assert record.hold is Reason.HELD


def test_a_job_that_does_not_fit_the_cluster_can_neither_be_held_nor_adopted() -> None:
    histories = JobHistories(fits=lambda demand: demand.total_gpus <= 8)
    huge = step(0, submitted(make_job("a", gpus=9)), JobHeld("a"), RunAdopted("a", 1, ALLOCATION, 0.0))
    assert changes_of(huge, histories=histories) == [("Submitted",)]


def test_an_adopted_run_began_before_the_journal() -> None:
    record = record_of(
        step(
            10, submitted(make_job("a")), JobContinued("a", 3, 5.0), JobHeld("a"), RunAdopted("a", 3, ALLOCATION, -2.0)
        )
    )
    assert record == JobRecord(
        make_job("a"),
        state="running",
        last=RunRecord(3, ALLOCATION, -2.0, 1, 5.0, adopted=10),
        runs=3,
        first_placed=-2.0,
        saved=5.0,
    )


def test_a_record_of_an_earlier_epoch_is_not_changed_by_the_snapshot() -> None:
    before = record_of(*RUNNING, step(2, RunStarted("a", 1)), step(3, JobCancelled("a", "stuck"), StopRun("a", 1)))
    stored = msgspec.json.decode(msgspec.json.encode(before), type=JobRecord)
    assert stored == before
    snapshot = step(9, submitted(make_job("a")), JobContinued("a", 9, 99.0), RunAdopted("a", 1, ALLOCATION, 1.0))
    assert changes_of(snapshot, step(9, JobCancelled("a")), histories=JobHistories([stored])) == []
    assert stored == before


def test_a_lost_run_ends_and_its_job_waits_again() -> None:
    record = record_of(*RUNNING)
    record.lose_run(6.0)
    assert (record.state, record.run, record.runs, record.run_time) == ("waiting", 0, 1, 5.0)
    record.lose_run(9.0)
    assert record.run_time == 5.0


def test_a_warning_lasts_until_the_run_has_ended() -> None:
    flagged = Entry(4, flags=(Flag("a", "silent for 10 min"),))
    assert record_of(*RUNNING, flagged).warning == "silent for 10 min"
    assert record_of(*RUNNING, flagged, step(5, RunStopped("a", 1))).warning == ""


def test_node_changes_are_returned_once() -> None:
    histories = JobHistories()
    assert histories.apply(step(3, NodeLost(1), NodeLost(1))) == [NodeChange(3, 1, False)]
    assert histories.apply(step(4, NodeLost(1))) == []


def test_ended_jobs_are_forgotten_when_changes_are_read() -> None:
    histories = JobHistories()
    for entry in (*RUNNING, step(2, RunFinished("a", 1))):
        histories.apply(entry)
    assert (histories.records, histories.jobs, histories.runs) == ({}, [], [])


def test_an_estimate_for_a_job_that_was_never_submitted_is_rejected() -> None:
    with pytest.raises(BadJournal, match="start estimate for job 'ghost', which was never submitted"):
        record_of(Entry(0, start_estimates=(StartEstimate("ghost", 1.0),)))


@pytest.mark.parametrize(
    ("events", "steps"),
    [
        ([RunProgressed("a", 1, steps=5)], 5),
        ([RunProgressed("a", 1, steps=5), RunProgressed("a", 1, steps=3)], 5),
        ([RunProgressed("a", 1, steps=5), RunProgressed("a", 2, steps=9)], 5),
        ([RunProgressed("a", 1, done=3.0)], 0),
        ([RunProgressed("a", 1, steps=5), RunFinished("a", 1), RunProgressed("a", 1, steps=9)], 5),
        ([RunProgressed("a", 1, steps=5), RunStopped("a", 1)], 5),
        ([RunProgressed("a", 1, steps=5), RunStopped("a", 1, steps=4)], 4),
        ([RunFailed("a", 1, "exit 1", steps=6)], 6),
    ],
)
def test_the_steps_of_a_job_are_those_last_reported_by_its_current_run(events: list[Event], steps: int) -> None:
    assert record_of(*RUNNING, step(2, RunStarted("a", 1)), step(3, *events)).steps == steps


def test_a_job_from_before_the_journal_keeps_its_steps() -> None:
    assert record_of(step(0, submitted(make_job("a")), JobContinued("a", runs=2, done=9.0, steps=7))).steps == 7


def test_a_record_has_the_plan_in_use_if_a_job_cannot_use_the_one_that_was_ordered() -> None:
    allocation = Allocation(ALLOCATION.placement, Plan(tensor=2))
    started = (step(0, submitted(make_job("a"))), step(1, StartRun("a", 1, allocation)))
    progress = step(
        2, RunProgressed("a", 1, steps=1, plan=Plan(data=2)), RunProgressed("a", 1, steps=2, plan=Plan(data=2))
    )
    assert changes_of(*started, progress) == [("PlanReplaced", "run 1")]
    record = record_of(*started, progress)
    assert record.last is not None
    assert record.last.allocation == Allocation(ALLOCATION.placement, Plan(data=2))
