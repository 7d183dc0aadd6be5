"""What is free when, against a list of bookings in plain Python that is looked through second by second."""

from math import inf
from typing import NamedTuple

import numpy as np
from hypothesis import given, strategies as st
from msgspec.structs import replace

from refold.model import Demand, Placement, Share
from refold.model.units import WHOLE
from refold.packing import Free, Placer
from refold.packing.free import mask_of
from refold.packing.layout import CPU_FREE, MEMORY_FREE
from refold.packing.timetable import FEW_SPANS, Timetable, Waiting
from refold.testing import make_cluster

CLUSTER = make_cluster(3, 2, 2, 0, types=["A100", "T4", "A100", ""], cpus=4, memory_gib=4)
NODES = range(len(CLUSTER.nodes))
OVER = 30
"""By this second everything has ended that ends."""


class Booking(NamedTuple):
    placement: Placement
    start: float
    end: float


def amounts_of(node: int) -> list[int]:
    """What a node has: thousandths of each GPU, CPUs, memory."""
    kind = CLUSTER.nodes[node]
    return [*[WHOLE] * kind.gpus, kind.cpu_milli, kind.memory_mib]


class Plain:
    """Bookings in a list, what they leave free in every second, and which nodes are up."""

    def __init__(self, bookings: list[Booking], down: frozenset[int] = frozenset()) -> None:
        self.bookings: list[Booking] = []
        self.down = down
        self._free = [[[all_of_it] * (OVER + 1) for all_of_it in amounts_of(node)] for node in NODES]
        for booking in bookings:
            self.book(booking)

    def book(self, booking: Booking) -> None:
        self.bookings.append(booking)
        for share in booking.placement:
            *gpus, cpu, memory = self._free[share.node]
            for second in range(int(booking.start), int(min(booking.end, OVER + 1))):
                for gpu in share.gpus:
                    gpus[gpu][second] -= share.gpu_milli
                cpu[second] -= share.cpu_milli
                memory[second] -= share.memory_mib

    def without(self, *gone: Booking) -> "Plain":
        rest = list(self.bookings)
        for booking in gone:
            rest.remove(booking)
        return Plain(rest, self.down)

    @property
    def is_overfull(self) -> bool:
        return min(min(column) for node in self._free for column in node) < 0

    def free(self, node: int, start: int, end: float) -> tuple[list[int], int, int]:
        """What is free on a node in every second of a window: of each GPU, CPUs, memory."""
        until = int(min(end, OVER + 1))
        *gpus, cpu, memory = (max(0, min(column[start:until])) for column in self._free[node])
        return gpus, cpu, memory

    def room(self, node: int, demand: Demand, start: int, end: float) -> int:
        """How many instances have room on a node throughout a window: as many as can be put there one by one."""
        kind = CLUSTER.nodes[node]
        if node in self.down or (demand.gpus and demand.gpu_types and kind.gpu_type not in demand.gpu_types):
            return 0
        gpus, cpu, memory = self.free(node, start, end)
        for room in range(demand.instances):
            gpus.sort(reverse=True)  # to take from those with most leaves the others for later
            fits = len([free for free in gpus if free >= demand.gpu_milli]) >= demand.gpus
            cpu, memory = cpu - demand.cpu_milli, memory - demand.memory_mib
            if not fits or cpu < 0 or memory < 0:
                return room
            gpus[: demand.gpus] = [free - demand.gpu_milli for free in gpus[: demand.gpus]]
        return demand.instances

    def has_room(self, demand: Demand, start: int, end: float) -> bool:
        return sum(self.room(node, demand, start, end) for node in NODES) >= demand.instances

    def earliest(self, demand: Demand, distribution: float, after: int, before: float) -> float:
        for second in range(after, int(min(before, OVER + 1))):
            if self.has_room(demand, second, second + distribution):
                return second
        return inf

    def longest(self, demand: Demand, now: int) -> float:
        if self.has_room(demand, now, inf):
            return inf
        return max((until - now for until in range(now + 1, OVER) if self.has_room(demand, now, until)), default=0.0)

    def longest_on(self, nodes: list[int], demand: Demand, now: int) -> float:
        return self.only_on(nodes).longest(replace(demand, instances=1), now)

    def only_on(self, nodes: list[int]) -> "Plain":
        return Plain(self.bookings, self.down | (frozenset(NODES) - frozenset(nodes)))


