"""The driver of `refold run`: the simulator's loop in real time, with a real backend."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from refold.backends import Backend
from refold.core import Entry, Event, JobCancelled, JobSubmitted, Scheduler, View, Woke
from refold.model import Job, Seconds
from refold.server.clock import Clock

StepCallback = Callable[[Entry, View], None]
"""Called after each step has been carried out."""


def ignore_step(entry: Entry, view: View) -> None:
    """Do nothing."""


class LiveDriver:
    """Runs a fixed list of jobs, each submitted at its time. Create it inside a running event loop."""

    def __init__(
        self, scheduler: Scheduler, jobs: Iterable[Job], clock: Clock, on_step: StepCallback = ignore_step
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._on_step = on_step
        self._upcoming = deque(sorted(jobs, key=lambda job: job.submitted))
        self._reports: deque[Event] = deque()
        self._wakes: list[Seconds] = []
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def report(self, event: Event) -> None:
        """Queue an event. Thread-safe."""
        self._reports.append(event)
        self._loop.call_soon_threadsafe(self._arrived.set)

    def cancel_all(self) -> None:
        """Cancel all jobs: stop every run and start nothing more."""
        view = self._scheduler.view
        self._upcoming.clear()
        for job_id in (*view.infeasible, *view.waiting, *view.runs):
            self.report(JobCancelled(job_id))

    async def drive(self, backend: Backend) -> View:
        """Run until every job has ended or can never start. Always closes the backend, so no run outlives it."""
        try:
            while not self._is_done():
                await self._clock.wait(self._arrived, self._next_deadline())
                await self._step(backend)
        except asyncio.CancelledError:
            await self._abort(backend)
            raise
        finally:
            await backend.close()
        return self._scheduler.view

    async def _step(self, backend: Backend) -> None:
        now = self._clock.now()
        events = self._take_events(now)
        if not events:
            return
        entry = self._scheduler.step(now, events)  # written to the journal when this returns
        if entry.wake_at is not None:
            heappush(self._wakes, entry.wake_at)
        await backend.carry_out(entry.orders, self._scheduler.view.active)
        self._on_step(entry, self._scheduler.view)

    async def _abort(self, backend: Backend) -> None:
        """End all runs immediately and record it in the journal."""
        self.cancel_all()
        await backend.close()
        await self._step(backend)

    def _is_done(self) -> bool:
        view = self._scheduler.view
        if self._upcoming or self._reports or view.runs:
            return False
        return not (view.waiting and self._wakes)

    def _next_deadline(self) -> Seconds | None:
        deadlines = self._wakes[:1]
        if self._upcoming:
            deadlines.append(self._upcoming[0].submitted)
        return min(deadlines, default=None)

    def _take_events(self, now: Seconds) -> list[Event]:
        """Return backend reports, then a due wake, then due submissions: the order of the simulator's agenda."""
        self._arrived.clear()
        events: list[Event] = []
        while self._reports:
            events.append(self._reports.popleft())
        if self._wakes and self._wakes[0] <= now:
            events.append(Woke())
        while self._wakes and self._wakes[0] <= now:
            heappop(self._wakes)
        while self._upcoming and self._upcoming[0].submitted <= now:
            events.append(JobSubmitted(self._upcoming.popleft()))
        return events
