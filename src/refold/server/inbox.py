"""Input of the daemon's loop: client requests, backend reports, notices and due wakes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import msgspec

from refold.core import Entry, Event, Woke
from refold.errors import Unavailable
from refold.model import Seconds
from refold.server.job_table import Notice
from refold.server.store import NewJob


class PendingRequest(msgspec.Struct, gc=False):
    """Events and new jobs of a client request, and the future that is resolved when they are committed."""

    events: Sequence[Event]
    jobs: Sequence[NewJob]
    committed: asyncio.Future[Entry]


class Inbox:
    """Collects input at any time; the loop takes it out once per step. Reports may come from any thread."""

    def __init__(self, wakes: Iterable[Seconds] = ()) -> None:
        self.arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._queued: list[PendingRequest] = []
        self._in_progress: list[PendingRequest] = []
        self._reports: deque[Event] = deque()
        self._notices: list[Notice] = []
        self._wakes: list[Seconds] = []
        self._known_wakes: set[Seconds] = set()
        for moment in wakes:
            self.wake_at(moment)

    def put(self, events: Sequence[Event], jobs: Sequence[NewJob]) -> asyncio.Future[Entry]:
        """Queue events and new jobs. The future is resolved when they are on disk."""
        committed: asyncio.Future[Entry] = self._loop.create_future()
        self._queued.append(PendingRequest(events, jobs, committed))
        self.arrived.set()
        return committed

    def report(self, event: Event) -> None:
        """Queue an event. Thread-safe."""
        self._reports.append(event)
        self._loop.call_soon_threadsafe(self.arrived.set)

    def add_notice(self, notice: Notice) -> None:
        """Queue a notice: it is stored and published, and does not reach the scheduler."""
        self._notices.append(notice)
        self.arrived.set()

    def wake_at(self, moment: Seconds) -> None:
        """Schedule a step at a time."""
        if moment not in self._known_wakes:
            self._known_wakes.add(moment)
            heappush(self._wakes, moment)

    def next_wake(self) -> Seconds | None:
        """Return the time of the next wake."""
        return self._wakes[0] if self._wakes else None

    def take_events(self, now: Seconds) -> list[Event]:
        """Return backend reports, then a due wake: the order of the simulator's agenda."""
        events: list[Event] = []
        while self._reports:
            events.append(self._reports.popleft())
        if self._wakes and self._wakes[0] <= now:
            events.append(Woke())
        while self._wakes and self._wakes[0] <= now:
            self._known_wakes.discard(heappop(self._wakes))
        return events

    def take_requests(self) -> list[PendingRequest]:
        """Return the queued requests. They are in progress until `acknowledge`."""
        self._in_progress, self._queued = self._queued, []
        return self._in_progress

    def take_notices(self) -> list[Notice]:
        """Return the queued notices."""
        notices, self._notices = self._notices, []
        return notices

    def acknowledge(self, entry: Entry) -> None:
        """Resolve the requests in progress: they are on disk."""
        for request in self._in_progress:
            if not request.committed.done():
                request.committed.set_result(entry)
        self._in_progress = []

    def close(self) -> None:
        """Fail all requests that were not acknowledged."""
        for request in (*self._in_progress, *self._queued):
            if not request.committed.done():
                request.committed.set_exception(Unavailable("the daemon is shutting down"))
                request.committed.exception()  # mark as retrieved: the caller may be gone
        self._in_progress, self._queued = [], []
