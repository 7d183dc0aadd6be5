"""What happens, for those who listen: a ring of the last events, which a slow listener falls out of and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from time import monotonic, time

import msgspec

from refold.api.roles import Caller
from refold.api.wire import Event

MOST_EVENTS = 10_000
"""Events that are remembered."""

MOST_LISTENERS = 256
HEARTBEAT = 15.0
"""Seconds without an event after which a listener is told that the daemon is there."""

PIECE = 256
"""Events that are handed to a listener at once."""


class EventFilter(msgspec.Struct, frozen=True):
    """Which events a listener wants to have, and what it may know of them. Empty texts ask for nothing."""

    caller: Caller
    job: str = ""
    tenant: str = ""

    def wants(self, event: Event) -> bool:
        """Whether it is one of these."""
        return (not self.job or event.job == self.job) and (not self.tenant or event.tenant == self.tenant)

    def may_see(self, event: Event) -> Event:
        """An event as this listener may have it: what jobs of other tenants say is theirs."""
        if not event.text or not event.tenant or self.caller.sees(event.tenant):
            return event
        return msgspec.structs.replace(event, text="")


class EventStream:
    """The last events, by number. All that a listener costs is its place in the ring. Used within one event loop."""

    def __init__(self, last: int = 0, most: int = MOST_EVENTS, heartbeat: float = HEARTBEAT) -> None:
        """`last`: the number of the last event before these: a listener goes on when the daemon has come back."""
        self.last = last
        self.listeners = 0
        self._events: dict[int, Event] = {}
        self._most = most
        self._heartbeat = heartbeat
        self._news = asyncio.Event()
        self._ended = False

    @property
    def is_full(self) -> bool:
        """Whether nobody else can listen."""
        return self.listeners >= MOST_LISTENERS

    def publish(self, events: Iterable[Event]) -> None:
        """These have happened; the number of each is one more than that of the one before. Waits for nobody."""
        before = self.last
        for event in events:
            self.last = event.number
            self._events[event.number] = event
            self._events.pop(event.number - self._most, None)
        if self.last != before:
            self.wake()

    def end(self) -> None:
        """There will be no more: every listener's stream comes to its end."""
        self._ended = True
        self.wake()

    def wake(self) -> None:
        """Let every listener look whether it may still listen, and whether there is something new."""
        # Those who wait have the old one; whoever comes to wait next gets the new one.
        self._news.set()
        self._news = asyncio.Event()

    async def subscribe(
        self,
        since: int | None,
        interest: EventFilter,
        follow: bool = True,
        may_listen: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events after the number `since` (None: from now on); the first piece tells where that is.

        Events that were dropped from the ring before they were taken come as one of the kind `lost`, with their number.
        The stream ends when its listener may not listen any more.
        """
        reached = self.last if since is None else min(since, self.last)
        self.listeners += 1
        try:
            yield alive(reached)
            said = monotonic()
            while may_listen():
                news = self._news
                piece, reached = self._piece_after(reached, interest)
                if not piece and monotonic() - said >= self._heartbeat:
                    piece = alive(reached)  # also where much happens that this listener did not ask for
                if piece:
                    yield piece
                    said = monotonic()
                if reached < self.last:
                    continue
                if not follow or self._ended:
                    return
                await _one_of(news, said + self._heartbeat - monotonic())
        finally:
            self.listeners -= 1

    def _piece_after(self, reached: int, interest: EventFilter) -> tuple[bytes, int]:
        """The next few events as text, and the number that this goes to."""
        lines: list[bytes] = []
        before = self.last - len(self._events)
        if reached < before:
            lines.append(told(Event(before, time(), "lost", text=f"{before - reached} events were dropped")))
            reached = before
        for number in range(reached + 1, min(reached + PIECE, self.last) + 1):
            event = self._events.get(number)
            if event is not None and interest.wants(event):
                lines.append(told(interest.may_see(event)))
            reached = number
        return b"".join(lines), reached


async def _one_of(news: asyncio.Event, seconds: float) -> None:
    """Until there is news, or so many seconds have passed."""
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass


def told(event: Event) -> bytes:
    """An event as server-sent events are written: a browser that comes back names the last `id` it has seen."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, event.kind.encode(), msgspec.json.encode(event))


def alive(reached: int) -> bytes:
    """A comment that keeps a connection open, and the number that the listener has reached."""
    return b"id: %d\n: here\n\n" % reached
