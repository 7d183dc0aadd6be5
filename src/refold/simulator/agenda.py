"""What will happen, in order of time. The simulator jumps from one moment to the next."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from refold.core import Event, JobSubmitted, Woke
from refold.model import Job, Seconds


class Agenda:
    """Future events. At one moment: first those that were added, in the order of adding, then arrivals."""

    def __init__(self, arrivals: Sequence[Job]) -> None:
        """`arrivals` are sorted by time of submission."""
        self._arrivals = arrivals
        self._arrived = 0
        self._heap: list[tuple[Seconds, int, Event]] = []
        self._added = 0
        self._withdrawn: set[int] = set()
        self._wakes: set[Seconds] = set()

    @property
    def all_arrived(self) -> bool:
        """Whether no more jobs will come."""
        return self._arrived == len(self._arrivals)

    def add(self, at: Seconds, event: Event) -> int:
        """Something will happen; the number it returns can withdraw it."""
        self._added += 1
        heappush(self._heap, (at, self._added, event))
        return self._added

    def withdraw(self, number: int) -> None:
        """It will not happen after all."""
        self._withdrawn.add(number)

    def wake(self, at: Seconds) -> None:
        """Somebody wants to be woken."""
        if at not in self._wakes:
            self._wakes.add(at)
            self.add(at, Woke())

    def next(self) -> tuple[Seconds, list[Event]] | None:
        """The next moment and all that happens then; None when nothing will any more."""
        heap, withdrawn = self._heap, self._withdrawn
        while heap and heap[0][1] in withdrawn:
            withdrawn.remove(heappop(heap)[1])
        arrivals, arrived = self._arrivals, self._arrived
        if arrived < len(arrivals):
            now = arrivals[arrived].submitted
            if heap and heap[0][0] < now:
                now = heap[0][0]
        elif heap:
            now = heap[0][0]
        else:
            return None
        events: list[Event] = []
        while heap and heap[0][0] == now:
            _, number, event = heappop(heap)
            if number in withdrawn:
                withdrawn.remove(number)
                continue
            if type(event) is Woke:
                self._wakes.discard(now)
            events.append(event)
        while arrived < len(arrivals) and arrivals[arrived].submitted == now:
            events.append(JobSubmitted(arrivals[arrived]))
            arrived += 1
        self._arrived = arrived
        return now, events
