"""Subscribers of the loop: when they are called, in which order, and what their errors do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest
from live_setups import JumpingClock, ScriptedBackend

from refold.core import Header, Scheduler
from refold.core.events import Event, JobSubmitted, RunFinished, RunStarted, Woke
from refold.engines.local.backend import local_cluster
from refold.policies.queueing.fifo import Fifo
from refold.server.http.event_stream import EventStream
from refold.server.inbox import Inbox
from refold.server.job_table import JobTable
from refold.server.live_state import LiveState
from refold.server.loop import Loop
from refold.server.recovery import RecoveredState
from refold.server.store.store import Commit
from refold.server.subscribers import LoopStep, Subscriber
from refold.server.writer import Writer
from refold.testing import make_job

TIMEOUT_SECONDS = 10.0
JOB = make_job("job")


class CommitRecorder:
    """A commit log that keeps the commits, and adds each to the calls of the subscribers."""

    def __init__(self, calls: list[str]) -> None:
        self.commits: list[Commit] = []
        self._calls = calls

    def commit(self, commit: Commit) -> None:
        self.commits.append(commit)
        self._calls.append("commit")


class Recording(Subscriber):
    """Records when it is called; adds the events in `to_add` to a step."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls
        self.steps: list[LoopStep] = []
        self.to_add: list[Event] = []

    def started(self) -> None:
        self.calls.append(f"{self.name} started")

    def before_step(self, now: float) -> Sequence[Event]:
        self.calls.append(f"{self.name} before")
        events, self.to_add = self.to_add, []
        return events

    def after_step(self, step: LoopStep) -> None:
        self.calls.append(f"{self.name} after")
        self.steps.append(step)


class LoopSetup:
    """A loop with one slot, without delays. It stops when its only job has ended."""

    def __init__(self, subscribe: Callable[[LoopSetup], Sequence[Subscriber]]) -> None:
        cluster = local_cluster(1)
        self.calls: list[str] = []
        self.log = CommitRecorder(self.calls)
        recovered = RecoveredState(Scheduler(cluster, Fifo()), JobTable(cluster))
        state = LiveState(recovered, Header(cluster, "fifo", {}), JumpingClock())
        writer = Writer(self.log)
        self.inbox = Inbox(writer)
        self.backend = ScriptedBackend(self.inbox.report)
        self.loop = Loop(state, self.inbox, writer, EventStream(), [*subscribe(self), StopAtEnd(self.inbox)])

    async def run(self) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self.loop.run(self.backend)


class StopAtEnd(Subscriber):
    """Stops the loop when a job has ended."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def after_step(self, step: LoopStep) -> None:
        if step.ended:
            self._inbox.stop()


def test_subscribers_are_called_in_order_before_and_after_each_commit() -> None:
    first: list[Recording] = []

    def subscribe(setup: LoopSetup) -> list[Subscriber]:
        first.append(Recording("first", setup.calls))
        setup.inbox.report(JobSubmitted(JOB))
        return [first[0], Recording("second", setup.calls)]

    async def main() -> LoopSetup:
        setup = LoopSetup(subscribe)
        await setup.run()
        return setup

    setup = asyncio.run(main())
    one_step = ["first before", "second before", "commit", "first after", "second after"]
    assert setup.calls == ["first started", "second started", *one_step, *one_step]
    assert [step.entry for step in first[0].steps] == [commit.entry for commit in setup.log.commits]
    assert [ended.state for ended in first[0].steps[-1].ended] == ["finished"]


def test_events_of_a_subscriber_follow_reports_and_wakes() -> None:
    def subscribe(setup: LoopSetup) -> list[Subscriber]:
        recording = Recording("one", setup.calls)
        recording.to_add.append(JobSubmitted(JOB))
        setup.inbox.wake_at(0.0)
        setup.inbox.report(RunFinished("unknown", 1))
        return [recording]

    async def main() -> list[Commit]:
        setup = LoopSetup(subscribe)
        await setup.run()
        return setup.log.commits

    assert [commit.entry.events for commit in asyncio.run(main())] == [
        (RunFinished("unknown", 1), Woke(), JobSubmitted(JOB)),
        (RunStarted("job", 1), RunFinished("job", 1)),
    ]


class FailingSubscriber(Subscriber):
    """Raises in one of its methods."""

    def __init__(self, method: str) -> None:
        self._method = method

    def started(self) -> None:
        self._fail_in("started")

    def before_step(self, now: float) -> Sequence[Event]:
        self._fail_in("before_step")
        return ()

    def after_step(self, step: LoopStep) -> None:
        self._fail_in("after_step")

    def _fail_in(self, method: str) -> None:
        if method == self._method:
            raise ZeroDivisionError


def failing(method: str) -> Callable[[LoopSetup], list[Subscriber]]:
    def subscribe(setup: LoopSetup) -> list[Subscriber]:
        setup.inbox.report(JobSubmitted(JOB))
        return [FailingSubscriber(method)]

    return subscribe


def test_an_error_after_a_step_is_logged_and_the_loop_continues(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> LoopSetup:
        setup = LoopSetup(failing("after_step"))
        await setup.run()
        return setup

    with caplog.at_level(logging.ERROR, "refold"):
        setup = asyncio.run(main())
    assert len(setup.log.commits) == 2  # the job was submitted and has finished
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["a subscriber failed after a step; the step itself was carried out"] * 2


@pytest.mark.parametrize("method", ["started", "before_step"])
def test_an_error_before_anything_is_decided_ends_the_loop(method: str) -> None:
    async def main() -> LoopSetup:
        setup = LoopSetup(failing(method))
        with pytest.raises(ZeroDivisionError):
            await setup.run()
        return setup

    assert asyncio.run(main()).log.commits == []
