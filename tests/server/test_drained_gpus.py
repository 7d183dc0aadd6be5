"""A drained GPU accepts no work until it is resumed, even if it is shared."""

from __future__ import annotations

from refold.core import Scheduler, View
from refold.core.events import Event, JobSubmitted, RunRecalled, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.model import Job
from refold.registry import make_policy
from refold.server import drained_gpus
from refold.testing import Audit, make_cluster, make_job


class DrainSetup:
    """A scheduler under audit whose steps include the claims of drain placeholders."""

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
        """Apply events; return the runs that are started and stopped."""
        self.now += 1.0
        claims = drained_gpus.claim_freed_gpus(self.view)
        entry = self.scheduler.step(self.now, [*events, *claims])
        names = {StartRun: "start", StopRun: "stop"}
        return [f"{names[type(order)]} {order.job}" for order in entry.orders]

    def submit(self, *jobs: Job) -> list[str]:
        return self.step(*map(JobSubmitted, jobs))

    def runs_on(self, gpu: int) -> set[str]:
        """Return the users' jobs on a GPU of the first node."""
        return {
            run.job
            for run in self.view.runs.values()
            if any(gpu in share.gpus for share in run.allocation.placement)
            and not drained_gpus.is_drain_placeholder(self.view.active[run.job])
        }


def test_a_free_gpu_is_drained_at_once() -> None:
    setup = DrainSetup(2)
    setup.step(*drained_gpus.drain(setup.view, ("n0", 1), "fan"))
    assert drained_gpus.drained_gpus(setup.view) == {("n0", 1): "fan"}
    assert setup.view.free_gpus == 1
    assert setup.submit(make_job("a"), make_job("b")) == ["start a"]
    assert setup.runs_on(1) == set()


def test_runs_on_a_drained_gpu_are_stopped() -> None:
    setup = DrainSetup(2)
    setup.submit(make_job("a"), make_job("b"))
    (job,) = setup.runs_on(1)
    assert setup.step(*drained_gpus.drain(setup.view, ("n0", 1), "fan")) == [f"stop {job}"]
    assert setup.step(RunStopped(job, 1)) == []
    assert setup.runs_on(1) == set()
    assert list(setup.view.waiting) == [job]


def test_each_part_of_a_shared_gpu_is_claimed_when_it_becomes_free() -> None:
    setup = DrainSetup(1)
    setup.submit(make_job("a", share=0.5), make_job("b", share=0.3), make_job("c", share=0.5), make_job("d", share=0.2))
    assert setup.runs_on(0) == {"a", "b", "d"}
    assert sorted(setup.step(*drained_gpus.drain(setup.view, ("n0", 0), "fan"))) == ["stop a", "stop b", "stop d"]
    for job in ("b", "a", "d"):
        assert setup.step(RunStopped(job, 1)) == []
    assert setup.runs_on(0) == set()
    assert setup.view.free_gpus == 0
    assert sorted(setup.view.waiting) == ["a", "b", "c", "d"]


def test_a_run_that_starts_on_a_gpu_while_it_is_drained_is_stopped() -> None:
    setup = DrainSetup(1)
    setup.submit(make_job("a", share=0.5))
    events = [event for event in drained_gpus.drain(setup.view, ("n0", 0), "fan") if not isinstance(event, RunRecalled)]
    setup.step(*events)  # as if the run had started in the same step
    assert setup.runs_on(0) == {"a"}
    assert setup.step() == ["stop a"]


def test_a_resumed_gpu_accepts_work_whether_it_was_free_or_busy() -> None:
    for busy in (False, True):
        setup = DrainSetup(1)
        setup.submit(*([make_job("a", share=0.5)] if busy else []))
        setup.step(*drained_gpus.drain(setup.view, ("n0", 0), "fan"))
        setup.step(*drained_gpus.resume(setup.view, ("n0", 0)))
        assert drained_gpus.drained_gpus(setup.view) == {}
        setup.step(*([RunStopped("a", 1)] if busy else []))
        assert setup.view.free_gpus == (0.5 if busy else 1)


def test_on_a_new_cluster_drained_gpus_are_matched_by_node_name() -> None:
    before = DrainSetup(2, 2)
    before.step(*drained_gpus.drain(before.view, ("n0", 1), "fan"), *drained_gpus.drain(before.view, ("n1", 1), "fan"))
    after = DrainSetup(2)
    after.step(*drained_gpus.drain_on_new_cluster(before.view, after.cluster))
    assert drained_gpus.drained_gpus(after.view) == {("n0", 1): "fan"}
    assert after.view.free_gpus == 1
