"""A list of jobs on the live loop, without real delays: what the scheduler is told, and when the loop ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from live_setups import TIMEOUT_SECONDS, JumpingClock, ScriptedBackend, ignore_step, run_instantly
from msgspec.structs import replace

from refold.core import Entry, Header, ListJournal, Policy, Scheduler, View
from refold.core.events import Event, JobCancelled, JobSubmitted, RunFailed, RunFinished, RunStarted, RunStopped, Woke
from refold.core.orders import Order, StartRun, StopRun
from refold.engines.local.backend import local_cluster
from refold.errors import BadDecision
from refold.journal.files import JournalFile, check_replay, read_journal
from refold.model import Allocation, Decision, End, Job, Share, Start
from refold.policies.queueing.fifo import Fifo
from refold.policies.queueing.las import Las
from refold.server.batch import BatchRun, JobOutcome, JournalLog
from refold.server.clock import WallClock
from refold.server.store.store import Commit
from refold.server.subscribers import LoopStep
from refold.testing import make_job

ON_SLOT_0 = Allocation((Share(0, (0,)),))


class FunctionPolicy:
    """A policy made from a function."""

    name = "function"

    def __init__(self, decide: Callable[[View], Decision]) -> None:
        self.decide = decide


def make_batch(policy: Policy, jobs: Sequence[Job], journal: ListJournal) -> BatchRun:
    cluster = local_cluster(1)
    header = Header(cluster, policy.name, {})
    return BatchRun(jobs, Scheduler(cluster, policy), header, journal, WallClock(), ignore_step)


def test_events_reach_the_scheduler_in_time_and_orders_are_carried_out() -> None:
    jobs = [make_job("second", at=5.0), make_job("first")]
    entries, _, backend = asyncio.run(run_instantly(Fifo(), jobs))
    assert [(entry.now, entry.events) for entry in entries] == [
        (0.0, (JobSubmitted(jobs[1]),)),
        (0.0, (RunStarted("first", 1), RunFinished("first", 1))),
        (5.0, (JobSubmitted(jobs[0]),)),
        (5.0, (RunStarted("second", 1), RunFinished("second", 1))),
    ]
    assert backend.carried_out == [StartRun("first", 1, ON_SLOT_0), StartRun("second", 1, ON_SLOT_0)]
    assert backend.closed


def test_a_policy_is_woken_at_wake_at() -> None:
    jobs = [make_job("long"), make_job("short", at=1.0)]

    def finish_second_run(batch: BatchRun, entry: Entry) -> None:
        if StartRun("long", 2, ON_SLOT_0) in entry.orders:
            batch.report(RunFinished("long", 2))

    las = Las(threshold_gpu_seconds=10.0)
    entries, _, _ = asyncio.run(run_instantly(las, jobs, keep_running=["long"], after_step=finish_second_run))
    woken = [entry for entry in entries if Woke() in entry.events]
    assert [(entry.now, entry.orders) for entry in woken] == [(10.0, (StopRun("long", 1, "las: preempted for short"),))]


def test_the_loop_ends_if_no_waiting_job_can_ever_start() -> None:
    _, view, backend = asyncio.run(run_instantly(FunctionPolicy(lambda _: Decision()), [make_job("job")]))
    assert list(view.waiting) == ["job"]
    assert backend.closed


def test_the_loop_does_not_wait_for_an_infeasible_job() -> None:
    _, view, _ = asyncio.run(run_instantly(Fifo(), [make_job("huge", gpus=9), make_job("job")]))
    assert list(view.infeasible) == ["huge"]
    assert not view.waiting


def test_without_jobs_nothing_is_written() -> None:
    entries, _, backend = asyncio.run(run_instantly(Fifo(), []))
    assert (entries, backend.closed) == ([], True)


def test_a_bad_decision_is_rejected_and_the_loop_continues() -> None:
    refused: list[BadDecision] = []

    def start_twice_on_one_slot(view: View) -> Decision:
        if len(view.waiting) > 1 and not refused:
            return Decision(starts=tuple(Start(job_id, ON_SLOT_0) for job_id in view.waiting), wake_at=view.now + 1)
        first = next(iter(view.waiting), None)
        free = first is not None and not view.runs
        return Decision(starts=(Start(first, ON_SLOT_0),)) if first and free else Decision(wake_at=view.now + 1)

    jobs = [make_job("a"), make_job("b"), make_job("c", at=1.0)]
    policy = FunctionPolicy(start_twice_on_one_slot)
    entries, _, backend = asyncio.run(run_instantly(policy, jobs, on_rejection=refused.append))
    assert [refusal.rule for refusal in refused] == ["free"]
    assert entries[0].rejection
    assert [order.job for order in backend.carried_out] == ["a", "b", "c"]


def test_cancel_all_stops_runs_and_starts_nothing_more() -> None:
    jobs = [make_job("running"), make_job("waiting"), make_job("huge", gpus=9), make_job("later", at=100.0)]

    def cancel_once_it_runs(batch: BatchRun, entry: Entry) -> None:
        if RunStarted("running", 1) in entry.events:
            batch.cancel_all()

    run = run_instantly(Fifo(), jobs, keep_running=["running"], after_step=cancel_once_it_runs)
    entries, view, _ = asyncio.run(run)
    assert [(entry.events, entry.orders) for entry in entries[2:]] == [
        ((JobCancelled("waiting"), JobCancelled("running")), (StopRun("running", 1, "cancelled"),)),
        ((RunStopped("running", 1),), ()),
    ]
    assert not (view.waiting or view.runs)
    assert list(view.infeasible) == ["huge"]


def test_cancel_all_ends_the_loop_at_once_if_all_jobs_are_still_to_be_submitted() -> None:
    async def main() -> list[Entry]:
        journal = ListJournal()
        batch = make_batch(Fifo(), [make_job("later", at=3600.0)], journal)
        running = asyncio.create_task(batch.run(ScriptedBackend(batch.report)))
        await asyncio.sleep(0.01)
        batch.cancel_all()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await running
        return journal.entries

    assert asyncio.run(main()) == []


class RunsUntilClosed(ScriptedBackend):
    """A backend whose runs end only when it is closed."""

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        for order in orders:
            if isinstance(order, StartRun):
                self.carried_out.append(order)
                self._report(RunStarted(order.job, order.run))

    async def close(self) -> None:
        await super().close()
        for order in self.carried_out:
            self._report(RunStopped(order.job, order.run))
        self.carried_out.clear()


def test_if_the_caller_is_cancelled_the_runs_are_killed_and_their_ends_recorded() -> None:
    async def main() -> list[Entry]:
        journal = ListJournal()
        batch = make_batch(Fifo(), [make_job("running"), make_job("waiting")], journal)
        running = asyncio.create_task(batch.run(RunsUntilClosed(batch.report)))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not any(RunStarted("running", 1) in entry.events for entry in journal.entries):
                await asyncio.sleep(0.001)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        return journal.entries

    events = [event for entry in asyncio.run(main()) for event in entry.events]
    assert events[3:] == [JobCancelled("waiting"), JobCancelled("running"), RunStopped("running", 1)]


def test_reports_may_come_from_any_thread() -> None:
    class Threaded(ScriptedBackend):
        async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
            for order in orders:
                threading.Timer(0.05, self._report, (RunFinished(order.job, order.run),)).start()

    async def main() -> ListJournal:
        journal = ListJournal()
        batch = make_batch(Fifo(), [make_job("job")], journal)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await batch.run(Threaded(batch.report))
        return journal

    assert asyncio.run(main()).entries[-1].events == (RunFinished("job", 1),)


def test_the_backend_is_closed_if_the_policy_raises() -> None:
    def raise_error(view: View) -> Decision:
        raise ZeroDivisionError

    async def main() -> ScriptedBackend:
        batch = make_batch(FunctionPolicy(raise_error), [make_job("job")], ListJournal())
        backend = ScriptedBackend(batch.report)
        with pytest.raises(ZeroDivisionError):
            await batch.run(backend)
        return backend

    assert asyncio.run(main()).closed


def test_nothing_is_started_whose_entry_cannot_be_written() -> None:
    class FullDisk(ListJournal):
        def write(self, entry: Entry) -> None:
            raise OSError("no space left on device")

    async def main() -> ScriptedBackend:
        batch = make_batch(Fifo(), [make_job("job")], FullDisk())
        backend = ScriptedBackend(batch.report)
        with pytest.raises(OSError, match="no space left"):
            await batch.run(backend)
        return backend

    backend = asyncio.run(main())
    assert (backend.carried_out, backend.closed) == ([], True)


def test_a_journal_log_writes_the_entries_and_nothing_else() -> None:
    journal = ListJournal()
    log = JournalLog(journal)
    entries = [Entry(1.0), Entry(2.0, (JobSubmitted(make_job("job")),))]
    for number, entry in enumerate(entries, start=1):
        log.commit(Commit(number, entry))
    assert journal.entries == entries


def test_the_journal_replays(tmp_path: Path) -> None:
    cluster = local_cluster(1)
    header = Header(cluster, "fifo", {})
    jobs = [make_job(f"job-{number}", at=float(number)) for number in range(5)]

    async def main() -> None:
        with JournalFile(tmp_path / "journal.jsonl", header, durable=True) as journal:
            batch = BatchRun(jobs, Scheduler(cluster, Fifo()), header, journal, JumpingClock(), ignore_step)
            await batch.run(ScriptedBackend(batch.report))

    asyncio.run(main())
    assert check_replay(*read_journal(tmp_path / "journal.jsonl"), Fifo()) == 10


def test_outcomes_are_in_the_order_of_the_list() -> None:
    class Mixed(ScriptedBackend):
        async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
            for order in orders:
                self._report(RunStarted(order.job, order.run))
                failed = RunFailed(order.job, order.run, "exit 3")
                self._report(failed if order.job == "bad" else RunFinished(order.job, order.run))

    async def main() -> dict[str, JobOutcome]:
        jobs = [make_job("late", at=5.0), make_job("bad"), make_job("huge", gpus=9)]
        header = Header(local_cluster(1), "fifo", {})
        scheduler = Scheduler(header.cluster, Fifo())
        batch = BatchRun(jobs, scheduler, header, ListJournal(), JumpingClock(), ignore_step)
        assert batch.outcomes() == {job.id: JobOutcome(job.id) for job in jobs}
        await batch.run(Mixed(batch.report))
        return batch.outcomes()

    assert asyncio.run(main()) == {
        "late": JobOutcome("late", "finished", 5.0, 5.0, 5.0, 5.0, 1, "", ON_SLOT_0),
        "bad": JobOutcome("bad", "failed", 0.0, 0.0, 0.0, 0.0, 1, "exit 3", ON_SLOT_0),
        "huge": JobOutcome("huge", "infeasible", 0.0),
    }


class EndsRunsAfter:
    """Fifo that ends all runs from a time on."""

    name = "ends"

    def __init__(self, since: float) -> None:
        self._since, self._fifo = since, Fifo()

    def decide(self, view: View) -> Decision:
        """Decide as fifo until `since`, then end all runs."""
        if view.now < self._since:
            return replace(self._fifo.decide(view), wake_at=self._since)
        return Decision(ends=tuple(End(run.job, "stuck") for run in view.runs.values() if not run.stopping))


@pytest.mark.parametrize(
    ("cancelled", "last", "outcome"),
    [
        (False, RunStopped("job", 1), ("cancelled", "stuck")),
        (True, RunStopped("job", 1), ("cancelled", "")),
        (False, RunFinished("job", 1), ("finished", "")),
        (False, RunFailed("job", 1, "exit 3"), ("cancelled", "stuck")),
    ],
    ids=["ended by the rule", "cancelled before", "finishes meanwhile", "fails meanwhile"],
)
def test_the_outcome_of_a_job_that_a_rule_ends(cancelled: bool, last: Event, outcome: tuple[str, str]) -> None:
    class Scripted(ScriptedBackend):
        async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
            for order in orders:
                self._report(RunStarted("job", 1) if isinstance(order, StartRun) else last)

    async def main() -> JobOutcome:
        header = Header(local_cluster(1), "ends", {})

        def on_step(step: LoopStep) -> None:
            if cancelled and RunStarted("job", 1) in step.entry.events:
                batch.cancel_all()

        scheduler = Scheduler(header.cluster, EndsRunsAfter(3.0))
        batch = BatchRun([make_job("job")], scheduler, header, ListJournal(), JumpingClock(), on_step)
        await batch.run(Scripted(batch.report))
        return batch.outcomes()["job"]

    found = asyncio.run(main())
    assert (found.state, found.why) == outcome
