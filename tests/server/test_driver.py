"""The live driver without real delays: what it waits for, what it passes to the scheduler, when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from live_setups import JumpingClock, ScriptedBackend, drive_instantly

from refold.backends.local.backend import local_cluster
from refold.core import Entry, ListJournal, Scheduler, View
from refold.core.events import JobCancelled, JobSubmitted, RunFinished, RunStarted, RunStopped, Woke
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision
from refold.model import Allocation, Decision, Job, Share, Start
from refold.policies.queueing.fifo import Fifo
from refold.policies.queueing.las import Las
from refold.server.driver import LiveDriver
from refold.testing import make_job

ON_SLOT_0 = Allocation((Share(0, (0,)),))


class FunctionPolicy:
    """A policy made from a function."""

    name = "function"

    def __init__(self, decide: Callable[[View], Decision]) -> None:
        self.decide = decide


def test_events_reach_the_scheduler_in_time_and_orders_are_carried_out() -> None:
    journal = ListJournal()
    jobs = [make_job("second", at=5.0), make_job("first")]
    backend, _ = asyncio.run(drive_instantly(Scheduler(local_cluster(1), Fifo(), journal), jobs))
    steps = [(entry.now, entry.events) for entry in journal.entries]
    assert steps == [
        (0.0, (JobSubmitted(jobs[1]),)),
        (0.0, (RunStarted("first", 1), RunFinished("first", 1))),
        (5.0, (JobSubmitted(jobs[0]),)),
        (5.0, (RunStarted("second", 1), RunFinished("second", 1))),
    ]
    assert backend.carried_out == [StartRun("first", 1, ON_SLOT_0), StartRun("second", 1, ON_SLOT_0)]
    assert backend.closed


def test_a_policy_is_woken_at_wake_at() -> None:
    journal = ListJournal()
    scheduler = Scheduler(local_cluster(1), Las(threshold_gpu_seconds=10.0), journal)
    jobs = [make_job("long"), make_job("short", at=1.0)]

    def finish_second_run(driver: LiveDriver, entry: Entry) -> None:
        if StartRun("long", 2, ON_SLOT_0) in entry.orders:
            driver.report(RunFinished("long", 2))

    asyncio.run(drive_instantly(scheduler, jobs, keep_running=["long"], after_step=finish_second_run))
    woken = [entry for entry in journal.entries if Woke() in entry.events]
    assert [(entry.now, entry.orders) for entry in woken] == [(10.0, (StopRun("long", 1, "las: preempted for short"),))]


def test_the_driver_ends_if_no_waiting_job_can_ever_start() -> None:
    scheduler = Scheduler(local_cluster(1), FunctionPolicy(lambda _: Decision()))
    backend, _ = asyncio.run(drive_instantly(scheduler, [make_job("job")]))
    assert list(scheduler.view.waiting) == ["job"]
    assert backend.closed


def test_the_driver_does_not_wait_for_an_infeasible_job() -> None:
    scheduler = Scheduler(local_cluster(1), Fifo())
    asyncio.run(drive_instantly(scheduler, [make_job("huge", gpus=9), make_job("job")]))
    assert list(scheduler.view.infeasible) == ["huge"]
    assert not scheduler.view.waiting


def test_a_bad_decision_is_rejected_and_the_driver_continues() -> None:
    refused: list[BadDecision] = []

    def start_twice_on_one_slot(view: View) -> Decision:
        if len(view.waiting) > 1 and not refused:
            return Decision(starts=tuple(Start(job_id, ON_SLOT_0) for job_id in view.waiting), wake_at=view.now + 1)
        first = next(iter(view.waiting), None)
        free = first is not None and not view.runs
        return Decision(starts=(Start(first, ON_SLOT_0),)) if first and free else Decision(wake_at=view.now + 1)

    journal = ListJournal()
    scheduler = Scheduler(local_cluster(1), FunctionPolicy(start_twice_on_one_slot), journal, refused.append)
    jobs = [make_job("a"), make_job("b"), make_job("c", at=1.0)]
    backend, _ = asyncio.run(drive_instantly(scheduler, jobs))
    assert [refusal.rule for refusal in refused] == ["free"]
    assert journal.entries[0].rejection
    assert [order.job for order in backend.carried_out] == ["a", "b", "c"]


def test_cancel_all_stops_runs_and_starts_nothing_more() -> None:
    journal = ListJournal()
    scheduler = Scheduler(local_cluster(1), Fifo(), journal)
    jobs = [make_job("running"), make_job("waiting"), make_job("huge", gpus=9), make_job("later", at=100.0)]

    def cancel_once_it_runs(driver: LiveDriver, entry: Entry) -> None:
        if RunStarted("running", 1) in entry.events:
            driver.cancel_all()

    asyncio.run(drive_instantly(scheduler, jobs, keep_running=["running"], after_step=cancel_once_it_runs))
    assert [(entry.events, entry.orders) for entry in journal.entries[2:]] == [
        (
            (JobCancelled("huge"), JobCancelled("waiting"), JobCancelled("running")),
            (StopRun("running", 1, "cancelled"),),
        ),
        ((RunStopped("running", 1),), ()),
    ]
    assert not (scheduler.view.waiting or scheduler.view.runs)


def test_reports_may_come_from_any_thread() -> None:
    class Threaded(ScriptedBackend):
        async def carry_out(self, orders, jobs):  # type: ignore[no-untyped-def]
            for order in orders:
                threading.Timer(0.05, self._report, (RunFinished(order.job, order.run),)).start()

    async def driven() -> None:
        jobs: list[Job] = [make_job("job")]
        driver = LiveDriver(Scheduler(local_cluster(1), Fifo()), jobs, JumpingClock())
        async with asyncio.timeout(10):
            await driver.drive(Threaded(driver.report))

    asyncio.run(driven())


def test_the_backend_is_closed_if_the_policy_raises() -> None:
    def raise_error(view: View) -> Decision:
        raise ZeroDivisionError

    async def driven() -> ScriptedBackend:
        driver = LiveDriver(Scheduler(local_cluster(1), FunctionPolicy(raise_error)), [make_job("job")], JumpingClock())
        backend = ScriptedBackend(driver.report)
        with pytest.raises(ZeroDivisionError):
            await driver.drive(backend)
        return backend

    assert asyncio.run(driven()).closed
