# cython: boundscheck=True, wraparound=True
"""A queue of waiting jobs, grouped by demand: if the first job of a demand does not fit, no other job of it does.

A scheduling round therefore costs as many attempts as there are different demands, not as there are jobs, and a demand
that did not fit is closed: it is not tried again until resources are released.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import cython

from refold.model import Demand, Job

if not cython.compiled:
    from refold.core import View

QueueEntry = tuple[Any, int, Job]
"""Sort key, number that breaks ties, job."""

REQUEUED = -(2**60)
"""Added to the numbers of requeued jobs, so that among equal keys they come first, in the order of requeueing."""


class QueueByDemand:
    """All waiting jobs, sorted by `key`; among equal keys requeued jobs come first, then jobs in order of arrival."""

    def __init__(self, key: Callable[[Job], Any]) -> None:
        self._key = key
        self._heaps: dict[Demand, list[QueueEntry]] = {}
        self._closed: set[Demand] = set()
        self._heads: list[tuple[Any, int, Demand]] = []
        """Heap of the first entry of each open demand; may contain outdated entries."""
        self._number_of: dict[str, int] = {}
        """Number of the current entry of each job: a job that left and was added again also has an outdated entry."""
        self._added = 0

    def add_arrivals(self, view: View) -> None:
        """Add the jobs that were submitted or requeued since the last round."""
        for job in view.changes.requeued:
            self.add(job, requeued=True)
        for job in view.changes.submitted:
            self.add(job)

    def reopen_if_freed(self, view: View) -> None:
        """Reopen all demands if resources were released since the last round."""
        if view.changes.freed:
            self.reopen_all()

    def reopen_all(self) -> None:
        """Reopen all demands: each may fit again."""
        if self._closed:
            self._closed.clear()
            self._heads = [(heap[0][0], heap[0][1], demand) for demand, heap in self._heaps.items()]
            heapify(self._heads)

    def resort(self, view: View) -> None:
        """Sort all jobs again, after keys have changed, and reopen all demands."""
        self._closed.clear()
        for demand, heap in list(self._heaps.items()):
            heap[:] = [(self._key(entry[2]), *entry[1:]) for entry in heap if self._is_current(entry, view)]
            heapify(heap)
            if not heap:
                del self._heaps[demand]
        self._heads = [(heap[0][0], heap[0][1], demand) for demand, heap in self._heaps.items()]
        heapify(self._heads)

    def add(self, job: Job, requeued: bool = False) -> bool:
        """Add a job; return whether it is now the first of its demand."""
        self._added += 1
        number = self._added + REQUEUED if requeued else self._added
        entry = (self._key(job), number, job)
        self._number_of[job.id] = number
        heap = self._heaps.setdefault(job.demand, [])
        heappush(heap, entry)
        is_first = heap[0] is entry
        if is_first and job.demand not in self._closed:
            heappush(self._heads, (entry[0], number, job.demand))
        return is_first

    def reopen_for(self, job: Job) -> None:
        """Reopen the demand of a job."""
        if job.demand in self._closed:
            self._closed.remove(job.demand)
            if heap := self._heaps.get(job.demand):
                heappush(self._heads, (heap[0][0], heap[0][1], job.demand))

    def first(self, view: View) -> Job | None:
        """Return the first job among all open demands; None if there is none."""
        heads, heaps = self._heads, self._heaps
        while heads:
            key, number, demand = heads[0]
            heap = heaps.get(demand)
            if not heap or demand in self._closed or heap[0][0] != key or heap[0][1] != number:
                heappop(heads)
            elif not self._is_current(heap[0], view):
                self._drop_first(demand)
            else:
                return heap[0][2]
        return None

    def first_entry(self, job: Job) -> QueueEntry:
        """Return the entry of a job that is the first of its demand."""
        return self._heaps[job.demand][0]

    def pop_first(self, job: Job) -> QueueEntry:
        """Remove a job that is the first of its demand; return its entry, which `restore` takes."""
        entry = self.first_entry(job)
        self._drop_first(job.demand)
        return entry

    def restore(self, entry: QueueEntry) -> None:
        """Put a removed entry back in its former position."""
        self._number_of[entry[2].id] = entry[1]
        heap = self._heaps.setdefault(entry[2].demand, [])
        heappush(heap, entry)
        if heap[0] is entry and entry[2].demand not in self._closed:
            heappush(self._heads, (entry[0], entry[1], entry[2].demand))

    def close_for(self, job: Job) -> None:
        """Close the demand of a job that does not fit: no job with the same demand does."""
        self._closed.add(job.demand)

    def remove_first(self, job: Job) -> None:
        """Remove a job that is the first of its demand."""
        self._drop_first(job.demand)

    def _is_current(self, entry: QueueEntry, view: View) -> bool:
        job_id = entry[2].id
        return job_id in view.waiting and self._number_of.get(job_id) == entry[1]

    def _drop_first(self, demand: Demand) -> None:
        heap = self._heaps[demand]
        _, number, job = heappop(heap)
        if self._number_of.get(job.id) == number:
            del self._number_of[job.id]
        if not heap:
            del self._heaps[demand]
        elif demand not in self._closed:
            heappush(self._heads, (heap[0][0], heap[0][1], demand))
