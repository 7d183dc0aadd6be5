"""Reservations: whatever happens, the timetable is what runs and promised places make of it, and nobody is put off."""

from math import inf
from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from refold.model import Demand, Share
from refold.model.units import WHOLE
from refold.packing import Placer
from refold.packing.timetable import FIRST, Timetable
from refold.policies.backfill.reservations import Reservation, Reservations, meet
from refold.testing import make_cluster

CLUSTER = make_cluster(3, 2, 2, types=["A100", "T4", "A100"], cpus=4, memory_gib=4)
ENOUGH = 10**6


def whole(*gpus: int, node: int = 0) -> tuple[Share, ...]:
    return (Share(node, gpus),)


def empty(*sizes: int) -> Reservations:
    return Reservations(make_cluster(*sizes), Placer("first-fit"))


def spans(table: Timetable, now: float) -> list[list[tuple[float, list[int]]]]:
    """What is free from now on: of every node, when each span begins and what is free in it."""
    table.forget_before(now)
    number, begins, free = table._spans
    return [
        [(max(begins[node, span].item(), now), free[node, span].tolist()) for span in range(number[node])]
        for node in range(len(table.cluster.nodes))
    ]


class World:
    """Reservations to which things happen, and the time."""

    def __init__(self) -> None:
        self.reservations = Reservations(CLUSTER, Placer("best-fit"))
        self.now = 0.0
        self.came = 0
        self.promised: dict[str, Demand] = {}
        self.running: list[str] = []
        self.lengths: dict[str, float] = {}

    def arrive(self, demand: Demand, distribution: float) -> None:
        """Somebody is promised the earliest place."""
        name = f"j{self.came}"
        self.came += 1
        self.lengths[name] = distribution
        self.promise(name, demand)
        self.start_who_is_due()

    def promise(self, name: str, demand: Demand) -> None:
        found = self.reservations.find(demand, self.lengths[name], self.now)
        if found is not None:
            self.reservations.keep(name, demand, found)
            self.promised[name] = demand

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.book_on_late_runs()
            self.start_who_is_due()

    def book_on_late_runs(self) -> None:
        """Runs that should have ended go on; who is in their way is promised something else."""
        displaced: dict[str, Demand] = {}
        for name in self.reservations.late(self.now):
            self.reservations.book_on(name, self.now, self.now + 3)
            placement = self.reservations._runs[name].placement
            for other in self.reservations.in_the_way_of(placement, self.now, self.now + 3):
                self.reservations.give_up(other)
                displaced[other] = self.promised.pop(other)
        for other, demand in displaced.items():
            self.promise(other, demand)

    def start_who_is_due(self) -> None:
        for name in sorted(self.promised):
            place = self.reservations.of(name)
            assert place is not None
            if place.start <= self.now:
                self.reservations.give_up(name)
                del self.promised[name]
                self.reservations.run(name, place.placement, self.now, self.now + self.lengths[name])
                self.running.append(name)

    def end(self, which: int) -> None:
        """A run ends, as planned or early, and others begin earlier."""
        if self.running:
            self.reservations.ended(self.running.pop(which % len(self.running)), self.now)
            self.begin_earlier()

    def cancel(self, which: int) -> None:
        if self.promised:
            name = sorted(self.promised)[which % len(self.promised)]
            del self.promised[name]
            self.reservations.give_up(name)
            self.begin_earlier()

    def begin_earlier(self) -> None:
        before = {name: place.start for name, place in self.reservations.promised.items()}
        moved = self.reservations.begin_earlier(sorted(self.promised), self.now, ENOUGH)
        after = {name: place.start for name, place in self.reservations.promised.items()}
        assert before.keys() == after.keys()
        assert {name for name in before if after[name] < before[name]} == set(moved)
        assert all(after[name] <= before[name] for name in before), "nobody begins later"
        self.start_who_is_due()

    def lose(self, node: int) -> None:
        """A node falls with its runs and returns at once; who was promised something on it is promised another."""
        for name in list(self.running):
            if any(share.node == node for share in self.reservations._runs[name].placement):
                self.running.remove(name)
                self.reservations.ended(name, self.now)
        void = {name: self.promised.pop(name) for name in self.reservations.set_up(node, False)}
        for place in self.reservations.promised.values():
            assert all(share.node != node for share in place.placement)
        for name, demand in void.items():
            self.promise(name, demand)
            found = self.reservations.of(name)
            assert found is None or all(share.node != node for share in found.placement)
        self.reservations.set_up(node, True)
        self.begin_earlier()

    def check(self) -> None:
        """The timetable is the one that is made of runs and promises alone, and nothing is given twice."""
        made = Timetable(CLUSTER)
        for run in self.reservations._runs.values():
            made.book(run.placement, self.now, run.end)
        for place in self.reservations.promised.values():
            made.book(place.placement, place.start, place.end)
        now = spans(self.reservations._table, self.now)
        assert now == spans(made, self.now)
        assert all(min(free) >= 0 and max(free[FIRST:]) <= WHOLE for node in now for _, free in node)


