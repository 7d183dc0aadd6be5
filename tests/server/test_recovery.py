"""A new epoch on another cluster: nodes are matched by name; jobs on missing nodes wait again."""

from __future__ import annotations

from refold.core import Scheduler
from refold.core.events import JobSubmitted, NodeLost
from refold.model import Cluster, Node
from refold.registry import make_policy
from refold.server.recovery import _snapshot_for
from refold.testing import make_job


def cluster(*names: str) -> Cluster:
    return Cluster(tuple(Node(name, 1, "A100", 8000, 8192) for name in names))


def start_on(before: Scheduler, after: Cluster) -> Scheduler:
    scheduler = Scheduler(after, make_policy("fifo", {}))
    scheduler.step(10.0, _snapshot_for(after, before, []))
    return scheduler


def test_nodes_are_matched_by_name() -> None:
    before = Scheduler(cluster("a", "b", "c"), make_policy("fifo", {}))
    before.step(0.0, [NodeLost(0), JobSubmitted(make_job("on-b")), JobSubmitted(make_job("on-c"))])
    after = start_on(before, cluster("new", "c", "a", "b"))
    where = {job: run.allocation.placement[0].node for job, run in after.view.runs.items()}
    assert where == {"on-b": 3, "on-c": 1}
    assert [after.view.is_up(node) for node in range(4)] == [True, True, False, True]


def test_a_job_whose_node_is_gone_waits_again_with_its_run_count() -> None:
    before = Scheduler(cluster("a", "b"), make_policy("fifo", {}))
    before.step(0.0, [JobSubmitted(make_job("on-a")), JobSubmitted(make_job("on-b"))])
    after = start_on(before, cluster("b"))
    assert {job: run.number for job, run in after.view.runs.items()} == {"on-b": 1}
    assert (list(after.view.waiting), after.view.run_count("on-a")) == (["on-a"], 1)
