"""Jobs wait for fewer domains if they end sooner then, at most for as long as they would lose."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from refold.core import Journals, ListJournal, StartRun
from refold.model import Cluster, DomainWait, Job, Level, Link, Plan, Reason, TopologyRequest, Wait
from refold.planning.plans import Crossings, Speeds
from refold.policies.refold.policy import Refold
from refold.simulator import CrossingSpeeds, ModelledSpeeds, RecordedSpeeds, simulate
from refold.simulator.traces import read_cluster
from refold.testing import Audit, make_job

MINUTE, HOUR = 60.0, 3600.0


def racks(between: float) -> Cluster:
    """Return two racks of two nodes with 8 GPUs, and the bandwidth between racks."""
    cluster = read_cluster("2 racks of 2x8:A100")
    return msgspec.structs.replace(
        cluster, levels=(Level("rack", Link("infiniband", 50.0)),), network=Link("ethernet", between)
    )


CLUSTER = racks(2.0)
SPEEDS = Speeds(CLUSTER)


def known(name: str, nodes: int, at: float, seconds: float) -> Job:
    """Return a job that is known to take so long on whole nodes of one rack."""
    job = make_job(
        name,
        instances=nodes,
        gpus=8,
        at=at,
        work=None,
        reshapable=True,
        workload="llama-2-7b",
        batch=64,
        plan=Plan(8 * nodes, zero=3),
        gpu_range=(8 * nodes, 8 * nodes),
    )
    return msgspec.structs.replace(job, steps=round(seconds * SPEEDS.requested_speed(job).steps_per_second))


class Result:
    """When jobs started and on which nodes, and the reasons why the last one waited."""

    def __init__(self, jobs: list[Job], cluster: Cluster = CLUSTER) -> None:
        journal, speeds = ListJournal(), Speeds(cluster)
        charge = CrossingSpeeds(ModelledSpeeds(speeds, RecordedSpeeds(cluster)), Crossings(speeds))
        simulate(jobs, cluster, Refold(), journal=Journals(Audit(cluster), journal), charge=charge)
        orders = [(entry.now, order) for entry in journal.entries for order in entry.orders]
        started = [(now, order) for now, order in orders if isinstance(order, StartRun)]
        self.starts = {order.job: now for now, order in started}
        self.allocations = {order.job: order.allocation for _, order in started}
        self.nodes = {name: sorted(held.nodes) for name, held in self.allocations.items()}
        self.waits = [wait for entry in journal.entries for wait in entry.waits if wait.job == jobs[-1].id]


def with_two_nodes_free(until: float, work: float) -> list[Job]:
    """Return jobs that leave a free node in each rack when the last one comes; one rack is free at some time."""
    return [
        known("until", 1, 0.0, until),
        known("gone", 1, 1.0, MINUTE),
        known("long", 1, 2.0, 100 * HOUR),
        known("wide", 2, 5 * MINUTE, work),
    ]


def test_a_job_waits_for_one_rack_if_it_ends_sooner_there() -> None:
    result = Result(with_two_nodes_free(until=10 * MINUTE, work=HOUR))
    assert result.nodes["wide"] == [0, 1]
    assert result.starts["wide"] == pytest.approx(10 * MINUTE, abs=MINUTE)


def test_a_job_starts_across_racks_if_one_would_be_free_too_late() -> None:
    result = Result(with_two_nodes_free(until=50 * HOUR, work=HOUR))
    assert result.nodes["wide"] == [1, 3]
    assert result.starts["wide"] == 5 * MINUTE


def test_a_job_that_is_not_slower_across_racks_does_not_wait() -> None:
    result = Result(with_two_nodes_free(until=10 * MINUTE, work=HOUR), racks(between=50.0))
    assert result.starts["wide"] == 5 * MINUTE


def test_the_reason_says_for_what_it_waits_and_how_much_faster_that_is() -> None:
    [wait] = Result(with_two_nodes_free(until=10 * MINUTE, work=HOUR)).waits
    assert wait.reason is Reason.TOPOLOGY
    assert wait.domains is not None
    assert (wait.domains.level, wait.domains.domains, wait.domains.domains_now) == ("rack", 1, 2)
    assert wait.domains.seconds == pytest.approx(5 * MINUTE, abs=MINUTE)


def test_the_reason_is_formatted() -> None:
    assert Wait("a", Reason.TOPOLOGY, domains=DomainWait(360.0, "rack", 1, 2, 1.31)).text() == (
        "about 6 min for 1 rack: 31 % faster than across 2"
    )
    assert Wait("a", Reason.TOPOLOGY, domains=DomainWait(90.0, "rack", 2, 2, 1.5)).text() == (
        "about 1 min 30 s for 2 racks: 50 % faster than divided unevenly"
    )


def test_the_nodes_it_waits_for_are_kept_free_of_jobs_behind_it() -> None:
    """The later job would end after the rack is free."""
    jobs = [*with_two_nodes_free(until=10 * MINUTE, work=HOUR), known("later", 1, 6 * MINUTE, 20 * HOUR)]
    result = Result(jobs)
    assert result.nodes["later"] == [3]
    assert result.nodes["wide"] == [0, 1]


def test_a_job_waits_no_longer_than_it_would_lose() -> None:
    """The rack is late: the run there takes longer than its steps say, so the job starts across racks."""
    late = with_two_nodes_free(until=10 * MINUTE, work=HOUR)
    stuck = msgspec.structs.replace(late[0], work=50 * HOUR)
    result = Result([stuck, *late[1:]])
    held = result.allocations["wide"]
    assert sorted(held.nodes) == [1, 3]
    speed = SPEEDS.with_plan(late[-1], "A100", (8, 8), 0.0, held.plan or Plan(16))
    lost = (Crossings(SPEEDS).slowdown(late[-1], held) - 1) * (late[-1].steps or 0) / speed.steps_per_second
    assert result.starts["wide"] == pytest.approx(5 * MINUTE + lost)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.0, HOUR), st.floats(MINUTE, 2 * HOUR), st.floats(0, 1)
        ),
        min_size=3,
        max_size=25,
    )
)
def test_every_job_starts_and_ends_whatever_it_declares(drawn: list[tuple[int, float, float, float]]) -> None:
    cluster = racks(between=5.0)
    jobs = []
    for number, (gpus, at, work, share) in enumerate(sorted(drawn, key=lambda one: one[1])):
        job = make_job(f"j{number:02}", instances=max(1, gpus // 8), gpus=min(gpus, 8), at=at, work=work)
        demand = msgspec.structs.replace(job.demand, topology=TopologyRequest(communication=share))
        jobs.append(msgspec.structs.replace(job, demand=demand))
    journal = ListJournal()
    view = simulate(jobs, cluster, Refold(), journal=Journals(Audit(cluster), journal))
    assert not view.waiting and not view.runs
