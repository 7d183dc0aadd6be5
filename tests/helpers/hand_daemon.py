"""A daemon in a test's hand: time is moved, runs are pretended, and what people are told is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loop_setups import HandClock, UnreliableMachine

from refold.api.event_stream import EventStream
from refold.api.roles import Caller
from refold.api.tokens import StoredToken
from refold.api.wire import Submission
from refold.core import Header
from refold.core.events import Event, RunFailed, RunFinished, RunStopped
from refold.errors import BadDecision
from refold.model import Cluster, Node
from refold.model.units import HOUR
from refold.registry import make_policy
from refold.server.backoff import Backoff
from refold.server.config.settings import NotifyChoice
from refold.server.dependencies import Dependencies
from refold.server.drain import DrainManager
from refold.server.job_table import Notice
from refold.server.loop import Loop
from refold.server.monitor.output import OutputWatch
from refold.server.notify.messages import JobMessages
from refold.server.notify.notifier import Message, Notifier
from refold.server.recovery import recover
from refold.server.retries import Retries
from refold.server.service import SchedulerService
from refold.server.store.store import Store

OWNER = Caller("owner", "owner", "default", "ann")
CLUSTER = Cluster((Node("a", 2, "slot"),), cpus_known=False, memory_known=False)
PATIENCE = 10.0


class KeptMessages(Notifier):
    """Tells nobody."""

    def __init__(self) -> None:
        super().__init__(NotifyChoice())
        self.messages: list[Message] = []

    def tell(self, message: Message, also: Iterable[str] = ()) -> None:
        self.messages.append(message)


class HandDaemon:
    """Everything that a daemon is made of but its back end, its clock and its API. The folder outlives it."""

    def __init__(
        self, folder: Path, machine: UnreliableMachine, *, time: float = 0.0, policy: str = "fifo", **settings: Any
    ) -> None:
        header = Header(CLUSTER, policy, settings)
        self.machine = machine
        self.store = Store(folder)
        stand = recover(self.store.reading, header, lambda: make_policy(policy, settings), _refuse)
        self.clock = HandClock()
        self.clock.time = max(time, stand.now)
        self.loop = Loop(self.store, stand, header, self.clock, EventStream())
        self.output = OutputWatch(folder / "logs", self.loop.report)
        self.verdicts = Retries(self.loop, self.output)
        self.tokens: dict[str, StoredToken] = {}
        servicing = DrainManager(self.loop, self.store)
        self.service = SchedulerService(
            self.loop, self.store, EventStream(), servicing, self.tokens, folder / "logs", 0.0
        )
        self.kept = KeptMessages()
        self.telling = JobMessages(self.loop, self.kept, 4 * HOUR, self.store)
        self.news: list[Notice] = []
        Backoff(self.loop).attend()
        self.loop.watches += [
            Dependencies(self.loop, self.store.reading).watch,
            self.telling.watch,
            lambda step: self.news.extend(step.news),
        ]

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.loop.run(self.machine))
        await self.rest()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        self.output.close()
        self.store.close()

    async def rest(self) -> None:
        """Until nothing is left to be done."""
        async with asyncio.timeout(PATIENCE):
            while self._is_busy():
                if self._running.done():
                    self._running.result()
                await asyncio.sleep(0)

    def _is_busy(self) -> bool:
        inbox = self.loop._inbox
        while self.machine.post:
            self.verdicts.report(self.machine.post.pop(0))
        return bool(
            not self.clock.waits
            or inbox.something.is_set()
            or inbox._reports
            or self.verdicts._judging
            or self.clock.time >= self.loop._next_moment()
        )

    async def submit(self, name: str, **more: Any) -> str:
        """The id of a new job."""
        job = await self.service.submit(OWNER, Submission(name=name, command=["true"], **more))
        await self.rest()
        return job.id

    async def end_run(self, job: str, how: type[RunFinished] | type[RunFailed] | type[RunStopped], **more: Any) -> None:
        """The run of a job ends, and that is reported."""
        run = next(run for run in self.machine.alive if run[0] == job)
        self.machine.end(run, how(*run, **more))
        await asyncio.sleep(0)
        self._is_busy()
        await asyncio.sleep(0)
        await self.rest()

    async def report(self, *events: Event) -> None:
        """Something else has happened."""
        for event in events:
            self.loop.report(event)
        await asyncio.sleep(0)
        await self.rest()

    async def pass_time(self, seconds: float) -> None:
        """Let time go by, and whoever waits for the moment look: as if something had happened."""
        self.clock.move(seconds)
        self.loop._inbox.something.set()
        await self.rest()

    def told(self) -> list[tuple[str, str, str]]:
        """Kind, title and text of every message so far."""
        return [(message.kind, message.title, message.body) for message in self.kept.messages]


def _refuse(refusal: BadDecision) -> None:
    raise refusal
