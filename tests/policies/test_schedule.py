"""The schedule of backfill: which jobs get a reservation, lose it, are offered gaps, and are due."""

import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler, View
from refold.core.events import Event, NodeLost
from refold.model import Placement
from refold.placement import Placer
from refold.policies.backfill.bookings import Reservation
from refold.policies.backfill.queue import BackfillQueue, Gaps, QueuedJob, QueuedRequest
from refold.policies.backfill.schedule import Schedule
from refold.policies.backfill.sizing import JobSize
from refold.testing import make_cluster, make_job


def view_of(*events: Event) -> View:
    """Return a view of two nodes of two GPUs."""
    scheduler = Scheduler(make_cluster(2, 2), ScriptedPolicy())
    scheduler.step(0.0, events)
    return scheduler.view


def make_schedule() -> Schedule:
    return Schedule(view_of(), Placer("first-fit"), BackfillQueue(), Gaps(True))


def queued(name: str, number: int, gpus: int = 1, duration: float = 10.0) -> QueuedJob:
    job = make_job(name, gpus=gpus)
    return QueuedJob(QueuedRequest(job, ((0,), number), duration, duration), JobSize(job.demand, None, 1.0))


def add(schedule: Schedule, *jobs: QueuedJob) -> None:
    for job in jobs:
        schedule.add(job)


def reserve(schedule: Schedule, job: QueuedJob, placement: Placement, start: float) -> None:
    schedule.reserve(job, Reservation(placement, start, start + job.duration))


def names(jobs: list[QueuedJob]) -> str:
    return "".join(job.job.id for job in jobs)


def offered(schedule: Schedule) -> set[str]:
    """Return the jobs that are offered gaps."""
    return {job.job.id for job in schedule.gaps.jobs()}


A, B, C = ("a", 1), ("b", 2), ("c", 3)


class TestReservations:
    def test_a_job_has_a_reservation_or_is_offered_gaps(self) -> None:
        schedule = make_schedule()
        first, second = queued(*A), queued(*B)
        add(schedule, first, second)
        assert offered(schedule) == {"a", "b"}
        reserve(schedule, first, on(0).placement, 20.0)
        assert (offered(schedule), list(schedule.reservations.by_job)) == ({"b"}, ["a"])
        schedule.remove("a")
        assert (offered(schedule), list(schedule.reservations.by_job), len(schedule.queue)) == ({"b"}, [], 1)

    def test_removing_a_job_that_is_not_in_the_queue_does_nothing(self) -> None:
        schedule = make_schedule()
        add(schedule, queued(*A))
        schedule.remove("x")
        assert offered(schedule) == {"a"}

    def test_another_reservation_of_a_job_replaces_the_first(self) -> None:
        schedule = make_schedule()
        job = queued(*A)
        add(schedule, job)
        reserve(schedule, job, on(0).placement, 20.0)
        reserve(schedule, job, on(1).placement, 15.0)
        assert schedule.reservations.by_job == {"a": Reservation(on(1).placement, 15.0, 25.0)}
        assert schedule.bookings.is_free(Reservation(on(0).placement, 20.0, 30.0))
        assert not schedule.bookings.is_free(Reservation(on(1).placement, 20.0, 30.0))

    def test_the_earliest_start_ever_reserved_is_remembered(self) -> None:
        schedule = make_schedule()
        job = queued(*A)
        add(schedule, job)
        for start in (20.0, 15.0, 40.0):
            reserve(schedule, job, on(0).placement, start)
        assert job.reserved_start == 15.0

    def test_the_first_jobs_should_have_a_reservation(self) -> None:
        schedule = make_schedule()
        jobs = [queued(*C), queued(*A), queued(*B)]
        add(schedule, *jobs)
        reserve(schedule, jobs[1], on(0).placement, 20.0)
        depths = (1, 2, 3, 500)
        assert [names(schedule.without_reservation(depth)) for depth in depths] == ["", "b", "bc", "bc"]

    def test_jobs_that_are_no_longer_among_the_first_lose_reservations_that_have_not_begun(self) -> None:
        schedule = make_schedule()
        first, second, third = queued(*A), queued(*B), queued(*C)
        add(schedule, first, second, third)
        reserve(schedule, second, on(0).placement, 20.0)
        schedule.cancel_beyond_depth(1, 10.0)
        assert list(schedule.reservations.by_job) == ["b"]  # not more than one, so nothing is cancelled
        reserve(schedule, third, on(1).placement, 20.0)
        schedule.cancel_beyond_depth(2, 10.0)
        assert list(schedule.reservations.by_job) == ["b", "c"]
        schedule.cancel_beyond_depth(1, 20.0)
        assert list(schedule.reservations.by_job) == ["b", "c"]  # both are due
        schedule.cancel_beyond_depth(1, 10.0)
        assert (list(schedule.reservations.by_job), offered(schedule)) == ([], {"a", "b", "c"})

    def test_a_job_of_another_size_keeps_its_place_and_history(self) -> None:
        schedule = make_schedule()
        before, after = queued(*A), queued("a", 1, gpus=2)
        before.reserved_start = 15.0
        add(schedule, before, queued(*B))
        schedule.replace(before, after)
        assert (names(schedule.queue.first(2)), schedule.queue.get("a") is after) == ("ab", True)
        assert (after.reserved_start, len(list(schedule.gaps.jobs()))) == (15.0, 2)


