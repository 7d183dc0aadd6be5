"""Runs and reservations on one timetable: which GPUs are in use until when, and which are reserved from when on.

Runs are booked until their assumed end. A run that exceeds it is extended, and conflicting reservations are cancelled
and made again. Resources that are released early leave a gap: its nodes are recorded, and the reservations that can
move forward because of it are found by checking those nodes only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf

import msgspec
import numpy as np

from refold.model import WHOLE, Cluster, Demand, Placement, Seconds, Share
from refold.packing import DEMAND_ENTRIES, BookedJobs, Floats, Ints, Placer, Timetable, mask_from_indices

MAX_PLACEMENT_ATTEMPTS = 8
"""If the placer finds no placement where the resources suffice, later start times are tried, up to this many in all."""

CHECKS_PER_SEARCH = 5
"""Cost of a search over all nodes for the earliest start, in checks per node."""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A placement, by nodes and GPUs, from `start` to `end`."""

    placement: Placement
    start: Seconds
    end: Seconds


class Reservations:
    """Runs with their assumed ends, and reservations of waiting jobs."""

    def __init__(self, cluster: Cluster, placer: Placer) -> None:
        self._cluster = cluster
        self._placer = placer
        self._table = Timetable(cluster)
        self._runs: dict[str, Reservation] = {}
        self._ends: list[tuple[Seconds, str]] = []
        self._reserved: dict[str, Reservation] = {}
        self._rows = _ReservationRows(self._table)
        self._on_node: dict[int, set[str]] = defaultdict(set)
        """Node -> jobs that have a reservation there."""
        self._released: dict[int, None] = {}
        """Nodes with releases since the last call of `advance`."""
        self._newly_free: dict[int, None] = {}
        """Nodes with releases since the last call of `pop_newly_free`."""

    # Runs.

    def add_run(self, job_id: str, placement: Placement, now: Seconds, end: Seconds) -> None:
        """Book a run from now until its assumed end."""
        self._table.book(placement, now, end)
        self._runs[job_id] = Reservation(placement, now, end)
        if end < inf:
            heappush(self._ends, (end, job_id))

    def start_reserved(self, job_id: str, now: Seconds, end: Seconds) -> None:
        """Turn the reservation of a job into a run that is assumed to end then."""
        reserved = self._reserved[job_id]
        if end >= reserved.end:
            released, newly_free = self._released.copy(), self._newly_free.copy()
            self.cancel(job_id)
            self._released, self._newly_free = released, newly_free  # the run takes all that the reservation releases
        else:
            self.cancel(job_id)
        self.add_run(job_id, reserved.placement, now, end)

    def has_run(self, job_id: str) -> bool:
        """Return whether a run of this job is booked."""
        return job_id in self._runs

    def end_run(self, job_id: str, now: Seconds) -> None:
        """Release the resources of a run that has ended, if it is booked."""
        booked = self._runs.pop(job_id, None)
        if booked is None:
            return
        if booked.end > now:
            self._table.release(booked.placement, now, booked.end)
        self._note_released(booked.placement)

    def pop_overdue_runs(self, now: Seconds) -> list[str]:
        """Return the runs that continue although their assumed end has come; each has to be extended."""
        overdue: list[str] = []
        while self._ends and self._ends[0][0] <= now:
            end, job_id = heappop(self._ends)
            booked = self._runs.get(job_id)
            if booked is not None and booked.end == end:
                overdue.append(job_id)
        return overdue

    def extend_run(self, job_id: str, now: Seconds, end: Seconds) -> None:
        """Book a run for longer, from now until `end`."""
        booked = self._runs[job_id]
        self._table.book(booked.placement, now, end)
        self._runs[job_id] = Reservation(booked.placement, booked.start, end)
        heappush(self._ends, (end, job_id))

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

    def _is_overbooked(self, reserved: Reservation, now: Seconds, end: Seconds) -> bool:
        start, end = max(now, reserved.start), min(end, reserved.end)
        return self._table.is_overbooked(reserved.placement, start, end)

    # Reservations.

    def find(self, demand: Demand, duration: Seconds, now: Seconds, before: Seconds = inf) -> Reservation | None:
        """Return the earliest possible reservation that starts before `before`; None: there is none. Book nothing."""
        after = now
        for _ in range(MAX_PLACEMENT_ATTEMPTS):
            start = self._table.earliest_start(demand, duration, after, before)
            if start == inf:
                return None
            placement = self._placer.place(self._table.free_during(start, start + duration), demand)
            if placement is not None:
                return Reservation(placement, start, start + duration)
            after = float(np.nextafter(start, inf))
        return None

    def reserve(self, job_id: str, demand: Demand, reservation: Reservation) -> None:
        """Make a reservation for a job."""
        self._table.book(reservation.placement, reservation.start, reservation.end)
        self._reserved[job_id] = reservation
        self._rows.put(job_id, demand, reservation)
        for share in reservation.placement:
            self._on_node[share.node].add(job_id)

    def postpone(self, job_id: str, now: Seconds) -> None:
        """Move a reservation whose resources are not free yet to start now, with the same duration."""
        reserved = self._reserved[job_id]
        if reserved.start < now:
            released, newly_free = self._released.copy(), self._newly_free.copy()
            demand = self._rows.demand_of(job_id)
            self.cancel(job_id)
            self.reserve(job_id, demand, Reservation(reserved.placement, now, now + reserved.end - reserved.start))
            self._released, self._newly_free = released, newly_free  # nothing became free

    def is_free(self, reservation: Reservation) -> bool:
        """Return whether nothing else is booked on the placement in that time."""
        return self._table.free_during(reservation.start, reservation.end).has(reservation.placement)

    def cancel(self, job_id: str) -> Reservation | None:
        """Cancel and return the reservation of a job; None if it has none."""
        reservation = self._reserved.pop(job_id, None)
        if reservation is not None:
            self._table.release(reservation.placement, reservation.start, reservation.end)
            self._rows.drop(job_id)
            self._note_released(reservation.placement)
            for share in reservation.placement:
                self._on_node[share.node].discard(job_id)
        return reservation

    def get(self, job_id: str) -> Reservation | None:
        """Return the reservation of a job; None if it has none."""
        return self._reserved.get(job_id)

    @property
    def can_advance(self) -> bool:
        """Whether resources were released, so that reservations may be able to start earlier."""
        return bool(self._released)

    @property
    def reserved(self) -> dict[str, Reservation]:
        """All reservations by job."""
        return self._reserved

    def advance(self, order: Sequence[str], now: Seconds, max_checks: int) -> list[str]:
        """Move reservations forward that can start earlier because of releases, in this order; return their jobs.

        Resources that a reservation leaves behind are offered to the jobs after it, until `max_checks` of nodes are
        used.
        """
        released, self._released = self._released, {}
        if not released or not order:
            return []
        rows, checks_left = self._rows.rows_of(order), np.array([max_checks])
        nodes = self._rows.mark_jobs_on(released, self._on_node)
        moved: list[str] = []
        position = 0
        while (
            position := self._table.first_that_can_start_earlier(
                self._rows.columns, rows, position, nodes, now, checks_left
            )
        ) >= 0:
            if self._advance_one(order[position], now):
                moved.append(order[position])
            checks_left[0] -= CHECKS_PER_SEARCH * len(self._cluster.nodes)
            nodes = self._rows.mark_jobs_on(
                released | self._released if checks_left[0] > 0 else released, self._on_node
            )
            position += 1
        self._released = {}
        return moved

    def _advance_one(self, job_id: str, now: Seconds) -> bool:
        """Replace a reservation by an earlier one; return whether there is one."""
        reserved, demand = self._reserved[job_id], self._rows.demand_of(job_id)
        self._table.release(reserved.placement, reserved.start, reserved.end)
        earlier = self.find(demand, reserved.end - reserved.start, now, reserved.start)
        self._table.book(reserved.placement, reserved.start, reserved.end)
        if earlier is None:
            return False
        self.cancel(job_id)
        self.reserve(job_id, demand, earlier)
        return True

    # Free resources.

    def free_duration(self, demand: Demand, now: Seconds) -> Seconds:
        """Return for how long from now on a demand fits without conflicting with a run or a reservation."""
        return self._table.longest_free_duration(demand, now)

    def free_duration_on(self, nodes: Ints, demand: Demand, now: Seconds) -> Seconds:
        """Return for how long from now on one instance of a demand fits on one of these nodes."""
        return self._table.longest_free_duration_on(nodes, demand, now)

    def place_now(self, demand: Demand, duration: Seconds, now: Seconds) -> Placement | None:
        """Return a placement that is free from now on for this long; None if there is none."""
        return self._placer.place(self._table.free_during(now, now + duration), demand)

    def set_node_up(self, node: int, up: bool) -> list[str]:
        """Mark a node as up or down; return the jobs whose reservations are cancelled by that."""
        if up == self._table.is_up(node):
            return []
        self._table.set_node_up(node, up)
        return self._cancel_on(node, [] if up else sorted(self._on_node[node]))

    def set_gpu_up(self, node: int, gpu: int, up: bool) -> list[str]:
        """Mark a GPU as up or down; return the jobs whose reservations are cancelled by that."""
        if up == self._table.is_gpu_up(node, gpu):
            return []
        self._table.set_gpu_up(node, gpu, up)
        uses = (Share(node, (gpu,)),)
        on_node = [] if up else sorted(self._on_node[node])
        return self._cancel_on(node, [job for job in on_node if overlap(self._reserved[job].placement, uses)])

    def _cancel_on(self, node: int, affected: list[str]) -> list[str]:
        """Cancel the reservations of these jobs after a node, or one of its GPUs, went down or came up."""
        self._released[node] = self._newly_free[node] = None
        for job_id in affected:
            self.cancel(job_id)
        return affected

    def drop_before(self, now: Seconds) -> None:
        """Drop past bookings from the timetable."""
        self._table.drop_before(now)

    def pop_newly_free(self) -> Ints:
        """Return the nodes with releases since the last call."""
        nodes, self._newly_free = np.fromiter(self._newly_free, np.int64, len(self._newly_free)), {}
        return nodes

    def ends_and_gpus(self) -> tuple[Floats, Floats]:
        """Return the assumed ends of all runs, and the GPUs that each holds."""
        runs = self._runs.values()
        ends = np.fromiter((run.end for run in runs), np.float64, len(runs))
        return ends, np.fromiter((_gpus(run.placement) for run in runs), np.float64, len(runs))

    def _note_released(self, placement: Placement) -> None:
        for share in placement:
            self._released[share.node] = None
            self._newly_free[share.node] = None


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
        self._unused += range(used + more - 1, used - 1, -1)
        grown = [np.concatenate([column, np.zeros(more, column.dtype)]) for column in self.columns[1:]]
        self.columns = BookedJobs(self.columns.demands, *grown)


def _gpus(placement: Placement) -> float:
    return sum(len(share.gpus) * share.gpu_milli for share in placement) / WHOLE


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
