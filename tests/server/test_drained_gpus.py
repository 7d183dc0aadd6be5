"""A drained GPU gets nothing more, whoever has a part of it; and gets work again when somebody says so."""

from __future__ import annotations

from refold.core import Scheduler, View
from refold.core.events import Event, JobSubmitted, RunRecalled, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.model import Job
from refold.registry import make_policy
from refold.server import drained_gpus
from refold.testing import Audit, make_cluster, make_job


class World:
    """A scheduler with an audit beside it, whose steps have what drains add."""

    def __init__(self, *sizes: int, policy: str = "fifo-skip") -> None:
        self.cluster = make_cluster(*sizes)
        self.audit = Audit(self.cluster)
        self.scheduler = Scheduler(self.cluster, make_policy(policy, {}), self.audit)
        self.now = 0.0
        self.step()

    @property
    def view(self) -> View:
        return self.scheduler.view

    def step(self, *events: Event) -> list[str]:
        """Facts; whoever is started or told to stop because of them."""
        self.now += 1.0
        gathered = drained_gpus.take_what_is_free(self.view)
        entry = self.scheduler.step(self.now, [*events, *gathered])
        names = {StartRun: "start", StopRun: "stop"}
        return [f"{names[type(order)]} {order.job}" for order in entry.orders]

    def submit(self, *jobs: Job) -> list[str]:
        return self.step(*map(JobSubmitted, jobs))

    def runs_on(self, gpu: int) -> set[str]:
        """People's jobs on a GPU of the first node."""
        return {
            run.job
            for run in self.view.runs.values()
            if any(gpu in share.gpus for share in run.allocation.placement)
            and not drained_gpus.is_drain_placeholder(self.view.active[run.job])
        }


def test_a_free_gpu_is_drained_at_once() -> None:
    world = World(2)
    world.step(*drained_gpus.drain(world.view, ("n0", 1), "fan"))
    assert drained_gpus.drained_gpus(world.view) == {("n0", 1): "fan"}
    assert world.view.free_gpus == 1
    assert world.submit(make_job("a"), make_job("b")) == ["start a"]
    assert world.runs_on(1) == set()


def test_whoever_runs_there_has_to_move() -> None:
    world = World(2)
    world.submit(make_job("a"), make_job("b"))
    (there,) = world.runs_on(1)
    assert world.step(*drained_gpus.drain(world.view, ("n0", 1), "fan")) == [f"stop {there}"]
    assert world.step(RunStopped(there, 1)) == []
    assert world.runs_on(1) == set()
    assert list(world.view.waiting) == [there]


def test_of_a_shared_gpu_each_part_is_taken_as_it_gets_free() -> None:
    world = World(1)
    world.submit(make_job("a", share=0.5), make_job("b", share=0.3), make_job("c", share=0.5), make_job("d", share=0.2))
    assert world.runs_on(0) == {"a", "b", "d"}
    assert sorted(world.step(*drained_gpus.drain(world.view, ("n0", 0), "fan"))) == ["stop a", "stop b", "stop d"]
    for job in ("b", "a", "d"):
        assert world.step(RunStopped(job, 1)) == []
    assert world.runs_on(0) == set()
    assert world.view.free_gpus == 0
    assert sorted(world.view.waiting) == ["a", "b", "c", "d"]


def test_who_comes_to_a_gpu_while_it_is_drained_is_told_to_go_again() -> None:
    world = World(1)
    world.submit(make_job("a", share=0.5))
    events = [event for event in drained_gpus.drain(world.view, ("n0", 0), "fan") if not isinstance(event, RunRecalled)]
    world.step(*events)  # as if it had been started in the very step
    assert world.runs_on(0) == {"a"}
    assert world.step() == ["stop a"]


def test_a_gpu_that_is_resumed_gets_work_again_whether_it_was_free_or_not() -> None:
    for busy in (False, True):
        world = World(1)
        world.submit(*([make_job("a", share=0.5)] if busy else []))
        world.step(*drained_gpus.drain(world.view, ("n0", 0), "fan"))
        world.step(*drained_gpus.resume(world.view, ("n0", 0)))
        assert drained_gpus.drained_gpus(world.view) == {}
        world.step(*([RunStopped("a", 1)] if busy else []))
        assert world.view.free_gpus == (0.5 if busy else 1)


def test_on_another_cluster_the_gpus_that_are_there_are_drained_again_by_name() -> None:
    before = World(2, 2)
    before.step(*drained_gpus.drain(before.view, ("n0", 1), "fan"), *drained_gpus.drain(before.view, ("n1", 1), "fan"))
    after = World(2)
    after.step(*drained_gpus.drained_again(before.view, after.cluster))
    assert drained_gpus.drained_gpus(after.view) == {("n0", 1): "fan"}
    assert after.view.free_gpus == 1
