"""Held jobs are not scheduled until they are released; if they run, their runs are stopped first."""

from hypothesis import given, settings
from random_histories import History, Move, fifo_history, moves, orders_of
from scripted_policy import ScriptedPolicy, on

from refold.core.events import (
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    RunFailed,
    RunFinished,
    RunRecalled,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.model import Decision, Reason, Reshape, Start, Wait
from refold.policies.queueing.fifo import FifoSkip
from refold.policies.queueing.las import Las
from refold.testing import make_cluster, make_job
from refold.testing.disturbances import unfinished_jobs


def test_a_held_job_is_not_started_before_it_is_released() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    history.step(JobHeld("b"))
    assert orders_of(history, RunFinished("a", 1)) == ()
    assert (list(history.view.held), history.view.reason("b")) == (["b"], Wait("b", Reason.HELD))
    assert orders_of(history, JobReleased("b")) == (StartRun("b", 1, on(0)),)


def test_a_job_submitted_as_held_is_hidden_from_the_policy() -> None:
    history = fifo_history(1)
    assert orders_of(history, JobSubmitted(make_job("a")), JobHeld("a", Reason.DEPENDENCY)) == ()
    assert history.view.reason("a") == Wait("a", Reason.DEPENDENCY)
    assert orders_of(history, JobReleased("a")) == (StartRun("a", 1, on(0)),)


def test_a_released_job_is_queued_last() -> None:
    history = fifo_history(1)
    history.step(*(JobSubmitted(make_job(name)) for name in "abcd"))
    history.step(JobHeld("b"))
    history.step(JobReleased("b"))
    assert list(history.view.waiting) == ["c", "d", "b"]


def test_holding_a_running_job_stops_its_run_first() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    assert orders_of(history, JobHeld("a")) == (StopRun("a", 1, "held"),)
    assert orders_of(history, JobHeld("a")) == ()
    assert (history.view.runs["a"].stopping, list(history.view.held)) == (True, [])
    assert orders_of(history, RunStopped("a", 1, 7.0)) == (StartRun("b", 1, on(0)),)
    assert (list(history.view.held), history.view.done("a")) == (["a"], 7.0)
    assert orders_of(history, RunFinished("b", 1)) == ()
    assert orders_of(history, JobReleased("a")) == (StartRun("a", 2, on(0)),)


def test_a_failed_job_may_back_off_before_its_retry() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")))
    assert orders_of(history, RunFailed("a", 1, "exit 1", retry=True), JobHeld("a", Reason.BACKOFF)) == ()
    assert history.view.reason("a") == Wait("a", Reason.BACKOFF)
    assert orders_of(history, JobReleased("a")) == (StartRun("a", 2, on(0)),)


def test_a_late_back_off_neither_stops_a_run_nor_replaces_a_users_hold() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")), JobHeld("b"))
    assert orders_of(history, JobHeld("a", Reason.BACKOFF), JobHeld("b", Reason.BACKOFF)) == ()
    assert ([run.stopping for run in history.view.runs.values()], history.view.hold_reason("b")) == (
        [False],
        Reason.HELD,
    )


def test_the_end_of_a_dependency_does_not_release_a_job_that_a_user_holds() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")), JobHeld("a"))
    history.step(JobHeld("a", Reason.DEPENDENCY))
    assert (history.view.hold_reason("a"), history.scheduler.late_reports) == (Reason.HELD, 1)
    history.step(JobReleased("a"), JobHeld("a", Reason.DEPENDENCY))
    assert history.view.hold_reason("a") is Reason.DEPENDENCY
    assert orders_of(history, JobHeld("a")) == ()
    assert history.view.hold_reason("a") is Reason.HELD
    assert orders_of(history, JobReleased("a")) == (StartRun("a", 1, on(0)),)


def test_a_job_that_is_not_preemptible_can_be_held() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a", preemptible=False)))
    assert orders_of(history, JobHeld("a")) == (StopRun("a", 1, "held"),)


def test_a_job_released_before_its_run_has_stopped_is_queued_again() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")))
    history.step(JobHeld("a"))
    history.step(JobReleased("a"))
    assert history.scheduler.late_reports == 0
    history.step(JobReleased("a"))
    assert history.scheduler.late_reports == 1
    assert orders_of(history, RunStopped("a", 1)) == (StartRun("a", 2, on(0)),)
    assert not history.view.held


def test_a_run_may_finish_or_fail_before_its_job_is_held() -> None:
    history = fifo_history(3)
    history.step(*(JobSubmitted(make_job(name)) for name in "abc"))
    history.step(*(JobHeld(name) for name in "abc"))
    history.step(RunFinished("a", 1), RunFailed("b", 1, "exit 1"), RunFailed("c", 1, "node lost", 5.0, retry=True))
    assert (unfinished_jobs(history.view), list(history.view.held)) == ({"c"}, ["c"])


def test_a_held_job_can_be_cancelled() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")))
    history.step(JobHeld("a"))
    history.step(JobCancelled("a"))
    history.step(RunStopped("a", 1))
    history.step(JobSubmitted(make_job("b")), JobHeld("b"))
    history.step(JobCancelled("b"))
    assert (unfinished_jobs(history.view), history.audit.ended) == (set(), {"a": "cancelled", "b": "cancelled"})


def test_a_job_held_during_a_reshape_does_not_restart() -> None:
    policy = ScriptedPolicy()
    history = History(make_cluster(4), policy)
    policy.next = Decision((Start("a", on(0, 1)),))
    history.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)))
    policy.next = Decision(reshapes=(Reshape("a", on(0, 1, 2, 3), "grow"),))
    history.step()
    assert orders_of(history, JobHeld("a")) == ()
    assert orders_of(history, RunStopped("a", 1)) == ()
    assert (list(history.view.held), history.view.free_gpus) == (["a"], 4)


def test_holding_or_releasing_an_unknown_job_has_no_effect() -> None:
    history = fifo_history(1)
    history.step(JobHeld("unknown"), JobReleased("unknown"))
    history.step(JobSubmitted(make_job("a")))
    history.step(JobReleased("a"))
    assert (history.scheduler.late_reports, list(history.view.runs)) == (3, ["a"])


@settings(max_examples=60, deadline=None)
@given(moves)
def test_no_job_is_lost_and_no_held_job_is_started_under_random_events(moves_to_play: list[Move]) -> None:
    for policy in (FifoSkip(), Las(threshold_gpu_seconds=10.0)):
        history = History(make_cluster(4, 4, 2), policy)
        for _ in history.play(moves_to_play):
            assert unfinished_jobs(history.view) == history.audit.jobs.keys() - history.audit.ended.keys()
            assert set(history.view.active) == set(history.view.runs)
            assert all(history.view.reason(job).reason in (Reason.HELD, Reason.DEPENDENCY) for job in history.view.held)


def test_a_hold_applies_once() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")))
    history.step(JobHeld("a"))
    history.step(RunStopped("a", 1))
    assert orders_of(history, JobReleased("a")) == (StartRun("a", 2, on(0)),)
    history.step(RunRecalled("a", 2))
    assert orders_of(history, RunStopped("a", 2)) == (StartRun("a", 3, on(0)),)
