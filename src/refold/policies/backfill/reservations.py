"""Who is on which GPUs until when, and who is promised which GPUs from when on: runs and reservations on one timetable.

Runs are booked until they are believed to end. A run that goes on is booked on, and reservations that are in its way
are given up, to be made anew. What is given back early leaves a hole: its nodes are noted, and whoever could begin
earlier because of it is found by looking at those nodes only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf

import msgspec
import numpy as np

from refold.model import WHOLE, Cluster, Demand, Placement, Seconds
from refold.packing import DEMAND_ENTRIES, Floats, Ints, Placer, Timetable, Waiting, mask_of

AGAIN = 8
"""How often a placer that finds no place where there is room is asked again, for a later moment."""

LOOKS_OF_A_SEARCH = 5
"""What it costs to search all nodes for the earliest place, in looks at each of them."""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A place, by nodes and GPUs, from `start` to `end`."""

    placement: Placement
    start: Seconds
    end: Seconds


class Reservations:
    """Runs until they end, and promised places."""

    def __init__(self, cluster: Cluster, placer: Placer) -> None:
        self._cluster = cluster
        self._placer = placer
        self._table = Timetable(cluster)
        self._runs: dict[str, Reservation] = {}
        self._ends: list[tuple[Seconds, str]] = []
        self._promised: dict[str, Reservation] = {}
        self._rows = _ReservationRows(self._table)
        self._on_node: dict[int, set[str]] = defaultdict(set)
        self._holes: dict[int, None] = {}
        self._opened: dict[int, None] = {}

    # Runs.

    def run(self, job_id: str, placement: Placement, now: Seconds, end: Seconds) -> None:
        """A job runs here, and is believed to until `end`."""
        self._table.book(placement, now, end)
        self._runs[job_id] = Reservation(placement, now, end)
        if end < inf:
            heappush(self._ends, (end, job_id))

    def run_as_promised(self, job_id: str, now: Seconds, end: Seconds) -> None:
        """A job runs where it was promised to, and is believed to until `end`."""
        promised = self._promised[job_id]
        if end >= promised.end:
            holes, opened = self._holes.copy(), self._opened.copy()
            self.give_up(job_id)
            self._holes, self._opened = holes, opened  # what it leaves it takes again
        else:
            self.give_up(job_id)
        self.run(job_id, promised.placement, now, end)

    def is_booked(self, job_id: str) -> bool:
        """Whether a job is booked as running."""
        return job_id in self._runs

    def ended(self, job_id: str, now: Seconds) -> None:
        """It does not run any more."""
        booked = self._runs.pop(job_id, None)
        if booked is None:
            return
        if booked.end > now:
            self._table.give_back(booked.placement, now, booked.end)
        self._note_holes(booked.placement)

    def late(self, now: Seconds) -> list[str]:
        """Runs that go on although they were believed to have ended by now; each has to be booked on."""
        late: list[str] = []
        while self._ends and self._ends[0][0] <= now:
            end, job_id = heappop(self._ends)
            booked = self._runs.get(job_id)
            if booked is not None and booked.end == end:
                late.append(job_id)
        return late

    def book_on(self, job_id: str, now: Seconds, end: Seconds) -> None:
        """A run goes on until `end`."""
        booked = self._runs[job_id]
        self._table.book(booked.placement, now, end)
        self._runs[job_id] = Reservation(booked.placement, booked.start, end)
        heappush(self._ends, (end, job_id))

    def in_the_way_of(self, placement: Placement, now: Seconds, end: Seconds) -> Iterator[str]:
        """Who is promised something of a place that is booked until `end`, as long as more is booked than there is."""
        for other in sorted({other for share in placement for other in self._on_node[share.node]}):
            promised = self._promised[other]
            if promised.start < end and meet(promised.placement, placement) and self._is_overbooked(promised, now, end):
                yield other

    def _is_overbooked(self, promised: Reservation, now: Seconds, end: Seconds) -> bool:
        start, end = max(now, promised.start), min(end, promised.end)
        return self._table.is_overbooked(promised.placement, start, end)

    # Promised places.

    def find(self, demand: Demand, distribution: Seconds, now: Seconds, before: Seconds = inf) -> Reservation | None:
        """The earliest place for so long, if there is one `before`."""
        after = now
        for _ in range(AGAIN):
            start = self._table.earliest(demand, distribution, after, before)
            if start == inf:
                return None
            placement = self._placer.place(self._table.free_during(start, start + distribution), demand)
            if placement is not None:
                return Reservation(placement, start, start + distribution)
            after = float(np.nextafter(start, inf))
        return None

    def keep(self, job_id: str, demand: Demand, reservation: Reservation) -> None:
        """Promise a place."""
        self._table.book(reservation.placement, reservation.start, reservation.end)
        self._promised[job_id] = reservation
        self._rows.put(job_id, demand, reservation)
        for share in reservation.placement:
            self._on_node[share.node].add(job_id)

    def put_off(self, job_id: str, now: Seconds) -> None:
        """A promised place is not free yet: it stays promised, from now on and for as long."""
        promised = self._promised[job_id]
        if promised.start < now:
            holes, opened = self._holes.copy(), self._opened.copy()
            demand = self._rows.demand_of(job_id)
            self.give_up(job_id)
            self.keep(job_id, demand, Reservation(promised.placement, now, now + promised.end - promised.start))
            self._holes, self._opened = holes, opened  # nothing was left

    def is_free(self, reservation: Reservation) -> bool:
        """Whether nobody holds or is promised anything of a place then."""
        return self._table.free_during(reservation.start, reservation.end).has(reservation.placement)

    def give_up(self, job_id: str) -> Reservation | None:
        """A promised place is free again; returns which it was."""
        reservation = self._promised.pop(job_id, None)
        if reservation is not None:
            self._table.give_back(reservation.placement, reservation.start, reservation.end)
            self._rows.drop(job_id)
            self._note_holes(reservation.placement)
            for share in reservation.placement:
                self._on_node[share.node].discard(job_id)
        return reservation

    def of(self, job_id: str) -> Reservation | None:
        """The place that a job is promised."""
        return self._promised.get(job_id)

    @property
    def has_holes(self) -> bool:
        """Whether something was given back, so that somebody could begin earlier."""
        return bool(self._holes)

    @property
    def promised(self) -> dict[str, Reservation]:
        """Every promised place."""
        return self._promised

    def begin_earlier(self, order: Sequence[str], now: Seconds, looks: int) -> list[str]:
        """Let whoever can begin earlier because of the holes do so, in this order; returns who does.

        A place that is left so becomes a hole for those behind, until the `looks` at nodes are spent.
        """
        holes, self._holes = self._holes, {}
        if not holes or not order:
            return []
        rows, left = self._rows.numbers(order), np.array([looks])
        some = self._rows.touch(holes, self._on_node)
        moved: list[str] = []
        position = 0
        while (position := self._table.first_to_gain(self._rows.columns, rows, position, some, now, left)) >= 0:
            if self._moves_up(order[position], now):
                moved.append(order[position])
            left[0] -= LOOKS_OF_A_SEARCH * len(self._cluster.nodes)
            some = self._rows.touch(holes | self._holes if left[0] > 0 else holes, self._on_node)
            position += 1
        self._holes = {}
        return moved

    def _moves_up(self, job_id: str, now: Seconds) -> bool:
        """Promise an earlier place instead of the one that is promised, if there is one."""
        promised, demand = self._promised[job_id], self._rows.demand_of(job_id)
        self._table.give_back(promised.placement, promised.start, promised.end)
        found = self.find(demand, promised.end - promised.start, now, promised.start)
        self._table.book(promised.placement, promised.start, promised.end)
        if found is None:
            return False
        self.give_up(job_id)
        self.keep(job_id, demand, found)
        return True

    # What is left.

    def lasts(self, demand: Demand, now: Seconds) -> Seconds:
        """For how long there is room from now on that nobody holds or is promised."""
        return self._table.longest(demand, now)

    def lasts_on(self, nodes: Ints, demand: Demand, now: Seconds) -> Seconds:
        """The same for one instance, on some of the nodes."""
        return self._table.longest_on(nodes, demand, now)

    def place_now(self, demand: Demand, distribution: Seconds, now: Seconds) -> Placement | None:
        """A place that is nobody's for so long, from now on."""
        return self._placer.place(self._table.free_during(now, now + distribution), demand)

    def set_up(self, node: int, up: bool) -> list[str]:
        """A node was lost or has returned; returns whose reservations are void."""
        self._table.set_up(node, up)
        self._holes[node] = self._opened[node] = None
        void = [] if up else sorted(self._on_node[node])
        for job_id in void:
            self.give_up(job_id)
        return void

    def forget_before(self, now: Seconds) -> None:
        """What was is over."""
        self._table.forget_before(now)

    def opened(self) -> Ints:
        """The nodes on which something was given back since this was last asked."""
        opened, self._opened = np.fromiter(self._opened, np.int64, len(self._opened)), {}
        return opened

    def ends_and_gpus(self) -> tuple[Floats, Floats]:
        """When runs are believed to end, and how many GPUs each holds."""
        runs = self._runs.values()
        ends = np.fromiter((run.end for run in runs), np.float64, len(runs))
        return ends, np.fromiter((_gpus(run.placement) for run in runs), np.float64, len(runs))

    def _note_holes(self, placement: Placement) -> None:
        for share in placement:
            self._holes[share.node] = None
            self._opened[share.node] = None


