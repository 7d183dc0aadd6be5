"""The daemon's loop. Each step:

1. gather: take client requests, backend reports, due wakes and events of other parts of the daemon;
2. decide: let the scheduler apply the events and the policy decide;
3. commit: write the journal entry, new and ended jobs and notices in one transaction;
4. acknowledge: answer the client requests and publish the notices;
5. act: let the backend carry out the orders, then call the listeners.

Input that arrives during a step is handled in the next one, so that requests are committed in batches under load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from time import time

import msgspec

from refold.api import EventStream, wire
from refold.backends import Backend
from refold.core import Entry, Event, Header, Order, PastJob, RunFailed, Scheduler, StartRun, StopRun, View
from refold.errors import Unavailable
from refold.model import Run, Seconds
from refold.server.clock import Clock
from refold.server.drained_gpus import is_drain_placeholder
from refold.server.inbox import Inbox
from refold.server.job_table import EndedJobNotice, Notice
from refold.server.recovery import RecoveredState
from refold.server.status import ended_status
from refold.server.store import Checkpoint, Commit, EndedJob, NewJob, Store
from refold.server.writer import Writer
from refold.simulator import Fork

CHECKPOINT_INTERVAL_ENTRIES = 5_000
"""Journal entries between two checkpoints, and thus the maximum number that recovery has to apply."""

REISSUE_INTERVAL_SECONDS: Seconds = 60.0
"""How often the current orders are repeated, so that the backend repeats reports that were lost."""

COMMIT_TIMEOUT_SECONDS: Seconds = 5.0
"""How long a client request waits while the store cannot be written."""

log = logging.getLogger("refold")


class LoopStep(msgspec.Struct, frozen=True):
    """A step that was committed and carried out."""

    entry: Entry
    notices: list[Notice]
    ended: list[EndedJobNotice]


StepListener = Callable[[LoopStep], None]
"""Called after each step has been carried out."""

EventSource = Callable[[View], Sequence[Event]]
"""Adds events to a step before the policy decides."""


class Loop:
    """One scheduler, store and backend, used within one event loop. Reports may come from any thread."""

    def __init__(
        self, store: Store, recovered: RecoveredState, header: Header, clock: Clock, event_stream: EventStream
    ) -> None:
        self.header = header
        self.job_table = recovered.job_table
        self.view = recovered.scheduler.view
        self.uncommitted_ends: dict[str, wire.JobStatus] = {}
        """Jobs that end in the step being committed: no longer in the job table, not yet in the store."""
        self.start_hooks: list[Callable[[], None]] = []
        """Called once, when the state of the previous daemon has been restored."""
        self.listeners: list[StepListener] = []
        self.event_sources: list[EventSource] = []
        self._scheduler = recovered.scheduler
        self._clock = clock
        self._event_stream = event_stream
        self._inbox = Inbox(recovered.wakes)
        self._writer = Writer(store)
        self._snapshot = recovered.snapshot
        self._entry = recovered.entry
        self._event_number = store.reader.last_numbers()[1]
        self._stopping = False
        self._reissue_at: Seconds = 0.0

    # Interface for the rest of the daemon.

    def now(self) -> Seconds:
        """Return seconds since the start of the journal."""
        return self._clock.now()

    def wall_time(self, moment: Seconds) -> float:
        """Convert journal seconds to Unix seconds."""
        return time() - self._clock.now() + moment

    def snapshot(self, past: Iterable[PastJob] = ()) -> tuple[Event, ...]:
        """Return the current state as events."""
        return self._scheduler.snapshot(past)

    def copy_scheduler(self) -> Scheduler:
        """Return a copy of the scheduler; its decisions have no effect."""
        return Fork(self._scheduler).copy()

    @property
    def problem(self) -> str:
        """Why the store cannot be written at present; '' if it can."""
        return self._writer.problem

    def report(self, event: Event) -> None:
        """Queue an event for the scheduler. Thread-safe."""
        self._inbox.report(event)

    def add_notice(self, notice: Notice) -> None:
        """Queue a notice: it is stored and published, and does not reach the scheduler."""
        self._inbox.add_notice(notice)

    async def commit_events(self, events: Sequence[Event]) -> Entry:
        """Commit events; return when they are on disk."""
        return await self.wait_until_committed(self.enqueue(events))

    def enqueue(self, events: Sequence[Event], jobs: Sequence[NewJob] = ()) -> asyncio.Future[Entry]:
        """Queue events and new jobs without waiting. They will be committed unless the daemon ends first."""
        if self.problem or self._stopping:
            raise Unavailable(self.problem or "the daemon is shutting down")
        return self._inbox.put(events, jobs)

    async def wait_until_committed(self, committed: asyncio.Future[Entry]) -> Entry:
        """Wait until a request is on disk. Raises Unavailable if the store cannot be written for long."""
        while True:
            finished, _ = await asyncio.wait((committed,), timeout=COMMIT_TIMEOUT_SECONDS)
            if finished:
                return committed.result()
            if self.problem:
                raise Unavailable(
                    f"{self.problem}; the request may still be accepted: retry it with the same request id"
                )

    async def write(self, work: Callable[[], None]) -> None:
        """Run a write to the store on the writer's thread, in order with the commits."""
        await self._writer.write(work)

    def stop(self) -> None:
        """Finish the current step, then stop."""
        self._stopping = True
        self._writer.stop_retrying()
        self._inbox.arrived.set()

    # The loop.

    async def run(self, backend: Backend) -> None:
        """Restore the runs of the previous daemon, then take a step whenever input arrives, until `stop`."""
        try:
            if self._snapshot is not None:
                await self._step(backend, self._snapshot, self.header)
            for hook in self.start_hooks:
                hook()
            await backend.stop_all_except({(run.job, run.number) for run in self.real_runs()})
            await self._reissue_orders(backend)
            while not self._stopping:
                await self._clock.wait(self._inbox.arrived, self._next_deadline())
                self._inbox.arrived.clear()
                if self._clock.now() >= self._reissue_at:
                    await self._reissue_orders(backend)
                await self._step(backend)
        except Unavailable:
            log.error(
                "the daemon stops: its last step could not be written, so it was neither acknowledged nor carried out"
            )
        finally:
            self._inbox.close()
            self._writer.close()

    async def _reissue_orders(self, backend: Backend) -> None:
        """Repeat the orders for all current runs; the backend ignores orders that it has already carried out.

        After a crash this starts runs that were ordered but not started, and makes the backend repeat lost reports.
        """
        self._reissue_at = self._clock.now() + REISSUE_INTERVAL_SECONDS
        runs = self.real_runs()
        orders: list[Order] = [StartRun(run.job, run.number, run.allocation) for run in runs]
        orders += [StopRun(run.job, run.number, "already stopping") for run in runs if run.stopping]
        await self._carry_out(backend, orders)

    def real_runs(self) -> list[Run]:
        """Return the runs that the backend knows: all but those of drain placeholders."""
        return [run for run in self.view.runs.values() if not is_drain_placeholder(self.view.active[run.job])]

    def _next_deadline(self) -> Seconds:
        wake = self._inbox.next_wake()
        return self._reissue_at if wake is None else min(self._reissue_at, wake)

    async def _step(self, backend: Backend, snapshot: Sequence[Event] = (), epoch: Header | None = None) -> None:
        # 1. Gather.
        now = self._clock.now()
        requests, notices = self._inbox.take_requests(), self._inbox.take_notices()
        events = [*snapshot, *self._inbox.take_events(now)]
        for source in self.event_sources:
            events += source(self.view)
        for request in requests:
            events += request.events
        if not (requests or events or notices or epoch):
            return

        # 2. Decide.
        entry = self._scheduler.step(now, events)
        new_notices, ended = self.job_table.apply(entry, self.view)
        if snapshot:
            self._clear_missing_runs()
            new_notices = []  # the previous daemon has published them
        if entry.wake_at is not None:
            self._inbox.wake_at(entry.wake_at)

        # 3. Commit.
        self._entry += 1
        step = LoopStep(entry, [*notices, *new_notices], ended)
        wire_events = self._wire_events(step)
        commit = self._build_commit(step, [job for request in requests for job in request.jobs], wire_events, epoch)
        self.uncommitted_ends = {job.status.id: job.status for job in commit.ended}
        await self._writer.commit(commit)
        self.uncommitted_ends = {}

        # 4. Acknowledge.
        self._inbox.acknowledge(entry)
        self._event_stream.publish(wire_events)

        # 5. Act.
        await self._carry_out(backend, entry.orders)
        for listener in self.listeners:
            self._call_listener(step, listener)

    def _call_listener(self, step: LoopStep, listener: StepListener) -> None:
        try:
            listener(step)
        except Exception:  # the step is committed and carried out: a listener must not fail the loop
            log.exception("a listener failed after a step; the step itself was carried out")

    def _clear_missing_runs(self) -> None:
        """Clear the run of each job whose run was not restored: its node may be missing from the new cluster."""
        for job_id, record in self.job_table.records.items():
            if record.run and job_id not in self.view.runs:
                record.run = 0

    def _wire_events(self, step: LoopStep) -> list[wire.Event]:
        events: list[wire.Event] = []
        for notice in step.notices:
            if notice.job is not None and is_drain_placeholder(notice.job):
                continue
            self._event_number += 1
            job, tenant = (notice.job.id, notice.job.tenant) if notice.job is not None else ("", "")
            at = self.wall_time(step.entry.now)
            events.append(wire.Event(self._event_number, at, notice.kind, job, notice.run, notice.text, tenant))
        return events

    def _build_commit(
        self, step: LoopStep, jobs: list[NewJob], events: list[wire.Event], epoch: Header | None
    ) -> Commit:
        ended = [EndedJob(ended_status(job, self.wall_time, step.entry.now), job.run_time) for job in step.ended]
        checkpoint = None
        if epoch is not None or self._entry % CHECKPOINT_INTERVAL_ENTRIES == 0:
            checkpoint = Checkpoint(self._entry, self._scheduler.snapshot(), tuple(self.job_table.records.values()))
        return Commit(self._entry, step.entry, jobs, ended, events, epoch, checkpoint)

    async def _carry_out(self, backend: Backend, orders: Sequence[Order]) -> None:
        for order in orders:
            try:
                await backend.carry_out((order,), self.view.active)
            except Exception as error:  # a failed order must not prevent the others
                log.exception("failed to carry out %s", order)
                if isinstance(order, StartRun):
                    self.report(RunFailed(order.job, order.run, f"could not be started: {error}"))
