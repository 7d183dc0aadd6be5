"""Pollux: the contract, rounds worked out by hand, and the genetic algorithm's repair and fitness."""

import numpy as np
import pytest

from refold.core import Journals, ListJournal, Policy, Scheduler
from refold.core.events import JobSubmitted
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Job, Plan
from refold.placement import Ints
from refold.policies.published import pollux_kernels
from refold.policies.published.pollux import Pollux, restart_factor
from refold.policies.published.pollux_kernels import AllocationProblem, ProblemArrays, RandomNumbers, evolve
from refold.simulator import Costs, Fault, simulate
from refold.testing import Audit, PolicyContract, make_cluster, make_job


def pollux(**settings: float) -> Pollux:
    return Pollux(**({"population": 30, "generations": 30} | settings))  # type: ignore[arg-type]


class TestPollux(PolicyContract):
    def make_policy(self) -> Policy:
        return pollux()


def bert(name: str, gpus: int = 8, at: float = 0.0, steps: int = 20_000, **more: object) -> Job:
    """Return a scalable data-parallel job."""
    return make_job(
        name, at=at, gpus=gpus, work=float(steps), steps=steps, workload="bert-large", plan=Plan(data=gpus),
        **{"reshapable": True, **more},  # type: ignore[arg-type]
    )  # fmt: skip


A800 = make_cluster(8, types="A800-80GB")
TWO_A800 = make_cluster(8, 8, types="A800-80GB")


