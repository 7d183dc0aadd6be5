"""The event stream: a ring buffer of the latest events, and subscriptions to it as server-sent events.

A subscriber that falls behind by more than the ring buffer loses events; it never delays the daemon.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from time import monotonic, time

import msgspec

from refold.client.api import Caller, Event

MAX_BUFFERED_EVENTS = 10_000
"""Capacity of the ring buffer."""

MAX_LISTENERS = 256
MAX_LISTENERS_PER_TOKEN = 32
"""Maximum number of streams with one token. The owner's token may use all."""

HEARTBEAT_SECONDS = 15.0
"""Seconds without an event after which a comment is sent to keep the connection open."""

EVENTS_PER_CHUNK = 256
"""Maximum number of events in one chunk of a stream."""


class EventFilter(msgspec.Struct, frozen=True):
    """Which events a listener receives, and what it may see of them. An empty `job` or `tenant` does not filter."""

    caller: Caller
    job: str = ""
    tenant: str = ""

    def matches(self, event: Event) -> bool:
        return (not self.job or event.job == self.job) and (not self.tenant or event.tenant == self.tenant)

    def redact(self, event: Event) -> Event:
        """Return the event without text and user if it belongs to a job that the caller may not read."""
        if not (event.text or event.user) or not event.tenant or self.caller.can_read(event.tenant, event.user):
            return event
        return msgspec.structs.replace(event, text="", user="")


class EventStream:
    """The latest events by number. All listeners share the ring buffer. For use in one event loop."""

    def __init__(
        self, last: int = 0, capacity: int = MAX_BUFFERED_EVENTS, heartbeat: float = HEARTBEAT_SECONDS
    ) -> None:
        """`last`: the number of the last event before a restart, so that listeners can resume."""
        self.last = last
        self._listeners: Counter[str] = Counter()
        self._events: dict[int, Event] = {}
        self._capacity = capacity
        self._heartbeat = heartbeat
        self._wakeup = asyncio.Event()
        self._closed = False

    @property
    def listeners(self) -> int:
        return self._listeners.total()

    def is_full(self, caller: Caller) -> bool:
        """Whether the maximum number of streams is reached: of all, or of this token unless it is an owner's."""
        own = self._listeners[caller.label]
        return self.listeners >= MAX_LISTENERS or (own >= MAX_LISTENERS_PER_TOKEN and not caller.has_role("owner"))

    def publish(self, events: Iterable[Event]) -> None:
        """Append events, which are numbered consecutively. Never blocks."""
        before = self.last
        for event in events:
            self.last = event.number
            self._events[event.number] = event
            self._events.pop(event.number - self._capacity, None)
        if self.last != before:
            self.wake()

    def close(self) -> None:
        """End every listener's stream after the events that are buffered."""
        self._closed = True
        self.wake()

    def wake(self) -> None:
        """Make every listener check for new events and for its permission to listen."""
        # Listeners that are waiting hold the old event object; those that wait from now on get the new one.
        self._wakeup.set()
        self._wakeup = asyncio.Event()

    async def subscribe(
        self,
        since: int | None,
        event_filter: EventFilter,
        follow: bool = True,
        may_listen: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[bytes, None]:
        """Yield events after number `since` (None: from now on) as server-sent events.

        The first chunk carries the starting number. Events that were dropped from the ring buffer before they
        were sent are replaced by one event of kind `lost` with their count. The stream ends when `may_listen` returns
        False.
        """
        position = self.last if since is None else min(since, self.last)
        token = event_filter.caller.label
        if self.is_full(event_filter.caller):  # others have subscribed since this one was accepted
            return
        self._listeners[token] += 1
        try:
            yield format_heartbeat(position)
            last_sent = monotonic()
            while may_listen():
                wakeup = self._wakeup
                chunk, position = self._next_chunk(position, event_filter)
                if not chunk and monotonic() - last_sent >= self._heartbeat:
                    chunk = format_heartbeat(position)  # due also while all new events are filtered out
                if chunk:
                    yield chunk
                    last_sent = monotonic()
                if position < self.last:
                    continue
                if not follow or self._closed:
                    return
                await _wait(wakeup, last_sent + self._heartbeat - monotonic())
        finally:
            self._listeners[token] -= 1
            self._listeners += Counter()  # drop zeros

    def _next_chunk(self, position: int, event_filter: EventFilter) -> tuple[bytes, int]:
        """Return the next events after `position` as text, and the new position."""
        lines: list[bytes] = []
        before_oldest = self.last - len(self._events)
        if position < before_oldest:
            text = f"{before_oldest - position} events were dropped"
            lines.append(format_event(Event(before_oldest, time(), "lost", text=text)))
            position = before_oldest
        for number in range(position + 1, min(position + EVENTS_PER_CHUNK, self.last) + 1):
            event = self._events.get(number)
            if event is not None and event_filter.matches(event):
                lines.append(format_event(event_filter.redact(event)))
            position = number
        return b"".join(lines), position


async def _wait(wakeup: asyncio.Event, seconds: float) -> None:
    """Wait for the event, for at most this number of seconds."""
    try:
        async with asyncio.timeout(seconds):
            await wakeup.wait()
    except TimeoutError:
        pass


def format_event(event: Event) -> bytes:
    """Format an event as a server-sent event. A browser that reconnects sends the last `id` it has received."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, event.kind.encode(), msgspec.json.encode(event))


def format_heartbeat(position: int) -> bytes:
    """Format a comment that keeps the connection open, with the listener's position."""
    return b"id: %d\n: here\n\n" % position