def booked(plain: Plain) -> Timetable:
    table = Timetable(CLUSTER)
    for node in plain.down:
        table.set_up(node, False)
    for booking in plain.bookings:
        table.book(*booking)
    return table


def spans(table: Timetable) -> list[list[tuple[float, list[int]]]]:
    """Of every node: when each span begins, and what is free in it."""
    number, begins, free = table._spans
    return [[(begins[node, span].item(), free[node, span].tolist()) for span in range(number[node])] for node in NODES]


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


@st.composite
def bookings(draw: st.DrawFn) -> list[Booking]:
    """Bookings none of which asks for what is not free."""
    plain = Plain([])
    drawn = draw(st.lists(st.tuples(st.lists(SHARES, min_size=1, max_size=2), TIMES, LENGTHS), max_size=12))
    for shares, start, length in drawn:
        booking = Booking(tuple(shares), start, start + length)
        if not Plain([*plain.bookings, booking]).is_overfull:
            plain.book(booking)
    return plain.bookings


PLAINS = st.builds(Plain, bookings(), DOWN)


@given(PLAINS, DEMANDS, LENGTHS, TIMES, st.sampled_from([inf, inf, 3, 10]))
def test_the_earliest_moment_is_the_first_second_from_which_there_is_room(
    plain: Plain, demand: Demand, distribution: float, after: int, within: float
) -> None:
    before = after + within
    assert booked(plain).earliest(demand, distribution, after, before) == plain.earliest(
        demand, distribution, after, before
    )


@given(PLAINS, DEMANDS, TIMES)
def test_room_lasts_until_the_first_second_in_which_there_is_none(plain: Plain, demand: Demand, now: int) -> None:
    assert booked(plain).longest(demand, now) == plain.longest(demand, now)


@given(PLAINS, DEMANDS, TIMES, st.sets(st.sampled_from(NODES)))
def test_room_on_some_nodes_is_that_of_one_instance_there(
    plain: Plain, demand: Demand, now: int, some: set[int]
) -> None:
    nodes = sorted(some)
    answer = booked(plain).longest_on(np.array(nodes, np.int64), demand, now)
    assert answer == plain.longest_on(nodes, demand, now)


def free_in(plain: Plain, start: int, end: float) -> Free:
    """What is free in a window, as it is when the rest has been taken."""
    free = Free(CLUSTER)
    for node in NODES:
        gpus, cpu, memory = plain.free(node, start, end)
        kind = CLUSTER.nodes[node]
        taken = [Share(node, (gpu,), WHOLE - left) for gpu, left in enumerate(gpus) if left < WHOLE]
        assert free.take((*taken, Share(node, (), WHOLE, kind.cpu_milli - cpu, kind.memory_mib - memory))) is None
    for node in plain.down:
        free.set_up(node, False)
    return free


def is_same(one: Free, other: Free) -> bool:
    return (
        np.array_equal(one.nodes, other.nodes)
        and np.array_equal(one.gpus, other.gpus)
        and np.array_equal(one.bits, other.bits)
    )


@given(PLAINS, TIMES, LENGTHS, TIMES, LENGTHS)
def test_what_is_free_in_a_window_is_free_in_every_second_of_it(
    plain: Plain, start: int, length: float, other_start: int, other_length: float
) -> None:
    table = booked(plain)
    assert is_same(table.free_during(start, start + length), free_in(plain, start, start + length))
    window = table.free_during(other_start, other_start + other_length)
    assert is_same(window, free_in(plain, other_start, other_start + other_length))


@given(PLAINS, DEMANDS, LENGTHS, TIMES)
def test_what_a_placer_takes_from_a_window_is_not_missed_in_the_next(
    plain: Plain, demand: Demand, distribution: float, now: int
) -> None:
    table = booked(plain)
    Placer("first-fit").place(table.free_during(now, now + distribution), demand)
    assert is_same(table.free_during(now, now + distribution), free_in(plain, now, now + distribution))


@given(PLAINS, DEMANDS, LENGTHS, TIMES)
def test_a_placer_finds_a_place_at_the_earliest_moment_and_none_before(
    plain: Plain, demand: Demand, distribution: float, after: int
) -> None:
    table = booked(plain)
    start = table.earliest(demand, distribution, after)
    placer = Placer("first-fit")
    for second in range(after, int(min(start, OVER))):
        assert placer.place(table.free_during(second, second + distribution), demand) is None
    if start < inf:
        assert placer.place(table.free_during(start, start + distribution), demand) is not None


