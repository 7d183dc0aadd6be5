"""What the daemon learns of the nodes of Slurm, without Slurm."""

from __future__ import annotations

import asyncio
from time import time
from types import SimpleNamespace
from typing import Any

import pytest
from slurm_output import FakePrograms, node_line

from refold.client.api import Submission
from refold.core import (
    Event,
    JobSubmitted,
    NodeDrained,
    NodeLost,
    NodeReturned,
    NodesAllowed,
    NodeUsed,
    Scheduler,
)
from refold.engines.slurm import SlurmNode, map_nodes, read_nodes
from refold.engines.slurm.engine import SlurmEngine
from refold.engines.slurm.node_reports import SlurmNodeReports
from refold.engines.slurm.programs import Programs
from refold.engines.slurm.requests import SlurmSettings
from refold.engines.slurm.site import Partition, Site, SlurmReservation
from refold.errors import BadInput
from refold.model import Demand, Job, NodeSet
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

    def read(self, site: Site | None = None, **fields: str) -> list[Event]:
        """Return what is reported of the node. `site`: what is read beside it, from now on."""
        self.events.clear()
        self.reports.report(nodes(**fields), [], site)
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


def test_jobs_that_cannot_end_before_a_reservation_leave_its_nodes_to_others() -> None:
    whole = Demand(gpus=8)
    jobs = [Job("first", time_limit=600.0, demand=whole), Job("endless", demand=whole)]
    found = Reports(*map(JobSubmitted, (*jobs, Job("short", time_limit=600.0, demand=whole))))
    assert set(found.scheduler.view.waiting) == {"endless", "short"}
    soon = Site({}, [SlurmReservation("maint", frozenset({"n0"}), time() + 3600, time() + 7200)])
    assert found.read(soon) == [NodesAllowed(("endless",), NodeSet())]
    assert found.read() == []
    assert found.read(Site()) == [NodesAllowed(("endless",), None)]


def test_a_submitted_job_is_limited_to_nodes_that_allow_its_time_and_rejected_if_there_are_none() -> None:
    engine, submission = SlurmEngine(Programs(), "daemon", SlurmSettings()), Submission(name="job", command=["true"])
    engine._known = nodes()
    engine._site = Site({"gpu": Partition("gpu", True, "UP", 3600.0)})
    engine.rebuild()
    assert engine.complete(submission, Job("job", time_limit=3600.0)).demand.allowed_nodes is None
    with pytest.raises(BadInput, match="the time limit is 2 h, and the partitions of Slurm allow 1 h"):
        engine.complete(submission, Job("job", time_limit=7200.0))
    engine._site = Site({}, [SlurmReservation("maint", frozenset({"n0"}), time() + 3600, time() + 7200)])
    assert engine.complete(submission, Job("job")).demand.allowed_nodes == NodeSet()


def test_a_list_of_excluded_nodes_that_cannot_be_read_is_rejected_at_the_start() -> None:
    class Answers(Programs):
        def without_user_environment(self) -> Programs:
            return self

        def run(self, program: str, *arguments: str, stdin: str = "") -> str:
            del stdin
            return node_line("n0") if (program, arguments[:2]) == ("scontrol", ("show", "nodes")) else ""

    engine = SlurmEngine(Answers({}), "daemon", SlurmSettings(options=("--exclude=n[0-3",)))
    with pytest.raises(BadInput, match=r"'n\[0-3' is not a list of hosts"):
        asyncio.run(engine.connect())
