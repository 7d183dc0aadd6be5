"""A daemon under the control of a test: manual clock, fake runs, recorded messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loop_setups import ManualClock, UnreliableBackend

from refold.client.api.queries import Caller
from refold.client.api.submissions import Submission
from refold.core import Header
from refold.core.events import Event, RunFailed, RunFinished, RunStopped
from refold.errors import BadDecision
from refold.model import Cluster, Node, Preemption, PreemptionRules
from refold.model.units import HOUR
from refold.server.admission import AdmissionRules
from refold.server.backend import MachineUse
from refold.server.config.limits import LimitsConfig
from refold.server.config.settings import NotifyConfig, WatchConfig
from refold.server.drain import DrainManager
from refold.server.environments import Environments
from refold.server.forked_work import WorkHere
from refold.server.http.event_stream import EventStream
from refold.server.http.tokens import StoredToken
from refold.server.inbox import Inbox
from refold.server.job_limits import JobLimits
from refold.server.job_queries import JobQueries
from refold.server.job_table import Notice
from refold.server.live_state import LiveState
from refold.server.loop import Loop
from refold.server.monitor.gpu_poller import GpuPoller
from refold.server.monitor.gpu_use import GpuUseWatch
from refold.server.monitor.job_use import JobUseHistory
from refold.server.monitor.machine import Layout, Machine, SlotsMachine
from refold.server.monitor.output import OutputWatch
from refold.server.notify.messages import JobMessages
from refold.server.notify.notifier import Message, Notifier
from refold.server.recovery import MAX_PAST_JOBS, recover
from refold.server.retries import Backoff, Retries
from refold.server.service import SchedulerService
from refold.server.start_conditions import StartConditions
from refold.server.start_forecasts import StartForecasts
from refold.server.store.store import Store
from refold.server.subscribers import LoopStep, Subscriber
from refold.server.tokens import TokenStore
from refold.server.writer import Writer
from refold.simulator.registry import make_policy

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


class NoticeRecorder(Subscriber):
    """Records all notices."""

    def __init__(self, notices: list[Notice]) -> None:
        self._notices = notices

    def after_step(self, step: LoopStep) -> None:
        self._notices += step.notices


class ManualDaemon:
    """All parts of a daemon except its backend, clock and API. A new one can be started on the same folder."""

    def __init__(
        self,
        folder: Path,
        backend: UnreliableBackend,
        *,
        time: float = 0.0,
        policy: str = "fifo",
        machine: Machine | None = None,
        watch_config: WatchConfig | None = None,
        preemption: Preemption = "consent",
        use: GpuUseWatch | None = None,
        cluster: Cluster = CLUSTER,
        limits: JobLimits | None = None,
        **settings: Any,
    ) -> None:
        header = Header(cluster, policy, settings)
        self.backend = backend
        self.store = Store(folder)
        recovered = recover(self.store.reader, header, lambda: make_policy(policy, settings), _raise)
        self.clock = ManualClock()
        self.clock.time = max(time, recovered.now)
        self.state = LiveState(recovered, header, self.clock)
        self.writer = Writer(self.store)
        self.inbox = Inbox(self.writer, recovered.wakes)
        self.output = OutputWatch(folder / "logs", self.inbox.report)
        self.notifier = RecordingNotifier()
        self.messages = JobMessages(self.state, self.writer, self.store, self.notifier, 4 * HOUR, folder / "logs")
        self.poller = GpuPoller(
            self.state,
            self.inbox,
            machine or SlotsMachine(2),
            Layout(CLUSTER, ((0, 0), (0, 1))),
            watch_config or WatchConfig(),
            self.messages,
            use,
        )
        self.machine_use: dict[str, MachineUse] = {}
        """What jobs use, as the engine measures it."""
        self.use = JobUseHistory(self.state, self._measure, self.poller.utilisation_of_jobs)
        drains = DrainManager(self.state, self.inbox)
        conditions = StartConditions(self.state, self.inbox, self.store.reader)
        self.retries = Retries(self.state, self.inbox, self.output)
        past = self.store.reader.past_jobs(MAX_PAST_JOBS)
        self.forecasts = StartForecasts(self.state, past, work=WorkHere())
        self.tokens: dict[str, StoredToken] = {}
        self.killed: list[str] = []
        """Jobs whose runs were to be killed without a grace period."""
        event_stream = EventStream(self.store.reader.last_numbers()[1])
        self.service = SchedulerService(
            self.state,
            self.inbox,
            self.store,
            JobQueries(self.state, self.writer, self.store.reader, folder / "logs", self.forecasts),
            environments=Environments(self.state, self.writer, self.store),
            conditions=conditions,
            drains=drains,
            gpus=self.poller,
            use_of=self.use.of,
            forecasts=self.forecasts,
            tokens=TokenStore(self.writer, self.store, self.tokens),
            event_stream=event_stream,
            kill=self.killed.append,
            rules=AdmissionRules(PreemptionRules(preemption), limits or JobLimits(LimitsConfig())),
        )
        self.notices: list[Notice] = []
        subscribers = [
            drains,
            Backoff(self.state),
            conditions,
            self.messages,
            self.forecasts,
            NoticeRecorder(self.notices),
        ]
        self.loop = Loop(self.state, self.inbox, self.writer, event_stream, subscribers)

    async def _measure(self) -> dict[str, MachineUse]:
        return self.machine_use

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
        while self.backend.undelivered:
            self.retries.report(self.backend.undelivered.pop(0))
        return bool(
            not self.clock.is_waiting
            or self.inbox.arrived.is_set()
            or not self.inbox.is_empty
            or self.retries._tasks
            or self.forecasts.is_busy
            or self.clock.time >= self.loop.next_deadline()
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
            self.inbox.report(event)
        await asyncio.sleep(0)
        await self.settle()

    async def advance(self, seconds: float) -> None:
        """Advance the clock and let the loop take a step."""
        self.clock.advance(seconds)
        self.inbox.arrived.set()
        await self.settle()

    def sent(self) -> list[tuple[str, str, str]]:
        """Return kind, title and body of every message so far."""
        return [(message.kind, message.title, message.body) for message in self.notifier.messages]


def _raise(rejection: BadDecision) -> None:
    raise rejection
