"""A daemon under the control of a test: manual clock, fake runs, recorded messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loop_setups import ManualClock, UnreliableBackend

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
from refold.server.config.settings import NotifyConfig
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
TIMEOUT_SECONDS = 10.0


class RecordingNotifier(Notifier):
    """Records messages and sends nothing."""

    def __init__(self) -> None:
        super().__init__(NotifyConfig())
        self.messages: list[Message] = []

    def notify(self, message: Message, also: Iterable[str] = ()) -> None:
        self.messages.append(message)


class ManualDaemon:
    """All parts of a daemon except its backend, clock and API. A new one can be started on the same folder."""

    def __init__(
        self, folder: Path, backend: UnreliableBackend, *, time: float = 0.0, policy: str = "fifo", **settings: Any
    ) -> None:
        header = Header(CLUSTER, policy, settings)
        self.backend = backend
        self.store = Store(folder)
        recovered = recover(self.store.reader, header, lambda: make_policy(policy, settings), _raise)
        self.clock = ManualClock()
        self.clock.time = max(time, recovered.now)
        self.loop = Loop(self.store, recovered, header, self.clock, EventStream())
        self.output = OutputWatch(folder / "logs", self.loop.report)
        self.retries = Retries(self.loop, self.output)
        self.tokens: dict[str, StoredToken] = {}
        drains = DrainManager(self.loop, self.store)
        self.service = SchedulerService(self.loop, self.store, EventStream(), drains, self.tokens, folder / "logs", 0.0)
        self.notifier = RecordingNotifier()
        self.messages = JobMessages(self.loop, self.notifier, 4 * HOUR, self.store)
        self.notices: list[Notice] = []
        Backoff(self.loop).attach()
        self.loop.listeners += [
            Dependencies(self.loop, self.store.reader).on_step,
            self.messages.on_step,
            lambda step: self.notices.extend(step.notices),
        ]

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.loop.run(self.backend))
        await self.settle()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        self.output.close()
        self.store.close()

    async def settle(self) -> None:
        """Wait until nothing is left to do."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self._is_busy():
                if self._running.done():
                    self._running.result()
                await asyncio.sleep(0)

    def _is_busy(self) -> bool:
        inbox = self.loop._inbox
        while self.backend.undelivered:
            self.retries.report(self.backend.undelivered.pop(0))
        return bool(
            not self.clock.is_waiting
            or inbox.arrived.is_set()
            or inbox._reports
            or self.retries._tasks
            or self.clock.time >= self.loop._next_deadline()
        )

    async def submit(self, name: str, **more: Any) -> str:
        """Submit a job and return its id."""
        job = await self.service.submit(OWNER, Submission(name=name, command=["true"], **more))
        await self.settle()
        return job.id

    async def end_run(
        self, job: str, report: type[RunFinished] | type[RunFailed] | type[RunStopped], **more: Any
    ) -> None:
        """End the run of a job and deliver the report."""
        run = next(run for run in self.backend.alive if run[0] == job)
        self.backend.end(run, report(*run, **more))
        await asyncio.sleep(0)
        self._is_busy()
        await asyncio.sleep(0)
        await self.settle()

    async def report(self, *events: Event) -> None:
        """Report events to the loop."""
        for event in events:
            self.loop.report(event)
        await asyncio.sleep(0)
        await self.settle()

    async def advance(self, seconds: float) -> None:
        """Advance the clock and let the loop take a step."""
        self.clock.advance(seconds)
        self.loop._inbox.arrived.set()
        await self.settle()

    def sent(self) -> list[tuple[str, str, str]]:
        """Return kind, title and body of every message so far."""
        return [(message.kind, message.title, message.body) for message in self.notifier.messages]


def _raise(rejection: BadDecision) -> None:
    raise rejection
