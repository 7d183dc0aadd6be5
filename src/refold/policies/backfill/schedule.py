"""The schedule: waiting jobs in order, the reservations of the first of them, and the runs, on one timetable.

A waiting job either has a reservation or is offered gaps. A job that loses its reservation, because a run takes longer
or a node goes down, is displaced: it gets another one before gaps are filled.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from refold.core import View
from refold.model import Placement, Seconds
from refold.placement import Placer
from refold.policies.backfill.booked_runs import BookedRuns
from refold.policies.backfill.bookings import Bookings, Reservation
from refold.policies.backfill.queue import BackfillQueue, Gaps, QueuedJob
from refold.policies.backfill.reservations import Reservations

MAX_NODE_CHECKS = 150_000
"""Maximum number of node checks per decision for resources that reservations leave when they move forward. Nodes on
which resources were released otherwise are always checked."""

SWITCH_FACTOR = 0.5
"""A displaced job keeps waiting for the same GPUs unless others are free within this share of that time."""


class Schedule:
    """Queue, gaps, reservations and runs, kept consistent."""

    def __init__(self, view: View, placer: Placer, queue: BackfillQueue, gaps: Gaps) -> None:
        self.queue, self.gaps = queue, gaps
        self.bookings = Bookings(view.cluster, placer)
        self.runs = BookedRuns(self.bookings)
        self.reservations = Reservations(self.bookings)
        self.due = DueTimes(self.reservations)
        self._displaced: dict[str, Reservation | None] = {}
        """Jobs that lost their reservation and need another: perhaps this one, the same placement at a later time."""
        for node in range(len(view.cluster.nodes)):
            self.update_node(view, node)

    def add(self, queued: QueuedJob) -> None:
        """Add a waiting job, without a reservation."""
        self.queue.add(queued)
        self.gaps.add(queued)

    def remove(self, job_id: str) -> None:
        """Remove a job that no longer waits, with its reservation; nothing happens if it is not in the queue."""
        queued = self.queue.remove(job_id)
        if queued is not None:
            self.gaps.remove(queued)
            self.reservations.cancel(job_id)
            self._displaced.pop(job_id, None)

    def replace(self, queued: QueuedJob, other: QueuedJob) -> None:
        """Give a job without a reservation another size."""
        self.gaps.remove(queued)
        self.queue.remove(queued.job.id)
        other.reserved_start = queued.reserved_start
        self.add(other)
        self._displaced.pop(queued.job.id, None)

    def start(self, queued: QueuedJob, placement: Placement, now: Seconds) -> None:
        """Turn a waiting job into a run."""
        job_id, end = queued.job.id, now + queued.duration
        reserved = self.reservations.get(job_id)
        if reserved is not None and reserved.placement is placement:
            self.reservations.turn_into_run(job_id, end)
            self.runs.add(job_id, placement, now, end)
            self.remove(job_id)
        else:
            self.remove(job_id)
            self.runs.add(job_id, placement, now, end)

    def reserve(self, queued: QueuedJob, reservation: Reservation) -> None:
        """Make a reservation; it replaces an earlier one of the same job."""
        job_id = queued.job.id
        self.reservations.cancel(job_id)
        self.reservations.reserve(job_id, queued.demand, reservation)
        self._displaced.pop(job_id, None)
        queued.reserved_start = min(queued.reserved_start, reservation.start)
        self.due.add(reservation.start, job_id)
        self.gaps.remove(queued)

    def find(self, queued: QueuedJob, now: Seconds) -> Reservation | None:
        """Return the earliest reservation; for a displaced job its former placement, unless another is much earlier."""
        earliest = self.bookings.find(queued.demand, queued.duration, now)
        former = self._displaced.pop(queued.job.id, None)
        if earliest is None or former is None or earliest.start < now + SWITCH_FACTOR * (former.start - now):
            return earliest
        return former if self.bookings.is_free(former) else earliest

    def without_reservation(self, depth: int) -> list[QueuedJob]:
        """Return the jobs that should have a reservation and have none, in queue order.

        These are the first `depth` jobs of each lane, and displaced jobs.
        """
        reserved = self.reservations.by_job
        unreserved = [queued for queued in self.queue.first(depth) if queued.job.id not in reserved]
        if not self._displaced and len(unreserved) <= 1:
            return unreserved
        displaced = map(self.queue.get, self._displaced)
        return sorted({*unreserved, *displaced}, key=lambda queued: queued.position)

    def cancel_beyond_depth(self, depth: int, now: Seconds) -> None:
        """Cancel reservations of jobs that are no longer among the first, because jobs were inserted ahead of them."""
        if len(self.reservations.by_job) <= depth:
            return
        first = {queued.job.id for queued in self.queue.first(depth)}
        for job_id, reserved in list(self.reservations.by_job.items()):
            if job_id not in first and reserved.start > now:
                self.reservations.cancel(job_id)
                self.gaps.add(self.queue.get(job_id))

    # Reservations whose time has come, or changes.

    def pop_due(self, now: Seconds) -> list[QueuedJob]:
        """Return the jobs whose reserved start has come, in queue order; each has to be started or postponed."""
        due = [self.queue.get(job_id) for job_id in self.due.pop(now)]
        return sorted(due, key=lambda queued: queued.position) if len(due) > 1 else due

    def postpone(self, queued: QueuedJob, now: Seconds) -> None:
        """Let a reservation whose resources are not free yet start now."""
        self.reservations.postpone(queued.job.id, now)
        self.due.add(now, queued.job.id)

    def advance(self, now: Seconds) -> list[QueuedJob]:
        """Move reservations forward after releases; return the jobs that start earlier, in queue order."""
        reserved = self.reservations.by_job
        if not reserved or not self.bookings.released:
            return []
        moved = self.reservations.advance(self.queue.in_order(reserved), now, MAX_NODE_CHECKS)
        for job_id in moved:
            self.due.add(reserved[job_id].start, job_id)
        return [self.queue.get(job_id) for job_id in moved]

    def displace_conflicting(
        self, placement: Placement, now: Seconds, end: Seconds, makes_way: Callable[[QueuedJob], bool]
    ) -> None:
        """Cancel reservations that overlap a placement booked until `end`, while it is overbooked, if the jobs may."""
        for job_id in self.reservations.conflicting(placement, now, end):
            if makes_way(self.queue.get(job_id)):
                reserved = self.reservations.cancel(job_id)
                self._displace(job_id, None if reserved is None else reserved.shifted(end))

    def update_node(self, view: View, node: int) -> None:
        """Note whether a node and its GPUs are up; jobs with reservations on what went down are displaced."""
        cancelled: list[str] = []
        if self.bookings.set_node_up(node, view.is_up(node)) and not view.is_up(node):
            cancelled += self.reservations.cancel_on(node)
        for gpu in range(view.cluster.nodes[node].gpus):
            up = view.is_gpu_up(node, gpu)
            if self.bookings.set_gpu_up(node, gpu, up) and not up:
                cancelled += self.reservations.cancel_on(node, gpu)
        for job_id in cancelled:
            self._displace(job_id, None)

    def _displace(self, job_id: str, later: Reservation | None) -> None:
        self._displaced[job_id] = later
        self.gaps.add(self.queue.get(job_id))


class DueTimes:
    """Reserved starts in order of time."""

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations
        self._heap: list[tuple[Seconds, str]] = []
        """Heap of (reserved start, job); may contain outdated entries."""

    def add(self, start: Seconds, job_id: str) -> None:
        """Note when the reservation of a job starts."""
        heappush(self._heap, (start, job_id))

    def pop(self, now: Seconds) -> list[str]:
        """Remove and return the jobs whose reserved start has come."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            _, job_id = heappop(self._heap)
            reserved = self._reservations.get(job_id)
            if reserved is not None and reserved.start <= now:
                due.append(job_id)
        return due

    def next(self, now: Seconds) -> Seconds | None:
        """Return the next reserved start after now; None if there is none."""
        while self._heap:
            at, job_id = self._heap[0]
            reserved = self._reservations.get(job_id)
            if reserved is not None and reserved.start == at and at > now:
                return at if at < inf else None
            if reserved is not None and reserved.start == at:
                break  # its GPUs are being released: the end of that is an event
            heappop(self._heap)
        starts = (reservation.start for reservation in self._reservations.by_job.values())
        return min((start for start in starts if start > now), default=None)