class _ReservationRows:
    """Whoever is promised a place, as columns for the kernels."""

    def __init__(self, table: Timetable) -> None:
        self._table = table
        self._of: dict[str, int] = {}
        self._demand: dict[str, Demand] = {}
        self._kinds: dict[Demand, int] = {}
        self._unused: list[int] = []
        self.columns = Waiting(
            np.zeros((0, DEMAND_ENTRIES), np.int64),
            np.zeros(0, np.int64),
            np.zeros(0),
            np.zeros(0),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
        )

    def demand_of(self, job_id: str) -> Demand:
        return self._demand[job_id]

    def numbers(self, jobs: Sequence[str]) -> Ints:
        return np.fromiter((self._of[job_id] for job_id in jobs), np.int64, len(jobs))

    def put(self, job_id: str, demand: Demand, reservation: Reservation) -> None:
        if not self._unused:
            self._grow()
        row = self._of[job_id] = self._unused.pop()
        self._demand[job_id] = demand
        kind, single = self._kind(demand), len(reservation.placement) == 1
        columns = self.columns
        columns.kind[row] = kind
        columns.distribution[row] = reservation.end - reservation.start
        columns.start[row] = reservation.start
        columns.node[row] = reservation.placement[0].node if single else -1
        columns.mask[row] = mask_of(reservation.placement[0].gpus) if single else 0

    def drop(self, job_id: str) -> None:
        row = self._of.pop(job_id)
        del self._demand[job_id]
        self.columns.start[row] = inf
        self._unused.append(row)

    def touch(self, nodes: Iterable[int], on_node: dict[int, set[str]]) -> Ints:
        """Mark whoever is on these nodes, which are returned as an array."""
        some = np.fromiter(nodes, np.int64)
        self.columns.touched[:] = 0
        for node in some.tolist():
            for job_id in on_node[node]:
                self.columns.touched[self._of[job_id]] = 1
        return some

    def _kind(self, demand: Demand) -> int:
        kind = self._kinds.get(demand)
        if kind is None:
            kind = self._kinds[demand] = len(self._kinds)
            demands = np.concatenate([self.columns.demands, self._table.vector(demand)])
            self.columns = self.columns._replace(demands=demands)
        return kind

    def _grow(self) -> None:
        """Room for twice as many."""
        used = len(self.columns.kind)
        more = max(64, used)
        self._unused += range(used + more - 1, used - 1, -1)
        grown = [np.concatenate([column, np.zeros(more, column.dtype)]) for column in self.columns[1:]]
        self.columns = Waiting(self.columns.demands, *grown)


def _gpus(placement: Placement) -> float:
    return sum(len(share.gpus) * share.gpu_milli for share in placement) / WHOLE


def meet(one: Placement, other: Placement) -> bool:
    """Whether two places have something of a node in common: a GPU, or both CPUs or memory."""
    for share in one:
        for their in other:
            if share.node == their.node:
                if not set(share.gpus).isdisjoint(their.gpus):
                    return True
                if (share.cpu_milli and their.cpu_milli) or (share.memory_mib and their.memory_mib):
                    return True
    return False
