"""Pollux: GPUs are divided by a genetic search so that the harmonic mean of all speedups is as large as can be."""

import numpy as np
import pytest

from refold.core import Journals, ListJournal, Policy, Scheduler
from refold.core.events import JobSubmitted
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Job, Plan
from refold.policies.published.pollux import Pollux, restart_factor
from refold.policies.published.pollux_kernels import DivisionProblem, evolve, fitness, repair
from refold.simulator import Costs, Fault, simulate
from refold.testing import Audit, PolicyContract, make_cluster, make_job


def pollux(**settings: float) -> Pollux:
    return Pollux(**({"population": 30, "generations": 30} | settings))  # type: ignore[arg-type]


class TestPollux(PolicyContract):
    def make_policy(self) -> Policy:
        return pollux()


def bert(name: str, gpus: int = 8, at: float = 0.0, steps: int = 20_000, **more: object) -> Job:
    """A data-parallel job that is known, and can be scaled."""
    return make_job(
        name, at=at, gpus=gpus, work=float(steps), steps=steps, workload="bert-large", plan=Plan(data=gpus),
        **{"reshapable": True, **more},  # type: ignore[arg-type]
    )  # fmt: skip


A800 = make_cluster(8, types="A800-80GB")
TWO_A800 = make_cluster(8, 8, types="A800-80GB")


