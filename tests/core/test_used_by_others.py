"""Resources that others than the scheduler use: what is free, what starts, what a snapshot says."""

from __future__ import annotations

from refold.core import Entry, Scheduler
from refold.core.events import JobSubmitted, NodeUsed, RunFinished
from refold.core.orders import StartRun
from refold.model import WHOLE, Cluster, Node
from refold.policies.queueing.fifo import FifoSkip
from refold.testing import make_job

CLUSTER = Cluster((Node("a", 4, "gpu", 8 * WHOLE, 1024), Node("b", 4, "gpu", 8 * WHOLE, 1024)))


class Setup:
    """A scheduler with one step per second."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(CLUSTER, FifoSkip())
        self.now = 0.0

    def step(self, *events: object) -> Entry:
        self.now += 1.0
        return self.scheduler.step(self.now, events)  # type: ignore[arg-type]

    def started(self, *events: object) -> list[str]:
        return [order.job for order in self.step(*events).orders if isinstance(order, StartRun)]


def test_jobs_start_only_on_what_others_leave() -> None:
    setup = Setup()
    used = (NodeUsed(0, gpus=(2, 3)), NodeUsed(1, cpu_milli=7 * WHOLE))
    assert setup.started(*used, JobSubmitted(make_job("big", gpus=4))) == ["big"]
    assert setup.scheduler.view.runs["big"].allocation.nodes == {1}
    assert setup.started(JobSubmitted(make_job("half", gpus=3))) == []
    assert setup.started(NodeUsed(0)) == ["half"]


def test_a_report_replaces_the_last_one_of_its_node() -> None:
    setup = Setup()
    setup.step(NodeUsed(0, gpus=(0, 1), memory_mib=1000), NodeUsed(1, gpus=(0,)))
    setup.step(NodeUsed(0, gpus=(3,), memory_mib=24))
    view = setup.scheduler.view
    assert view.free_gpu_milli(0) == (WHOLE, WHOLE, WHOLE, 0)
    assert view.free_gpu_milli(1) == (0, WHOLE, WHOLE, WHOLE)
    assert setup.started(JobSubmitted(make_job("j", gpus=1, memory_gib=1000 / 1024, instances=2))) == ["j"]


def test_what_runs_hold_is_not_taken_from_them() -> None:
    setup = Setup()
    setup.step(JobSubmitted(make_job("j", gpus=4)), JobSubmitted(make_job("k", gpus=4)))
    setup.step(NodeUsed(0, gpus=(0,)))
    setup.step(RunFinished("j", 1), RunFinished("k", 1))
    assert setup.scheduler.view.free_gpus == 8
    setup.step(NodeUsed(0, gpus=(0,)))
    assert setup.scheduler.view.free_gpus == 7


def test_a_job_that_does_not_fit_because_of_others_waits() -> None:
    setup = Setup()
    setup.step(NodeUsed(0, gpus=(0,)), NodeUsed(1, gpus=(0,)), JobSubmitted(make_job("j", gpus=4)))
    assert list(setup.scheduler.view.waiting) == ["j"]
    assert setup.scheduler.view.infeasible == {}


def test_a_snapshot_contains_what_others_use() -> None:
    setup = Setup()
    setup.step(NodeUsed(0, gpus=(1,), cpu_milli=500), NodeUsed(1, gpus=(0, 1)), JobSubmitted(make_job("j", gpus=3)))
    restored = Scheduler(CLUSTER, FifoSkip())
    restored.step(5.0, setup.scheduler.snapshot())
    assert restored.view.free_gpu_milli(0) == setup.scheduler.view.free_gpu_milli(0)
    assert restored.view.free_gpu_milli(1) == setup.scheduler.view.free_gpu_milli(1)
    assert NodeUsed(0, gpus=(1,), cpu_milli=500) in restored.snapshot()


def test_reports_about_unknown_nodes_and_gpus_are_late() -> None:
    setup = Setup()
    setup.step(NodeUsed(7), NodeUsed(0, gpus=(4,)), NodeUsed(0, cpu_milli=-1))
    assert setup.scheduler.late_reports == 3
    assert setup.scheduler.view.free_gpus == 8