class TestStarts:
    def test_a_reserved_job_starts_on_its_placement(self) -> None:
        schedule = make_schedule()
        job = queued(*A)
        add(schedule, job)
        reserve(schedule, job, on(0).placement, 0.0)
        reserved = schedule.reservations.get("a")
        assert reserved is not None
        schedule.start(job, reserved.placement, 0.0)
        assert ("a" in schedule.runs, list(schedule.reservations.by_job), len(schedule.queue)) == (True, [], 0)
        assert not schedule.bookings.is_free(Reservation(on(0).placement, 9.0, 10.0))
        assert schedule.bookings.is_free(Reservation(on(0).placement, 10.0, 11.0))

    def test_a_job_that_starts_elsewhere_releases_what_was_reserved(self) -> None:
        schedule = make_schedule()
        job = queued(*A)
        add(schedule, job)
        reserve(schedule, job, on(0).placement, 50.0)
        schedule.start(job, on(1).placement, 0.0)
        assert schedule.bookings.is_free(Reservation(on(0).placement, 50.0, 60.0))
        assert not schedule.bookings.is_free(Reservation(on(1).placement, 0.0, 10.0))

    def test_due_jobs_are_returned_once_in_queue_order(self) -> None:
        schedule = make_schedule()
        first, second, third = queued(*A), queued(*B), queued(*C)
        add(schedule, first, second, third)
        reserve(schedule, second, on(0).placement, 10.0)
        reserve(schedule, first, on(1).placement, 20.0)
        reserve(schedule, third, on(0, node=1).placement, 30.0)
        assert names(schedule.pop_due(9.0)) == ""
        assert names(schedule.pop_due(20.0)) == "ab"
        assert names(schedule.pop_due(20.0)) == ""

    def test_a_reservation_that_was_cancelled_or_moved_back_is_not_due(self) -> None:
        schedule = make_schedule()
        first, second = queued(*A), queued(*B)
        add(schedule, first, second)
        reserve(schedule, first, on(0).placement, 10.0)
        reserve(schedule, first, on(0).placement, 30.0)
        reserve(schedule, second, on(1).placement, 10.0)
        schedule.remove("b")
        assert names(schedule.pop_due(20.0)) == ""
        assert names(schedule.pop_due(30.0)) == "a"

    def test_a_postponed_job_is_due_again_at_once_and_keeps_its_duration(self) -> None:
        schedule = make_schedule()
        job = queued(*A)
        add(schedule, job)
        reserve(schedule, job, on(0).placement, 10.0)
        assert names(schedule.pop_due(15.0)) == "a"
        schedule.postpone(job, 15.0)
        assert schedule.reservations.get("a") == Reservation(on(0).placement, 15.0, 25.0)
        assert names(schedule.pop_due(15.0)) == "a"

    @pytest.mark.parametrize(("now", "due"), [(0.0, 10.0), (9.9, 10.0), (10.0, 20.0), (15.0, 20.0), (20.0, None)])
    def test_the_next_due_time_is_the_first_reserved_start_after_now(self, now: float, due: float | None) -> None:
        schedule = make_schedule()
        first, second = queued(*A), queued(*B)
        add(schedule, first, second)
        reserve(schedule, second, on(1).placement, 20.0)
        reserve(schedule, first, on(0).placement, 10.0)
        assert schedule.due.next(now) == due
        assert names(schedule.pop_due(25.0)) == "ab"  # what is due and has not started remains due

    def test_without_reservations_nothing_is_due(self) -> None:
        schedule = make_schedule()
        job = queued(*A)
        add(schedule, job)
        reserve(schedule, job, on(0).placement, 10.0)
        schedule.remove("a")
        assert schedule.due.next(0.0) is None


