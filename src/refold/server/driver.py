"""The live loop: the simulator's, with time that is waited for and a back end that is real."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from refold.backends import Backend
from refold.core import Entry, Event, JobCancelled, JobSubmitted, Scheduler, View, Woke
from refold.model import Job, Seconds
from refold.server.clock import Clock

Watch = Callable[[Entry, View], None]
"""Somebody who is told of every step, after it has been carried out."""


def nobody_watches(entry: Entry, view: View) -> None:
    """For those who want the journal only."""


class LiveDriver:
    """Brings together a scheduler, a clock and jobs that come by and by. Made inside a running event loop."""

    def __init__(self, scheduler: Scheduler, jobs: Iterable[Job], clock: Clock, watch: Watch = nobody_watches) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._watch = watch
        self._coming = deque(sorted(jobs, key=lambda job: job.submitted))
        self._reports: deque[Event] = deque()
        self._wakes: list[Seconds] = []
        self._something = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def report(self, event: Event) -> None:
        """Something has happened. Any thread may say so."""
        self._reports.append(event)
        self._loop.call_soon_threadsafe(self._something.set)

    def cancel_all(self) -> None:
        """Nobody wants any of the jobs any more: runs are told to stop, and nothing else is started."""
        view = self._scheduler.view
        self._coming.clear()
        for job_id in (*view.infeasible, *view.waiting, *view.runs):
            self.report(JobCancelled(job_id))

    async def drive(self, backend: Backend) -> View:
        """Until every job is over, or waits for what will never come. Whatever happens, nothing runs on after it."""
        try:
            while not self._is_over():
                await self._clock.wait(self._something, self._next_moment())
                await self._step(backend)
        except asyncio.CancelledError:
            await self._break_off(backend)
            raise
        finally:
            await backend.close()
        return self._scheduler.view

    async def _step(self, backend: Backend) -> None:
        now = self._clock.now()
        events = self._what_has_happened(now)
        if not events:
            return
        entry = self._scheduler.step(now, events)  # when this returns, the journal has it
        if entry.wake_at is not None:
            heappush(self._wakes, entry.wake_at)
        await backend.carry_out(entry.orders, self._scheduler.view.active)
        self._watch(entry, self._scheduler.view)

    async def _break_off(self, backend: Backend) -> None:
        """Nobody waits any more: end all runs at once, and let the journal know."""
        self.cancel_all()
        await backend.close()
        await self._step(backend)

    def _is_over(self) -> bool:
        view = self._scheduler.view
        if self._coming or self._reports or view.runs:
            return False
        return not (view.waiting and self._wakes)

    def _next_moment(self) -> Seconds | None:
        moments = self._wakes[:1]
        if self._coming:
            moments.append(self._coming[0].submitted)
        return min(moments, default=None)

    def _what_has_happened(self, now: Seconds) -> list[Event]:
        """Reports, then a wake that is due, then submissions: the order in which the simulator's agenda has them."""
        self._something.clear()
        events: list[Event] = []
        while self._reports:
            events.append(self._reports.popleft())
        if self._wakes and self._wakes[0] <= now:
            events.append(Woke())
        while self._wakes and self._wakes[0] <= now:
            heappop(self._wakes)
        while self._coming and self._coming[0].submitted <= now:
            events.append(JobSubmitted(self._coming.popleft()))
        return events
