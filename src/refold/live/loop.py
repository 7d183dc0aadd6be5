"""The daemon's loop: gather what has happened, decide, write it down, acknowledge, act. In this order.

What is asked and reported while a step is being written down belongs to the next one, so the more there is to do the
more goes into one commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from heapq import heapify, heappop, heappush
from time import time

import msgspec

from refold.backends import Backend
from refold.core import Entry, Header, Scheduler, View
from refold.core.events import Event, Remembered, RunFailed, Woke
from refold.core.orders import Order, StartRun, StopRun
from refold.errors import Unavailable
from refold.live import wire
from refold.live.clock import Clock
from refold.live.drains import is_stand_in
from refold.live.feed import Feed
from refold.live.reading import Checkpoint
from refold.live.recovery import Recovered
from refold.live.roster import News, Over
from refold.live.standing import ended_status
from refold.live.store import Commit, EndedJob, NewJob, Store
from refold.live.wire import JobStatus
from refold.model import Run
from refold.model.units import Seconds
from refold.simulator.snapshot import Snapshot

CHECKPOINT_EVERY = 5_000
"""Entries after which it is written down how things stand: no more have to be read after a crash."""

TRY_AGAIN_AFTER: Seconds = 1.0
"""Between two tries to write what could not be written."""

TAKE_UP_EVERY: Seconds = 60.0
"""How often it is looked after runs whose end was reported and not heard of."""

PATIENCE: Seconds = 5.0
"""How long somebody who asks is left waiting while nothing can be written."""

log = logging.getLogger("refold")


class Step(msgspec.Struct, frozen=True):
    """What has been written down and carried out."""

    entry: Entry
    news: list[News]
    over: list[Over]


Watch = Callable[[Step], None]
"""Somebody who is told of every step, after it has been carried out."""

Gather = Callable[[View], Sequence[Event]]
"""Somebody who adds facts to a step, before the policy sees it."""


class _Asked(msgspec.Struct, gc=False):
    """What somebody wants to be written down, and who waits for it."""

    events: Sequence[Event]
    jobs: Sequence[NewJob]
    done: asyncio.Future[Entry]


class Loop:
    """One scheduler, one store, one back end. Made and used within one event loop; reports may come from any thread."""

    def __init__(self, store: Store, stand: Recovered, header: Header, clock: Clock, feed: Feed) -> None:
        self.header = header
        self.roster = stand.roster
        self.view = stand.scheduler.view
        self.problem = ""
        """Why nothing can be written at present."""
        self.ending: dict[str, wire.JobStatus] = {}
        """Jobs that are over by the step that is being written down: neither here any more, nor in the store yet."""
        self.leaving: dict[str, JobStatus] = {}
        """Jobs that are over, of which that is just being written down."""
        self.watches: list[Watch] = []
        self.gathers: list[Gather] = []
        self._scheduler = stand.scheduler
        self._store = store
        self._clock = clock
        self._feed = feed
        self._opening = stand.opening
        self._entry = stand.entry
        self._event_number = store.reading.last_numbers()[1]
        self._wakes = list(stand.wakes)
        heapify(self._wakes)
        self._asked: list[_Asked] = []
        self._reports: deque[Event] = deque()
        self._news: list[News] = []
        self._something = asyncio.Event()
        self._ending = False
        self._take_up_at: Seconds = 0.0
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, "refold-writer")

    # From outside.

    def now(self) -> Seconds:
        """The time of the journal."""
        return self._clock.now()

    def wall(self, moment: Seconds) -> float:
        """A moment of the journal in Unix seconds."""
        return time() - self._clock.now() + moment

    def opening(self, past: Iterable[Remembered] = ()) -> tuple[Event, ...]:
        """The present as facts."""
        return self._scheduler.opening(past)

    def copied(self) -> Scheduler:
        """A second scheduler that stands where this one does: what it decides has no consequences."""
        return Snapshot(self._scheduler).copy()

    def report(self, event: Event) -> None:
        """Something has happened. Any thread may say so."""
        self._reports.append(event)
        self._loop.call_soon_threadsafe(self._something.set)

    async def ask(self, events: Sequence[Event], jobs: Sequence[NewJob] = ()) -> Entry:
        """Have facts written down; returns when they are on disk."""
        self._refuse_if_stuck()
        done: asyncio.Future[Entry] = self._loop.create_future()
        self._asked.append(_Asked(events, jobs, done))
        self._something.set()
        while True:
            finished, _ = await asyncio.wait((done,), timeout=PATIENCE)
            if finished:
                return done.result()
            if self.problem:
                done.cancel()
                raise Unavailable(f"{self.problem}; it may yet be accepted: ask again with the same request")

    def _refuse_if_stuck(self) -> None:
        if self.problem or self._ending:
            raise Unavailable(self.problem or "the daemon is shutting down")

    def tell(self, news: News) -> None:
        """Something happened that does not concern the scheduler, and people want to know."""
        self._news.append(news)
        self._something.set()

    def nudge(self) -> None:
        """Whoever adds facts to steps has some."""
        self._something.set()

    async def written(self, work: Callable[[], None]) -> None:
        """Have something else written to the store, in turn with the journal."""
        await self._loop.run_in_executor(self._writer, work)

    def end(self) -> None:
        """Finish the step that is being carried out, and no more."""
        self._ending = True
        self._something.set()

    # The loop.

    async def run(self, backend: Backend) -> None:
        """Take up what was going on; then step whenever something happens, until the end."""
        try:
            if self._opening is not None:
                await self._step(backend, self._opening, self.header)
            await backend.keep_only({(run.job, run.number) for run in self._real_runs()})
            await self._take_up(backend)
            while not self._ending:
                await self._clock.wait(self._something, self._next_moment())
                self._something.clear()
                if self._clock.now() >= self._take_up_at:
                    await self._take_up(backend)
                await self._step(backend)
        finally:
            for asked in self._asked:
                asked.done.cancel()
            self._writer.shutdown(wait=True)

    async def _take_up(self, backend: Backend) -> None:
        """Order again what has been ordered: to a back end that has done it, it means nothing.

        After a crash runs go on or are started, if it came before that; and a report that was lost is made again.
        """
        self._take_up_at = self._clock.now() + TAKE_UP_EVERY
        runs = self._real_runs()
        orders: list[Order] = [StartRun(run.job, run.number, run.allocation) for run in runs]
        orders += [StopRun(run.job, run.number, "it was stopping") for run in runs if run.stopping]
        await self._carry_out(backend, orders)

    def _real_runs(self) -> list[Run]:
        return [run for run in self.view.runs.values() if not is_stand_in(self.view.active[run.job])]

    def _next_moment(self) -> Seconds:
        return min(self._take_up_at, self._wakes[0]) if self._wakes else self._take_up_at

    async def _step(self, backend: Backend, opening: Sequence[Event] = (), chapter: Header | None = None) -> None:
        # 1. What has happened.
        now = self._clock.now()
        asked, self._asked = self._asked, []
        news, self._news = self._news, []
        events = [*opening, *self._gathered(now)]
        jobs: list[NewJob] = []
        for one in asked:
            events += one.events
            jobs += one.jobs
        if not (asked or events or news or chapter):
            return

        # 2. What is to be done about it.
        entry = self._scheduler.step(now, events)
        noted, over = self.roster.note(entry, self.view)
        if opening:
            self._forget_runs_that_are_not()
            noted = []  # all of it was news before
        if entry.wake_at is not None:
            heappush(self._wakes, entry.wake_at)

        # 3. Write it down.
        self._entry += 1
        step = Step(entry, [*news, *noted], over)
        told = self._told(step)
        commit = self._commit_of(step, jobs, told, chapter)
        self.ending = {one.status.id: one.status for one in commit.ended}
        await self._commit(commit)
        self.ending = {}

        # 4. Whoever asked may know; then act.
        self.leaving = {}
        for one in asked:
            if not one.done.done():
                one.done.set_result(entry)
        self._feed.publish(told)
        await self._carry_out(backend, entry.orders)
        for watch in self.watches:
            watch(step)

    def _gathered(self, now: Seconds) -> list[Event]:
        """Reports, a wake that is due, then what others add: the order in which the simulator's agenda has them."""
        events: list[Event] = []
        while self._reports:
            events.append(self._reports.popleft())
        if self._wakes and self._wakes[0] <= now:
            events.append(Woke())
        while self._wakes and self._wakes[0] <= now:
            heappop(self._wakes)
        for gather in self.gathers:
            events += gather(self.view)
        return events

    def _forget_runs_that_are_not(self) -> None:
        """After a beginning anew on another cluster, some runs may have no place any more."""
        for job_id, record in self.roster.of.items():
            if record.run and job_id not in self.view.runs:
                record.run = 0

    def _told(self, step: Step) -> list[wire.Event]:
        told: list[wire.Event] = []
        for news in step.news:
            if news.job is not None and is_stand_in(news.job):
                continue
            self._event_number += 1
            job, tenant = (news.job.id, news.job.tenant) if news.job is not None else ("", "")
            at = self.wall(step.entry.now)
            told.append(wire.Event(self._event_number, at, news.kind, job, news.run, news.text, tenant))
        return told

    def _commit_of(self, step: Step, jobs: list[NewJob], told: list[wire.Event], chapter: Header | None) -> Commit:
        ended = [EndedJob(ended_status(over, self.wall, step.entry.now), over.lasted) for over in step.over]
        self.leaving = {one.status.id: one.status for one in ended}
        checkpoint = None
        if chapter is not None or self._entry % CHECKPOINT_EVERY == 0:
            checkpoint = Checkpoint(self._entry, self._scheduler.opening(), tuple(self.roster.of.values()))
        return Commit(self._entry, step.entry, jobs, ended, told, chapter, checkpoint)

    async def _commit(self, commit: Commit) -> None:
        """Until it is on disk. What cannot be written cannot be acted on, so there is nothing else to do meanwhile."""
        while True:
            try:
                await self._loop.run_in_executor(self._writer, self._store.commit, commit)
            except Unavailable as error:
                if not self.problem:
                    log.error("%s; trying again every %g s", error, TRY_AGAIN_AFTER)
                self.problem = str(error)
                await asyncio.sleep(TRY_AGAIN_AFTER)
            else:
                if self.problem:
                    log.warning("the journal can be written again")
                self.problem = ""
                return

    async def _carry_out(self, backend: Backend, orders: Sequence[Order]) -> None:
        for order in orders:
            try:
                await backend.carry_out((order,), self.view.active)
            except Exception as error:  # one order that cannot be carried out is no reason to leave the others
                log.exception("cannot carry out %s", order)
                if isinstance(order, StartRun):
                    self.report(RunFailed(order.job, order.run, f"it could not be started: {error}"))
