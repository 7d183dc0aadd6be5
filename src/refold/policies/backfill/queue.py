"""Jobs that wait for a place in time: who is first, who has been passed over, and who would fit into a gap."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from heapq import merge
from math import inf
from typing import Any

from refold.core import View
from refold.model import Demand, Job, Seconds
from refold.packing import Ints
from refold.policies.backfill.reservations import Reservations
from refold.policies.backfill.sizing import JobSize

Place = tuple[Any, int]
"""A place in the order: a key, and a number that breaks ties."""

LAST: Place = ((inf,), 0)


FEW = 0.1
"""Such a part of all is sorted rather than picked from everybody in order."""


class QueuedJob:
    """A waiting job: its place in the order, what it asks for, how long it will last, how often others went before."""

    __slots__ = (
        "demand",
        "faster",
        "gpus",
        "job",
        "kind",
        "lane",
        "likely",
        "passed",
        "place",
        "plan",
        "promised",
        "sure",
    )

    def __init__(
        self, job: Job, size: JobSize, place: Place, likely: Seconds, sure: Seconds, lane: int, kind: str
    ) -> None:
        self.job = job
        self.demand, self.plan = size.demand, size.plan
        self.gpus = size.demand.total_gpus
        self.faster = size.faster
        self.place = place
        self.likely = likely
        self.sure = sure
        self.lane = lane
        self.kind = kind
        """Who has to wait for the same things."""
        self.passed = 0
        self.promised: Seconds = inf
        """When it was first promised to start, if it was promised a place."""


class BackfillQueue:
    """Everybody who waits, in order; in one lane, or in two."""

    def __init__(self, most_passed: int, most_waiting: Seconds) -> None:
        self._most_passed, self._most_waiting = most_passed, most_waiting
        self._of: dict[str, QueuedJob] = {}
        self._bar: tuple[Seconds, Place] | None = None
        """The bar, and of when it is; None: somebody has come, gone or been passed over since."""
        self._lanes: tuple[list[tuple[Any, int, QueuedJob]], ...] = ([], [])

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._of

    def of(self, job_id: str) -> QueuedJob:
        """A queued by its job."""
        return self._of[job_id]

    def add(self, queued: QueuedJob) -> None:
        """One more."""
        self._bar = None
        self._of[queued.job.id] = queued
        insort(self._lanes[queued.lane], (*queued.place, queued))

    def remove(self, job_id: str) -> QueuedJob | None:
        """It does not wait any more."""
        queued = self._of.pop(job_id, None)
        self._bar = None
        if queued is not None:
            lane = self._lanes[queued.lane]
            del lane[bisect_left(lane, queued.place)]
        return queued

    def first(self, depth: int) -> list[QueuedJob]:
        """The first so many of each lane."""
        return [queued for lane in self._lanes for _, _, queued in lane[:depth]]

    def in_order(self, jobs: Collection[str]) -> list[str]:
        """These jobs, in order."""
        if len(jobs) < FEW * len(self._of):
            return sorted(jobs, key=lambda job_id: self._of[job_id].place)
        one, other = self._lanes
        order = merge(one, other) if one and other else one or other
        return [queued.job.id for _, _, queued in order if queued.job.id in jobs]

    def sort_again(self, key: Any) -> None:
        """Everybody's place has to be looked at again."""
        self._bar = None
        for lane in self._lanes:
            for _, _, queued in lane:
                queued.place = (key(queued), queued.place[1])
            lane[:] = sorted((*queued.place, queued) for _, _, queued in lane)

    def until(self, last: QueuedJob) -> list[QueuedJob]:
        """Everybody up to one of them, in order."""
        one, other = (lane[: bisect_left(lane, last.place)] for lane in self._lanes)
        before = merge(one, other) if one and other else one or other
        return [*(queued for _, _, queued in before), last]

    def pass_over(self, place: Place) -> None:
        """Somebody with this place has started: those before it were passed over."""
        if self._most_passed:
            self._bar = None
            for lane in self._lanes:
                for _, _, queued in lane[: bisect_left(lane, place)]:
                    queued.passed += 1

    def bar(self, now: Seconds) -> Place:
        """The place of the first who is not to be passed over any more: nobody behind it may start."""
        if not self._most_passed and self._most_waiting == inf:
            return LAST
        if self._bar is None or self._bar[0] != now:
            impatient = (queued.place for queued in self._of.values() if self._is_impatient(queued, now))
            self._bar = now, min(impatient, default=LAST)
        return self._bar[1]

    def _is_impatient(self, queued: QueuedJob, now: Seconds) -> bool:
        often = self._most_passed and queued.passed >= self._most_passed
        return bool(often) or now - queued.job.submitted >= self._most_waiting


