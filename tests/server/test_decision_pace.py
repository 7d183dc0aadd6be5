"""A policy that takes long is not called at every step: requests are answered, and it decides soon after."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from loop_setups import ManualClock, UnreliableBackend
from manual_daemon import ManualDaemon

from refold.core import Scheduler, View
from refold.core.entries import Header, ListJournal
from refold.core.events import Event, JobCancelled, JobHeld, JobReleased, JobSubmitted, RunFinished, RunStarted, Woke
from refold.core.scheduler import Policy
from refold.journal.files import check_replay
from refold.model import Decision
from refold.server.loop import IDLE_PAUSE, MAX_PAUSE, DecisionPace, _freeing_events
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job

SUBMITTED, STARTED = JobSubmitted(make_job("a")), RunStarted("a", 1)
FINISHED, CANCELLED = RunFinished("a", 1), JobCancelled("a")


class SlowPolicy:
    """A policy whose decisions take a second."""

    name = "slow"

    def __init__(self, policy: Policy, clock: ManualClock) -> None:
        self._policy, self._clock = policy, clock

    def decide(self, view: View) -> Decision:
        self._clock.advance(1.0)
        return self._policy.decide(view)


@pytest.mark.parametrize(
    ("duration", "events", "has_requests", "due"),
    [
        (0.01, [SUBMITTED], True, None),
        (0.1, [SUBMITTED], True, 10.3),
        (0.1, [SUBMITTED, STARTED], False, 10.3),
        (0.1, [JobReleased("a")], True, 10.3),
        (0.1, [FINISHED], False, 10.05),
        (0.1, [SUBMITTED, FINISHED], True, 10.1),
        (0.1, [CANCELLED], True, 10.1),
        (0.1, [Woke()], False, 10.05),
        (60.0, [SUBMITTED], True, 10.0 + MAX_PAUSE),
    ],
)
def test_the_pause_after_a_decision_depends_on_its_duration_and_on_what_has_happened(
    duration: float, events: list[Event], has_requests: bool, due: float | None
) -> None:
    pace = DecisionPace()
    assert pace.decide_at(0.0, events, has_requests) is None
    pace.note(10.0 - duration, 10.0)
    assert pace.decide_at(10.02, events, has_requests) == (None if due is None else pytest.approx(due))
    assert pace.decide_at(due or 10.0, events, has_requests) is None


def make_slow(daemon: ManualDaemon) -> None:
    scheduler = daemon.state.scheduler
    scheduler._policy = SlowPolicy(scheduler._policy, daemon.clock)


def test_a_submission_is_acknowledged_before_a_slow_policy_decides_about_it(tmp_path: Path) -> None:
    async def check() -> None:
        backend = UnreliableBackend()
        async with ManualDaemon(tmp_path, backend) as daemon:
            make_slow(daemon)
            first = await daemon.submit("first")
            second = await daemon.submit("second")
            assert [run[0] for run in backend.alive] == [first]
            assert second in daemon.state.view.waiting
            await daemon.advance(2.0)
            assert [run[0] for run in backend.alive] == [first, second]

    asyncio.run(check())


def test_gpus_that_become_free_are_allocated_soon_by_a_slow_policy(tmp_path: Path) -> None:
    async def check() -> None:
        backend = UnreliableBackend()
        async with ManualDaemon(tmp_path, backend) as daemon:
            jobs = [await daemon.submit(name) for name in ("a", "b", "c", "d")]
            make_slow(daemon)
            await daemon.end_run(jobs[0], RunFinished)
            assert [run[0] for run in backend.alive] == jobs[1:3]
            await daemon.end_run(jobs[1], RunFinished)
            await daemon.advance(IDLE_PAUSE)
            assert [run[0] for run in backend.alive] == jobs[2:]

    asyncio.run(check())


def test_the_next_daemon_decides_about_what_the_last_one_has_acknowledged(tmp_path: Path) -> None:
    async def check() -> None:
        backend = UnreliableBackend()
        async with ManualDaemon(tmp_path, backend) as daemon:
            make_slow(daemon)
            jobs = [await daemon.submit(name) for name in ("a", "b")]
            assert [run[0] for run in backend.alive] == jobs[:1]
        async with ManualDaemon(tmp_path, backend) as successor:
            await successor.advance(2.0)
            assert [run[0] for run in backend.alive] == jobs

    asyncio.run(check())


def test_a_journal_with_deferred_decisions_replays() -> None:
    cluster, journal = make_cluster(2), ListJournal()
    scheduler = Scheduler(cluster, make_policy("fifo", {}), journal)
    scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    deferred = scheduler.step(1.0, [JobSubmitted(make_job("b", at=1.0))], decide_at=2.0)
    assert (deferred.orders, deferred.deferred, deferred.wake_at) == ((), True, 2.0)
    assert [order.job for order in scheduler.step(2.0, [Woke()]).orders] == ["b"]
    assert check_replay(Header(cluster, "fifo"), iter(journal.entries), make_policy("fifo", {})) == 3


def test_cancelled_and_held_jobs_free_something_only_if_they_run() -> None:
    scheduler = Scheduler(make_cluster(1), make_policy("fifo"))
    jobs = [make_job(name) for name in "abc"]
    scheduler.step(0.0, list(map(JobSubmitted, jobs)))
    assert list(scheduler.view.runs) == ["a"]
    events: list[Event] = [JobCancelled("a"), JobCancelled("b"), JobHeld("c"), SUBMITTED]
    assert _freeing_events(events, scheduler.view) == [JobCancelled("a"), SUBMITTED]
    assert _freeing_events([JobCancelled("b")], scheduler.view) == []
