"""The optimum equals an exhaustive search on clusters small enough for one; and `Optimal` as a policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from benchmarks.research.optimal import (
    Optimal,
    Optimum,
    OptimumSearch,
    shapes_of,
    throughput_of,
)

from refold.core import ListJournal, Policy, Scheduler, View
from refold.core.events import JobSubmitted, NodeLost, NodeReturned, RunFailed, RunFinished, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.errors import BadInput
from refold.model import NO_CHANGE, Allocation, Cluster, Decision, Job, Plan, Share, Start, Tenant
from refold.model.units import WHOLE
from refold.placement import FreeResources
from refold.planning.plans import Layout, Speed, Speeds, Spread
from refold.policies.common import Draft, QuotaAdmission
from refold.simulator import Costs, simulate
from refold.testing import Audit, PolicyContract, make_cluster, make_job

GPU = "A800-80GB"
MODELS = ("bert", "gpt2", "t5", "vit")


@pytest.mark.long  # a yardstick of benchmarks, which solves an integer program in each round
class TestOptimal(PolicyContract):
    seeds = range(1)
    disturbance_seeds = range(1)

    def make_policy(self) -> Policy:
        return Optimal()

    def test_jobs_are_placed_on_the_nodes_that_they_are_allowed_on(self) -> None:
        pytest.skip("does not apply: the integer program has no sets of allowed nodes")


class OptimumRecorder:
    """A policy that makes given starts and stores the optimum of each view."""

    name = "optimum-recorder"

    def __init__(self, starts: tuple[Start, ...] = (), guarantees: bool = True) -> None:
        self._starts, self._guarantees = starts, guarantees
        self.optimum = Optimum(0.0, 0.0, {})

    def decide(self, view: View) -> Decision:
        self.optimum = OptimumSearch(Speeds(view.cluster), guarantees=self._guarantees).best(view, Draft(view))
        starts, self._starts = self._starts, ()
        return Decision(starts=starts) if starts else NO_CHANGE


def find_optimum(cluster: Cluster, jobs: list[Job], guarantees: bool = True) -> tuple[View, Optimum]:
    """Return a view in which all jobs wait, and its optimum."""
    policy = OptimumRecorder(guarantees=guarantees)
    scheduler = Scheduler(cluster, policy)
    scheduler.step(0.0, [JobSubmitted(job) for job in jobs])
    return scheduler.view, policy.optimum


def make_known_job(name: str, workload: str, gpus: int, **more: Any) -> Job:
    return make_job(name, gpus=gpus, workload=workload, reshapable=True, job_class="best-effort", **more)


def make_known_jobs(seed: int, count: int, cpus: float = 0.0) -> list[Job]:
    rng = np.random.default_rng(seed)
    return [
        make_known_job(f"j{number}", str(rng.choice(MODELS)), int(rng.choice([1, 2, 4])), cpus=cpus)
        for number in range(count)
    ]


def fits(cluster: Cluster, target: dict[str, Allocation]) -> bool:
    free = FreeResources(cluster)
    return all(free.take(allocation.placement) is None for allocation in target.values())


# Exhaustive search.


def search_shapes(cluster: Cluster, jobs: list[Job]) -> float:
    """Return the best throughput over all numbers of GPUs per job and node; CPUs per GPU as requested."""
    speeds = Speeds(cluster)

    @cache
    def throughput(job: Job, layout: tuple[int, ...]) -> float:
        cpus_per_gpu = job.demand.cpu_milli / job.demand.gpus / WHOLE
        fastest = speeds.fastest(job, GPU, layout, cpus_per_gpu * sum(layout))
        found = [fastest.steps_per_second] if fastest else []
        if sum(layout) == job.demand.gpus:
            own = speeds.own_plan(job)
            found.append(speeds.with_plan(job, GPU, layout, cpus_per_gpu * sum(layout), own).steps_per_second)
        return max(found, default=0.0) / speeds.requested_speed(job).steps_per_second

    @cache
    def best(position: int, gpus: tuple[int, ...], cpus: tuple[int, ...]) -> float:
        if position == len(jobs):
            return 0.0
        most = best(position + 1, gpus, cpus)
        cpus_per_gpu = jobs[position].demand.cpu_milli // jobs[position].demand.gpus
        for taken in product(*(range(free + 1) for free in gpus)):
            left = tuple(free - cpus_per_gpu * some for free, some in zip(cpus, taken, strict=True))
            if not any(taken) or min(left) < 0:
                continue
            layout = tuple(sorted((some for some in taken if some), reverse=True))
            rest = best(position + 1, tuple(free - some for free, some in zip(gpus, taken, strict=True)), left)
            most = max(most, throughput(jobs[position], layout) + rest)
        return most

    return best(0, tuple(node.gpus for node in cluster.nodes), tuple(node.cpu_milli for node in cluster.nodes))


def search_placements(cluster: Cluster, jobs: list[Job]) -> int:
    """Return the largest number of jobs that run as requested, over all placements, fractional GPUs included."""

    def places(job: Job) -> list[tuple[tuple[int, tuple[int, ...]], ...]]:
        one = [
            (number, gpus)
            for number, node in enumerate(cluster.nodes)
            for gpus in combinations(range(node.gpus), job.demand.gpus)
        ]
        return list(product(one, repeat=job.demand.instances))

    def run(free: FreeResources, position: int) -> int:
        if position == len(jobs):
            return 0
        most = run(free, position + 1)
        demand = jobs[position].demand
        for where in places(jobs[position]):
            shares = tuple(Share(node, gpus, demand.gpu_milli, demand.cpu_milli) for node, gpus in where)
            if free.take(shares) is None:
                most = max(most, 1 + run(free, position + 1))
                free.release(shares)
        return most

    return run(FreeResources(cluster), 0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sizes", [(4,), (4, 4), (4, 2), (3, 3, 2)])
def test_the_optimum_equals_an_exhaustive_search(sizes: tuple[int, ...], seed: int) -> None:
    cluster = make_cluster(*sizes, types=GPU)
    jobs = make_known_jobs(seed, 4)
    view, optimum = find_optimum(cluster, jobs)
    feasible_jobs = [job for job in jobs if job.id in view.waiting]
    assert optimum.throughput == pytest.approx(search_shapes(cluster, feasible_jobs), rel=1e-5)
    assert optimum.upper_bound == pytest.approx(optimum.throughput, rel=1e-5)
    assert throughput_of(view, Speeds(cluster), optimum.target) == pytest.approx(optimum.throughput)
    assert fits(cluster, dict(optimum.target))


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_equals_an_exhaustive_search_if_cpus_are_scarce(seed: int) -> None:
    cluster = make_cluster(4, 4, types=GPU, cpus=5)
    jobs = [make_known_job(job.id, job.workload, 1, cpus=2.0) for job in make_known_jobs(seed, 4)]
    _, optimum = find_optimum(cluster, jobs)
    assert optimum.throughput == pytest.approx(search_shapes(cluster, jobs), rel=1e-5)
    assert optimum.throughput < best_throughput_without_cpus(jobs)
    assert fits(cluster, dict(optimum.target))


def best_throughput_without_cpus(jobs: list[Job]) -> float:
    return find_optimum(make_cluster(4, 4, types=GPU, cpus=64), jobs)[1].throughput


@pytest.mark.parametrize("seed", range(10))
def test_fractional_gpus_are_packed_optimally(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds: list[dict[str, Any]] = [
        {"gpus": 1, "share": 0.3},
        {"gpus": 1, "share": 0.5},
        {"gpus": 1, "share": 0.8},
        {"gpus": 2, "share": 0.6},
        {"gpus": 1, "instances": 2, "share": 0.5},
        {"gpus": 1},
        {"gpus": 2},
    ]
    jobs = [make_job(f"j{number}", **kinds[int(rng.integers(len(kinds)))]) for number in range(5)]
    cluster = make_cluster(2, 1)
    _, optimum = find_optimum(cluster, jobs)
    assert optimum.throughput == search_placements(cluster, jobs)
    assert len(optimum.target) == optimum.throughput
    assert fits(cluster, dict(optimum.target))


def test_shapes_no_faster_than_smaller_ones_are_omitted() -> None:
    shapes = shapes_of(Speeds(make_cluster(4, 4, types=GPU)), make_known_job("a", "vit", 1))
    throughputs = {tuple(part.gpus for part in shape.parts): shape.throughput for shape in shapes}
    assert {(1,), (2,), (4,)} <= throughputs.keys()
    assert (4, 4) not in throughputs
    for layout, other in product(throughputs, throughputs):
        inside = len(other) <= len(layout) and all(mine <= more for mine, more in zip(other, layout, strict=False))
        assert other == layout or not inside or throughputs[other] < throughputs[layout]


# Constraints.


def test_a_guaranteed_job_gets_its_requested_speed_or_waits() -> None:
    cluster = Cluster(make_cluster(4, types=GPU).nodes, tenants=(Tenant("default", 12.0),))
    plan = Plan(4)
    jobs = [make_job(name, gpus=4, workload="bert", reshapable=True, plan=plan) for name in "abc"]
    view, with_guarantees = find_optimum(cluster, jobs)
    _, without_guarantees = find_optimum(cluster, jobs, guarantees=False)
    speeds = Speeds(cluster)
    throughputs = [
        throughput_of(view, speeds, {job_id: allocation}) for job_id, allocation in with_guarantees.target.items()
    ]
    assert throughputs == [pytest.approx(with_guarantees.throughput)]  # one of the jobs has all GPUs
    assert throughputs[0] >= 1.0
    assert len(without_guarantees.target) == 3  # three smaller jobs are faster in total
    assert without_guarantees.throughput > with_guarantees.throughput


def test_guarantees_hold_within_the_tenants_quota_in_order_of_submission() -> None:
    nodes = make_cluster(8, types=GPU).nodes
    cluster = Cluster(nodes, tenants=(Tenant("paying", 5.0),))
    jobs = [
        make_job("late", at=3.0, gpus=1, tenant="paying"),
        make_job("first", at=1.0, gpus=4, tenant="paying"),
        make_job("too-much", at=2.0, gpus=2, tenant="paying"),
        make_job("stranger", gpus=1, tenant="other"),
        make_job("best-effort", gpus=1, tenant="paying", job_class="best-effort"),
    ]
    view, _ = find_optimum(cluster, jobs)
    assert QuotaAdmission(Speeds(cluster)).guaranteed_jobs(view) == {"first", "late"}


def test_runs_that_are_not_preemptible_keep_their_placement() -> None:
    cluster = make_cluster(2, 2)
    pinned = make_job("pinned", gpus=1, preemptible=False)
    where = Allocation((Share(0, (1,)),))
    policy = OptimumRecorder((Start("pinned", where),))
    scheduler = Scheduler(cluster, policy)
    scheduler.step(0.0, [JobSubmitted(pinned)])
    scheduler.step(1.0, [JobSubmitted(make_job("left", gpus=2)), JobSubmitted(make_job("right", gpus=2))])
    assert policy.optimum.throughput == 2.0  # only one of the two wide jobs fits
    assert policy.optimum.target["pinned"] == where


@pytest.mark.parametrize(
    ("cluster", "jobs", "why"),
    [
        (
            make_cluster(*[8] * 8, types=GPU),
            [make_known_job("a", "gpt2", 8)],
            "8 nodes of up to 8 A800-80GB have 12,869 layouts for a job, expected at most 2,000",
        ),
        (
            make_cluster(*[1] * 150),
            [make_job(f"j{number}", gpus=1) for number in range(150)],
            "150 jobs on 150 nodes have 22,500 choices, expected at most 20,000",
        ),
    ],
)
def test_clusters_that_are_too_large_are_rejected(cluster: Cluster, jobs: list[Job], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        find_optimum(cluster, jobs)


# As a policy.


def test_two_narrow_jobs_preempt_a_wide_one() -> None:
    scheduler = Scheduler(make_cluster(4), Optimal())
    scheduler.step(0.0, [JobSubmitted(make_job("wide", gpus=4))])
    stop = scheduler.step(1.0, [JobSubmitted(make_job(name, at=1.0, gpus=2)) for name in "ab"])
    assert stop.orders == (StopRun("wide", 1, "optimal: throughput 1.000 → 2.000"),)
    assert [wait.reason for wait in stop.waits] == ["Releasing", "Releasing"]
    start = scheduler.step(2.0, [RunStopped("wide", 1)])
    assert [(type(order), order.job) for order in start.orders] == [(StartRun, "a"), (StartRun, "b")]
    assert list(scheduler.view.waiting) == ["wide"]


def test_a_job_that_is_not_reshapable_is_moved_by_stopping_and_restarting() -> None:
    cluster = make_cluster(4, 4)
    scheduler = Scheduler(cluster, Optimal())
    scheduler.step(0.0, [JobSubmitted(make_job(name, gpus=3)) for name in "xy"])
    scheduler.step(1.0, [JobSubmitted(make_job(name, gpus=1)) for name in "ab"])
    assert sorted(run.allocation.placement[0].node for run in scheduler.view.runs.values()) == [0, 0, 1, 1]
    scheduler.step(2.0, [RunFinished("x", 1), RunFinished("y", 1)])
    moved = scheduler.step(3.0, [JobSubmitted(make_job("wide", gpus=4)), JobSubmitted(make_job("c", gpus=2))])
    assert sum(isinstance(order, StopRun) for order in moved.orders) == 1  # one narrow job moves to the other's node
    (stopped,) = [order.job for order in moved.orders if isinstance(order, StopRun)]
    scheduler.step(4.0, [RunStopped(stopped, 1)])
    assert sorted(scheduler.view.runs) == ["a", "b", "c", "wide"]


def test_no_job_is_moved_without_a_gain() -> None:
    cluster = make_cluster(4, 4, types=GPU)
    scheduler = Scheduler(cluster, Optimal())
    scheduler.step(0.0, [JobSubmitted(job) for job in make_known_jobs(3, 5)])
    first = next(iter(scheduler.view.runs))
    again = scheduler.step(1.0, [RunFailed(first, 1, "node failure", retry=True)])
    assert [(type(order), order.job) for order in again.orders] == [(StartRun, first)]


def test_of_runs_that_must_swap_nodes_one_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_cluster(2, 2, types=GPU)
    scheduler = Scheduler(cluster, Optimal())
    left, right = Allocation((Share(0, (0, 1)),)), Allocation((Share(1, (0, 1)),))
    target = {"a": (left, "here"), "b": (right, "here")}
    monkeypatch.setattr(Optimal, "_find_target", lambda *_: target)
    scheduler.step(0.0, [JobSubmitted(make_known_job("a", "vit", 2)), JobSubmitted(make_known_job("b", "vit", 2))])
    swapped = {"a": (right, "swap"), "b": (left, "swap")}
    monkeypatch.setattr(Optimal, "_find_target", lambda *_: swapped)
    assert scheduler.step(1.0, [NodeLost(9), JobSubmitted(make_job("c", gpus=2))]).orders == (StopRun("a", 1, "swap"),)
    assert scheduler.step(2.0, [RunStopped("a", 1)]).orders == (StopRun("b", 1, "swap", left),)
    assert scheduler.step(3.0, [RunStopped("b", 1)]).orders == (StartRun("b", 2, left), StartRun("a", 2, right))


def test_a_node_that_returns_is_used() -> None:
    cluster = make_cluster(4, 4, types=GPU)
    scheduler = Scheduler(cluster, Optimal())
    scheduler.step(0.0, [NodeLost(1)])
    scheduler.step(1.0, [JobSubmitted(make_known_job(name, "bert", 4)) for name in "ab"])
    assert {share.node for run in scheduler.view.runs.values() for share in run.allocation.placement} == {0}
    orders = scheduler.step(2.0, [NodeReturned(1)]).orders
    while stopped := [RunStopped(order.job, order.run) for order in orders if isinstance(order, StopRun)]:
        orders = scheduler.step(3.0, stopped).orders
    assert sum(run.allocation.gpu_milli for run in scheduler.view.runs.values()) == 8 * WHOLE


def test_jobs_with_a_speed_model_complete_and_replay_identically() -> None:
    cluster = make_cluster(4, 4, types=GPU)
    jobs = [
        make_known_job(job.id, job.workload, job.demand.gpus, at=20.0 * number, work=60.0)
        for number, job in enumerate(make_known_jobs(5, 8))
    ]
    audit, journal = Audit(cluster), ListJournal()
    costs = Costs(start=2.0, stop=3.0, restart=5.0, report_every=10.0)
    simulate(jobs, cluster, Optimal(), journal=audit, costs=costs)
    simulate(jobs, cluster, Optimal(), journal=journal, costs=costs)
    assert set(audit.ended) == {job.id for job in jobs}
    again = Scheduler(cluster, Optimal())
    assert all(again.step(entry.now, entry.events).orders == entry.orders for entry in journal.entries)


class SpeedsByLayout(Speeds):
    """Speeds from a function of the layout, with any plan."""

    def __init__(self, cluster: Cluster, speed_of: Callable[[Layout], float]) -> None:
        super().__init__(cluster)
        self._speed_of = speed_of

    def fastest(self, job: Job, gpu_type: str, layout: Layout, cpus: float) -> Speed:
        return Speed(self._speed_of(layout), Plan(sum(layout)))

    def with_plan(self, job: Job, gpu_type: str, layout: Layout, cpus: float, plan: Plan, spread: Spread = ()) -> Speed:
        return Speed(self._speed_of(layout), plan)


def layouts_of(cluster: Cluster, speed_of: Callable[[Layout], float], **more: Any) -> list[Layout]:
    job = make_known_job("a", "bert", 1, **more)
    shapes = shapes_of(SpeedsByLayout(cluster, speed_of), job)
    return [tuple(part.gpus for part in shape.parts) for shape in shapes]


@pytest.mark.parametrize("sizes", [(1,), (4,), (3, 2), (4, 4, 2), (2, 2, 2, 1)])
def test_if_more_is_always_faster_every_layout_is_a_shape_once(sizes: tuple[int, ...]) -> None:
    found = layouts_of(make_cluster(*sizes, types=GPU), lambda layout: float(sum(layout)))
    expected = {
        tuple(sorted((count for count in counts if count), reverse=True))
        for counts in product(*(range(size + 1) for size in sizes))
        if any(counts)
    }
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize(
    ("speed_of", "kept"),
    [
        (lambda _: 1.0, [(1,)]),
        (lambda layout: min(2, sum(layout)), [(1,), (2,), (1, 1)]),  # a second node may be free where two GPUs are not
        (lambda layout: sum(layout) if len(layout) == 1 else 0.5, [(1,), (2,), (3,)]),
        (lambda layout: layout[0], [(1,), (2,), (3,)]),
        (lambda layout: 5 - sum(layout), [(1,)]),
    ],
)
def test_a_shape_is_dominated_by_one_that_fits_wherever_it_does_and_is_as_fast(
    speed_of: Callable[[Layout], float], kept: list[Layout]
) -> None:
    assert layouts_of(make_cluster(3, 2, types=GPU), speed_of) == kept


def test_shapes_are_limited_to_the_gpu_range_and_types_of_the_job() -> None:
    def more_is_faster(layout: Layout) -> float:
        return float(sum(layout))

    cluster = make_cluster(4, 4, types=[GPU, "H100-80GB"])
    limited = layouts_of(cluster, more_is_faster, gpu_range=(1, 3), types=["H100-80GB"])
    assert limited == [(1,), (2,), (3,)]
    assert sorted(layouts_of(cluster, more_is_faster)) == sorted([(1,), (2,), (3,), (4,)] * 2)  # of either type
