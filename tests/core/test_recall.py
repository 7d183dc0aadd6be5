"""Runs that stop for reasons that are not the policy's, and runs that it did not start."""

from random_histories import History
from scripted_policy import Told, on

from refold.core import Scheduler, View
from refold.core.events import (
    Event,
    JobCancelled,
    JobHeld,
    JobSubmitted,
    NodeLost,
    PastJob,
    RunAdopted,
    RunFinished,
    RunRecalled,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.model import Decision, Reshape, Run, Start
from refold.policies.queueing.fifo import Fifo, FifoSkip
from refold.testing import make_cluster, make_job


def world(*sizes: int) -> History:
    return History(make_cluster(*sizes), Fifo())


def orders(history: History, *events: Event) -> tuple[StartRun | StopRun, ...]:
    history.step(*events)
    return history.entries.entries[-1].orders


def test_a_run_that_is_recalled_stops_and_its_job_waits_again() -> None:
    one = world(1, 1)
    one.step(JobSubmitted(make_job("a", preemptible=False)))
    assert orders(one, NodeLost(0), RunRecalled("a", 1, "n0 is drained")) == (StopRun("a", 1, "n0 is drained"),)
    assert orders(one, RunStopped("a", 1, 3.0)) == (StartRun("a", 2, on(0, node=1)),)
    assert one.view.done("a") == 3.0


def test_a_recall_of_a_run_that_is_over_or_stopping_changes_nothing() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a")))
    one.step(RunRecalled("a", 1))
    assert orders(one, RunRecalled("a", 1)) == ()
    assert orders(one, RunStopped("a", 1)) == (StartRun("a", 2, on(0)),)
    assert orders(one, RunRecalled("a", 1), RunRecalled("nobody", 1)) == ()
    assert (one.view.runs["a"].stopping, one.scheduler.late_reports) == (False, 2)


def test_a_recalled_run_may_be_cancelled_or_held_before_it_has_stopped() -> None:
    one = world(2)
    one.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    one.step(RunRecalled("a", 1), RunRecalled("b", 1))
    assert orders(one, JobCancelled("a"), JobHeld("b")) == ()
    assert orders(one, RunStopped("a", 1), RunStopped("b", 1)) == ()
    assert (one.audit.over, list(one.view.held)) == ({"a": "cancelled"}, ["b"])


def test_a_run_that_is_being_reshaped_goes_on_nowhere_that_takes_no_work() -> None:
    told = Told()
    one = History(make_cluster(2, 2), told)
    told.next = Decision((Start("a", on(0, 1)),))
    one.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)))
    told.next = Decision(reshapes=(Reshape("a", on(0, 1, node=1), "move"),))
    one.step()
    assert orders(one, NodeLost(1), RunRecalled("a", 1, "drained")) == ()
    assert orders(one, RunStopped("a", 1)) == ()
    assert list(one.view.waiting) == ["a"]


def test_an_adopted_run_holds_its_place_and_the_policy_goes_on_around_it() -> None:
    one = History(make_cluster(2), FifoSkip())
    drained = make_job("drained", preemptible=False, tenant="refold")
    assert orders(one, JobSubmitted(drained), RunAdopted("drained", 1, on(1), -60.0)) == ()
    assert one.view.runs == {"drained": Run("drained", 1, on(1), -60.0)}
    assert one.view.gpu_seconds("drained") == one.now + 60.0
    assert orders(one, JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))) == (StartRun("a", 1, on(0)),)
    assert orders(one, JobCancelled("drained")) == (StopRun("drained", 1, "cancelled"),)
    assert orders(one, RunStopped("drained", 1)) == (StartRun("b", 1, on(1)),)


def test_a_job_that_waited_may_be_adopted_with_a_later_run() -> None:
    one = world(1)
    one.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    one.step(RunFinished("a", 1), JobHeld("b"))
    one.step(JobSubmitted(make_job("c", gpus=1)), RunAdopted("c", 7, on(0), 1.0))
    assert orders(one, RunRecalled("c", 7)) == (StopRun("c", 7),)
    assert orders(one, RunStopped("c", 7)) == (StartRun("c", 8, on(0)),)


def test_a_run_cannot_be_adopted_twice_or_where_somebody_is() -> None:
    scheduler = Scheduler(make_cluster(1), Fifo())
    scheduler.step(0.0, [JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))])
    scheduler.step(1.0, [RunAdopted(name, 1, on(0), 0.0) for name in "abc"])
    assert (list(scheduler.view.runs), list(scheduler.view.waiting)) == (["a"], ["b"])
    assert scheduler.late_reports == 3


def test_what_is_remembered_is_told_once_and_makes_nobody_wait() -> None:
    seen: list[object] = []

    class Listening(Fifo):
        def decide(self, view: View) -> Decision:
            seen.append(list(view.changes.remembered))
            return super().decide(view)

    one = History(make_cluster(1), Listening())
    old = make_job("old")
    one.step(PastJob(old, 12.0))
    one.step()
    assert (seen, dict(one.view.waiting)) == ([[(old, 12.0)], []], {})
