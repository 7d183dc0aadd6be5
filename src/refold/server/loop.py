"""The daemon's loop: gather what has happened, decide, write it down, acknowledge, act. In this order.

What is asked and reported while a step is being written down belongs to the next one, so the more there is to do the
more goes into one commit.
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

CHECKPOINT_EVERY = 5_000
"""Entries after which it is written down how things stand: no more have to be read after a crash."""

TAKE_UP_EVERY: Seconds = 60.0
"""How often it is looked after runs whose end was reported and not heard of."""

PATIENCE: Seconds = 5.0
"""How long somebody who asks is left waiting while nothing can be written."""

log = logging.getLogger("refold")


class LoopStep(msgspec.Struct, frozen=True):
    """What has been written down and carried out."""

    entry: Entry
    news: list[Notice]
    over: list[EndedJobNotice]


Watch = Callable[[LoopStep], None]
"""Somebody who is told of every step, after it has been carried out."""

Gather = Callable[[View], Sequence[Event]]
"""Somebody who adds facts to a step, before the policy sees it."""


class Loop:
    """One scheduler, one store, one back end. Made and used within one event loop; reports may come from any thread."""

    def __init__(self, store: Store, stand: RecoveredState, header: Header, clock: Clock, feed: EventStream) -> None:
        self.header = header
        self.job_table = stand.job_table
        self.view = stand.scheduler.view
        self.leaving: dict[str, wire.JobStatus] = {}
        """Jobs that are over by the step that is being written down: neither here any more, nor in the store yet."""
        self.beginnings: list[Callable[[], None]] = []
        """Whom to tell when the loop stands where the daemon before it stood."""
        self.watches: list[Watch] = []
        self.gathers: list[Gather] = []
        self._scheduler = stand.scheduler
        self._clock = clock
        self._feed = feed
        self._inbox = Inbox(stand.wakes)
        self._writer = Writer(store)
        self._snapshot = stand.snapshot
        self._entry = stand.entry
        self._event_number = store.reading.last_numbers()[1]
        self._ending = False
        self._take_up_at: Seconds = 0.0

    # From outside.

    def now(self) -> Seconds:
        """The time of the journal."""
        return self._clock.now()

    def wall(self, moment: Seconds) -> float:
        """A moment of the journal in Unix seconds."""
        return time() - self._clock.now() + moment

    def snapshot(self, past: Iterable[PastJob] = ()) -> tuple[Event, ...]:
        """The present as facts."""
        return self._scheduler.snapshot(past)

    def copied(self) -> Scheduler:
        """A second scheduler that stands where this one does: what it decides has no consequences."""
        return Fork(self._scheduler).copy()

    @property
    def problem(self) -> str:
        """Why nothing can be written at present; empty: it can."""
        return self._writer.problem

    def report(self, event: Event) -> None:
        """Something has happened. Any thread may say so."""
        self._inbox.report(event)

    def tell(self, news: Notice) -> None:
        """Something happened that does not concern the scheduler, and people want to know."""
        self._inbox.tell(news)

    async def ask(self, events: Sequence[Event]) -> Entry:
        """Have facts written down; returns when they are on disk."""
        return await self.patiently(self.put(events))

    def put(self, events: Sequence[Event], jobs: Sequence[NewJob] = ()) -> asyncio.Future[Entry]:
        """The same for those who do not wait: from now on it will be written down, unless the daemon ends."""
        if self.problem or self._ending:
            raise Unavailable(self.problem or "the daemon is shutting down")
        return self._inbox.put(events, jobs)

    async def patiently(self, done: asyncio.Future[Entry]) -> Entry:
        """Wait until something is on disk; but not for ever while nothing can be written."""
        while True:
            finished, _ = await asyncio.wait((done,), timeout=PATIENCE)
            if finished:
                return done.result()
            if self.problem:
                raise Unavailable(f"{self.problem}; it may yet be accepted: ask again with the same request")

    async def written(self, work: Callable[[], None]) -> None:
        """Have something else written to the store, in turn with the journal."""
        await self._writer.write(work)

    def end(self) -> None:
        """Finish the step that is being carried out, and no more."""
        self._ending = True
        self._writer.end()
        self._inbox.something.set()

    # The loop.

    async def run(self, backend: Backend) -> None:
        """Take up what was going on; then step whenever something happens, until the end."""
        try:
            if self._snapshot is not None:
                await self._step(backend, self._snapshot, self.header)
            for begin in self.beginnings:
                begin()
            await backend.keep_only({(run.job, run.number) for run in self.real_runs()})
            await self._take_up(backend)
            while not self._ending:
                await self._clock.wait(self._inbox.something, self._next_moment())
                self._inbox.something.clear()
                if self._clock.now() >= self._take_up_at:
                    await self._take_up(backend)
                await self._step(backend)
        except Unavailable:
            log.error("ended with a step that could not be written; nobody was told of it, and nothing was done")
        finally:
            self._inbox.close()
            self._writer.close()

    async def _take_up(self, backend: Backend) -> None:
        """Order again what has been ordered: to a back end that has done it, it means nothing.

        After a crash runs go on or are started, if it came before that; and a report that was lost is made again.
        """
        self._take_up_at = self._clock.now() + TAKE_UP_EVERY
        runs = self.real_runs()
        orders: list[Order] = [StartRun(run.job, run.number, run.allocation) for run in runs]
        orders += [StopRun(run.job, run.number, "it was stopping") for run in runs if run.stopping]
        await self._carry_out(backend, orders)

    def real_runs(self) -> list[Run]:
        """The runs that a back end knows of."""
        return [run for run in self.view.runs.values() if not is_drain_placeholder(self.view.active[run.job])]

    def _next_moment(self) -> Seconds:
        wake = self._inbox.next_wake()
        return self._take_up_at if wake is None else min(self._take_up_at, wake)

    async def _step(self, backend: Backend, snapshot: Sequence[Event] = (), epoch: Header | None = None) -> None:
        # 1. What has happened.
        now = self._clock.now()
        asked, news = self._inbox.take_asked(), self._inbox.take_news()
        events = [*snapshot, *self._inbox.take_facts(now)]
        for gather in self.gathers:
            events += gather(self.view)
        for one in asked:
            events += one.events
        if not (asked or events or news or epoch):
            return

        # 2. What is to be done about it.
        entry = self._scheduler.step(now, events)
        noted, over = self.job_table.note(entry, self.view)
        if snapshot:
            self._forget_runs_that_are_not()
            noted = []  # all of it was news before
        if entry.wake_at is not None:
            self._inbox.wake_at(entry.wake_at)

        # 3. Write it down.
        self._entry += 1
        step = LoopStep(entry, [*news, *noted], over)
        told = self._told(step)
        commit = self._commit_of(step, [job for one in asked for job in one.jobs], told, epoch)
        self.leaving = {one.status.id: one.status for one in commit.ended}
        await self._writer.commit(commit)
        self.leaving = {}

        # 4. Whoever asked may know; then act.
        self._inbox.answer(entry)
        self._feed.publish(told)
        await self._carry_out(backend, entry.orders)
        for watch in self.watches:
            self._tell_of(step, watch)

    def _tell_of(self, step: LoopStep, watch: Watch) -> None:
        try:
            watch(step)
        except Exception:  # the step is on disk and has been carried out: nobody who looks on can undo that
            log.exception("somebody who watches failed")

    def _forget_runs_that_are_not(self) -> None:
        """After a beginning anew on another cluster, some runs may have no place any more."""
        for job_id, record in self.job_table.of.items():
            if record.run and job_id not in self.view.runs:
                record.run = 0

    def _told(self, step: LoopStep) -> list[wire.Event]:
        told: list[wire.Event] = []
        for news in step.news:
            if news.job is not None and is_drain_placeholder(news.job):
                continue
            self._event_number += 1
            job, tenant = (news.job.id, news.job.tenant) if news.job is not None else ("", "")
            at = self.wall(step.entry.now)
            told.append(wire.Event(self._event_number, at, news.kind, job, news.run, news.text, tenant))
        return told

    def _commit_of(self, step: LoopStep, jobs: list[NewJob], told: list[wire.Event], epoch: Header | None) -> Commit:
        ended = [EndedJob(ended_status(over, self.wall, step.entry.now), over.lasted) for over in step.over]
        checkpoint = None
        if epoch is not None or self._entry % CHECKPOINT_EVERY == 0:
            checkpoint = Checkpoint(self._entry, self._scheduler.snapshot(), tuple(self.job_table.of.values()))
        return Commit(self._entry, step.entry, jobs, ended, told, epoch, checkpoint)

    async def _carry_out(self, backend: Backend, orders: Sequence[Order]) -> None:
        for order in orders:
            try:
                await backend.carry_out((order,), self.view.active)
            except Exception as error:  # one order that cannot be carried out is no reason to leave the others
                log.exception("cannot carry out %s", order)
                if isinstance(order, StartRun):
                    self.report(RunFailed(order.job, order.run, f"it could not be started: {error}"))
