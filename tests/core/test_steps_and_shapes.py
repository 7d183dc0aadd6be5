"""The steps that runs report, and the resources that they hold while they are reshaped."""

import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler
from refold.core.events import Event, JobSubmitted, NodeLost, RunFailed, RunProgressed, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.model import NO_CHANGE, Decision, Reshape, Start, Stop
from refold.policies.queueing.fifo import Fifo
from refold.testing import make_cluster, make_job


class Stepper:
    """A scheduler with one step per second."""

    def __init__(self, *sizes: int, policy: ScriptedPolicy | None = None) -> None:
        self.policy = policy or ScriptedPolicy()
        self.scheduler = Scheduler(make_cluster(*sizes), policy or Fifo())
        self.view, self.now = self.scheduler.view, 0.0

    def step(self, *events: Event, then: Decision = NO_CHANGE) -> tuple[StartRun | StopRun, ...]:
        self.policy.next = then
        entry = self.scheduler.step(self.now, events)
        self.now += 1.0
        return entry.orders


def test_steps_are_returned_with_the_time_of_the_last_report() -> None:
    stepper = Stepper(1)
    stepper.step(JobSubmitted(make_job("a", steps=100)))
    assert stepper.view.steps_done("a") == (0, float("-inf"))
    stepper.now = 10.0
    stepper.step(RunProgressed("a", 1, 7.0, steps=30))
    assert stepper.view.steps_done("a") == (30, 10.0)
    stepper.now = 20.0
    stepper.step(RunProgressed("a", 1, 9.0))  # work without steps: the last report of steps stands
    assert stepper.view.steps_done("a") == (30, 10.0)
    stepper.step(RunProgressed("a", 1, 8.0, steps=29))  # late
    assert stepper.view.steps_done("a") == (30, 10.0)


@pytest.mark.parametrize(
    "ended", [RunStopped("a", 1, 5.0, steps=12), RunFailed("a", 1, "node lost", 5.0, retry=True, steps=12)]
)
def test_the_steps_saved_at_the_end_of_a_run_count_even_if_fewer_than_reported(ended: Event) -> None:
    stepper = Stepper(1, policy=ScriptedPolicy())
    stepper.step(JobSubmitted(make_job("a", steps=100)), then=Decision((Start("a", on(0)),)))
    stepper.step(RunProgressed("a", 1, 7.0, steps=30), then=Decision(stops=(Stop("a"),)))
    stepper.now = 50.0
    stepper.step(ended)
    assert stepper.view.steps_done("a") == (12, 50.0)
    assert stepper.view.done("a") == 5.0


def test_a_report_of_steps_alone_is_progress() -> None:
    stepper = Stepper(1)
    stepper.step(JobSubmitted(make_job("a", steps=100)))
    stepper.now = 10.0
    stepper.step(RunProgressed("a", 1, steps=30))
    assert stepper.view.steps_done("a") == (30, 10.0)
    assert stepper.scheduler.late_reports == 0


def test_a_run_being_reshaped_holds_both_allocations_and_has_a_next_one() -> None:
    stepper = Stepper(4, 4, policy=ScriptedPolicy())
    stepper.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)), then=Decision((Start("a", on(0, 1)),)))
    assert (stepper.view.held_by("a"), stepper.view.next_allocation("a")) == (on(0, 1).placement, None)
    stepper.step(then=Decision(reshapes=(Reshape("a", on(1, 2, 3)),)))
    assert stepper.view.runs["a"].allocation == on(0, 1)
    assert stepper.view.next_allocation("a") == on(1, 2, 3)
    assert sorted(gpu for share in stepper.view.held_by("a") for gpu in share.gpus) == [0, 1, 2, 3]
    assert stepper.view.free_gpus == 4
    assert stepper.step(RunStopped("a", 1)) == (StartRun("a", 2, on(1, 2, 3)),)
    assert (stepper.view.held_by("a"), stepper.view.next_allocation("a")) == (on(1, 2, 3).placement, None)
    assert stepper.view.free_gpus == 5


def test_a_run_that_is_only_stopped_has_no_next_allocation() -> None:
    stepper = Stepper(2, policy=ScriptedPolicy())
    stepper.step(JobSubmitted(make_job("a")), then=Decision((Start("a", on(0)),)))
    stepper.step(then=Decision(stops=(Stop("a"),)))
    assert (stepper.view.held_by("a"), stepper.view.next_allocation("a")) == (on(0).placement, None)


def test_a_job_whose_next_allocation_is_on_a_lost_node_is_queued_again() -> None:
    stepper = Stepper(1, 1, policy=ScriptedPolicy())
    stepper.step(JobSubmitted(make_job("a", reshapable=True)), then=Decision((Start("a", on(0)),)))
    stepper.step(then=Decision(reshapes=(Reshape("a", on(0, node=1)),)))
    stepper.step(NodeLost(1))
    assert stepper.step(RunStopped("a", 1)) == ()
    assert list(stepper.view.waiting) == ["a"]
    assert stepper.view.free_gpus == 1
