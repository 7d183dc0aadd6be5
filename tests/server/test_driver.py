"""The live loop, where nothing takes time: what it waits for, what it tells the scheduler, and when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from live_setups import JumpingClock, ScriptedBackend, pretend

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


class Deciding:
    """A policy out of one function."""

    name = "deciding"

    def __init__(self, decide: Callable[[View], Decision]) -> None:
        self.decide = decide


def test_facts_are_told_when_they_come_and_orders_carried_out() -> None:
    journal = ListJournal()
    jobs = [make_job("second", at=5.0), make_job("first")]
    backend, _ = asyncio.run(pretend(Scheduler(local_cluster(1), Fifo(), journal), jobs))
    told = [(entry.now, entry.events) for entry in journal.entries]
    assert told == [
        (0.0, (JobSubmitted(jobs[1]),)),
        (0.0, (RunStarted("first", 1), RunFinished("first", 1))),
        (5.0, (JobSubmitted(jobs[0]),)),
        (5.0, (RunStarted("second", 1), RunFinished("second", 1))),
    ]
    assert backend.carried_out == [StartRun("first", 1, ON_SLOT_0), StartRun("second", 1, ON_SLOT_0)]
    assert backend.closed


def test_a_policy_is_woken_when_it_asked_to_be() -> None:
    journal = ListJournal()
    scheduler = Scheduler(local_cluster(1), Las(threshold_gpu_seconds=10.0), journal)
    jobs = [make_job("long"), make_job("short", at=1.0)]

    def finish_second_run(driver: LiveDriver, entry: Entry) -> None:
        if StartRun("long", 2, ON_SLOT_0) in entry.orders:
            driver.report(RunFinished("long", 2))

    asyncio.run(pretend(scheduler, jobs, go_on=["long"], after_step=finish_second_run))
    woken = [entry for entry in journal.entries if Woke() in entry.events]
    assert [(entry.now, entry.orders) for entry in woken] == [(10.0, (StopRun("long", 1, "las: for short"),))]


def test_it_ends_when_nobody_will_ever_start_what_waits() -> None:
    scheduler = Scheduler(local_cluster(1), Deciding(lambda _: Decision()))
    backend, _ = asyncio.run(pretend(scheduler, [make_job("job")]))
    assert list(scheduler.view.waiting) == ["job"]
    assert backend.closed


def test_it_does_not_wait_for_a_job_that_never_fits() -> None:
    scheduler = Scheduler(local_cluster(1), Fifo())
    asyncio.run(pretend(scheduler, [make_job("huge", gpus=9), make_job("job")]))
    assert list(scheduler.view.infeasible) == ["huge"]
    assert not scheduler.view.waiting


def test_a_bad_decision_is_refused_and_life_goes_on() -> None:
    refused: list[BadDecision] = []

    def start_twice_on_one_slot(view: View) -> Decision:
        if len(view.waiting) > 1 and not refused:
            return Decision(starts=tuple(Start(job_id, ON_SLOT_0) for job_id in view.waiting), wake_at=view.now + 1)
        first = next(iter(view.waiting), None)
        free = first is not None and not view.runs
        return Decision(starts=(Start(first, ON_SLOT_0),)) if first and free else Decision(wake_at=view.now + 1)

    journal = ListJournal()
    scheduler = Scheduler(local_cluster(1), Deciding(start_twice_on_one_slot), journal, refused.append)
    jobs = [make_job("a"), make_job("b"), make_job("c", at=1.0)]
    backend, _ = asyncio.run(pretend(scheduler, jobs))
    assert [refusal.rule for refusal in refused] == ["free"]
    assert journal.entries[0].refused
    assert [order.job for order in backend.carried_out] == ["a", "b", "c"]


def test_to_cancel_all_is_to_stop_what_runs_and_start_nothing_more() -> None:
    journal = ListJournal()
    scheduler = Scheduler(local_cluster(1), Fifo(), journal)
    jobs = [make_job("running"), make_job("waiting"), make_job("huge", gpus=9), make_job("later", at=100.0)]

    def cancel_once_it_runs(driver: LiveDriver, entry: Entry) -> None:
        if RunStarted("running", 1) in entry.events:
            driver.cancel_all()

    asyncio.run(pretend(scheduler, jobs, go_on=["running"], after_step=cancel_once_it_runs))
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


def test_when_a_policy_breaks_the_back_end_is_closed_all_the_same() -> None:
    def breaks(view: View) -> Decision:
        raise ZeroDivisionError

    async def driven() -> ScriptedBackend:
        driver = LiveDriver(Scheduler(local_cluster(1), Deciding(breaks)), [make_job("job")], JumpingClock())
        backend = ScriptedBackend(driver.report)
        with pytest.raises(ZeroDivisionError):
            await driver.drive(backend)
        return backend

    assert asyncio.run(driven()).closed
