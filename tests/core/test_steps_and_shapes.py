"""How many steps runs have done, as they say; what they hold, and will hold, while they are reshaped."""

import pytest
from scripted_policy import Told, on

from refold.core import Scheduler
from refold.core.events import Event, JobSubmitted, NodeLost, RunFailed, RunProgressed, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.model import KEEP, Decision, Reshape, Start, Stop
from refold.policies.queueing.fifo import Fifo
from refold.testing import make_cluster, make_job


class World:
    """A scheduler that takes one step a second."""

    def __init__(self, *sizes: int, told: Told | None = None) -> None:
        self.told = told or Told()
        self.scheduler = Scheduler(make_cluster(*sizes), told or Fifo())
        self.view, self.now = self.scheduler.view, 0.0

    def step(self, *events: Event, then: Decision = KEEP) -> tuple[StartRun | StopRun, ...]:
        self.told.next = then
        entry = self.scheduler.step(self.now, events)
        self.now += 1.0
        return entry.orders


def test_steps_are_known_as_last_reported_and_when() -> None:
    world = World(1)
    world.step(JobSubmitted(make_job("a", steps=100)))
    assert world.view.steps_done("a") == (0, float("-inf"))
    world.now = 10.0
    world.step(RunProgressed("a", 1, 7.0, steps=30))
    assert world.view.steps_done("a") == (30, 10.0)
    world.now = 20.0
    world.step(RunProgressed("a", 1, 9.0))  # work, but no steps: what was said of them stands
    assert world.view.steps_done("a") == (30, 10.0)
    world.step(RunProgressed("a", 1, 8.0, steps=29))  # late
    assert world.view.steps_done("a") == (30, 10.0)


@pytest.mark.parametrize(
    "ended", [RunStopped("a", 1, 5.0, steps=12), RunFailed("a", 1, "node lost", 5.0, retry=True, steps=12)]
)
def test_what_a_run_kept_at_its_end_counts_even_if_it_is_less_than_it_had_said(ended: Event) -> None:
    world = World(1, told=Told())
    world.step(JobSubmitted(make_job("a", steps=100)), then=Decision((Start("a", on(0)),)))
    world.step(RunProgressed("a", 1, 7.0, steps=30), then=Decision(stops=(Stop("a"),)))
    world.now = 50.0
    world.step(ended)
    assert world.view.steps_done("a") == (12, 50.0)
    assert world.view.done("a") == 5.0


def test_a_job_that_reports_steps_alone_has_progressed() -> None:
    world = World(1)
    world.step(JobSubmitted(make_job("a", steps=100)))
    world.now = 10.0
    world.step(RunProgressed("a", 1, steps=30))
    assert world.view.steps_done("a") == (30, 10.0)
    assert world.scheduler.late_reports == 0


def test_while_a_run_is_reshaped_it_holds_both_shapes_and_is_known_to_become_the_new_one() -> None:
    world = World(4, 4, told=Told())
    world.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)), then=Decision((Start("a", on(0, 1)),)))
    assert (world.view.held_by("a"), world.view.next_allocation("a")) == (on(0, 1).placement, None)
    world.step(then=Decision(reshapes=(Reshape("a", on(1, 2, 3)),)))
    assert world.view.runs["a"].allocation == on(0, 1)
    assert world.view.next_allocation("a") == on(1, 2, 3)
    assert sorted(gpu for share in world.view.held_by("a") for gpu in share.gpus) == [0, 1, 2, 3]
    assert world.view.free_gpus == 4
    assert world.step(RunStopped("a", 1)) == (StartRun("a", 2, on(1, 2, 3)),)
    assert (world.view.held_by("a"), world.view.next_allocation("a")) == (on(1, 2, 3).placement, None)
    assert world.view.free_gpus == 5


def test_a_run_that_only_stops_becomes_nothing() -> None:
    world = World(2, told=Told())
    world.step(JobSubmitted(make_job("a")), then=Decision((Start("a", on(0)),)))
    world.step(then=Decision(stops=(Stop("a"),)))
    assert (world.view.held_by("a"), world.view.next_allocation("a")) == (on(0).placement, None)


def test_a_run_whose_new_shape_was_lost_meanwhile_waits_again() -> None:
    world = World(1, 1, told=Told())
    world.step(JobSubmitted(make_job("a", reshapable=True)), then=Decision((Start("a", on(0)),)))
    world.step(then=Decision(reshapes=(Reshape("a", on(0, node=1)),)))
    world.step(NodeLost(1))
    assert world.step(RunStopped("a", 1)) == ()
    assert list(world.view.waiting) == ["a"]
    assert world.view.free_gpus == 1
