"""Reservations: the timetable always equals its runs and reservations, and advancing delays no job."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from refold.model import Cluster, Demand, Share
from refold.model.units import WHOLE
from refold.placement import Placer, Timetable
from refold.placement.layout import FIRST_GPU_FREE
from refold.policies.backfill.booked_runs import BookedRuns
from refold.policies.backfill.bookings import Bookings, Reservation
from refold.policies.backfill.reservations import Reservations, overlap
from refold.testing import make_cluster

CLUSTER = make_cluster(3, 2, 2, types=["A100", "T4", "A100"], cpus=4, memory_gib=4)
UNLIMITED_CHECKS = 10**6


def whole(*gpus: int, node: int = 0) -> tuple[Share, ...]:
    return (Share(node, gpus),)


class Parts:
    """Runs and reservations on one timetable."""

    def __init__(self, cluster: Cluster, placement: str) -> None:
        self.bookings = Bookings(cluster, Placer(placement))
        self.runs = BookedRuns(self.bookings)
        self.reservations = Reservations(self.bookings)

    def set_node_up(self, node: int, up: bool) -> list[str]:
        changed = self.bookings.set_node_up(node, up)
        return self.reservations.cancel_on(node) if changed and not up else []

    def set_gpu_up(self, node: int, gpu: int, up: bool) -> list[str]:
        changed = self.bookings.set_gpu_up(node, gpu, up)
        return self.reservations.cancel_on(node, gpu) if changed and not up else []


def empty(*sizes: int) -> Parts:
    return Parts(make_cluster(*sizes), "first-fit")


def intervals(table: Timetable, now: float) -> list[list[tuple[float, list[int]]]]:
    """Return the free intervals from now on: per node, the begin of each and what is free in it."""
    table.drop_before(now)
    number, begins, free = table._intervals.arrays[3:]
    return [
        [(max(begins[node, one].item(), now), free[node, one].tolist()) for one in range(number[node])]
        for node in range(len(table.cluster.nodes))
    ]


class World:
    """Reservations, the current time, and methods for the events that may happen."""

    def __init__(self) -> None:
        self.parts = Parts(CLUSTER, "best-fit")
        self.now = 0.0
        self.arrivals = 0
        self.reserved: dict[str, Demand] = {}
        self.running: list[str] = []
        self.durations: dict[str, float] = {}

    def arrive(self, demand: Demand, duration: float) -> None:
        """Make the earliest reservation for a new job."""
        name = f"j{self.arrivals}"
        self.arrivals += 1
        self.durations[name] = duration
        self.reserve(name, demand)
        self.start_due()

    def reserve(self, name: str, demand: Demand) -> None:
        found = self.parts.bookings.find(demand, self.durations[name], self.now)
        if found is not None:
            self.parts.reservations.reserve(name, demand, found)
            self.reserved[name] = demand

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.extend_overdue_runs()
            self.start_due()

    def extend_overdue_runs(self) -> None:
        """Extend runs past their assumed end, and replace conflicting reservations."""
        displaced: dict[str, Demand] = {}
        for name in self.parts.runs.pop_overdue(self.now):
            self.parts.runs.extend(name, self.now, self.now + 3)
            placement = self.parts.runs._runs[name].placement
            for other in self.parts.reservations.conflicting(placement, self.now, self.now + 3):
                self.parts.reservations.cancel(other)
                displaced[other] = self.reserved.pop(other)
        for other, demand in displaced.items():
            self.reserve(other, demand)

    def start_due(self) -> None:
        for name in sorted(self.reserved):
            reserved = self.parts.reservations.get(name)
            assert reserved is not None
            if reserved.start <= self.now:
                self.parts.reservations.cancel(name)
                del self.reserved[name]
                self.parts.runs.add(name, reserved.placement, self.now, self.now + self.durations[name])
                self.running.append(name)

    def end(self, which: int) -> None:
        """End a run, as assumed or early, and advance reservations."""
        if self.running:
            self.parts.runs.end(self.running.pop(which % len(self.running)), self.now)
            self.advance()

    def cancel(self, which: int) -> None:
        if self.reserved:
            name = sorted(self.reserved)[which % len(self.reserved)]
            del self.reserved[name]
            self.parts.reservations.cancel(name)
            self.advance()

    def advance(self) -> None:
        before = {name: reserved.start for name, reserved in self.parts.reservations.by_job.items()}
        moved = self.parts.reservations.advance(sorted(self.reserved), self.now, UNLIMITED_CHECKS)
        after = {name: reserved.start for name, reserved in self.parts.reservations.by_job.items()}
        assert before.keys() == after.keys()
        assert {name for name in before if after[name] < before[name]} == set(moved)
        assert all(after[name] <= before[name] for name in before), "no reservation moves back"
        self.start_due()

    def take_down(self, node: int) -> None:
        """Take a node down with its runs, replace the reservations on it, and bring it back up."""
        for name in list(self.running):
            if any(share.node == node for share in self.parts.runs._runs[name].placement):
                self.running.remove(name)
                self.parts.runs.end(name, self.now)
        cancelled = {name: self.reserved.pop(name) for name in self.parts.set_node_up(node, False)}
        for reserved in self.parts.reservations.by_job.values():
            assert all(share.node != node for share in reserved.placement)
        for name, demand in cancelled.items():
            self.reserve(name, demand)
            found = self.parts.reservations.get(name)
            assert found is None or all(share.node != node for share in found.placement)
        self.parts.set_node_up(node, True)
        self.advance()

    def check(self) -> None:
        """Check that the timetable equals one built from the runs and reservations, and that nothing is overbooked."""
        expected = Timetable(CLUSTER)
        for run in self.parts.runs._runs.values():
            expected.book(run.placement, self.now, run.end)
        for reserved in self.parts.reservations.by_job.values():
            expected.book(reserved.placement, reserved.start, reserved.end)
        now = intervals(self.parts.bookings.table, self.now)
        assert now == intervals(expected, self.now)
        assert all(min(free) >= 0 and max(free[FIRST_GPU_FREE:]) <= WHOLE for node in now for _, free in node)


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
    st.tuples(st.just("take_down"), st.integers(0, 2)),
)


@given(st.lists(DEMANDS, max_size=6), st.lists(STEPS, max_size=25))
def test_after_any_events_the_timetable_equals_its_runs_and_reservations(
    first: list[Demand], steps: list[tuple[Any, ...]]
) -> None:
    world = World()
    for demand in first:
        world.arrive(demand, 4.0)
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
        world.check()


# --- worked cases -------------------------------------------------------------------------------------------


def test_a_run_is_booked_until_its_assumed_end_and_reservations_are_found_after_it() -> None:
    parts = empty(2)
    parts.runs.add("a", whole(0), 0, 10)
    assert "a" in parts.runs
    assert parts.bookings.find(Demand(1, 2), 5, 1) == Reservation(whole(0, 1), 10, 15)
    assert parts.bookings.find(Demand(1, 1), 5, 1) == Reservation(whole(1), 1, 6)
    assert parts.bookings.find(Demand(1, 2), 5, 1, before=10) is None
    assert parts.bookings.find(Demand(1, 3), 5, 1) is None


def test_a_run_that_ends_releases_its_node_whether_early_or_on_time() -> None:
    for now in (4, 10):
        parts = empty(2)
        parts.runs.add("a", whole(0, 1), 0, 10)
        parts.runs.end("a", now)
        assert parts.bookings.released
        assert parts.bookings.pop_newly_free().tolist() == [0]
        assert parts.bookings.pop_newly_free().tolist() == []
        assert parts.bookings.find(Demand(1, 2), 5, now) == Reservation(whole(0, 1), now, now + 5)
        parts.runs.end("a", now)  # ending it twice has no effect


def test_overdue_runs_are_returned_once_and_again_when_overdue_again() -> None:
    parts = empty(1, 1)
    parts.runs.add("a", whole(0), 0, 10)
    parts.runs.add("b", whole(0, node=1), 0, 20)
    assert parts.runs.pop_overdue(9) == []
    assert parts.runs.pop_overdue(10) == ["a"]
    assert parts.runs.pop_overdue(10) == []
    parts.runs.extend("a", 10, 15)
    assert parts.runs.pop_overdue(14) == []
    assert parts.runs.pop_overdue(25) == ["a", "b"]


def test_an_extended_run_conflicts_with_reservations_of_its_gpus_until_its_new_end() -> None:
    for end, conflicting in ((15, ["soon"]), (30, ["soon"]), (31, ["later", "soon"])):
        parts = empty(4)
        parts.runs.add("a", (Share(0, (0, 1), WHOLE, 1000),), 0, 10)
        parts.reservations.reserve("soon", Demand(1, 2), Reservation(whole(1, 2), 10, 20))
        parts.reservations.reserve(
            "beside", Demand(1, 1, WHOLE, 1000), Reservation((Share(0, (3,), WHOLE, 1000),), 10, 20)
        )
        parts.reservations.reserve("later", Demand(1, 1), Reservation(whole(0), 30, 40))
        parts.runs.extend("a", 10, end)
        held = (Share(0, (0, 1), WHOLE, 1000),)
        assert list(parts.reservations.conflicting(held, 10, end)) == conflicting


def test_reservations_that_fit_beside_a_fraction_do_not_conflict() -> None:
    parts, part = empty(1), Demand(1, 1, 300)
    parts.runs.add("a", (Share(0, (0,), 500),), 0, 10)
    parts.reservations.reserve("b", part, Reservation((Share(0, (0,), 300),), 10, 20))
    parts.reservations.reserve("c", part, Reservation((Share(0, (0,), 300),), 10, 20))
    parts.runs.extend("a", 10, 15)
    moved = []
    for other in parts.reservations.conflicting((Share(0, (0,), 500),), 10, 15):
        parts.reservations.cancel(other)
        moved.append(other)
    assert moved == ["b"]  # the extended run fits beside `c`


def test_reservations_that_advance_release_resources_for_later_ones() -> None:
    parts = empty(2)
    parts.runs.add("a", whole(0, 1), 0, 100)
    for name, start in (("b", 100), ("c", 110), ("d", 120)):
        found = parts.bookings.find(Demand(1, 2), 10, 1)
        assert found == Reservation(whole(0, 1), start, start + 10)
        parts.reservations.reserve(name, Demand(1, 2), found)
    parts.runs.end("a", 5)
    assert parts.reservations.advance(["b", "c", "d"], 5, UNLIMITED_CHECKS) == ["b", "c", "d"]
    assert {name: reserved.start for name, reserved in parts.reservations.by_job.items()} == {"b": 5, "c": 15, "d": 25}


def test_hundreds_of_reservations_advance_in_order() -> None:
    parts, names = empty(1), [f"j{number}" for number in range(300)]
    parts.runs.add("a", whole(0), 0, 1000)
    for number, name in enumerate(names):
        parts.reservations.reserve(name, Demand(), Reservation(whole(0), 1000 + number, 1001 + number))
    parts.runs.end("a", 5)
    assert parts.reservations.advance(names, 5, UNLIMITED_CHECKS) == names
    assert [reserved.start for reserved in parts.reservations.by_job.values()] == [5 + n for n in range(300)]


def advanced(max_checks: int) -> list[str]:
    """Return the reservations that advance when `a` ends: `b` to its GPU, `c` to that of `b`, and so on."""
    parts, names = empty(1, 1, 1, 1, 1), "bcde"
    parts.runs.add("a", whole(0), 0, 100)
    for node, name in enumerate(names, 1):
        parts.runs.add(f"before {name}", whole(0, node=node), 0, 10 * node)
        parts.reservations.reserve(name, Demand(), Reservation(whole(0, node=node), 10 * node, 10 * node + 100))
    parts.runs.end("a", 0)
    return parts.reservations.advance(list(names), 0, max_checks)


@pytest.mark.parametrize(("max_checks", "expected"), [(0, "b"), (30, "bc"), (60, "bcd"), (100, "bcde")])
def test_what_reservations_leave_is_offered_until_the_checks_are_used_up(max_checks: int, expected: str) -> None:
    """Each search takes 25 checks, five for each of five nodes; what a run releases is always offered."""
    assert "".join(advanced(max_checks)) == expected


def test_the_first_in_the_order_gets_the_released_gpu() -> None:
    for order in (["b", "c"], ["c", "b"]):
        parts = empty(1)
        parts.runs.add("a", whole(0), 0, 100)
        parts.reservations.reserve("b", Demand(), Reservation(whole(0), 100, 110))
        parts.reservations.reserve("c", Demand(), Reservation(whole(0), 110, 120))
        parts.runs.end("a", 50)
        parts.reservations.advance(order, 50, UNLIMITED_CHECKS)
        first = parts.reservations.get(order[0])
        assert first is not None
        assert first.start == 50


def test_a_gang_advances_only_when_all_its_nodes_are_free() -> None:
    parts, gang = empty(1, 1), Demand(2, 1)
    parts.runs.add("a", whole(0), 0, 100)
    parts.runs.add("b", whole(0, node=1), 0, 100)
    parts.reservations.reserve("gang", gang, Reservation((Share(0, (0,)), Share(1, (0,))), 100, 110))
    parts.runs.end("a", 5)
    assert parts.reservations.advance(["gang"], 5, UNLIMITED_CHECKS) == []
    parts.runs.end("b", 7)
    assert parts.reservations.advance(["gang"], 7, UNLIMITED_CHECKS) == ["gang"]
    assert parts.reservations.get("gang") == Reservation((Share(0, (0,)), Share(1, (0,))), 7, 17)


def test_a_node_that_goes_down_cancels_the_reservations_on_it() -> None:
    parts = empty(2, 2)
    parts.reservations.reserve("here", Demand(1, 2), Reservation(whole(0, 1), 10, 20))
    parts.reservations.reserve("there", Demand(1, 2), Reservation(whole(0, 1, node=1), 10, 20))
    parts.reservations.reserve("both", Demand(2, 2), Reservation((*whole(0, 1), *whole(0, 1, node=1)), 20, 30))
    assert parts.set_node_up(0, False) == ["both", "here"]
    assert list(parts.reservations.by_job) == ["there"]
    assert parts.bookings.find(Demand(2, 2), 5, 0) is None
    assert parts.set_node_up(0, True) == []
    assert parts.bookings.find(Demand(2, 2), 5, 0) == Reservation((*whole(0, 1), *whole(0, 1, node=1)), 0, 5)


def test_a_gpu_that_goes_down_cancels_the_reservations_that_use_it() -> None:
    parts = empty(2)
    parts.runs.add("run", whole(1), 0, 50)
    parts.reservations.reserve("here", Demand(1, 1), Reservation(whole(0), 10, 20))
    parts.reservations.reserve("beside", Demand(1, 1), Reservation(whole(1), 60, 70))
    parts.reservations.reserve("both", Demand(1, 2), Reservation(whole(0, 1), 80, 90))
    assert parts.set_gpu_up(0, 0, False) == ["both", "here"]
    assert parts.set_gpu_up(0, 0, False) == []
    assert list(parts.reservations.by_job) == ["beside"]
    assert parts.bookings.find(Demand(1, 2), 5, 0) is None
    assert parts.bookings.find(Demand(1, 1), 5, 0) == Reservation(whole(1), 50, 55)
    assert parts.set_gpu_up(0, 0, True) == []
    assert parts.bookings.find(Demand(1, 1), 5, 0) == Reservation(whole(0), 0, 5)


def test_free_resources_last_until_the_next_reservation() -> None:
    parts = empty(2, 2)
    parts.reservations.reserve("a", Demand(1, 2), Reservation(whole(0, 1), 10, 20))
    assert parts.bookings.free_duration(Demand(2, 1), 0) == inf
    assert parts.bookings.free_duration(Demand(3, 1), 0) == 10
    assert parts.bookings.free_duration_on(np.array([0]), Demand(1, 1), 0) == 10
    assert parts.bookings.place_now(Demand(1, 2), 10, 0) == whole(0, 1)
    assert parts.bookings.place_now(Demand(1, 2), 11, 0) == whole(0, 1, node=1)
    assert parts.bookings.is_free(Reservation(whole(0), 0, 10))
    assert not parts.bookings.is_free(Reservation(whole(0), 0, 11))


def test_placements_overlap_if_they_share_resources_of_a_node() -> None:
    assert overlap(whole(0, 1), whole(1, 2))
    assert not overlap(whole(0, 1), whole(2, 3))
    assert not overlap(whole(0), whole(0, node=1))
    assert not overlap((Share(0, (0,), WHOLE, 1000),), (Share(0, (1,)),))
    assert overlap((Share(0, (0,), WHOLE, 1000),), (Share(0, (1,), WHOLE, 1000),))
    assert overlap((Share(0, (0,), WHOLE, 0, 1),), (Share(0, (1,), WHOLE, 0, 1),))
    assert not overlap((Share(0, (0,), WHOLE, 0, 1),), (Share(0, (1,), WHOLE, 1000, 0),))
    assert not overlap((Share(0, (0,), WHOLE, 1000),), (Share(1, (0,), WHOLE, 1000),))
    assert overlap((Share(1, (0,)), Share(0, (0,))), (Share(2, (0,)), Share(0, (0,))))


def test_ends_and_gpus_of_runs() -> None:
    parts = empty(2, 2)
    parts.runs.add("a", (Share(0, (0, 1)), Share(1, (0, 1))), 0, 10)
    parts.runs.add("b", (Share(0, (0,), 300),), 5, 7)
    assert parts.runs.ends_and_gpus() == [(10, 4), (7, 0.3)]


def test_a_restarted_run_with_the_same_assumed_end_is_overdue_once() -> None:
    parts = empty(2)
    parts.runs.add("a", whole(0), 0, 10)
    parts.runs.add("b", whole(1), 0, 10)
    parts.runs.end("a", 4)
    parts.runs.add("a", whole(0), 5, 10)
    assert parts.runs.pop_overdue(10) == ["a", "b"]