DEMANDS = st.builds(
    Demand,
    st.sampled_from([1, 1, 2, 3]),
    st.sampled_from([1, 1, 2, 3]),
    st.sampled_from([WHOLE, WHOLE, 500, 300]),
    st.sampled_from([0, 1000]),
    st.sampled_from([0, 1024]),
    st.sampled_from([(), (), ("A100",)]),
)
STEPS = st.one_of(
    st.tuples(st.just("arrive"), DEMANDS, st.sampled_from([1.0, 3.0, 8.0, 20.0, inf])),
    st.tuples(st.just("pass_time"), st.sampled_from([1, 2, 5])),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("lose"), st.integers(0, 2)),
)


@given(st.lists(DEMANDS, max_size=6), st.lists(STEPS, max_size=25))
def test_after_whatever_happens_the_timetable_is_what_runs_and_promises_make_of_it(
    first: list[Demand], steps: list[tuple[Any, ...]]
) -> None:
    world = World()
    for demand in first:
        world.arrive(demand, 4.0)
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
        world.check()


# --- worked cases -------------------------------------------------------------------------------------------


def test_a_run_is_booked_until_it_is_believed_to_end_and_a_place_is_found_after_it() -> None:
    reservations = empty(2)
    reservations.run("a", whole(0), 0, 10)
    assert reservations.is_booked("a")
    assert reservations.find(Demand(1, 2), 5, 1) == Reservation(whole(0, 1), 10, 15)
    assert reservations.find(Demand(1, 1), 5, 1) == Reservation(whole(1), 1, 6)
    assert reservations.find(Demand(1, 2), 5, 1, before=10) is None
    assert reservations.find(Demand(1, 3), 5, 1) is None


def test_who_ends_early_leaves_a_hole_and_who_ends_in_time_leaves_one_too() -> None:
    for now in (4, 10):
        reservations = empty(2)
        reservations.run("a", whole(0, 1), 0, 10)
        reservations.ended("a", now)
        assert reservations.has_holes
        assert reservations.opened().tolist() == [0]
        assert reservations.opened().tolist() == []
        assert reservations.find(Demand(1, 2), 5, now) == Reservation(whole(0, 1), now, now + 5)
        reservations.ended("a", now)  # twice is once


def test_late_runs_are_named_once_and_again_when_they_are_late_again() -> None:
    reservations = empty(1, 1)
    reservations.run("a", whole(0), 0, 10)
    reservations.run("b", whole(0, node=1), 0, 20)
    assert reservations.late(9) == []
    assert reservations.late(10) == ["a"]
    assert reservations.late(10) == []
    reservations.book_on("a", 10, 15)
    assert reservations.late(14) == []
    assert reservations.late(25) == ["a", "b"]


def test_a_run_that_goes_on_is_in_the_way_of_who_was_promised_its_gpus_by_then() -> None:
    for end, in_the_way in ((15, ["soon"]), (30, ["soon"]), (31, ["later", "soon"])):
        reservations = empty(4)
        reservations.run("a", (Share(0, (0, 1), WHOLE, 1000),), 0, 10)
        reservations.keep("soon", Demand(1, 2), Reservation(whole(1, 2), 10, 20))
        reservations.keep("beside", Demand(1, 1, WHOLE, 1000), Reservation((Share(0, (3,), WHOLE, 1000),), 10, 20))
        reservations.keep("later", Demand(1, 1), Reservation(whole(0), 30, 40))
        reservations.book_on("a", 10, end)
        held = (Share(0, (0, 1), WHOLE, 1000),)
        assert list(reservations.in_the_way_of(held, 10, end)) == in_the_way


def test_nobody_is_in_the_way_of_a_part_of_a_gpu_that_is_left() -> None:
    reservations, part = empty(1), Demand(1, 1, 300)
    reservations.run("a", (Share(0, (0,), 500),), 0, 10)
    reservations.keep("b", part, Reservation((Share(0, (0,), 300),), 10, 20))
    reservations.keep("c", part, Reservation((Share(0, (0,), 300),), 10, 20))
    reservations.book_on("a", 10, 15)
    moved = []
    for other in reservations.in_the_way_of((Share(0, (0,), 500),), 10, 15):
        reservations.give_up(other)
        moved.append(other)
    assert moved == ["b"]  # beside `c` there is room enough for the run that goes on


