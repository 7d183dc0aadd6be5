"""A new epoch on another cluster: nodes are matched by name; jobs on missing nodes wait again."""

from __future__ import annotations

from refold.core import Scheduler
from refold.core.events import GpuLost, JobSubmitted, NodeLost
from refold.model import Cluster, Node
from refold.registry import make_policy
from refold.server.recovery import _snapshot_for
from refold.testing import make_cluster, make_job


def cluster(*names: str) -> Cluster:
    return Cluster(tuple(Node(name, 1, "A100", 8000, 8192) for name in names))


def start_on(before: Scheduler, after: Cluster) -> Scheduler:
    scheduler = Scheduler(after, make_policy("fifo", {}))
    scheduler.step(10.0, _snapshot_for(after, before, []))
    return scheduler


def test_nodes_are_matched_by_name() -> None:
    before = Scheduler(cluster("a", "b", "c"), make_policy("fifo", {}))
    before.step(0.0, [NodeLost(0, "cables"), JobSubmitted(make_job("on-b")), JobSubmitted(make_job("on-c"))])
    after = start_on(before, cluster("new", "c", "a", "b"))
    where = {job: run.allocation.placement[0].node for job, run in after.view.runs.items()}
    assert where == {"on-b": 3, "on-c": 1}
    assert [after.view.is_up(node) for node in range(4)] == [True, True, False, True]
    assert after.view.down_reason(2) == "cables"


def test_drained_gpus_that_still_exist_stay_drained() -> None:
    before = Scheduler(make_cluster(2, 2), make_policy("fifo", {}))
    before.step(0.0, [JobSubmitted(make_job("on-n0"))])
    before.step(1.0, [GpuLost(0, 0, "fan"), GpuLost(0, 1, "fan"), GpuLost(1, 1)])
    after = start_on(before, make_cluster(1))
    assert after.view.down_gpus == {(0, 0): "fan"}
    assert list(after.view.runs) == ["on-n0"]
    assert after.view.free_gpus == 0.0


def test_a_job_whose_node_is_gone_waits_again_with_its_run_count() -> None:
    before = Scheduler(cluster("a", "b"), make_policy("fifo", {}))
    before.step(0.0, [JobSubmitted(make_job("on-a")), JobSubmitted(make_job("on-b"))])
    after = start_on(before, cluster("b"))
    assert {job: run.number for job, run in after.view.runs.items()} == {"on-b": 1}
    assert (list(after.view.waiting), after.view.run_count("on-a")) == (["on-a"], 1)
