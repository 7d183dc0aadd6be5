"""Runs that are stopped for reasons outside the policy, and runs that the policy did not start."""

from random_histories import History, fifo_history, orders_of
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler, View
from refold.core.events import (
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


def test_a_recalled_run_stops_and_its_job_is_queued_again() -> None:
    history = fifo_history(1, 1)
    history.step(JobSubmitted(make_job("a", preemptible=False)))
    assert orders_of(history, NodeLost(0), RunRecalled("a", 1, "n0 is drained")) == (StopRun("a", 1, "n0 is drained"),)
    assert orders_of(history, RunStopped("a", 1, 3.0)) == (StartRun("a", 2, on(0, node=1)),)
    assert history.view.done("a") == 3.0


def test_recalling_a_run_that_has_ended_or_is_stopping_has_no_effect() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")))
    history.step(RunRecalled("a", 1))
    assert orders_of(history, RunRecalled("a", 1)) == ()
    assert orders_of(history, RunStopped("a", 1)) == (StartRun("a", 2, on(0)),)
    assert orders_of(history, RunRecalled("a", 1), RunRecalled("unknown", 1)) == ()
    assert (history.view.runs["a"].stopping, history.scheduler.late_reports) == (False, 2)


def test_a_recalled_job_can_be_cancelled_or_held_before_it_has_stopped() -> None:
    history = fifo_history(2)
    history.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    history.step(RunRecalled("a", 1), RunRecalled("b", 1))
    assert orders_of(history, JobCancelled("a"), JobHeld("b")) == ()
    assert orders_of(history, RunStopped("a", 1), RunStopped("b", 1)) == ()
    assert (history.audit.ended, list(history.view.held)) == ({"a": "cancelled"}, ["b"])


def test_a_reshaped_job_does_not_restart_on_a_node_that_is_down() -> None:
    policy = ScriptedPolicy()
    history = History(make_cluster(2, 2), policy)
    policy.next = Decision((Start("a", on(0, 1)),))
    history.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)))
    policy.next = Decision(reshapes=(Reshape("a", on(0, 1, node=1), "move"),))
    history.step()
    assert orders_of(history, NodeLost(1), RunRecalled("a", 1, "drained")) == ()
    assert orders_of(history, RunStopped("a", 1)) == ()
    assert list(history.view.waiting) == ["a"]


def test_an_adopted_run_holds_its_gpus() -> None:
    history = History(make_cluster(2), FifoSkip())
    drained = make_job("drained", preemptible=False, tenant="refold")
    assert orders_of(history, JobSubmitted(drained), RunAdopted("drained", 1, on(1), -60.0)) == ()
    assert history.view.runs == {"drained": Run("drained", 1, on(1), -60.0)}
    assert history.view.gpu_seconds("drained") == history.now + 60.0
    assert orders_of(history, JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))) == (StartRun("a", 1, on(0)),)
    assert orders_of(history, JobCancelled("drained")) == (StopRun("drained", 1, "cancelled"),)
    assert orders_of(history, RunStopped("drained", 1)) == (StartRun("b", 1, on(1)),)


def test_a_waiting_job_can_be_adopted_with_a_later_run_number() -> None:
    history = fifo_history(1)
    history.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    history.step(RunFinished("a", 1), JobHeld("b"))
    history.step(JobSubmitted(make_job("c", gpus=1)), RunAdopted("c", 7, on(0), 1.0))
    assert orders_of(history, RunRecalled("c", 7)) == (StopRun("c", 7),)
    assert orders_of(history, RunStopped("c", 7)) == (StartRun("c", 8, on(0)),)


def test_a_run_cannot_be_adopted_twice_or_on_gpus_in_use() -> None:
    scheduler = Scheduler(make_cluster(1), Fifo())
    scheduler.step(0.0, [JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))])
    scheduler.step(1.0, [RunAdopted(name, 1, on(0), 0.0) for name in "abc"])
    assert (list(scheduler.view.runs), list(scheduler.view.waiting)) == (["a"], ["b"])
    assert scheduler.late_reports == 3


def test_past_jobs_are_reported_to_the_policy_once_and_are_not_queued() -> None:
    seen: list[object] = []

    class Listening(Fifo):
        def decide(self, view: View) -> Decision:
            seen.append(list(view.changes.past_jobs))
            return super().decide(view)

    history = History(make_cluster(1), Listening())
    old = make_job("old")
    history.step(PastJob(old, 12.0))
    history.step()
    assert (seen, dict(history.view.waiting)) == ([[(old, 12.0)], []], {})
