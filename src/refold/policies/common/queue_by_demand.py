"""Waiting jobs in order, one line per demand: where the first of a line has no place, none of that line has.

So a look costs as much as there are different demands, not as there are jobs; and a line that was found
without a place is not tried again before something is given back.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from refold.core import View
from refold.model import Demand, Job

Place = tuple[Any, int, Job]

RETURNED = -(2**60)
"""Added to the numbers of jobs that return, so that of equals they go first, in the order of returning."""


class QueueByDemand:
    """All waiting jobs. `key` says who is first; of equals, who was submitted first (those that return, before)."""

    def __init__(self, key: Callable[[Job], Any]) -> None:
        self._key = key
        self._lines: dict[Demand, list[Place]] = {}
        self._closed: set[Demand] = set()
        self._heads: list[tuple[Any, int, Demand]] = []
        self._number_of: dict[str, int] = {}
        """Of every job its present place: it may have gone and come again, and then stands in line twice."""
        self._added = 0

    def add_new(self, view: View) -> None:
        """Note who has come."""
        for job in view.changes.returned:
            self.add(job, returned=True)
        for job in view.changes.submitted:
            self.add(job)

    def reopen(self, view: View) -> None:
        """If something was given back, every line may have a place again."""
        if view.changes.freed:
            self.reopen_all()

    def reopen_all(self) -> None:
        """Every line may have a place again."""
        if self._closed:
            self._closed.clear()
            self._heads = [(line[0][0], line[0][1], demand) for demand, line in self._lines.items()]
            heapify(self._heads)

    def sort_again(self, view: View) -> None:
        """Jobs have become more or less urgent while they waited; every line may have a place again."""
        self._closed.clear()
        for demand, line in list(self._lines.items()):
            line[:] = [(self._key(place[2]), *place[1:]) for place in line if self._counts(place, view)]
            heapify(line)
            if not line:
                del self._lines[demand]
        self._heads = [(line[0][0], line[0][1], demand) for demand, line in self._lines.items()]
        heapify(self._heads)

    def add(self, job: Job, returned: bool = False) -> bool:
        """One job more; whether it is now the first of its line."""
        self._added += 1
        number = self._added + RETURNED if returned else self._added
        place = (self._key(job), number, job)
        self._number_of[job.id] = number
        line = self._lines.setdefault(job.demand, [])
        heappush(line, place)
        is_first = line[0] is place
        if is_first and job.demand not in self._closed:
            heappush(self._heads, (place[0], number, job.demand))
        return is_first

    def reopen_line_of(self, job: Job) -> None:
        """The line in which a job stands may have a place again."""
        if job.demand in self._closed:
            self._closed.remove(job.demand)
            if line := self._lines.get(job.demand):
                heappush(self._heads, (line[0][0], line[0][1], job.demand))

    def first(self, view: View) -> Job | None:
        """The first of all jobs whose line is open; None if there is none."""
        heads, lines = self._heads, self._lines
        while heads:
            key, number, demand = heads[0]
            line = lines.get(demand)
            if not line or demand in self._closed or line[0][0] != key or line[0][1] != number:
                heappop(heads)
            elif not self._counts(line[0], view):
                self._drop(demand)
            else:
                return line[0][2]
        return None

    def place_of_first(self, job: Job) -> Place:
        """Where the first of its line stands among all."""
        return self._lines[job.demand][0]

    def take_first(self, job: Job) -> Place:
        """Take the first of all out of its line, for a while."""
        place = self.place_of_first(job)
        self._drop(job.demand)
        return place

    def put_back(self, place: Place) -> None:
        """Who was taken out stands where it stood."""
        self._number_of[place[2].id] = place[1]
        line = self._lines.setdefault(place[2].demand, [])
        heappush(line, place)
        if line[0] is place and place[2].demand not in self._closed:
            heappush(self._heads, (place[0], place[1], place[2].demand))

    def close(self, job: Job) -> None:
        """The first of its line has no place: nor has anyone behind it."""
        self._closed.add(job.demand)

    def remove_first(self, job: Job) -> None:
        """The first of all has been given a place."""
        self._drop(job.demand)

    def _counts(self, place: Place, view: View) -> bool:
        job_id = place[2].id
        return job_id in view.waiting and self._number_of.get(job_id) == place[1]

    def _drop(self, demand: Demand) -> None:
        line = self._lines[demand]
        _, number, job = heappop(line)
        if self._number_of.get(job.id) == number:
            del self._number_of[job.id]
        if not line:
            del self._lines[demand]
        elif demand not in self._closed:
            heappush(self._heads, (line[0][0], line[0][1], demand))
