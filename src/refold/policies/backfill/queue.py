"""The backfill queue: its order, and which jobs fit into gaps."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from heapq import merge
from math import inf
from typing import Any, NamedTuple

from refold.core import View
from refold.model import Demand, Job, Seconds
from refold.policies.backfill.bookings import Bookings
from refold.policies.backfill.sizing import JobSize

QueuePosition = tuple[Any, int]
"""Position in the queue: a sort key, and a number that breaks ties."""

MAX_SORTED_SHARE = 0.1
"""If fewer than this share of all jobs are selected, sorting them is faster than filtering the whole queue."""


class QueuedRequest(NamedTuple):
    """A job in the queue, with its durations on what it requested."""

    job: Job
    position: QueuePosition
    duration: Seconds
    """For reservations: at the setting `duration_quantile`."""
    backfill_duration: Seconds
    """For gaps: at the setting `confidence`."""


class QueuedJob:
    """A waiting job with its chosen size, its durations at that size, and its position in the queue."""

    __slots__ = (
        "backfill_duration",
        "demand",
        "duration",
        "gpus",
        "job",
        "plan",
        "position",
        "reserved_start",
        "speedup",
    )

    def __init__(self, request: QueuedRequest, size: JobSize) -> None:
        self.job = request.job
        self.demand, self.plan, self.speedup = size
        self.gpus = size.demand.total_gpus
        self.position = request.position
        self.duration = request.duration / size.speedup
        self.backfill_duration = request.backfill_duration / size.speedup
        self.reserved_start: Seconds = inf
        """Earliest start that was ever reserved for the job."""


class BackfillQueue:
    """All waiting jobs in order, in one lane or two."""

    def __init__(self, second_lane_gpus: float = inf) -> None:
        """`second_lane_gpus`: jobs with at least so many GPUs per node are in the second lane."""
        self._second_lane_gpus = second_lane_gpus
        self._jobs: dict[str, QueuedJob] = {}
        self._lanes: tuple[list[tuple[Any, int, QueuedJob]], ...] = ([], [])

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def get(self, job_id: str) -> QueuedJob:
        """Return the queued job with this id."""
        return self._jobs[job_id]

    def add(self, queued: QueuedJob) -> None:
        """Add a job."""
        self._jobs[queued.job.id] = queued
        insort(self._lane_of(queued), (*queued.position, queued))

    def remove(self, job_id: str) -> QueuedJob | None:
        """Remove and return a job; None if it is not in the queue."""
        queued = self._jobs.pop(job_id, None)
        if queued is not None:
            lane = self._lane_of(queued)
            del lane[bisect_left(lane, queued.position)]
        return queued

    def first(self, depth: int) -> list[QueuedJob]:
        """Return the first `depth` jobs of each lane."""
        return [queued for lane in self._lanes for _, _, queued in lane[:depth]]

    def in_order(self, jobs: Collection[str]) -> list[str]:
        """Return these jobs in queue order."""
        if len(jobs) < MAX_SORTED_SHARE * len(self._jobs):
            return sorted(jobs, key=lambda job_id: self._jobs[job_id].position)
        first_lane, second_lane = self._lanes
        order = merge(first_lane, second_lane) if first_lane and second_lane else first_lane or second_lane
        return [queued.job.id for _, _, queued in order if queued.job.id in jobs]

    def resort(self, key: Any) -> None:
        """Sort all jobs again by a new key."""
        for lane in self._lanes:
            for _, _, queued in lane:
                queued.position = (key(queued), queued.position[1])
            lane[:] = sorted((*queued.position, queued) for _, _, queued in lane)

    def ahead_of(self, position: QueuePosition) -> list[QueuedJob]:
        """Return all jobs ahead of a position, in queue order."""
        first_lane, second_lane = (lane[: bisect_left(lane, position)] for lane in self._lanes)
        ahead = merge(first_lane, second_lane) if first_lane and second_lane else first_lane or second_lane
        return [queued for _, _, queued in ahead]

    def _lane_of(self, queued: QueuedJob) -> list[tuple[Any, int, QueuedJob]]:
        return self._lanes[queued.demand.gpus >= self._second_lane_gpus]


class Gaps:
    """Jobs without a reservation, which start if they fit into a gap; per demand, the shortest first.

    For each demand an upper bound of the time until which it fits is stored, so that most demands need not be checked.
    """

    def __init__(self, shortest_first: bool) -> None:
        self._shortest_first = shortest_first
        self._by_demand: dict[Demand, list[tuple[Seconds, int, QueuedJob]]] = {}
        self._fits_until: dict[Demand, Seconds] = {}

    def add(self, queued: QueuedJob) -> None:
        """Add a job."""
        candidates = self._by_demand.get(queued.demand)
        if candidates is None:
            candidates = self._by_demand[queued.demand] = []
            self._fits_until[queued.demand] = inf
        insort(candidates, (queued.backfill_duration, queued.position[1], queued))

    def jobs(self) -> Iterator[QueuedJob]:
        """Yield all jobs."""
        return (queued for candidates in self._by_demand.values() for _, _, queued in candidates)

    def remove(self, queued: QueuedJob) -> None:
        """Remove a job, if it is there."""
        candidates = self._by_demand.get(queued.demand)
        if candidates is None:
            return
        at = bisect_left(candidates, (queued.backfill_duration, queued.position[1]))
        if at < len(candidates) and candidates[at][2] is queued:
            del candidates[at]
            if not candidates:
                del self._by_demand[queued.demand], self._fits_until[queued.demand]

    def reopen(self, view: View, bookings: Bookings) -> None:
        """Raise the bounds of demands that may fit now because resources were released."""
        if not bookings.has_newly_free:
            return
        nodes = bookings.pop_newly_free()
        free_gpus = view.free_gpus
        for demand, until in self._fits_until.items():
            if demand.total_gpus > free_gpus or until == inf:
                continue
            if demand.instances > 1:
                self._fits_until[demand] = inf  # other nodes matter as well: checked only if the job is a candidate
            else:
                self._fits_until[demand] = max(until, view.now + bookings.free_duration_on(nodes, demand, view.now))

    def close(self, demand: Demand) -> None:
        """Note that a demand does not fit."""
        self._fits_until[demand] = 0.0

    def may_fit(self, demand: Demand, now: Seconds) -> bool:
        """Return whether a demand may fit now, for however short a time."""
        return self._fits_until.get(demand, 0.0) > now

    def next(self, now: Seconds, bookings: Bookings) -> QueuedJob | None:
        """Return the next job that fits for as long as it will run; None if there is none."""
        while (candidate := self._candidate(now)) is not None:
            fits_for = bookings.free_duration(candidate.demand, now)
            self._fits_until[candidate.demand] = now + fits_for
            if candidate.backfill_duration <= fits_for:
                return candidate
        return None

    def _candidate(self, now: Seconds) -> QueuedJob | None:
        """Return the best of the jobs that may fit by the stored bounds."""
        best: QueuedJob | None = None
        best_rank: tuple[Any, int] = (inf, 0)
        for demand, candidates in self._by_demand.items():
            fits_for = self._fits_until[demand] - now
            for duration, number, queued in candidates:
                if duration > fits_for:
                    break
                rank = (duration, number) if self._shortest_first else queued.position
                if best is None or rank < best_rank:
                    best, best_rank = queued, rank
                if self._shortest_first:
                    break  # the others of this demand are longer
        return best