class Gaps:
    """Those who are promised nothing: they start where there is a gap. One line per demand, the shortest first.

    Of each demand it is known until when there is room at most, so that most lines need not be looked at.
    """

    def __init__(self, shortest_first: bool) -> None:
        self._shortest_first = shortest_first
        self._lines: dict[Demand, list[tuple[Seconds, int, QueuedJob]]] = {}
        self._until: dict[Demand, Seconds] = {}

    def add(self, queued: QueuedJob) -> None:
        """One more who may start where there is room."""
        line = self._lines.get(queued.demand)
        if line is None:
            line = self._lines[queued.demand] = []
            self._until[queued.demand] = inf
        insort(line, (queued.sure, queued.place[1], queued))

    def everybody(self) -> Iterator[QueuedJob]:
        """All of them."""
        return (queued for line in self._lines.values() for _, _, queued in line)

    def remove(self, queued: QueuedJob) -> None:
        """It has started, or is promised something, or is gone."""
        line = self._lines.get(queued.demand)
        if line is None:
            return
        at = bisect_left(line, (queued.sure, queued.place[1]))
        if at < len(line) and line[at][2] is queued:
            del line[at]
            if not line:
                del self._lines[queued.demand], self._until[queued.demand]

    def open(self, view: View, nodes: Ints, reservations: Reservations) -> None:
        """Something is free on these nodes that was not before."""
        if not len(nodes):
            return
        free_gpus = view.free_gpus
        for demand, until in self._until.items():
            if demand.total_gpus > free_gpus or until == inf:
                continue
            if demand.instances > 1:
                self._until[demand] = inf  # how many of the other nodes have room is looked at when it matters
            else:
                self._until[demand] = max(until, view.now + reservations.lasts_on(nodes, demand, view.now))

    def close(self, demand: Demand) -> None:
        """There is no room after all."""
        self._until[demand] = 0.0

    def has_room(self, demand: Demand, now: Seconds) -> bool:
        """Whether there may be room now, though not for long enough."""
        return self._until.get(demand, 0.0) > now

    def next(self, now: Seconds, bar: Place, reservations: Reservations) -> QueuedJob | None:
        """Who starts next: it has room for as long as it will last."""
        while (found := self._candidate(now, bar)) is not None:
            lasts = reservations.lasts(found.demand, now)
            self._until[found.demand] = now + lasts
            if found.sure <= lasts:
                return found
        return None

    def _candidate(self, now: Seconds, bar: Place) -> QueuedJob | None:
        """The best of those who may have room."""
        best: QueuedJob | None = None
        for demand, line in self._lines.items():
            room = self._until[demand] - now
            if line[0][0] > room or room <= 0:
                continue
            for sure, _, queued in line:
                if sure > room:
                    break
                if queued.place <= bar and (best is None or self._rank(queued) < self._rank(best)):
                    best = queued
                    if self._shortest_first:
                        break
        return best

    def _rank(self, queued: QueuedJob) -> tuple[Any, int]:
        return (queued.sure, queued.place[1]) if self._shortest_first else queued.place
