"""A new epoch on another cluster: what was on a node is on the one of its name; what has no place waits again."""

from __future__ import annotations

from refold.core import Scheduler
from refold.core.events import JobSubmitted, NodeLost
from refold.model import Cluster, Node
from refold.registry import make_policy
from refold.server.recovery import _snapshot_on
from refold.testing import make_job


def cluster(*names: str) -> Cluster:
    return Cluster(tuple(Node(name, 1, "A100", 8000, 8192) for name in names))


def began_on(before: Scheduler, after: Cluster) -> Scheduler:
    scheduler = Scheduler(after, make_policy("fifo", {}))
    scheduler.step(10.0, _snapshot_on(after, before, []))
    return scheduler


def test_nodes_are_known_by_their_names() -> None:
    before = Scheduler(cluster("a", "b", "c"), make_policy("fifo", {}))
    before.step(0.0, [NodeLost(0), JobSubmitted(make_job("on-b")), JobSubmitted(make_job("on-c"))])
    after = began_on(before, cluster("new", "c", "a", "b"))
    where = {job: run.allocation.placement[0].node for job, run in after.view.runs.items()}
    assert where == {"on-b": 3, "on-c": 1}
    assert [after.view.is_up(node) for node in range(4)] == [True, True, False, True]


def test_a_run_whose_node_is_gone_waits_again_with_what_it_has_behind_it() -> None:
    before = Scheduler(cluster("a", "b"), make_policy("fifo", {}))
    before.step(0.0, [JobSubmitted(make_job("on-a")), JobSubmitted(make_job("on-b"))])
    after = began_on(before, cluster("b"))
    assert {job: run.number for job, run in after.view.runs.items()} == {"on-b": 1}
    assert (list(after.view.waiting), after.view.runs_so_far("on-a")) == (["on-a"], 1)
