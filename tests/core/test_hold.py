"""A job that is held is nobody's until it is released; a run that is held stops first."""

from hypothesis import given, settings
from random_histories import History, Move, moves
from scripted_policy import Told, on

from refold.core.events import (
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    RunFailed,
    RunFinished,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.model import Decision, Reason, Reshape, Start, Wait
from refold.policies.queueing.fifo import Fifo, FifoSkip
from refold.policies.queueing.las import Las
from refold.testing import make_cluster, make_job
from refold.testing.disturbances import everybody


def world(*sizes: int) -> History:
    return History(make_cluster(*sizes), Fifo())


def orders(history: History, *events: Event) -> tuple[StartRun | StopRun, ...]:
    history.step(*events)
    return history.entries.entries[-1].orders


def test_a_held_job_is_not_started_before_it_is_released() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    one.step(JobHeld("b"))
    assert orders(one, RunFinished("a", 1)) == ()
    assert (list(one.view.held), one.view.reason("b")) == (["b"], Wait("b", Reason.HELD))
    assert orders(one, JobReleased("b")) == (StartRun("b", 1, on(0)),)


def test_a_job_that_comes_held_is_never_seen_by_the_policy() -> None:
    one = world(1)
    assert orders(one, JobSubmitted(make_job("a")), JobHeld("a", Reason.DEPENDENCY)) == ()
    assert one.view.reason("a") == Wait("a", Reason.DEPENDENCY)
    assert orders(one, JobReleased("a")) == (StartRun("a", 1, on(0)),)


def test_who_is_released_waits_as_the_last() -> None:
    one = world(1)
    one.step(*(JobSubmitted(make_job(name)) for name in "abcd"))
    one.step(JobHeld("b"))
    one.step(JobReleased("b"))
    assert list(one.view.waiting) == ["c", "d", "b"]


def test_a_run_that_is_held_stops_and_its_job_is_held_afterwards() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    assert orders(one, JobHeld("a")) == (StopRun("a", 1, "held"),)
    assert orders(one, JobHeld("a")) == ()
    assert (one.view.runs["a"].stopping, list(one.view.held)) == (True, [])
    assert orders(one, RunStopped("a", 1, 7.0)) == (StartRun("b", 1, on(0)),)
    assert (list(one.view.held), one.view.done("a")) == (["a"], 7.0)
    assert orders(one, RunFinished("b", 1)) == ()
    assert orders(one, JobReleased("a")) == (StartRun("a", 2, on(0)),)


def test_a_job_that_failed_may_pause_before_it_is_tried_again() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a")))
    assert orders(one, RunFailed("a", 1, "exit 1", retry=True), JobHeld("a", Reason.BACKOFF)) == ()
    assert one.view.reason("a") == Wait("a", Reason.BACKOFF)
    assert orders(one, JobReleased("a")) == (StartRun("a", 2, on(0)),)


def test_a_pause_that_comes_late_stops_no_run_and_replaces_nobodys_hold() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")), JobHeld("b"))
    assert orders(one, JobHeld("a", Reason.BACKOFF), JobHeld("b", Reason.BACKOFF)) == ()
    assert ([run.stopping for run in one.view.runs.values()], one.view.held_for("b")) == ([False], Reason.HELD)


def test_a_job_that_may_not_be_preempted_may_be_held() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a", preemptible=False)))
    assert orders(one, JobHeld("a")) == (StopRun("a", 1, "held"),)


def test_who_is_released_before_it_has_stopped_waits_like_anybody_who_was_stopped() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a")))
    one.step(JobHeld("a"))
    one.step(JobReleased("a"))
    assert orders(one, RunStopped("a", 1)) == (StartRun("a", 2, on(0)),)
    assert not one.view.held


def test_a_run_that_was_to_be_held_may_still_finish_or_fail() -> None:
    one = world(3)
    one.step(*(JobSubmitted(make_job(name)) for name in "abc"))
    one.step(*(JobHeld(name) for name in "abc"))
    one.step(RunFinished("a", 1), RunFailed("b", 1, "exit 1"), RunFailed("c", 1, "node lost", 5.0, retry=True))
    assert (everybody(one.view), list(one.view.held)) == ({"c"}, ["c"])


def test_a_held_job_can_be_cancelled_and_is_then_over() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a")))
    one.step(JobHeld("a"))
    one.step(JobCancelled("a"))
    one.step(RunStopped("a", 1))
    one.step(JobSubmitted(make_job("b")), JobHeld("b"))
    one.step(JobCancelled("b"))
    assert (everybody(one.view), one.audit.over) == (set(), {"a": "cancelled", "b": "cancelled"})


def test_a_run_that_is_held_while_it_is_reshaped_does_not_go_on_in_its_new_shape() -> None:
    told = Told()
    one = History(make_cluster(4), told)
    told.next = Decision((Start("a", on(0, 1)),))
    one.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)))
    told.next = Decision(reshapes=(Reshape("a", on(0, 1, 2, 3), "grow"),))
    one.step()
    assert orders(one, JobHeld("a")) == ()
    assert orders(one, RunStopped("a", 1)) == ()
    assert (list(one.view.held), one.view.free_gpus) == (["a"], 4)


def test_holding_or_releasing_nobody_is_late() -> None:
    one = world(1)
    one.step(JobHeld("nobody"), JobReleased("nobody"))
    one.step(JobSubmitted(make_job("a")))
    one.step(JobReleased("a"))
    assert (one.scheduler.late_reports, list(one.view.runs)) == (3, ["a"])


@settings(max_examples=60, deadline=None)
@given(moves)
def test_whatever_happens_nobody_is_forgotten_and_nobody_who_is_held_is_started(some: list[Move]) -> None:
    for policy in (FifoSkip(), Las(threshold_gpu_seconds=10.0)):
        one = History(make_cluster(4, 4, 2), policy)
        for _ in one.play(some):
            assert everybody(one.view) == one.audit.jobs.keys() - one.audit.over.keys()
            assert set(one.view.active) == set(one.view.runs)
            assert all(one.view.reason(job).reason in (Reason.HELD, Reason.DEPENDENCY) for job in one.view.held)
