# cython: boundscheck=True, wraparound=True
"""The queue of future events. The simulator advances its time to the next event."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise

from refold.core import Event, JobSubmitted, Woke
from refold.errors import BadValue
from refold.model import Job, Seconds


class Agenda:
    """Future events by time. At equal times: added events first, in the order of adding, then submissions."""

    def __init__(self, arrivals: Sequence[Job]) -> None:
        """`arrivals` must be sorted by submission time."""
        self._arrivals = arrivals
        self._arrived = 0
        self._heap: list[tuple[Seconds, int, Event]] = []
        self._added = 0
        self._withdrawn: set[int] = set()
        self._wakes: set[Seconds] = set()

    @property
    def all_arrived(self) -> bool:
        """Whether all jobs have been submitted."""
        return self._arrived == len(self._arrivals)

    def add(self, at: Seconds, event: Event) -> int:
        """Add an event; returns a number with which it can be withdrawn."""
        self._added += 1
        heappush(self._heap, (at, self._added, event))
        return self._added

    def withdraw(self, number: int) -> None:
        """Remove an event that was added."""
        self._withdrawn.add(number)

    def wake(self, at: Seconds) -> None:
        """Add a `Woke` event, unless there is one at that time already."""
        if at not in self._wakes:
            self._wakes.add(at)
            self.add(at, Woke())

    def next(self) -> tuple[Seconds, list[Event]] | None:
        """Remove and return the next time and its events; None if there are no more events."""
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


def check_jobs(jobs: Sequence[Job]) -> None:
    """Refuse jobs that cannot be simulated together: with equal ids, or not sorted by submission."""
    if len({job.id for job in jobs}) != len(jobs):
        raise BadValue("two jobs of a simulation have the same id")
    if any(job.submitted > following.submitted for job, following in pairwise(jobs)):
        raise BadValue("the jobs of a simulation are not in order, expected them sorted by submission")