@given(bookings(), st.data())
def test_what_is_given_back_was_never_booked(some: list[Booking], data: st.DataObject) -> None:
    table = booked(Plain(some))
    gone = data.draw(st.sets(st.sampled_from(range(len(some)))) if some else st.just(set[int]()))
    for number in data.draw(st.permutations(sorted(gone))):
        table.give_back(*some[number])
    rest = [booking for number, booking in enumerate(some) if number not in gone]
    assert spans(table) == spans(booked(Plain(rest)))


@given(bookings(), st.data())
def test_the_order_of_bookings_is_of_no_account(some: list[Booking], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(some))
    assert spans(booked(Plain(shuffled))) == spans(booked(Plain(some)))


@given(bookings(), st.integers(0, 25), DEMANDS, LENGTHS, st.integers(0, 5), st.data())
def test_to_forget_the_past_changes_no_answer_about_the_future(
    some: list[Booking], now: int, demand: Demand, distribution: float, later: int, data: st.DataObject
) -> None:
    table = booked(Plain(some))
    table.forget_before(now)
    gone = data.draw(st.sets(st.sampled_from(range(len(some)))) if some else st.just(set[int]()))
    for number in gone:  # some of it lies in the past, and is forgotten
        table.give_back(*some[number])
    plain = Plain([booking for number, booking in enumerate(some) if number not in gone])
    after = now + later
    assert table.earliest(demand, distribution, after) == plain.earliest(demand, distribution, after, inf)
    assert table.longest(demand, after) == plain.longest(demand, after)
    assert is_same(table.free_during(after, after + distribution), free_in(plain, after, after + distribution))


def test_what_is_forgotten_takes_no_room() -> None:
    table = Timetable(CLUSTER)
    for second in range(0, 20, 2):
        table.book((Share(0, (0,)),), second, second + 1)
    table.forget_before(18.5)
    assert spans(table)[0] == [
        (18.0, [0b110, 4000, 4096, 0, 1000, 1000]),
        (19.0, [0b111, 4000, 4096, 1000, 1000, 1000]),
    ]


def test_a_node_has_as_many_spans_as_it_needs() -> None:
    table, some = Timetable(CLUSTER), [Booking((Share(0, (0,)),), second, second + 1) for second in range(1, 29, 2)]
    for booking in some:
        table.book(*booking)
    assert len(spans(table)[0]) == 2 * len(some) + 1 > 3 * FEW_SPANS
    assert [table.earliest(Demand(1, 3), 1, second) for second in (0, 1, 2, 27, 28)] == [0, 2, 2, 28, 28]
    for booking in some:
        table.give_back(*booking)
    assert spans(table) == spans(Timetable(CLUSTER))


def test_a_window_without_length_is_not_booked() -> None:
    table = Timetable(CLUSTER)
    table.book((Share(0, (0,)),), 5, 5)
    table.book((Share(0, (0,)),), 7, 6)
    assert spans(table) == spans(Timetable(CLUSTER))


def test_a_node_that_is_down_has_room_again_when_it_returns_but_for_what_is_booked_there() -> None:
    table = Timetable(CLUSTER)
    table.book((Share(0, (0, 1, 2)),), 0, 10)
    table.set_up(0, False)
    assert table.earliest(Demand(1, 3), 1, 0) == inf
    assert table.longest(Demand(1, 3), 12) == 0.0
    table.set_up(0, True)
    assert table.earliest(Demand(1, 3), 1, 0) == 10
    assert table.longest(Demand(1, 3), 12) == inf


# --- who could begin earlier --------------------------------------------------------------------------------


class Promised(NamedTuple):
    """A job that is booked to begin later."""

    demand: Demand
    booking: Booking


def columns(table: Timetable, promised: list[Promised], touched: list[int]) -> Waiting:
    single = [len(one.booking.placement) == 1 for one in promised]
    shares = [one.booking.placement[0] for one in promised]
    return Waiting(
        np.concatenate([table.vector(one.demand) for one in promised]),
        np.arange(len(promised)),
        np.array([one.booking.end - one.booking.start for one in promised], np.float64),
        np.array([one.booking.start for one in promised], np.float64),
        np.array([share.node if alone else -1 for share, alone in zip(shares, single, strict=True)], np.int64),
        np.array([mask_of(share.gpus) if alone else 0 for share, alone in zip(shares, single, strict=True)], np.int64),
        np.array(
            [any(share.node in touched for share in one.booking.placement) for one in promised],
            np.int64,
        ),
    )