def gpus_given(policy: Policy, jobs: list[Job], cluster: Cluster, until: float) -> list[tuple[float, str, int]]:
    """Return the time, job and GPUs of every start up to `until`."""
    journal = ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(Audit(cluster), journal), costs=Costs(restart=30.0))
    return [
        (entry.now, order.job, order.allocation.gpu_milli // 1000)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun) and entry.now <= until
    ]


def test_two_equal_jobs_that_requested_the_whole_node_get_half_each() -> None:
    assert gpus_given(pollux(), [bert("a"), bert("b")], A800, until=0.0) == [(0, "a", 4), (0, "b", 4)]


def test_a_single_job_gets_twice_its_request_and_then_twice_that() -> None:
    started = gpus_given(pollux(), [bert("a", gpus=2)], A800, until=600.0)
    assert [gpus for _, _, gpus in started] == [4, 8]


def test_growth_limits_the_gpus_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.policies.published.pollux.GROWTH", 1)
    assert gpus_given(pollux(), [bert("a", gpus=2)], A800, until=600.0) == [(0, "a", 2)]


def test_a_new_job_gets_gpus_of_a_run_in_the_next_round() -> None:
    started = gpus_given(pollux(), [bert("a"), bert("b", at=10.0)], A800, until=60.0)
    assert started == [(0, "a", 8), (60, "a", 4), (60, "b", 4)]


def test_a_job_that_is_not_scalable_runs_as_requested_and_others_share_the_rest() -> None:
    other = make_job("other", at=10.0, gpus=4, work=500.0)
    started = gpus_given(pollux(), [bert("a"), other], A800, until=60.0)
    assert started == [(0, "a", 8), (60, "a", 4), (60, "other", 4)]


def test_a_job_that_is_not_scalable_starts_between_rounds_if_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.policies.published.pollux.GROWTH", 1)
    other = make_job("other", at=10.0, gpus=4, work=100.0)
    started = gpus_given(pollux(), [bert("a", gpus=4), other], A800, until=59.0)
    assert started == [(0, "a", 4), (10, "other", 4)]


def test_a_job_that_is_not_preemptible_keeps_its_gpus() -> None:
    started = gpus_given(pollux(), [bert("a", preemptible=False, steps=5000), bert("b", at=10.0)], A800, until=300.0)
    assert started == [(0, "a", 8)]


def test_a_scaled_job_keeps_its_plan_except_for_the_replicas() -> None:
    scheduler = Scheduler(A800, pollux())
    job = make_job("a", gpus=2, workload="gpt2", reshapable=True, plan=Plan(data=1, tensor=2, zero=1))
    (order,) = scheduler.step(0.0, [JobSubmitted(job)]).orders
    assert isinstance(order, StartRun)
    assert order.allocation.plan == Plan(data=2, tensor=2, zero=1)
    assert order.allocation.gpus_on_node == (4,)


def test_no_wake_up_is_requested_for_jobs_that_cannot_gain_or_are_not_scalable() -> None:
    scheduler = Scheduler(A800, pollux())
    assert scheduler.step(0.0, [JobSubmitted(make_job("other", gpus=8))]).wake_at is None
    assert scheduler.step(5.0, [JobSubmitted(bert("a", at=5.0))]).wake_at == 65.0
    alone = Scheduler(make_cluster(1, types="A800-80GB"), pollux())
    assert alone.step(0.0, [JobSubmitted(bert("a", gpus=1))]).wake_at is None


def test_the_same_seed_gives_the_same_orders_and_all_jobs_complete_despite_node_failures() -> None:
    jobs = [bert(f"j{index}", gpus=2 ** (index % 4), at=40.0 * index, steps=3000) for index in range(10)]
    jobs.insert(4, make_job("rigid", at=130.0, gpus=8, work=300.0))
    journals = [ListJournal(), ListJournal()]
    for journal in journals:
        audit = Audit(TWO_A800)
        costs, faults = Costs(start=5.0, stop=3.0, restart=30.0), [Fault(1, 200.0, 700.0)]
        simulate(jobs, TWO_A800, pollux(seed=3), journal=Journals(audit, journal), costs=costs, faults=faults)
        assert set(audit.ended) == {job.id for job in jobs}
    assert journals[0].entries == journals[1].entries
    again = Scheduler(TWO_A800, pollux(seed=3))
    for entry in journals[0].entries:
        assert again.step(entry.now, entry.events).orders == entry.orders


@pytest.mark.parametrize(("age", "restarts", "factor"), [(90.0, 1, 0.5), (30.0, 0, 0.5), (50.0, 2, 0.0), (0.0, 0, 0.0)])
def test_the_restart_factor_is_low_for_young_and_often_restarted_jobs(age: float, restarts: int, factor: float) -> None:
    assert restart_factor(age, restarts, 30.0) == factor


def make_problem(gpus_held: list[list[int]], gpus: int = 4, **fields: object) -> AllocationProblem:
    """Return a problem with jobs that scale linearly, on nodes with `gpus` GPUs each."""
    current = np.array(gpus_held, dtype=np.int64)
    jobs, nodes = current.shape
    total = nodes * gpus
    every_size = np.arange(1, total + 1, dtype=np.int64)[None]
    problem = AllocationProblem(
        kind=np.zeros(jobs, dtype=np.int64),
        max_gpus=np.full(jobs, total, dtype=np.int64),
        choices=np.full(jobs, total, dtype=np.int64),
        capacity=np.full((jobs, nodes), gpus, dtype=np.int64),
        need=np.tile(np.array([1, 0, 0], dtype=np.int64), (jobs, 1)),
        free=np.tile(np.array([gpus, 1, 1], dtype=np.int64), (nodes, 1)),
        type_of=np.zeros(nodes, dtype=np.int64),
        distributed=np.zeros(nodes, dtype=np.bool_),
        sizes=every_size,
        size_below=np.concatenate([np.zeros((1, 1), dtype=np.int64), every_size], axis=1),
        speed=np.tile(np.arange(total + 1, dtype=np.float64), (1, 1, nodes + 1, 1)),
        fair_speed=np.ones(jobs),
        current=current,
        is_running=current.sum(axis=1) > 0,
        restart_factor=np.full(jobs, 0.5),
        min_speedup=0.01,
        power=-1.0,
    )
    return problem._replace(**fields)  # type: ignore[arg-type]


def repaired(problem: AllocationProblem, gpus: list[list[int]], favoured: list[bool], seed: int) -> list[list[int]]:
    matrix = np.array(gpus, dtype=np.int64)
    random = RandomNumbers(np.random.default_rng(seed))
    pollux_kernels.repair(ProblemArrays(problem), matrix, np.array(favoured, dtype=np.uint8), random)
    return matrix.tolist()  # type: ignore[no-any-return]


def fitness(problem: AllocationProblem, matrix: Ints) -> float:
    return pollux_kernels.fitness(ProblemArrays(problem), matrix)


def test_fitness_is_the_harmonic_mean_of_the_speedups() -> None:
    assert fitness(make_problem([[4], [0]]), np.array([[4], [1]])) == pytest.approx(2 / (1 / 4 + 1 / 1))


def test_fitness_includes_the_restart_factor_of_running_jobs() -> None:
    # From 4 to 2 GPUs, halved for the restart: 1. The other job starts on 2 GPUs without a restart.
    assert fitness(make_problem([[4], [0]]), np.array([[2], [2]])) == pytest.approx(2 / (1 / 1 + 1 / 2))


def test_a_job_without_gpus_has_the_minimum_speedup() -> None:
    assert fitness(make_problem([[1], [0]]), np.array([[1], [0]])) == pytest.approx(2 / (1 / 1 + 1 / 0.01))


@pytest.mark.parametrize("seed", range(5))
def test_repair_leaves_at_most_one_distributed_job_on_a_node(seed: int) -> None:
    problem = make_problem([[0, 0], [0, 0]])
    # Removed from the first node, the other job is on one node only, where both fit.
    assert repaired(problem, [[2, 2], [2, 2]], [True, False], seed) == [[2, 2], [0, 2]]
    assert repaired(problem, [[2, 2], [2, 2]], [False, False], seed) in ([[2, 2], [0, 2]], [[0, 2], [2, 2]])


def test_repair_removes_distributed_jobs_from_nodes_that_already_have_one() -> None:
    problem = make_problem([[0, 0]], distributed=np.array([True, False]))
    assert repaired(problem, [[2, 2]], [True], 0) == [[0, 2]]
    assert repaired(problem, [[3, 0]], [True], 0) == [[3, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_repair_removes_excess_gpus_from_jobs_that_are_not_favoured(seed: int) -> None:
    assert repaired(make_problem([[0], [0]]), [[3], [3]], [True, False], seed) == [[3], [1]]


def test_repair_counts_cpus() -> None:
    need = np.array([[1, 1000, 0]], dtype=np.int64)
    free = np.array([[4, 2500, 0]], dtype=np.int64)
    assert repaired(make_problem([[0]], need=need, free=free), [[4]], [False], 0) == [[2]]


def test_repair_rounds_down_to_a_possible_size() -> None:
    below = np.array([[0, 0, 2, 2, 4, 4, 4, 4, 8]], dtype=np.int64)
    assert repaired(make_problem([[0, 0]], size_below=below), [[4, 3]], [False], 0) == [[4, 0]]
    assert repaired(make_problem([[0, 0]], size_below=below), [[1, 0]], [False], 0) == [[0, 0]]


def test_the_result_is_at_least_as_fit_as_the_current_allocation() -> None:
    problem = make_problem([[4, 0], [0, 4], [0, 0]])
    found = evolve(problem, 20, 20, np.random.default_rng(1))
    assert fitness(problem, found) >= fitness(problem, problem.current)
    assert found.sum(axis=1).min() > 0, "the third job gets GPUs of one of the other two"
    assert found.sum(axis=0).tolist() == [4, 4]


def test_random_numbers_are_those_of_the_generator() -> None:
    random, generator = RandomNumbers(np.random.default_rng(7)), np.random.default_rng(7)
    for bound in (1, 2, 3, 1000, 3 * 2**30, 2**32 - 1) * 20:  # many draws are rejected for 3 · 2³⁰
        assert (random.below(bound), random.uniform()) == (int(generator.integers(0, bound)), generator.random())


def test_invalid_settings_are_rejected() -> None:
    for settings in ({"population": 1}, {"round_seconds": 0.0}, {"power": 0.0}):
        with pytest.raises(BadValue):
            Pollux(**settings)