class TestDisplacement:
    def displaced(self) -> tuple[Schedule, QueuedJob]:
        """Job a had a reservation of GPU 0 from 10 s on; a run on it now takes until 40 s."""
        schedule = make_schedule()
        job = queued(*A)
        add(schedule, job)
        reserve(schedule, job, on(0).placement, 10.0)
        schedule.runs.add("run", on(0).placement, 0.0, 40.0)
        schedule.displace_conflicting(on(0).placement, 0.0, 40.0, lambda _: True)
        return schedule, job

    def test_a_displaced_job_is_offered_gaps_and_needs_another_reservation(self) -> None:
        schedule, _ = self.displaced()
        assert (offered(schedule), names(schedule.without_reservation(0))) == ({"a"}, "a")

    def test_it_gets_other_gpus_if_these_are_free_now(self) -> None:
        schedule, job = self.displaced()
        assert schedule.find(job, 0.0) == Reservation(on(1).placement, 0.0, 10.0)

    @pytest.mark.parametrize(("free_at", "gpu", "start"), [(19.0, 1, 19.0), (20.0, 0, 40.0), (30.0, 0, 40.0)])
    def test_it_waits_for_the_same_gpus_unless_others_are_free_in_half_the_time(
        self, free_at: float, gpu: int, start: float
    ) -> None:
        schedule, job = self.displaced()
        for number, placement in enumerate((on(1).placement, on(0, node=1).placement, on(1, node=1).placement)):
            schedule.runs.add(f"other{number}", placement, 0.0, free_at)
        assert schedule.find(job, 0.0) == Reservation(on(gpu).placement, start, start + 10.0)
        assert schedule.find(job, 0.0) == Reservation(on(1).placement, free_at, free_at + 10.0)  # preferred once only

    def test_jobs_that_need_not_make_way_keep_their_reservations(self) -> None:
        schedule = make_schedule()
        job = queued(*A)
        add(schedule, job)
        reserve(schedule, job, on(0).placement, 10.0)
        schedule.runs.add("run", on(0).placement, 0.0, 40.0)
        schedule.displace_conflicting(on(0).placement, 0.0, 40.0, lambda _: False)
        assert list(schedule.reservations.by_job) == ["a"]

    def test_reservations_on_a_node_that_goes_down_are_cancelled(self) -> None:
        schedule = make_schedule()
        first, second = queued(*A), queued(*B)
        add(schedule, first, second)
        reserve(schedule, first, on(0).placement, 10.0)
        reserve(schedule, second, on(0, node=1).placement, 10.0)
        schedule.update_node(view_of(NodeLost(0)), 0)
        assert (list(schedule.reservations.by_job), names(schedule.without_reservation(0))) == (["b"], "a")
        assert schedule.find(first, 0.0) == Reservation(on(0, node=1).placement, 0.0, 10.0)

    def test_reservations_move_forward_when_a_run_ends_early(self) -> None:
        schedule = make_schedule()
        job = queued("wide", 1, gpus=2)
        add(schedule, job)
        schedule.runs.add("run", on(0).placement, 0.0, 40.0)
        schedule.runs.add("other", on(0, 1, node=1).placement, 0.0, 90.0)
        reserve(schedule, job, on(0, 1).placement, 40.0)
        assert schedule.advance(5.0) == []
        schedule.runs.end("run", 5.0)
        assert names(schedule.advance(5.0)) == "wide"
        assert schedule.reservations.get("wide") == Reservation(on(0, 1).placement, 5.0, 15.0)
        assert (names(schedule.pop_due(5.0)), schedule.advance(5.0)) == ("wide", [])
