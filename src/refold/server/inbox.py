"""Input of the loop: client requests, reports, notices and due wakes."""

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
from refold.server.writer import Writer

COMMIT_TIMEOUT_SECONDS: Seconds = 5.0
"""How long a client request waits while the store cannot be written."""


class PendingRequest(msgspec.Struct, gc=False):
    """Events and new jobs of a client request, and the future that is resolved when they are committed."""

    events: Sequence[Event]
    jobs: Sequence[NewJob]
    committed: asyncio.Future[Entry]


class StepInput(msgspec.Struct, gc=False):
    """The input of one step. `events`: backend reports, then a due wake, as in the simulator's agenda."""

    events: list[Event]
    requests: list[PendingRequest]
    notices: list[Notice]


class Inbox:
    """Collects input at any time; the loop takes it out once per step. Use it within one event loop."""

    def __init__(self, writer: Writer, wakes: Iterable[Seconds] = ()) -> None:
        self.arrived = asyncio.Event()
        self.stopping = False
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._queued: list[PendingRequest] = []
        self._in_progress: list[PendingRequest] = []
        self._reports: deque[Event] = deque()
        self._notices: deque[Notice] = deque()
        self._wakes: list[Seconds] = []
        self._known_wakes: set[Seconds] = set()
        for moment in wakes:
            self.wake_at(moment)

    # For the parts that have input.

    def report(self, event: Event) -> None:
        """Queue an event for the scheduler. Thread-safe."""
        self._reports.append(event)
        self._loop.call_soon_threadsafe(self.arrived.set)

    def add_notice(self, notice: Notice) -> None:
        """Queue a notice: it is stored and published, and does not reach the scheduler. Thread-safe."""
        self._notices.append(notice)
        self._loop.call_soon_threadsafe(self.arrived.set)

    def wake_at(self, moment: Seconds) -> None:
        """Schedule a step at a time."""
        if moment not in self._known_wakes:
            self._known_wakes.add(moment)
            heappush(self._wakes, moment)

    async def commit(self, events: Sequence[Event]) -> Entry:
        """Commit events; return when they are on disk."""
        return await self.wait_until_committed(self.enqueue(events))

    def enqueue(self, events: Sequence[Event], jobs: Sequence[NewJob] = ()) -> asyncio.Future[Entry]:
        """Queue events and new jobs without waiting. They will be committed unless the daemon ends first."""
        if self.problem or self.stopping:
            raise Unavailable(self.problem or "the daemon is shutting down")
        committed: asyncio.Future[Entry] = self._loop.create_future()
        self._queued.append(PendingRequest(events, jobs, committed))
        self.arrived.set()
        return committed

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

    def stop(self) -> None:
        """Let the loop finish the current step and stop."""
        self.stopping = True
        self._writer.stop_retrying()
        self.arrived.set()

    @property
    def problem(self) -> str:
        """Why the store cannot be written at present; '' if it can."""
        return self._writer.problem

    # For the loop.

    @property
    def is_empty(self) -> bool:
        return not (self._reports or self._notices or self._queued)

    def next_wake(self) -> Seconds | None:
        return self._wakes[0] if self._wakes else None

    def take(self, now: Seconds) -> StepInput:
        """Return all input. Requests are in progress until `acknowledge`."""
        self.arrived.clear()
        events: list[Event] = []
        while self._reports:
            events.append(self._reports.popleft())
        if self._wakes and self._wakes[0] <= now:
            events.append(Woke())
        while self._wakes and self._wakes[0] <= now:
            self._known_wakes.discard(heappop(self._wakes))
        notices: list[Notice] = []
        while self._notices:
            notices.append(self._notices.popleft())
        self._in_progress, self._queued = self._queued, []
        return StepInput(events, self._in_progress, notices)

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
