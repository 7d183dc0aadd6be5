"""Nodes are reserved for jobs that were overtaken too much, so that they start although nothing may be preempted."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st
from scripted_policy import ScriptedPolicy

from refold.core import JobSubmitted, Journals, ListJournal, Policy, Scheduler
from refold.core.events import RunStarted
from refold.core.orders import StartRun, StopRun
from refold.model import Allocation, Cluster, Decision, Job, Reason, Share, Start
from refold.placement import Placer
from refold.policies.common import Draft
from refold.policies.queueing.fifo import Fifo
from refold.policies.refold.policy import Refold
from refold.simulator import Costs, simulate
from refold.testing import Audit, make_cluster, make_job

HOUR = 3600.0
NEVER = 1.0
TIMES_AS_LONG = 3
"""How many times as long a job waits as in order of submission, at most, with the default settings."""
TIMES_WITH_RESTARTS = 6
"""The same if jobs may be preempted: a run has run as long as its starts have cost before it is stopped again."""
TWO_NODES = make_cluster(4, 4)


def fixed(name: str, gpus: int, at: float, work: float) -> Job:
    return make_job(name, gpus=gpus, at=at, work=work, preemptible=False)


def crowd(work: float, gap: float, count: int) -> list[Job]:
    """Return jobs with one GPU, of which about `work / gap` run at any time."""
    return [fixed(f"n{number:03}", 1, number * gap, work) for number in range(count)]


class Result:
    """When each job started in a simulation, and the reasons why it waited."""

    def __init__(self, jobs: list[Job], overtaking_share: float = 2 / 3, goal: str = "time") -> None:
        journal = ListJournal()
        ordered = sorted(jobs, key=lambda job: job.submitted)
        policy = Refold(overtaking_share=overtaking_share, goal=goal)
        simulate(ordered, TWO_NODES, policy, journal=Journals(Audit(TWO_NODES), journal))
        orders = [(entry.now, order) for entry in journal.entries for order in entry.orders]
        self.starts = {order.job: now for now, order in orders if isinstance(order, StartRun)}
        self.waits = {(wait.job, wait.reason) for entry in journal.entries for wait in entry.waits}


@pytest.mark.parametrize(("gpus", "instances"), [(4, 1), (4, 2)])
def test_a_job_that_needs_whole_nodes_starts_when_it_was_overtaken_as_much_as_others_were_ahead(
    gpus: int, instances: int
) -> None:
    wide = make_job("wide", gpus=gpus, instances=instances, at=3 * HOUR, work=600.0, preemptible=False)
    jobs = [*crowd(work=2 * HOUR, gap=HOUR / 4, count=120), wide]
    assert Result(jobs, overtaking_share=NEVER).starts["wide"] > 25 * HOUR
    in_order = Result(jobs, overtaking_share=0.0).starts["wide"] - wide.submitted
    assert in_order <= 2.25 * HOUR  # until all have ended that ran at 3 h, or started before the next round
    assert in_order < Result(jobs).starts["wide"] - wide.submitted <= TIMES_AS_LONG * in_order + 2 * HOUR


def test_nodes_stay_reserved_until_the_job_starts_whatever_the_goal() -> None:
    """Lengths are such that other nodes would be chosen in some rounds."""
    rng = Random(6)
    jobs = [
        fixed(f"n{number:03}", 1, number * HOUR / 4, rng.choice((0.4, 0.8, 2.4, 4.8)) * HOUR) for number in range(100)
    ]
    jobs.append(fixed("wide", 4, 3 * HOUR, 600.0))
    assert Result(jobs, goal="throughput").starts == Result(jobs, goal="time").starts


def test_a_smaller_job_waits_because_the_free_gpus_are_reserved() -> None:
    result = Result([*crowd(work=2 * HOUR, gap=HOUR / 4, count=60), fixed("wide", 4, 3 * HOUR, 600.0)])
    kept_off = {name for name, reason in result.waits if reason is Reason.RESERVED}
    assert kept_off and "wide" not in kept_off
    assert all(result.starts[name] > 5 * HOUR for name in kept_off)


def test_jobs_that_end_before_the_nodes_are_free_may_start_there() -> None:
    long = [fixed(f"l{number}", 1, 0.0, 40 * HOUR) for number in range(7)]
    short = [fixed(f"s{number:03}", 1, 60.0 * number, 30.0) for number in range(1000)]
    result = Result([*long, *short, fixed("wide", 4, 1.0, 600.0)])
    reserved = range(4, 16)  # hours in which nodes are reserved and short jobs arrive
    delays = [result.starts[job.id] - job.submitted for job in short if job.submitted // HOUR in reserved]
    assert delays and max(delays) <= 60.0
    assert result.starts["wide"] == pytest.approx(40 * HOUR, abs=1.0)


def test_runs_on_closed_nodes_may_stay_but_no_other_job_starts_there() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(TWO_NODES, policy)
    held = Allocation((Share(0, (0,)),))
    policy.next = Decision((Start("a", held),))
    scheduler.step(0.0, [JobSubmitted(fixed("a", 1, 0.0, HOUR)), JobSubmitted(fixed("b", 1, 0.0, HOUR))])
    scheduler.step(0.0, [RunStarted("a", 1)])
    draft, job = Draft(scheduler.view), scheduler.view.waiting["b"]
    draft.close_nodes([0])
    assert not draft.assign("b", Allocation((Share(0, (1,)),)))
    draft.release("a")
    assert draft.assign("a", held) and draft.allocation_of("a") == held and not draft.changed
    assert draft.place("b", Placer(), job.demand, None)
    placed = draft.allocation_of("b")
    assert placed is not None and placed.nodes == {1}
    draft.open_nodes([0])
    assert draft.free.whole_gpus == 6


class Shape(NamedTuple):
    """A short job: the GPUs of an instance, the instances, the part of each GPU, its types, tenant and run time."""

    gpus: int
    instances: int
    share: float
    types: tuple[str, ...]
    tenant: str
    work: float


class Traffic(NamedTuple):
    """A stream of jobs whose shapes repeat, so that GPUs are never free by chance for long."""

    shapes: list[Shape]
    load: float
    preemptible: bool
    fair_share: float


SIZES = ((1, 1, 1.0), (1, 1, 1.0), (2, 1, 1.0), (1, 2, 1.0), (1, 1, 0.5))
TYPES = ("A100", "V100")
SHAPES = st.builds(
    lambda size, *more: Shape(*size, *more),
    st.sampled_from(SIZES),
    st.sampled_from(((), ("A100",), ("V100",))),
    st.sampled_from(("a", "b")),
    st.floats(5.0, 60.0),
)
TRAFFIC = st.builds(
    Traffic, st.lists(SHAPES, min_size=4, max_size=12), st.floats(0.7, 1.2), st.booleans(), st.sampled_from((0.0, 1.0))
)
RESTART, MOST_JOBS = 10.0, 1200


@settings(max_examples=5)
@given(traffic=TRAFFIC, nodes=st.sampled_from((1, 2, 4)))
def test_a_wide_job_waits_for_a_bounded_time_whatever_arrives_later(traffic: Traffic, nodes: int) -> None:
    check_wait_of_wide(traffic, make_cluster(*[4] * nodes), ("A100",))


@settings(max_examples=2)
@given(traffic=TRAFFIC, types=st.sampled_from((TYPES[:1], TYPES)))
def test_a_wide_job_waits_for_a_bounded_time_on_64_gpus(traffic: Traffic, types: tuple[str, ...]) -> None:
    check_wait_of_wide(traffic, make_cluster(*[8] * 8, types=types * (8 // len(types))), types)


@settings(max_examples=1)
@given(traffic=TRAFFIC, types=st.sampled_from((TYPES[:1], TYPES)))
def test_a_wide_job_waits_for_a_bounded_time_on_512_gpus(traffic: Traffic, types: tuple[str, ...]) -> None:
    check_wait_of_wide(traffic, make_cluster(*[8] * 64, types=types * (64 // len(types))), types, larger=8)


def check_wait_of_wide(traffic: Traffic, cluster: Cluster, types: tuple[str, ...], larger: int = 1) -> None:
    """Check the bound for a job that needs all nodes of a type: a run to notice that it is overdue, one to free these.

    `larger`: how many times as many GPUs the short jobs take.
    """
    usable = [node for node in cluster.nodes if node.gpu_type == types[0]]
    shapes = [one._replace(gpus=larger * one.gpus, types=one.types if len(types) > 1 else ()) for one in traffic.shapes]
    longest = max(shape.work for shape in shapes)
    gap = sum(one.gpus * one.instances * one.share * one.work for one in shapes) / cluster.gpus / traffic.load
    gap /= len(shapes)
    jobs = [
        make_job(
            f"s{number:05}", at=number * gap, preemptible=traffic.preemptible, **shapes[number % len(shapes)]._asdict()
        )
        for number in range(min(int(15 * longest / gap), MOST_JOBS))
    ]
    wide_at = len(jobs) * gap / 3
    gpus, instances = usable[0].gpus, len(usable)
    wide = make_job(
        "wide", gpus=gpus, instances=instances, at=wide_at, work=30.0, types=types[:1], tenant="a", preemptible=False
    )
    ordered = sorted([*jobs, wide], key=lambda job: job.submitted)
    refold = Refold(restart_seconds=RESTART, fair_share=traffic.fair_share)
    in_order, waited = (first_start(ordered, cluster, policy) - wide.submitted for policy in (Fifo(), refold))
    times = TIMES_WITH_RESTARTS if traffic.preemptible else TIMES_AS_LONG
    assert waited <= times * in_order + 3 * longest


def first_start(jobs: list[Job], cluster: Cluster, policy: Policy) -> float:
    """Return when the wide job started in a simulation."""
    journal = ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(Audit(cluster), journal), costs=Costs(restart=RESTART))
    orders = ((entry.now, order) for entry in journal.entries for order in entry.orders)
    return next(now for now, order in orders if isinstance(order, StartRun) and order.job == "wide")


def stream(gpus: int, gap: float, work: float, count: int, **more: Any) -> list[Job]:
    return [make_job(f"s{n:04}", gpus=gpus, at=n * gap, work=work, preemptible=False, **more) for n in range(count)]


def wait_of_wide(jobs: list[Job], wide: Job, cluster: Cluster) -> float:
    ordered = sorted([*jobs, wide], key=lambda job: job.submitted)
    return first_start(ordered, cluster, Refold()) - wide.submitted


def test_use_of_gpus_that_a_job_cannot_use_does_not_count() -> None:
    """Long runs ahead of it on 16 other GPUs use more than the jobs behind it, but do not delay it."""
    cluster = make_cluster(4, 16, types=("A100", "V100"))
    other = make_job("other", gpus=16, at=0.0, work=1e6, preemptible=False, types=("V100",))
    small = stream(1, 6.0, 20.0, 600, types=("A100",))
    wide = make_job("wide", gpus=4, at=601.0, work=30.0, preemptible=False, types=("A100",))
    assert wait_of_wide([other, *small], wide, cluster) < 100.0


def test_most_of_a_gpu_becomes_free_for_a_job_that_was_overtaken() -> None:
    """Quarters of two GPUs become free one at a time, so that three quarters of one are never free by themselves."""
    quarters = stream(1, 5.0, 42.0, 400, share=0.25)
    large = make_job("wide", gpus=1, share=0.75, at=301.0, work=30.0, preemptible=False)
    assert wait_of_wide(quarters, large, make_cluster(2)) < 300.0


def test_jobs_without_gpus_that_take_all_cpus_count() -> None:
    """Nobody can use the GPUs beside them. Three quarters of the 64 CPUs are never free by themselves."""
    small = [make_job(f"s{n:04}", gpus=0, cpus=16.0, at=6.0 * n, work=20.0, preemptible=False) for n in range(200)]
    for wide in (
        make_job("wide", gpus=1, cpus=48.0, at=301.0, work=30.0, preemptible=False),
        make_job("wide", gpus=0, cpus=48.0, at=301.0, work=30.0, preemptible=False),
    ):
        assert wait_of_wide(small, wide, make_cluster(4)) < 150.0


def test_use_of_jobs_ahead_does_not_count_while_there_is_room_beside_them() -> None:
    """Runs ahead hold three of four nodes for hours; in order of submission, it would get the fourth in seconds."""
    long = [make_job(f"l{n}", gpus=4, at=0.0, work=10 * HOUR, preemptible=False) for n in range(3)]
    wide = make_job("wide", gpus=4, at=301.0, work=30.0, preemptible=False)
    assert wait_of_wide([*long, *stream(1, 6.0, 20.0, 400)], wide, make_cluster(4, 4, 4, 4)) < 250.0


def test_several_instances_of_a_gang_get_the_same_node() -> None:
    wide = make_job("wide", gpus=2, instances=4, at=301.0, work=30.0, preemptible=False)
    assert wait_of_wide(stream(1, 3.0, 20.0, 800), wide, make_cluster(4, 4)) < 150.0


@pytest.mark.parametrize("hours", [3.8, 5.0, 5.2, 5.4])
def test_other_nodes_are_reserved_if_an_urgent_job_starts_on_the_reserved_ones(hours: float) -> None:
    urgent = make_job("urgent", gpus=1, at=hours * HOUR + 1, work=60 * HOUR, priority=1, preemptible=False)
    wide = make_job("wide", gpus=4, at=3 * HOUR, work=600.0, preemptible=False)
    small = stream(1, HOUR / 4, 2 * HOUR, 150)
    assert wait_of_wide([*small, urgent], wide, TWO_NODES) < 8 * HOUR


def test_a_run_is_not_stopped_at_once_for_overdue_jobs_behind_it() -> None:
    """The wide job may be stopped, and the small ones that wait while it starts are overdue soon."""
    wide = make_job("wide", gpus=4, at=100.0, work=3000.0)
    jobs = sorted([*stream(1, 5.0, 20.0, 300), wide], key=lambda job: job.submitted)
    journal = ListJournal()
    costs = Costs(restart=78.0)
    simulate(jobs, make_cluster(4), Refold(), journal=Journals(Audit(make_cluster(4)), journal), costs=costs)
    orders = [(entry.now, order) for entry in journal.entries for order in entry.orders]
    starts = [now for now, order in orders if isinstance(order, StartRun) and order.job == "wide"]
    stops = [now for now, order in orders if isinstance(order, StopRun) and order.job == "wide"]
    assert all(stop - max(start for start in starts if start <= stop) >= 78.0 for stop in stops)
