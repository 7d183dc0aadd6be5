"""Jobs that wait for domains only for some time: after that, the queue has them without the requirement."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from scripted_policy import ScriptedPolicy

from refold.core import Journals, ListJournal, Scheduler, StartRun
from refold.core.events import JobSubmitted, RunStopped
from refold.model import Allocation, Cluster, Decision, Demand, Job, Share, Start, Stop, TopologyRequest
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.traces import read_cluster
from refold.testing import Audit

RACKS = read_cluster("2 racks of 2x8:A100")
FLAT = read_cluster("4x8:A100")


def gang(name: str, nodes: int, at: float, work: float, request: TopologyRequest | None = None) -> Job:
    return Job(name, at, Demand(nodes, 8, topology=request), work, preemptible=False)


def scheduler(job: Job, cluster: Cluster = RACKS, now: float = 0.0) -> Scheduler:
    found = Scheduler(cluster, ScriptedPolicy())
    found.step(now, [JobSubmitted(job)])
    return found


def request_of(found: Scheduler) -> TopologyRequest | None:
    return found.view.waiting["a"].demand.topology


def test_the_requirement_ends_after_its_time_and_the_policy_is_called_then() -> None:
    request = TopologyRequest("rack", wait=600.0)
    found = scheduler(gang("a", 2, 0.0, 1.0, request))
    assert found.step(1.0, ()).wake_at == 600.0
    assert request_of(found) == request
    assert found.step(600.0, ()).wake_at is None
    assert request_of(found) == TopologyRequest(preferred="rack")


@pytest.mark.parametrize(
    ("nodes", "cluster", "now"),
    [(2, FLAT, 0.0), (3, RACKS, 0.0), (2, RACKS, 600.0)],
    ids=["no such level", "no rack is large enough", "submitted long ago"],
)
def test_what_can_never_be_met_or_was_waited_for_long_enough_is_not_waited_for(
    nodes: int, cluster: Cluster, now: float
) -> None:
    found = scheduler(gang("a", nodes, 0.0, 1.0, TopologyRequest(most=1, wait=600.0)), cluster, now)
    assert request_of(found) == TopologyRequest()


def test_a_job_that_is_queued_again_does_not_wait_longer() -> None:
    policy = ScriptedPolicy()
    found = Scheduler(RACKS, policy)
    held = Allocation(tuple(Share(node, tuple(range(8))) for node in (0, 1)))
    policy.next = Decision((Start("a", held),))
    job = replace(gang("a", 2, 0.0, 1.0, TopologyRequest("rack", wait=600.0)), preemptible=True)
    found.step(0.0, [JobSubmitted(job)])
    policy.next = Decision(stops=(Stop("a"),))
    found.step(10.0, ())
    found.step(20.0, [RunStopped("a", 1)])
    assert request_of(found) == TopologyRequest("rack", wait=600.0)
    found.step(700.0, ())
    assert request_of(found) == TopologyRequest(preferred="rack")


@pytest.mark.parametrize(("wait", "start", "nodes"), [(600.0, 700.0, [1, 3]), (2000.0, 1000.0, [0, 1])])
@pytest.mark.parametrize("policy", ["fifo", "easy", "conservative", "refold"])
def test_a_gang_waits_for_one_rack_and_then_starts_across_two(
    policy: str, wait: float, start: float, nodes: list[int]
) -> None:
    jobs = [gang("x", 1, 0.0, 1000.0), gang("y", 1, 1.0, 50.0), gang("z", 1, 2.0, 5000.0)]
    wide = gang("a", 2, 100.0, 60.0, TopologyRequest("rack", wait=wait))
    journal = ListJournal()
    simulate([*jobs, wide], RACKS, make_policy(policy, {}), journal=Journals(Audit(RACKS), journal))
    orders = [(entry.now, order) for entry in journal.entries for order in entry.orders]
    starts = {order.job: (now, sorted(order.allocation.nodes)) for now, order in orders if isinstance(order, StartRun)}
    assert starts["a"] == (start, nodes)