def gains(plain: Plain, one: Promised, nodes: list[int], now: int) -> bool:
    """Whether there is room for an instance on one of the nodes before it is to begin; what is its own is free."""
    if not now < one.booking.start < inf:
        return False
    if one.demand.instances > 1 and any(share.node in nodes for share in one.booking.placement):
        return True
    rest = plain.without(one.booking) if one.demand.instances == 1 else plain
    distribution = one.booking.end - one.booking.start
    return rest.only_on(nodes).earliest(replace(one.demand, instances=1), distribution, now, one.booking.start) < inf


def with_room_for_more_spans(table: Timetable) -> Timetable:
    """Nodes begin with room for few spans; then whoever is booked on a full one counts as somebody who may gain."""
    for second in range(40):
        table.book((Share(3, (), WHOLE, 1),), 2 * second, 2 * second + 1)
    for second in range(40):
        table.give_back((Share(3, (), WHOLE, 1),), 2 * second, 2 * second + 1)
    return table


@st.composite
def promises(draw: st.DrawFn) -> tuple[Plain, list[Promised]]:
    """A plain list of bookings, and those who were promised the earliest place for what they ask after them."""
    plain = draw(PLAINS)
    promised: list[Promised] = []
    table = booked(plain)
    for demand, distribution, after in draw(st.lists(st.tuples(DEMANDS, LENGTHS, TIMES), min_size=1, max_size=4)):
        start = table.earliest(demand, distribution, after)
        if start < inf:
            placement = Placer("first-fit").place(table.free_during(start, start + distribution), demand)
            assert placement is not None
            booking = Booking(placement, start, start + distribution)
            table.book(*booking)
            plain.book(booking)
            promised.append(Promised(demand, booking))
    return plain, promised


@given(promises(), st.sets(st.sampled_from(NODES), min_size=1), TIMES, st.data())
def test_who_could_begin_earlier_is_found_and_nobody_else(
    case: tuple[Plain, list[Promised]], some: set[int], now: int, data: st.DataObject
) -> None:
    plain, promised = case
    if not promised:
        return
    order = data.draw(st.permutations(range(len(promised))))
    first, nodes = data.draw(st.integers(0, len(order))), sorted(some)
    table = with_room_for_more_spans(booked(plain))
    before = spans(table)
    answer = table.first_to_gain(
        columns(table, promised, nodes),
        np.array(order, np.int64),
        first,
        np.array(nodes, np.int64),
        now,
        np.array([10**6]),
    )
    gaining = [place for place in range(first, len(order)) if gains(plain, promised[order[place]], nodes, now)]
    assert answer == (gaining[0] if gaining else -1)
    assert spans(table) == before


def test_every_look_at_a_node_is_counted() -> None:
    table, whole_node = Timetable(CLUSTER), Demand(1, 3)
    some = [Promised(whole_node, Booking((Share(0, (0, 1, 2)),), start, start + 10)) for start in (0, 10, 20)]
    for one in some:
        table.book(*one.booking)
    left = np.array([100])
    assert table.first_to_gain(columns(table, some, []), np.arange(3), 0, np.array([0, 1]), 0, left) == -1
    assert left.tolist() == [96]  # the first begins now: it is not looked at


def test_free_amounts_of_a_window_are_those_of_its_narrowest_moment() -> None:
    table = Timetable(CLUSTER)
    table.book((Share(0, (0,), 300, 1000, 1024),), 0, 10)
    table.book((Share(0, (0, 1), 500, 2000, 0),), 5, 15)
    window = table.free_during(4, 6)
    assert window.gpu_milli_of(0) == (200, 500, 1000)
    assert (window.nodes[0, CPU_FREE], window.nodes[0, MEMORY_FREE]) == (1000, 3072)


def test_a_gpu_that_is_promised_twice_takes_nothing_from_the_others() -> None:
    """A run that goes on is booked on over what was promised to others, until they are promised something else."""
    table = Timetable(CLUSTER)
    for _ in range(2):
        table.book((Share(0, (0,)),), 0, 10)
    for node in (1, 2):
        table.set_up(node, False)
    for demand, lasts in (
        (Demand(1, 2), inf),
        (Demand(1, 2, 500), inf),
        (Demand(4, 1, 500), inf),
        (Demand(5, 1, 500), 0),
    ):
        assert table.longest(demand, 0) == lasts
        assert table.earliest(demand, 5, 0) == (0 if lasts else 10)
    assert table.free_during(0, 5).gpu_milli_of(0) == (0, 1000, 1000)
