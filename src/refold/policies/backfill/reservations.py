"""Reservations of waiting jobs: which GPUs are reserved from when on.

Reservations that conflict with a run that takes longer are cancelled and made again. Reservations move forward when
resources are released early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf

import numpy as np

from refold.model import Demand, Placement, Seconds, Share
from refold.placement import DEMAND_ENTRIES, BookedJobs, Ints, Timetable, mask_from_indices
from refold.policies.backfill.bookings import Bookings, Reservation

CHECKS_PER_SEARCH = 5
"""Cost of a search over all nodes for the earliest start, in checks per node."""


class Reservations:
    """The reservations on a timetable, at most one per job."""

    def __init__(self, bookings: Bookings) -> None:
        self._bookings = bookings
        self._reserved: dict[str, Reservation] = {}
        self._rows = _ReservationRows(bookings.table)
        self._on_node: dict[int, set[str]] = defaultdict(set)
        """Node -> jobs that have a reservation there."""

    @property
    def by_job(self) -> dict[str, Reservation]:
        """All reservations by job."""
        return self._reserved

    def get(self, job_id: str) -> Reservation | None:
        """Return the reservation of a job; None if it has none."""
        return self._reserved.get(job_id)

    def reserve(self, job_id: str, demand: Demand, reservation: Reservation) -> None:
        """Make a reservation for a job."""
        self._bookings.table.book(reservation.placement, reservation.start, reservation.end)
        self._reserved[job_id] = reservation
        self._rows.put(job_id, demand, reservation)
        for share in reservation.placement:
            self._on_node[share.node].add(job_id)

    def cancel(self, job_id: str) -> Reservation | None:
        """Cancel and return the reservation of a job; None if it has none."""
        if job_id not in self._reserved:
            return None
        reservation = self._drop(job_id)
        self._bookings.note_released(reservation.placement)
        return reservation

    def cancel_on(self, node: int, gpu: int | None = None) -> list[str]:
        """Cancel all reservations on a node, or those of one GPU; return their jobs."""
        affected = sorted(self._on_node[node])
        if gpu is not None:
            uses = (Share(node, (gpu,)),)
            affected = [job_id for job_id in affected if overlap(self._reserved[job_id].placement, uses)]
        for job_id in affected:
            self.cancel(job_id)
        return affected

    def turn_into_run(self, job_id: str, end: Seconds) -> None:
        """Drop the reservation of a job whose run takes its place until `end`."""
        reserved = self._drop(job_id)
        if end < reserved.end:
            self._bookings.note_released(reserved.placement)  # otherwise the run takes all that was reserved

    def postpone(self, job_id: str, now: Seconds) -> None:
        """Move a reservation whose resources are not free yet to start now, with the same duration."""
        if self._reserved[job_id].start < now:
            demand = self._rows.demand_of(job_id)
            self.reserve(job_id, demand, self._drop(job_id).shifted(now))

    def conflicting(self, placement: Placement, now: Seconds, end: Seconds) -> Iterator[str]:
        """Yield the jobs whose reservations overlap a placement booked until `end`, while it is overbooked."""
        for other in sorted({other for share in placement for other in self._on_node[share.node]}):
            reserved = self._reserved[other]
            if (
                reserved.start < end
                and overlap(reserved.placement, placement)
                and self._is_overbooked(reserved, now, end)
            ):
                yield other

    def advance(self, order: Sequence[str], now: Seconds, max_checks: int) -> list[str]:
        """Move reservations forward that can start earlier because of releases, in this order; return their jobs.

        Resources that a reservation leaves behind are offered to the jobs after it, until `max_checks` of nodes are
        used.
        """
        bookings, released = self._bookings, self._bookings.pop_released()
        if not released or not order:
            return []
        rows, checks_left = self._rows.rows_of(order), np.array([max_checks])
        nodes = self._rows.mark_jobs_on(released, self._on_node)
        moved: list[str] = []
        position = 0
        while (
            position := bookings.table.first_that_can_start_earlier(
                self._rows.columns, rows, position, nodes, now, checks_left
            )
        ) >= 0:
            if self._advance_one(order[position], now):
                moved.append(order[position])
            checks_left[0] -= CHECKS_PER_SEARCH * len(bookings.table.cluster.nodes)
            nodes = self._rows.mark_jobs_on(
                released | bookings.released if checks_left[0] > 0 else released, self._on_node
            )
            position += 1
        bookings.pop_released()
        return moved

    def _advance_one(self, job_id: str, now: Seconds) -> bool:
        """Replace a reservation by an earlier one; return whether there is one."""
        reserved, demand, table = self._reserved[job_id], self._rows.demand_of(job_id), self._bookings.table
        table.release(reserved.placement, reserved.start, reserved.end)
        earlier = self._bookings.find(demand, reserved.end - reserved.start, now, reserved.start)
        table.book(reserved.placement, reserved.start, reserved.end)
        if earlier is None:
            return False
        self.cancel(job_id)
        self.reserve(job_id, demand, earlier)
        return True

    def _drop(self, job_id: str) -> Reservation:
        """Remove a reservation without recording its nodes as released."""
        reservation = self._reserved.pop(job_id)
        self._bookings.table.release(reservation.placement, reservation.start, reservation.end)
        self._rows.drop(job_id)
        for share in reservation.placement:
            self._on_node[share.node].discard(job_id)
        return reservation

    def _is_overbooked(self, reserved: Reservation, now: Seconds, end: Seconds) -> bool:
        start, end = max(now, reserved.start), min(end, reserved.end)
        return self._bookings.table.is_overbooked(reserved.placement, start, end)


class _ReservationRows:
    """Reservations as columns for the compiled kernels."""

    def __init__(self, table: Timetable) -> None:
        self._table = table
        self._row_of: dict[str, int] = {}
        self._demand_of: dict[str, Demand] = {}
        self._demand_rows: dict[Demand, int] = {}
        self._unused: list[int] = []
        self.columns = BookedJobs(
            np.zeros((0, DEMAND_ENTRIES), np.int64),
            np.zeros(0, np.int64),
            np.zeros(0),
            np.zeros(0),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
        )

    def demand_of(self, job_id: str) -> Demand:
        return self._demand_of[job_id]

    def rows_of(self, jobs: Sequence[str]) -> Ints:
        return np.fromiter((self._row_of[job_id] for job_id in jobs), np.int64, len(jobs))

    def put(self, job_id: str, demand: Demand, reservation: Reservation) -> None:
        if not self._unused:
            self._grow()
        row = self._row_of[job_id] = self._unused.pop()
        self._demand_of[job_id] = demand
        demand_row, single = self._demand_row(demand), len(reservation.placement) == 1
        columns = self.columns
        columns.demand_row[row] = demand_row
        columns.duration[row] = reservation.end - reservation.start
        columns.start[row] = reservation.start
        columns.node[row] = reservation.placement[0].node if single else -1
        columns.mask[row] = mask_from_indices(reservation.placement[0].gpus) if single else 0

    def drop(self, job_id: str) -> None:
        row = self._row_of.pop(job_id)
        del self._demand_of[job_id]
        self.columns.start[row] = inf
        self._unused.append(row)

    def mark_jobs_on(self, nodes: Iterable[int], on_node: dict[int, set[str]]) -> Ints:
        """Mark the jobs that have reservations on these nodes; return the nodes as an array."""
        marked = np.fromiter(nodes, np.int64)
        self.columns.touched[:] = 0
        for node in marked.tolist():
            for job_id in on_node[node]:
                self.columns.touched[self._row_of[job_id]] = 1
        return marked

    def _demand_row(self, demand: Demand) -> int:
        row = self._demand_rows.get(demand)
        if row is None:
            row = self._demand_rows[demand] = len(self._demand_rows)
            demands = np.concatenate([self.columns.demands, self._table.vector(demand)])
            self.columns = self.columns._replace(demands=demands)
        return row

    def _grow(self) -> None:
        """Double the number of rows."""
        used = len(self.columns.demand_row)
        more = max(64, used)
        self._unused += range(used, used + more)
        grown = [np.concatenate([column, np.zeros(more, column.dtype)]) for column in self.columns[1:]]
        self.columns = BookedJobs(self.columns.demands, *grown)


def overlap(first: Placement, second: Placement) -> bool:
    """Return whether two placements share a GPU of a node, or both use CPUs, or both memory, of the same node."""
    for share in first:
        for other_share in second:
            if share.node == other_share.node:
                if not set(share.gpus).isdisjoint(other_share.gpus):
                    return True
                if (share.cpu_milli and other_share.cpu_milli) or (share.memory_mib and other_share.memory_mib):
                    return True
    return False