def gpus_given(policy: Policy, jobs: list[Job], cluster: Cluster, until: float) -> list[tuple[float, str, int]]:
    """When which job was started, with how many GPUs, up to some time."""
    journal = ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(Audit(cluster), journal), costs=Costs(restart=30.0))
    return [
        (entry.now, order.job, order.allocation.gpu_milli // 1000)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun) and entry.now <= until
    ]


def test_two_equal_jobs_that_asked_for_everything_get_half_each() -> None:
    assert gpus_given(pollux(), [bert("a"), bert("b")], A800, until=0.0) == [(0, "a", 4), (0, "b", 4)]


def test_a_lone_job_gets_at_most_twice_what_it_asked_for_and_then_twice_what_it_had() -> None:
    given = gpus_given(pollux(), [bert("a", gpus=2)], A800, until=600.0)
    assert [gpus for _, _, gpus in given] == [4, 8]


def test_growth_is_a_setting() -> None:
    assert gpus_given(pollux(growth=1.0), [bert("a", gpus=2)], A800, until=600.0) == [(0, "a", 2)]


def test_a_job_that_comes_later_gets_gpus_of_one_that_runs_in_the_next_round() -> None:
    given = gpus_given(pollux(), [bert("a"), bert("b", at=10.0)], A800, until=60.0)
    assert given == [(0, "a", 8), (60, "a", 4), (60, "b", 4)]


def test_what_cannot_be_scaled_runs_as_it_asked_and_the_others_share_the_rest() -> None:
    other = make_job("other", at=10.0, gpus=4, work=500.0)
    given = gpus_given(pollux(), [bert("a"), other], A800, until=60.0)
    assert given == [(0, "a", 8), (60, "a", 4), (60, "other", 4)]


def test_what_cannot_be_scaled_and_fits_does_not_wait_for_a_round() -> None:
    other = make_job("other", at=10.0, gpus=4, work=100.0)
    given = gpus_given(pollux(growth=1.0), [bert("a", gpus=4), other], A800, until=59.0)
    assert given == [(0, "a", 4), (10, "other", 4)]


def test_a_job_that_is_not_preemptible_keeps_what_it_has() -> None:
    given = gpus_given(pollux(), [bert("a", preemptible=False, steps=5000), bert("b", at=10.0)], A800, until=300.0)
    assert given == [(0, "a", 8)]


def test_a_scaled_job_keeps_its_plan_but_for_the_replicas() -> None:
    scheduler = Scheduler(A800, pollux())
    job = make_job("a", gpus=2, workload="gpt2", reshapable=True, plan=Plan(data=1, tensor=2, zero=1))
    (order,) = scheduler.step(0.0, [JobSubmitted(job)]).orders
    assert isinstance(order, StartRun)
    assert order.allocation.plan == Plan(data=2, tensor=2, zero=1)
    assert order.allocation.gpus_on_node == (4,)


def test_it_is_not_woken_for_a_job_that_can_gain_nothing_nor_for_what_is_not_scaled() -> None:
    scheduler = Scheduler(A800, pollux())
    assert scheduler.step(0.0, [JobSubmitted(make_job("other", gpus=8))]).wake_at is None
    assert scheduler.step(5.0, [JobSubmitted(bert("a", at=5.0))]).wake_at == 65.0
    alone = Scheduler(make_cluster(1, types="A800-80GB"), pollux())
    assert alone.step(0.0, [JobSubmitted(bert("a", gpus=1))]).wake_at is None


def test_the_same_seed_gives_the_same_divisions_and_all_jobs_end_though_nodes_fall() -> None:
    jobs = [bert(f"j{index}", gpus=2 ** (index % 4), at=40.0 * index, steps=3000) for index in range(10)]
    jobs.insert(4, make_job("rigid", at=130.0, gpus=8, work=300.0))
    journals = [ListJournal(), ListJournal()]
    for journal in journals:
        audit = Audit(TWO_A800)
        costs, faults = Costs(start=5.0, stop=3.0, restart=30.0), [Fault(1, 200.0, 700.0)]
        simulate(jobs, TWO_A800, pollux(seed=3), journal=Journals(audit, journal), costs=costs, faults=faults)
        assert set(audit.over) == {job.id for job in jobs}
    assert journals[0].entries == journals[1].entries
    again = Scheduler(TWO_A800, pollux(seed=3))
    for entry in journals[0].entries:
        assert again.step(entry.now, entry.events).orders == entry.orders


@pytest.mark.parametrize(("age", "restarts", "factor"), [(90.0, 1, 0.5), (30.0, 0, 0.5), (50.0, 2, 0.0), (0.0, 0, 0.0)])
def test_the_young_and_the_often_restarted_lose_most_by_a_change(age: float, restarts: int, factor: float) -> None:
    assert restart_factor(age, restarts, 30.0) == factor


def puzzle(present: list[list[int]], gpus: int = 4, **given: object) -> DivisionProblem:
    """Jobs that are as many times as fast as they have GPUs, on nodes of so many."""
    now = np.array(present, dtype=np.int64)
    jobs, nodes = now.shape
    total = nodes * gpus
    every_size = np.arange(1, total + 1, dtype=np.int64)[None]
    asked = DivisionProblem(
        kind=np.zeros(jobs, dtype=np.int64),
        most=np.full(jobs, total, dtype=np.int64),
        choices=np.full(jobs, total, dtype=np.int64),
        room=np.full((jobs, nodes), gpus, dtype=np.int64),
        need=np.tile(np.array([1, 0, 0], dtype=np.int64), (jobs, 1)),
        limit=np.tile(np.array([gpus, 1, 1], dtype=np.int64), (nodes, 1)),
        type_of=np.zeros(nodes, dtype=np.int64),
        crowded=np.zeros(nodes, dtype=np.bool_),
        sizes=every_size,
        size_below=np.concatenate([np.zeros((1, 1), dtype=np.int64), every_size], axis=1),
        speed=np.tile(np.arange(total + 1, dtype=np.float64), (1, 1, nodes + 1, 1)),
        fair=np.ones(jobs),
        present=now,
        runs=now.sum(axis=1) > 0,
        restart=np.full(jobs, 0.5),
        least=0.01,
        power=-1.0,
    )
    return asked._replace(**given)  # type: ignore[arg-type]


def repaired(asked: DivisionProblem, state: list[list[int]], favoured: list[bool], seed: int) -> list[list[int]]:
    division = np.array(state, dtype=np.int64)
    repair(asked, division, np.array(favoured), np.random.default_rng(seed))
    return division.tolist()  # type: ignore[no-any-return]


def test_the_worth_of_a_division_is_the_harmonic_mean_of_the_speedups() -> None:
    assert fitness(puzzle([[4], [0]]), np.array([[4], [1]])) == pytest.approx(2 / (1 / 4 + 1 / 1))


def test_a_change_of_a_running_job_is_worth_less() -> None:
    # From 4 to 2 GPUs, halved for the restart: 1. The other starts on 2, which costs nothing.
    assert fitness(puzzle([[4], [0]]), np.array([[2], [2]])) == pytest.approx(2 / (1 / 1 + 1 / 2))


def test_a_job_without_gpus_counts_with_the_least_speedup() -> None:
    assert fitness(puzzle([[1], [0]]), np.array([[1], [0]])) == pytest.approx(2 / (1 / 1 + 1 / 0.01))


@pytest.mark.parametrize("seed", range(5))
def test_repair_leaves_at_most_one_distributed_job_on_a_node(seed: int) -> None:
    asked = puzzle([[0, 0], [0, 0]])
    # Off the first node, the job that is not favoured is on one node alone, where there is room for both.
    assert repaired(asked, [[2, 2], [2, 2]], [True, False], seed) == [[2, 2], [0, 2]]
    assert repaired(asked, [[2, 2], [2, 2]], [False, False], seed) in ([[2, 2], [0, 2]], [[0, 2], [2, 2]])


def test_repair_keeps_distributed_jobs_from_nodes_that_have_one_already() -> None:
    asked = puzzle([[0, 0]], crowded=np.array([True, False]))
    assert repaired(asked, [[2, 2]], [True], 0) == [[0, 2]]
    assert repaired(asked, [[3, 0]], [True], 0) == [[3, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_repair_takes_what_a_node_does_not_have_from_jobs_that_are_not_favoured(seed: int) -> None:
    assert repaired(puzzle([[0], [0]]), [[3], [3]], [True, False], seed) == [[3], [1]]


def test_repair_counts_cpus() -> None:
    need = np.array([[1, 1000, 0]], dtype=np.int64)
    limit = np.array([[4, 2500, 0]], dtype=np.int64)
    assert repaired(puzzle([[0]], need=need, limit=limit), [[4]], [False], 0) == [[2]]


def test_repair_rounds_down_to_a_size_that_the_job_can_have() -> None:
    below = np.array([[0, 0, 2, 2, 4, 4, 4, 4, 8]], dtype=np.int64)
    assert repaired(puzzle([[0, 0]], size_below=below), [[4, 3]], [False], 0) == [[4, 0]]
    assert repaired(puzzle([[0, 0]], size_below=below), [[1, 0]], [False], 0) == [[0, 0]]


def test_the_search_never_ends_below_where_it_began() -> None:
    asked = puzzle([[4, 0], [0, 4], [0, 0]])
    found = evolve(asked, 20, 20, np.random.default_rng(1))
    assert fitness(asked, found) >= fitness(asked, asked.present)
    assert found.sum(axis=1).min() > 0, "a third job gets GPUs of one of the two that had them all"
    assert found.sum(axis=0).tolist() == [4, 4]


def test_settings_that_make_no_sense_are_refused() -> None:
    for settings in ({"population": 1}, {"round_seconds": 0.0}, {"power": 0.0}, {"growth": 0.5}):
        with pytest.raises(BadValue):
            Pollux(**settings)
