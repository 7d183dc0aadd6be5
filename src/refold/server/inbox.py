"""What has happened since the last step: what callers ask for, what back ends report, and wakes that are due."""

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


class Request(msgspec.Struct, gc=False):
    """What somebody wants to be written down, and who waits for it."""

    events: Sequence[Event]
    jobs: Sequence[NewJob]
    done: asyncio.Future[Entry]


class Inbox:
    """Things come in at any time, and are taken out step by step. Reports may come from any thread."""

    def __init__(self, wakes: Iterable[Seconds] = ()) -> None:
        self.something = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._asked: list[Request] = []
        self._in_hand: list[Request] = []
        self._reports: deque[Event] = deque()
        self._news: list[Notice] = []
        self._wakes: list[Seconds] = []
        self._known_wakes: set[Seconds] = set()
        for moment in wakes:
            self.wake_at(moment)

    def put(self, events: Sequence[Event], jobs: Sequence[NewJob]) -> asyncio.Future[Entry]:
        """Have facts written down; the future is done when they are on disk."""
        done: asyncio.Future[Entry] = self._loop.create_future()
        self._asked.append(Request(events, jobs, done))
        self.something.set()
        return done

    def report(self, event: Event) -> None:
        """Something has happened. Any thread may say so."""
        self._reports.append(event)
        self._loop.call_soon_threadsafe(self.something.set)

    def tell(self, news: Notice) -> None:
        """Something happened that does not concern the scheduler."""
        self._news.append(news)
        self.something.set()

    def wake_at(self, moment: Seconds) -> None:
        """Something is to be looked at then."""
        if moment not in self._known_wakes:
            self._known_wakes.add(moment)
            heappush(self._wakes, moment)

    def next_wake(self) -> Seconds | None:
        """When the next of these moments is."""
        return self._wakes[0] if self._wakes else None

    def take_facts(self, now: Seconds) -> list[Event]:
        """Reports, then a wake that is due: the order in which the simulator's agenda has them."""
        events: list[Event] = []
        while self._reports:
            events.append(self._reports.popleft())
        if self._wakes and self._wakes[0] <= now:
            events.append(Woke())
        while self._wakes and self._wakes[0] <= now:
            self._known_wakes.discard(heappop(self._wakes))
        return events

    def take_asked(self) -> list[Request]:
        """What was asked for; it is in hand until it has been answered."""
        self._in_hand, self._asked = self._asked, []
        return self._in_hand

    def take_news(self) -> list[Notice]:
        """What people are to know."""
        news, self._news = self._news, []
        return news

    def answer(self, entry: Entry) -> None:
        """What is in hand is on disk."""
        for asked in self._in_hand:
            if not asked.done.done():
                asked.done.set_result(entry)
        self._in_hand = []

    def close(self) -> None:
        """Nothing of what was asked for and not answered will be."""
        for asked in (*self._in_hand, *self._asked):
            if not asked.done.done():
                asked.done.set_exception(Unavailable("the daemon is shutting down"))
                asked.done.exception()  # perhaps nobody waits for it any more
        self._in_hand, self._asked = [], []
