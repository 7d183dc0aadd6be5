"""The timetable against a plain Python list of bookings that is evaluated second by second."""

from math import inf
from typing import NamedTuple

import numpy as np
from hypothesis import given, strategies as st
from msgspec.structs import replace

from refold.model import Demand, Placement, Share
from refold.model.units import WHOLE
from refold.placement import FreeResources, Placer
from refold.placement.free import mask_from_indices
from refold.placement.layout import CPU_FREE, MEMORY_FREE
from refold.placement.timetable import INITIAL_INTERVALS, BookedJobs, Timetable
from refold.testing import make_cluster

CLUSTER = make_cluster(3, 2, 2, 0, types=["A100", "T4", "A100", ""], cpus=4, memory_gib=4)
NODES = range(len(CLUSTER.nodes))
LAST_END = 30
"""All bookings with an end have ended by this second."""


class Booking(NamedTuple):
    placement: Placement
    start: float
    end: float


def node_amounts(node: int) -> list[int]:
    """The amounts of a node: thousandths of each GPU, CPUs, memory."""
    kind = CLUSTER.nodes[node]
    return [*[WHOLE] * kind.gpus, kind.cpu_milli, kind.memory_mib]


class PlainTimetable:
    """A list of bookings, the free amounts in every second, and the nodes and GPUs that are down."""

    def __init__(
        self,
        bookings: list[Booking],
        down: frozenset[int] = frozenset(),
        down_gpus: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        self.bookings: list[Booking] = []
        self.down, self.down_gpus = down, down_gpus
        self._free = [[[amount] * (LAST_END + 1) for amount in node_amounts(node)] for node in NODES]
        for booking in bookings:
            self.book(booking)

    def book(self, booking: Booking) -> None:
        self.bookings.append(booking)
        for share in booking.placement:
            *gpus, cpu, memory = self._free[share.node]
            for second in range(int(booking.start), int(min(booking.end, LAST_END + 1))):
                for gpu in share.gpus:
                    gpus[gpu][second] -= share.gpu_milli
                cpu[second] -= share.cpu_milli
                memory[second] -= share.memory_mib

    def without(self, *cancelled: Booking) -> "PlainTimetable":
        rest = list(self.bookings)
        for booking in cancelled:
            rest.remove(booking)
        return PlainTimetable(rest, self.down, self.down_gpus)

    @property
    def is_overbooked(self) -> bool:
        return min(min(column) for node in self._free for column in node) < 0

    def free(self, node: int, start: int, end: float) -> tuple[list[int], int, int]:
        """The minimum free amounts of a node over a window: of each GPU, CPUs, memory."""
        until = int(min(end, LAST_END + 1))
        *gpus, cpu, memory = (max(0, min(column[start:until])) for column in self._free[node])
        return [0 if (node, gpu) in self.down_gpus else free for gpu, free in enumerate(gpus)], cpu, memory

    def count(self, node: int, demand: Demand, start: int, end: float) -> int:
        """How many instances fit on a node throughout a window, by placing them one by one."""
        kind = CLUSTER.nodes[node]
        if node in self.down or (demand.gpus and demand.gpu_types and kind.gpu_type not in demand.gpu_types):
            return 0
        gpus, cpu, memory = self.free(node, start, end)
        for count in range(demand.instances):
            gpus.sort(reverse=True)  # taking from the freest GPUs is optimal
            is_fitting = len([free for free in gpus if free >= demand.gpu_milli]) >= demand.gpus
            cpu, memory = cpu - demand.cpu_milli, memory - demand.memory_mib
            if not is_fitting or cpu < 0 or memory < 0:
                return count
            gpus[: demand.gpus] = [free - demand.gpu_milli for free in gpus[: demand.gpus]]
        return demand.instances

    def fits(self, demand: Demand, start: int, end: float) -> bool:
        return sum(self.count(node, demand, start, end) for node in NODES) >= demand.instances

    def earliest(self, demand: Demand, duration: float, after: int, before: float) -> float:
        for second in range(after, int(min(before, LAST_END + 1))):
            if self.fits(demand, second, second + duration):
                return second
        return inf

    def longest(self, demand: Demand, now: int) -> float:
        if self.fits(demand, now, inf):
            return inf
        return max((until - now for until in range(now + 1, LAST_END) if self.fits(demand, now, until)), default=0.0)

    def longest_on(self, nodes: list[int], demand: Demand, now: int) -> float:
        return self.only_on(nodes).longest(replace(demand, instances=1), now)

    def only_on(self, nodes: list[int]) -> "PlainTimetable":
        return PlainTimetable(self.bookings, self.down | (frozenset(NODES) - frozenset(nodes)), self.down_gpus)


def booked(plain: PlainTimetable) -> Timetable:
    table = Timetable(CLUSTER)
    for node in plain.down:
        table.set_node_up(node, False)
    for position, booking in enumerate(plain.bookings):
        if position == len(plain.bookings) // 2:
            take_gpus_down(table, plain)
        table.book(*booking)
    take_gpus_down(table, plain)
    return table


def take_gpus_down(table: Timetable, plain: PlainTimetable) -> None:
    for node, gpu in plain.down_gpus:
        table.set_gpu_up(node, gpu, False)


def intervals_of(table: Timetable) -> list[list[tuple[float, list[int]]]]:
    """For every node, the start and the free amounts of each interval."""
    number, starts, free = table._intervals.arrays[3:]
    return [
        [(starts[node, interval].item(), free[node, interval].tolist()) for interval in range(number[node])]
        for node in NODES
    ]


def share_of(node: int, picked: int, milli: int, cpu: int, memory: int) -> Share:
    gpus = tuple(gpu for gpu in range(CLUSTER.nodes[node].gpus) if picked >> gpu & 1)
    return Share(node, gpus, milli, cpu, memory)


SHARES = st.builds(
    share_of,
    st.sampled_from(NODES),
    st.integers(1, 7),
    st.sampled_from([WHOLE, WHOLE, 500, 300]),
    st.sampled_from([0, 1000]),
    st.sampled_from([0, 1024]),
)
TIMES = st.integers(0, 20)
LENGTHS = st.sampled_from([1, 2, 3, 5, 8, inf])
DEMANDS = st.builds(
    Demand,
    st.sampled_from([1, 1, 2, 3, 4]),
    st.sampled_from([0, 1, 1, 2, 3]),
    st.sampled_from([WHOLE, WHOLE, 500, 300, 700]),
    st.sampled_from([0, 0, 1000, 3000]),
    st.sampled_from([0, 0, 1024, 3000]),
    st.sampled_from([(), (), ("A100",), ("T4",), ("H100",), ("A100", "T4")]),
)
DOWN = st.frozensets(st.sampled_from(NODES), max_size=2)
GPUS = [(node, gpu) for node in NODES for gpu in range(CLUSTER.nodes[node].gpus)]
DOWN_GPUS = st.frozensets(st.sampled_from(GPUS), max_size=3)


@st.composite
def bookings(draw: st.DrawFn) -> list[Booking]:
    """Bookings that are not overbooked."""
    plain = PlainTimetable([])
    drawn = draw(st.lists(st.tuples(st.lists(SHARES, min_size=1, max_size=2), TIMES, LENGTHS), max_size=12))
    for shares, start, length in drawn:
        booking = Booking(tuple(shares), start, start + length)
        if not PlainTimetable([*plain.bookings, booking]).is_overbooked:
            plain.book(booking)
    return plain.bookings


TIMETABLES = st.builds(PlainTimetable, bookings(), DOWN, DOWN_GPUS)


@given(TIMETABLES, DEMANDS, LENGTHS, TIMES, st.sampled_from([inf, inf, 3, 10]))
def test_the_earliest_start_is_the_first_second_from_which_all_instances_fit(
    plain: PlainTimetable, demand: Demand, duration: float, after: int, within: float
) -> None:
    before = after + within
    assert booked(plain).earliest_start(demand, duration, after, before) == plain.earliest(
        demand, duration, after, before
    )


@given(TIMETABLES, DEMANDS, TIMES)
def test_the_free_duration_ends_at_the_first_second_that_does_not_fit(
    plain: PlainTimetable, demand: Demand, now: int
) -> None:
    assert booked(plain).longest_free_duration(demand, now) == plain.longest(demand, now)


@given(TIMETABLES, DEMANDS, TIMES, st.sets(st.sampled_from(NODES)))
def test_the_free_duration_on_some_nodes_is_that_of_one_instance(
    plain: PlainTimetable, demand: Demand, now: int, selected: set[int]
) -> None:
    nodes = sorted(selected)
    answer = booked(plain).longest_free_duration_on(np.array(nodes, np.int64), demand, now)
    assert answer == plain.longest_on(nodes, demand, now)


def free_in(plain: PlainTimetable, start: int, end: float) -> FreeResources:
    """The free resources of a window, built by taking the rest."""
    free = FreeResources(CLUSTER)
    for node in NODES:
        gpus, cpu, memory = plain.free(node, start, end)
        kind = CLUSTER.nodes[node]
        taken = [Share(node, (gpu,), WHOLE - free_milli) for gpu, free_milli in enumerate(gpus) if free_milli < WHOLE]
        assert free.take((*taken, Share(node, (), WHOLE, kind.cpu_milli - cpu, kind.memory_mib - memory))) is None
    for node in plain.down:
        free.set_node_up(node, False)
    return free


def is_same(job: FreeResources, second: FreeResources) -> bool:
    return (
        np.array_equal(job.nodes, second.nodes)
        and np.array_equal(job.gpus, second.gpus)
        and np.array_equal(job.bits, second.bits)
    )


@given(TIMETABLES, TIMES, LENGTHS, TIMES, LENGTHS)
def test_resources_free_during_a_window_are_free_in_every_second_of_it(
    plain: PlainTimetable, start: int, length: float, other_start: int, other_length: float
) -> None:
    table = booked(plain)
    assert is_same(table.free_during(start, start + length), free_in(plain, start, start + length))
    window = table.free_during(other_start, other_start + other_length)
    assert is_same(window, free_in(plain, other_start, other_start + other_length))


@given(TIMETABLES, DEMANDS, LENGTHS, TIMES)
def test_placements_in_a_window_do_not_affect_the_next_window(
    plain: PlainTimetable, demand: Demand, duration: float, now: int
) -> None:
    table = booked(plain)
    Placer("first-fit").place(table.free_during(now, now + duration), demand)
    assert is_same(table.free_during(now, now + duration), free_in(plain, now, now + duration))


@given(TIMETABLES, DEMANDS, LENGTHS, TIMES)
def test_a_placer_finds_a_placement_at_the_earliest_start_and_not_before(
    plain: PlainTimetable, demand: Demand, duration: float, after: int
) -> None:
    table = booked(plain)
    start = table.earliest_start(demand, duration, after)
    placer = Placer("first-fit")
    for second in range(after, int(min(start, LAST_END))):
        assert placer.place(table.free_during(second, second + duration), demand) is None
    if start < inf:
        assert placer.place(table.free_during(start, start + duration), demand) is not None


@given(bookings(), st.data())
def test_releasing_a_booking_restores_the_previous_intervals(selected: list[Booking], data: st.DataObject) -> None:
    table = booked(PlainTimetable(selected))
    cancelled = data.draw(st.sets(st.sampled_from(range(len(selected)))) if selected else st.just(set[int]()))
    for number in data.draw(st.permutations(sorted(cancelled))):
        table.release(*selected[number])
    rest = [booking for number, booking in enumerate(selected) if number not in cancelled]
    assert intervals_of(table) == intervals_of(booked(PlainTimetable(rest)))


@given(bookings(), st.data())
def test_the_order_of_bookings_does_not_matter(selected: list[Booking], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(selected))
    assert intervals_of(booked(PlainTimetable(shuffled))) == intervals_of(booked(PlainTimetable(selected)))


@given(bookings(), st.integers(0, 25), DEMANDS, LENGTHS, st.integers(0, 5), st.data())
def test_dropping_the_past_does_not_change_the_future(
    selected: list[Booking], now: int, demand: Demand, duration: float, later: int, data: st.DataObject
) -> None:
    table = booked(PlainTimetable(selected))
    table.drop_before(now)
    cancelled = data.draw(st.sets(st.sampled_from(range(len(selected)))) if selected else st.just(set[int]()))
    for number in cancelled:  # parts in the past are ignored
        table.release(*selected[number])
    plain = PlainTimetable([booking for number, booking in enumerate(selected) if number not in cancelled])
    after = now + later
    assert table.earliest_start(demand, duration, after) == plain.earliest(demand, duration, after, inf)
    assert table.longest_free_duration(demand, after) == plain.longest(demand, after)
    assert is_same(table.free_during(after, after + duration), free_in(plain, after, after + duration))


def test_dropped_intervals_are_removed() -> None:
    table = Timetable(CLUSTER)
    for second in range(0, 20, 2):
        table.book((Share(0, (0,)),), second, second + 1)
    table.drop_before(18.5)
    assert intervals_of(table)[0] == [
        (18.0, [0b110, 4000, 4096, 0, 1000, 1000]),
        (19.0, [0b111, 4000, 4096, 1000, 1000, 1000]),
    ]


def test_a_node_can_have_any_number_of_intervals() -> None:
    table, selected = Timetable(CLUSTER), [Booking((Share(0, (0,)),), second, second + 1) for second in range(1, 29, 2)]
    for booking in selected:
        table.book(*booking)
    assert len(intervals_of(table)[0]) == 2 * len(selected) + 1 > 3 * INITIAL_INTERVALS
    assert [table.earliest_start(Demand(1, 3), 1, second) for second in (0, 1, 2, 27, 28)] == [0, 2, 2, 28, 28]
    for booking in selected:
        table.release(*booking)
    assert intervals_of(table) == intervals_of(Timetable(CLUSTER))


def test_a_window_without_length_is_not_booked() -> None:
    table = Timetable(CLUSTER)
    table.book((Share(0, (0,)),), 5, 5)
    table.book((Share(0, (0,)),), 7, 6)
    assert intervals_of(table) == intervals_of(Timetable(CLUSTER))


def test_a_node_that_comes_up_again_keeps_its_bookings() -> None:
    table = Timetable(CLUSTER)
    table.book((Share(0, (0, 1, 2)),), 0, 10)
    table.set_node_up(0, False)
    assert table.earliest_start(Demand(1, 3), 1, 0) == inf
    assert table.longest_free_duration(Demand(1, 3), 12) == 0.0
    table.set_node_up(0, True)
    assert table.earliest_start(Demand(1, 3), 1, 0) == 10
    assert table.longest_free_duration(Demand(1, 3), 12) == inf


def test_a_gpu_that_comes_up_again_keeps_its_bookings() -> None:
    table = Timetable(CLUSTER)
    table.book((Share(0, (0, 1, 2)),), 0, 10)
    before = intervals_of(table)
    table.set_gpu_up(0, 1, False)
    assert table.earliest_start(Demand(1, 3), 1, 0) == inf
    assert table.earliest_start(Demand(1, 2, gpu_types=("A100",)), 100, 0) == 0
    assert table.free_during(12, 13).gpu_milli_of(0) == (WHOLE, 0, WHOLE)
    table.set_gpu_up(0, 1, True)
    assert intervals_of(table) == before
    assert table.earliest_start(Demand(1, 3), 1, 0) == 10


# --- jobs that can start earlier ----------------------------------------------------------------------------


class BookedJob(NamedTuple):
    """A job with a booking for a later start."""

    demand: Demand
    booking: Booking


def columns(table: Timetable, booked_jobs: list[BookedJob], touched: list[int]) -> BookedJobs:
    single = [len(job.booking.placement) == 1 for job in booked_jobs]
    shares = [job.booking.placement[0] for job in booked_jobs]
    return BookedJobs(
        np.concatenate([table.vector(job.demand) for job in booked_jobs]),
        np.arange(len(booked_jobs)),
        np.array([job.booking.end - job.booking.start for job in booked_jobs], np.float64),
        np.array([job.booking.start for job in booked_jobs], np.float64),
        np.array([share.node if alone else -1 for share, alone in zip(shares, single, strict=True)], np.int64),
        np.array(
            [mask_from_indices(share.gpus) if alone else 0 for share, alone in zip(shares, single, strict=True)],
            np.int64,
        ),
        np.array(
            [any(share.node in touched for share in job.booking.placement) for job in booked_jobs],
            np.int64,
        ),
    )


def can_start_earlier(plain: PlainTimetable, job: BookedJob, nodes: list[int], now: int) -> bool:
    """Whether an instance fits on one of the nodes before its booked start, ignoring its own booking."""
    if not now < job.booking.start < inf:
        return False
    if job.demand.instances > 1 and any(share.node in nodes for share in job.booking.placement):
        return True
    rest = plain.without(job.booking) if job.demand.instances == 1 else plain
    duration = job.booking.end - job.booking.start
    return rest.only_on(nodes).earliest(replace(job.demand, instances=1), duration, now, job.booking.start) < inf


def with_spare_capacity(table: Timetable) -> Timetable:
    """Grow the arrays, since jobs on a node with full arrays are reported without a check."""
    for second in range(40):
        table.book((Share(3, (), WHOLE, 1),), 2 * second, 2 * second + 1)
    for second in range(40):
        table.release((Share(3, (), WHOLE, 1),), 2 * second, 2 * second + 1)
    return table


@st.composite
def booked_cases(draw: st.DrawFn) -> tuple[PlainTimetable, list[BookedJob]]:
    """A timetable, and jobs that are booked at their earliest start."""
    plain = draw(TIMETABLES)
    booked_jobs: list[BookedJob] = []
    table = booked(plain)
    for demand, duration, after in draw(st.lists(st.tuples(DEMANDS, LENGTHS, TIMES), min_size=1, max_size=4)):
        start = table.earliest_start(demand, duration, after)
        if start < inf:
            placement = Placer("first-fit").place(table.free_during(start, start + duration), demand)
            assert placement is not None
            booking = Booking(placement, start, start + duration)
            table.book(*booking)
            plain.book(booking)
            booked_jobs.append(BookedJob(demand, booking))
    return plain, booked_jobs


@given(booked_cases(), st.sets(st.sampled_from(NODES), min_size=1), TIMES, st.data())
def test_the_first_job_that_can_start_earlier_is_found(
    case: tuple[PlainTimetable, list[BookedJob]], selected: set[int], now: int, data: st.DataObject
) -> None:
    plain, booked_jobs = case
    if not booked_jobs:
        return
    order = data.draw(st.permutations(range(len(booked_jobs))))
    first, nodes = data.draw(st.integers(0, len(order))), sorted(selected)
    table = with_spare_capacity(booked(plain))
    before = intervals_of(table)
    answer = table.first_that_can_start_earlier(
        columns(table, booked_jobs, nodes),
        np.array(order, np.int64),
        first,
        np.array(nodes, np.int64),
        now,
        np.array([10**6]),
    )
    expected = [
        position
        for position in range(first, len(order))
        if can_start_earlier(plain, booked_jobs[order[position]], nodes, now)
    ]
    assert answer == (expected[0] if expected else -1)
    assert intervals_of(table) == before


def test_every_check_of_a_node_is_counted() -> None:
    table, whole_node = Timetable(CLUSTER), Demand(1, 3)
    selected = [BookedJob(whole_node, Booking((Share(0, (0, 1, 2)),), start, start + 10)) for start in (0, 10, 20)]
    for job in selected:
        table.book(*job.booking)
    checks_left = np.array([100])
    assert (
        table.first_that_can_start_earlier(
            columns(table, selected, []), np.arange(3), 0, np.array([0, 1]), 0, checks_left
        )
        == -1
    )
    assert checks_left.tolist() == [96]  # the first job starts now and is not checked


def test_a_booking_between_equal_ones_is_still_there_after_a_check() -> None:
    """To release it for the check takes two more intervals, which fill the arrays."""
    table, job = Timetable(CLUSTER), BookedJob(Demand(1, 3), Booking((Share(0, (0, 1, 2)),), 10, 20))
    for start, end in ((0, 10), (10, 20), (20, 30), (100, 110), (120, inf)):
        table.book(job.booking.placement, start, end)
    before = intervals_of(table)
    assert len(before[0]) == INITIAL_INTERVALS - 2
    jobs = columns(table, [job], [])
    assert table.first_that_can_start_earlier(jobs, np.arange(1), 0, np.array([0]), 0, np.array([100])) == -1
    assert intervals_of(table) == before


def test_the_free_amounts_of_a_window_are_the_minimum_over_it() -> None:
    table = Timetable(CLUSTER)
    table.book((Share(0, (0,), 300, 1000, 1024),), 0, 10)
    table.book((Share(0, (0, 1), 500, 2000, 0),), 5, 15)
    window = table.free_during(4, 6)
    assert window.gpu_milli_of(0) == (200, 500, 1000)
    assert (window.nodes[0, CPU_FREE], window.nodes[0, MEMORY_FREE]) == (1000, 3072)


def test_an_overbooked_gpu_does_not_affect_other_gpus() -> None:
    """A run that exceeds its estimate overbooks reservations until they are moved."""
    table = Timetable(CLUSTER)
    for _ in range(2):
        table.book((Share(0, (0,)),), 0, 10)
    for node in (1, 2):
        table.set_node_up(node, False)
    for demand, expected in (
        (Demand(1, 2), inf),
        (Demand(1, 2, 500), inf),
        (Demand(4, 1, 500), inf),
        (Demand(5, 1, 500), 0),
    ):
        assert table.longest_free_duration(demand, 0) == expected
        assert table.earliest_start(demand, 5, 0) == (0 if expected else 10)
    assert table.free_during(0, 5).gpu_milli_of(0) == (0, 1000, 1000)