def test_those_who_begin_earlier_make_room_for_those_behind_them() -> None:
    reservations = empty(2)
    reservations.run("a", whole(0, 1), 0, 100)
    for name, start in (("b", 100), ("c", 110), ("d", 120)):
        found = reservations.find(Demand(1, 2), 10, 1)
        assert found == Reservation(whole(0, 1), start, start + 10)
        reservations.keep(name, Demand(1, 2), found)
    reservations.ended("a", 5)
    assert reservations.begin_earlier(["b", "c", "d"], 5, ENOUGH) == ["b", "c", "d"]
    assert {name: place.start for name, place in reservations.promised.items()} == {"b": 5, "c": 15, "d": 25}


def test_who_is_first_in_the_order_has_the_hole() -> None:
    for order in (["b", "c"], ["c", "b"]):
        reservations = empty(1)
        reservations.run("a", whole(0), 0, 100)
        reservations.keep("b", Demand(), Reservation(whole(0), 100, 110))
        reservations.keep("c", Demand(), Reservation(whole(0), 110, 120))
        reservations.ended("a", 50)
        reservations.begin_earlier(order, 50, ENOUGH)
        first = reservations.of(order[0])
        assert first is not None
        assert first.start == 50


def test_a_gang_begins_earlier_only_when_all_its_nodes_can() -> None:
    reservations, gang = empty(1, 1), Demand(2, 1)
    reservations.run("a", whole(0), 0, 100)
    reservations.run("b", whole(0, node=1), 0, 100)
    reservations.keep("gang", gang, Reservation((Share(0, (0,)), Share(1, (0,))), 100, 110))
    reservations.ended("a", 5)
    assert reservations.begin_earlier(["gang"], 5, ENOUGH) == []
    reservations.ended("b", 7)
    assert reservations.begin_earlier(["gang"], 7, ENOUGH) == ["gang"]
    assert reservations.of("gang") == Reservation((Share(0, (0,)), Share(1, (0,))), 7, 17)


def test_a_node_that_falls_voids_what_is_promised_on_it() -> None:
    reservations = empty(2, 2)
    reservations.keep("here", Demand(1, 2), Reservation(whole(0, 1), 10, 20))
    reservations.keep("there", Demand(1, 2), Reservation(whole(0, 1, node=1), 10, 20))
    reservations.keep("both", Demand(2, 2), Reservation((*whole(0, 1), *whole(0, 1, node=1)), 20, 30))
    assert reservations.set_up(0, False) == ["both", "here"]
    assert list(reservations.promised) == ["there"]
    assert reservations.find(Demand(2, 2), 5, 0) is None
    assert reservations.set_up(0, True) == []
    assert reservations.find(Demand(2, 2), 5, 0) == Reservation((*whole(0, 1), *whole(0, 1, node=1)), 0, 5)


def test_room_lasts_until_somebody_is_promised_it() -> None:
    reservations = empty(2, 2)
    reservations.keep("a", Demand(1, 2), Reservation(whole(0, 1), 10, 20))
    assert reservations.lasts(Demand(2, 1), 0) == inf
    assert reservations.lasts(Demand(3, 1), 0) == 10
    assert reservations.lasts_on(np.array([0]), Demand(1, 1), 0) == 10
    assert reservations.place_now(Demand(1, 2), 10, 0) == whole(0, 1)
    assert reservations.place_now(Demand(1, 2), 11, 0) == whole(0, 1, node=1)
    assert reservations.is_free(Reservation(whole(0), 0, 10))
    assert not reservations.is_free(Reservation(whole(0), 0, 11))


def test_places_meet_where_they_have_something_of_a_node_in_common() -> None:
    assert meet(whole(0, 1), whole(1, 2))
    assert not meet(whole(0, 1), whole(2, 3))
    assert not meet(whole(0), whole(0, node=1))
    assert not meet((Share(0, (0,), WHOLE, 1000),), (Share(0, (1,)),))


def test_when_runs_end_and_how_many_gpus_they_hold() -> None:
    reservations = empty(2, 2)
    reservations.run("a", (Share(0, (0, 1)), Share(1, (0, 1))), 0, 10)
    reservations.run("b", (Share(0, (0,), 300),), 5, 7)
    ends, gpus = reservations.ends_and_gpus()
    assert (ends.tolist(), gpus.tolist()) == ([10, 7], [4, 0.3])
