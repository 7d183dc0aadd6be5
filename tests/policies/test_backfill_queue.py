"""The backfill queue and its gaps: order, and which job is offered a gap."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from scripted_policy import ScriptedPolicy

from refold.core import Scheduler, View
from refold.model import Demand, Share
from refold.placement import Placer
from refold.policies.backfill.bookings import Bookings
from refold.policies.backfill.queue import BackfillQueue, Gaps, QueuedJob, QueuedRequest
from refold.policies.backfill.sizing import JobSize
from refold.testing import make_cluster, make_job

SECOND_LANE_GPUS = 8
"""Jobs of so many GPUs are in the second lane."""


def queued(
    name: str, number: int, *, key: Any = 0, lane: int = 0, gpus: int = 1, duration: float = 10.0, at: float = 0.0
) -> QueuedJob:
    """Return a job at the position (key, number)."""
    job = make_job(name, gpus=SECOND_LANE_GPUS if lane else gpus, at=at)
    return QueuedJob(QueuedRequest(job, ((key,), number), duration, duration), JobSize(job.demand, None, 1.0))


def make_queue(*jobs: QueuedJob) -> BackfillQueue:
    queue = BackfillQueue(SECOND_LANE_GPUS)
    for job in jobs:
        queue.add(job)
    return queue


def names(jobs: list[QueuedJob]) -> str:
    return "".join(job.job.id for job in jobs)


class TestOrder:
    def test_jobs_are_sorted_by_key_then_by_number(self) -> None:
        queue = make_queue(queued("a", 3), queued("b", 1), queued("c", 4, key=-1), queued("d", 2))
        assert names(queue.first(4)) == "cbda"

    def test_the_first_jobs_of_each_lane(self) -> None:
        queue = make_queue(queued("a", 1), queued("b", 2, lane=1), queued("c", 3), queued("d", 4, lane=1))
        assert [names(queue.first(depth)) for depth in (0, 1, 2)] == ["", "ab", "acbd"]

    def test_length_membership_and_lookup(self) -> None:
        job = queued("a", 1)
        queue = make_queue(job)
        assert (len(queue), "a" in queue, "b" in queue, queue.get("a") is job) == (1, True, False, True)

    def test_removing_returns_the_job_and_leaves_the_others(self) -> None:
        jobs = [queued(name, number) for number, name in enumerate("abcd")]
        queue = make_queue(*jobs)
        assert queue.remove("b") is jobs[1]
        assert (names(queue.first(9)), len(queue), "b" in queue) == ("acd", 3, False)
        assert queue.remove("b") is None
        assert names(queue.first(9)) == "acd"

    def test_jobs_of_both_lanes_ahead_of_a_job(self) -> None:
        jobs = [queued(name, number, lane=number % 2) for number, name in enumerate("abcde")]
        queue = make_queue(*jobs)
        assert [names(queue.ahead_of(job.position)) for job in jobs] == ["", "a", "ab", "abc", "abcd"]

    def test_jobs_ahead_of_one_that_is_not_in_the_queue(self) -> None:
        queue = make_queue(*(queued(name, number) for number, name in enumerate("abc")))
        assert names(queue.ahead_of(queued("x", 1, key=-0.5).position)) == ""
        assert names(queue.ahead_of(queued("x", 9).position)) == "abc"

    def test_sorting_again_by_another_key(self) -> None:
        queue = make_queue(*(queued(name, number, lane=number % 2) for number, name in enumerate("abcd")))
        queue.resort(lambda job: (-ord(job.job.id),))
        assert names(queue.first(9)) == "cadb"
        assert queue.get("a").position == ((-97,), 0)
        assert queue.remove("c") is not None
        assert names(queue.first(9)) == "adb"

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=30), st.sets(st.integers(0, 29)))
    def test_a_selection_is_in_queue_order_however_few_are_selected(
        self, jobs: list[tuple[int, int]], selected: set[int]
    ) -> None:
        queue = make_queue(*(queued(f"j{n}", n, key=key, lane=lane) for n, (key, lane) in enumerate(jobs)))
        wanted = [n for n in selected if n < len(jobs)]
        expected = sorted(wanted, key=lambda n: (jobs[n][0], n))
        assert queue.in_order({f"j{n}" for n in wanted}) == [f"j{n}" for n in expected]

    def test_a_few_of_many_jobs_are_in_queue_order(self) -> None:
        queue = make_queue(*(queued(f"j{n}", n, key=-n, lane=n % 2) for n in range(40)))
        assert queue.in_order({"j1", "j20", "j3"}) == ["j20", "j3", "j1"]


def empty_bookings(*sizes: int) -> Bookings:
    return Bookings(make_cluster(*sizes), Placer("first-fit"))


def view_of(*sizes: int) -> View:
    scheduler = Scheduler(make_cluster(*sizes), ScriptedPolicy())
    scheduler.step(0.0, [])
    return scheduler.view


class TestGaps:
    def make(self, *jobs: QueuedJob, shortest_first: bool = True) -> Gaps:
        gaps = Gaps(shortest_first)
        for job in jobs:
            gaps.add(job)
        return gaps

    def next_name(self, gaps: Gaps, bookings: Bookings) -> str | None:
        job = gaps.next(0.0, bookings)
        return None if job is None else job.job.id

    def test_the_shortest_job_is_offered_first_then_the_earlier_one(self) -> None:
        jobs = [queued("a", 1, duration=30), queued("b", 2, duration=10), queued("c", 3, duration=10)]
        gaps, bookings = self.make(*jobs), empty_bookings(4)
        order = []
        while (job := gaps.next(0.0, bookings)) is not None:
            order.append(job.job.id)
            gaps.remove(job)
        assert order == ["b", "c", "a"]

    def test_in_queue_order_the_first_job_is_offered_first(self) -> None:
        jobs = [queued("c", 3, duration=10), queued("a", 1, duration=30), queued("b", 2, gpus=2, duration=20)]
        gaps = self.make(*jobs, shortest_first=False)
        assert self.next_name(gaps, empty_bookings(4)) == "a"

    def test_the_shortest_of_several_demands_is_offered(self) -> None:
        gaps = self.make(queued("a", 1, gpus=2, duration=30), queued("b", 2, gpus=1, duration=20))
        assert self.next_name(gaps, empty_bookings(4)) == "b"

    @pytest.mark.parametrize(("duration", "offered"), [(49.0, "a"), (50.0, "a"), (51.0, None)])
    def test_a_job_fits_if_it_ends_by_the_next_reservation(self, duration: float, offered: str | None) -> None:
        bookings = empty_bookings(1)
        bookings.table.book((Share(0, (0,)),), 50.0, 90.0)
        assert self.next_name(self.make(queued("a", 1, duration=duration)), bookings) == offered

    def test_a_job_that_does_not_fit_does_not_hide_another_that_does(self) -> None:
        bookings = empty_bookings(2)
        bookings.table.book((Share(0, (1,)),), 0.0, 90.0)
        gaps = self.make(queued("a", 1, gpus=2, duration=5), queued("b", 2, gpus=1, duration=20))
        assert self.next_name(gaps, bookings) == "b"
        assert (gaps.may_fit(Demand(gpus=2), 0.0), gaps.may_fit(Demand(gpus=1), 0.0)) == (False, True)

    def test_a_demand_that_was_closed_is_not_offered_until_resources_are_released(self) -> None:
        gaps, bookings = self.make(queued("a", 1)), empty_bookings(2)
        gaps.close(Demand())
        assert (self.next_name(gaps, bookings), gaps.may_fit(Demand(), 0.0)) == (None, False)
        gaps.reopen(view_of(2), bookings)
        assert self.next_name(gaps, bookings) is None
        bookings.note_released((Share(0, (0,)),))
        gaps.reopen(view_of(2), bookings)
        assert self.next_name(gaps, bookings) == "a"

    def test_a_demand_larger_than_all_free_gpus_stays_closed(self) -> None:
        gaps = self.make(queued("a", 1, gpus=2), queued("b", 2, gpus=1))
        gaps.close(Demand(gpus=2))
        gaps.close(Demand(gpus=1))
        bookings = empty_bookings(1)
        bookings.note_released((Share(0, (0,)),))
        gaps.reopen(view_of(1), bookings)
        assert (gaps.may_fit(Demand(gpus=2), 0.0), gaps.may_fit(Demand(gpus=1), 0.0)) == (False, True)

    def test_a_gang_is_reopened_whichever_node_was_released(self) -> None:
        job = make_job("gang", instances=2)
        gang = QueuedJob(QueuedRequest(job, ((0,), 1), 5.0, 5.0), JobSize(job.demand, None, 1.0))
        gaps = self.make(gang)
        gaps.close(job.demand)
        bookings = empty_bookings(1, 1)
        bookings.note_released((Share(1, (0,)),))
        gaps.reopen(view_of(1, 1), bookings)
        assert self.next_name(gaps, bookings) == "gang"

    def test_an_unknown_demand_does_not_fit(self) -> None:
        assert not self.make().may_fit(Demand(), 0.0)

    def test_removing_jobs(self) -> None:
        first, second = queued("a", 1), queued("b", 2)
        gaps = self.make(first, second)
        gaps.remove(queued("x", 1))  # another job at the same position
        gaps.remove(queued("y", 1, gpus=3))  # no job with this demand
        assert names(list(gaps.jobs())) == "ab"
        gaps.remove(first)
        gaps.remove(first)
        assert names(list(gaps.jobs())) == "b"
        gaps.remove(second)
        assert (list(gaps.jobs()), gaps.may_fit(Demand(), 0.0)) == ([], False)

    def test_durations_are_those_at_the_chosen_size(self) -> None:
        job = make_job("a")
        twice_as_fast = QueuedJob(QueuedRequest(job, ((0,), 1), 60.0, 80.0), JobSize(Demand(gpus=2), None, 2.0))
        assert (twice_as_fast.duration, twice_as_fast.backfill_duration, twice_as_fast.gpus) == (30.0, 40.0, 2)
