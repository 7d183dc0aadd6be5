"""What the daemon learns of the nodes of Slurm, without Slurm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from slurm_output import FakePrograms, node_line

from refold.core import Event, NodeDrained, NodeLost, NodeReturned, NodeUsed, Scheduler
from refold.engines.slurm import SlurmNode, map_nodes, read_nodes
from refold.engines.slurm.engine import SlurmNodeReports
from refold.simulator.registry import make_policy


def nodes(**fields: str) -> dict[str, SlurmNode]:
    """Return the node n0, as it is read."""
    return {"n0": read_nodes(FakePrograms([], [node_line("n0", **fields)]).run)[0]}


class Reports:
    """A scheduler with one node. Each report is an event of it."""

    def __init__(self, *before: Event) -> None:
        self.cluster = map_nodes(nodes().values())
        self.scheduler = Scheduler(self.cluster.cluster, make_policy("fifo"))
        self.scheduler.step(0.0, before)
        self.events: list[Event] = []
        self.start_daemon()

    def start_daemon(self) -> None:
        state: Any = SimpleNamespace(view=self.scheduler.view)
        inbox: Any = SimpleNamespace(report=self.events.append)
        self.reports = SlurmNodeReports(state, inbox, self.cluster)

    def read(self, **fields: str) -> list[Event]:
        """Return what is reported of the node."""
        self.events.clear()
        self.reports.report(nodes(**fields), [])
        self.scheduler.step(1.0, tuple(self.events))
        return list(self.events)


def test_a_node_that_slurm_drains_when_it_is_back_has_that_reason() -> None:
    """A controller that was killed knows nothing of its nodes at first; then it may drain one."""
    found = Reports()
    assert found.read(State="UNKNOWN") == [NodeLost(0, "slurm: UNKNOWN")]
    drained = [NodeDrained(0, "slurm: DRAIN: Duplicate jobid")]
    assert found.read(State="IDLE+DRAIN", Reason="Duplicate jobid [root@1]") == drained
    assert found.read(State="IDLE+DRAIN", Reason="Duplicate jobid [root@1]") == []
    assert found.read(State="IDLE") == [NodeReturned(0)]


def test_a_drained_node_that_is_lost_and_one_with_another_reason() -> None:
    found = Reports()
    assert found.read(State="IDLE+DRAIN", Reason="fan") == [NodeDrained(0, "slurm: DRAIN: fan")]
    assert found.read(State="DOWN+DRAIN", Reason="fan") == [NodeLost(0, "slurm: DOWN: fan")]
    assert found.read(State="DOWN+DRAIN", Reason="power") == [NodeLost(0, "slurm: DOWN: power")]


@pytest.mark.parametrize("state", ["IDLE", "IDLE+DRAIN", "DOWN"])
def test_a_node_that_an_operator_has_drained_stays_so(state: str) -> None:
    found = Reports(NodeDrained(0, "maintenance"))
    assert found.read(State=state) == []


def test_gpus_that_others_released_while_there_was_no_daemon_are_free() -> None:
    found = Reports()
    assert found.read(GresUsed="gpu:a100:3(IDX:0-2)") == [NodeUsed(0, (5, 6, 7))]
    found.start_daemon()
    assert found.read(GresUsed="gpu:a100:3(IDX:0-2)") == []
    found.start_daemon()
    assert found.read(GresUsed="gpu:a100:0(IDX:N/A)") == [NodeUsed(0)]
    assert found.read() == []
