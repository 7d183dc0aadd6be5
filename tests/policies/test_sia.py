"""Sia: the contract, its integer linear program, and rounds worked out by hand."""

from types import SimpleNamespace

import pytest

from refold.core import Journals, ListJournal, Policy
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Demand, Job, Plan
from refold.planning.plans.speeds import CATALOGUE_ONLY, Knowledge, Speeds
from refold.policies.common.options import Option
from refold.policies.common.rounds import GpuBudget
from refold.policies.published import sia
from refold.policies.published.replicas import Replicas
from refold.policies.published.sia import JobRow, Sia
from refold.simulator import Costs, Fault, simulate
from refold.testing import Audit, PolicyContract, make_cluster, make_job

LIMITS = {"mip_rel_gap": 1e-4, "node_limit": 100}
A800 = make_cluster(8, 8, types="A800-80GB", cpus=96, memory_gib=1600)


class TestContract(PolicyContract):
    def make_policy(self) -> Policy:
        return Sia()


class TestContractWithShortRounds(PolicyContract):
    seeds = range(2)

    def make_policy(self) -> Policy:
        return Sia(round_seconds=25.0, restart_seconds=5.0)


def starts(
    jobs: list[Job], cluster: Cluster, policy: Policy, costs: Costs | None = None
) -> list[tuple[float, str, tuple[int, ...]]]:
    """Return the time, job and GPUs per node of every start."""
    audit, journal = Audit(cluster), ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(audit, journal), costs=costs or Costs())
    return [
        (entry.now, order.job, order.allocation.gpus_on_node)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    ]


def option(gpus: int, speed: float, *types: str) -> Option:
    return Option(gpus, Demand(1, gpus, gpu_types=types or ("A100",)), None, speed)


SCALES = (option(1, 10.0), option(2, 18.0), option(4, 30.0))


# The integer linear program.


def test_the_cost_is_goodput_relative_to_the_smallest_option_raised_to_the_power() -> None:
    # 1, 1.8, 3 to the power -0.5
    assert sia.costs([JobRow(SCALES, -1, 1.0)], -0.5).tolist() == [1.0, 0.75, 0.58]


def test_the_smallest_goodput_is_the_number_of_gpus() -> None:
    # 4 and 7.2 to the power -0.5
    assert sia.costs([JobRow((option(4, 10.0), option(8, 18.0)), -1, 1.0)], -0.5).tolist() == [0.5, 0.37]


def test_the_restart_factor_reduces_the_goodput_of_other_options() -> None:
    # 0.5, 1.8, 1.5 to the power -0.5: only the current option has its full goodput
    assert sia.costs([JobRow(SCALES, 1, 0.5)], -0.5).tolist() == [1.41, 0.75, 0.82]
    assert sia.costs([JobRow(SCALES, 1, 0.0)], -0.5).tolist() == [3000.0, 0.75, 3000.0]


@pytest.mark.parametrize(
    ("rows", "gpus", "expected"),
    [
        ([JobRow(SCALES, -1, 1.0)], 4, [2]),
        # 0.75 + 0.75 is less than 0.58 + 1.1 with all GPUs for one job, or 1.0 + 0.75 with three GPUs
        ([JobRow(SCALES, -1, 1.0)] * 2, 4, [1, 1]),
        # ties: the first job in the list goes first
        ([JobRow((option(1, 1.0),), -1, 1.0)] * 3, 2, [0, 0, -1]),
        # 0.71 + 0.71 + 1.1 is less than 0.5 + 1.1 + 1.1
        ([JobRow((option(4, 1.0),), -1, 1.0), *[JobRow((option(2, 1.0),), -1, 1.0)] * 2], 4, [-1, 0, 0]),
        # 0.5 + 4 · 1.1 is less than 4 · 1.0 + 1.1
        ([JobRow((option(4, 1.0),), -1, 1.0), *[JobRow((option(1, 1.0),), -1, 1.0)] * 4], 4, [0, -1, -1, -1, -1]),
        ([], 4, []),
    ],
)
def test_the_program_minimises_the_cost(rows: list[JobRow], gpus: int, expected: list[int]) -> None:
    assert sia.solve(rows, GpuBudget({"A100": gpus * 1000}), -0.5, 1.1, LIMITS) == expected


def test_the_faster_type_goes_to_the_job_that_gains_more() -> None:
    hardly = JobRow((option(1, 1.0, "A100"), option(1, 1.1, "H100")), -1, 1.0)
    much = JobRow((option(1, 1.0, "A100"), option(1, 4.0, "H100")), -1, 1.0)
    assert sia.solve([hardly, much], GpuBudget({"A100": 1000, "H100": 1000}), -0.5, 1.1, LIMITS) == [0, 1]


def test_an_option_of_several_types_counts_against_the_total() -> None:
    either = JobRow((option(2, 1.0, "A100", "H100"),), -1, 1.0)
    assert sia.solve([either], GpuBudget({"A100": 1000, "H100": 1000}), -0.5, 1.1, LIMITS) == [0]
    assert sia.solve([either], GpuBudget({"A100": 1000, "H100": 0}), -0.5, 1.1, LIMITS) == [-1]


def test_all_jobs_keep_their_options_if_the_solver_finds_no_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: SimpleNamespace(x=None))
    rows = [JobRow(SCALES, 1, 1.0), JobRow(SCALES, -1, 1.0)]
    assert sia.solve(rows, GpuBudget({"A100": 4000}), -0.5, 1.1, LIMITS) == [1, -1]


# Options.


def gpus_of(job: Job, max_gpus: int = 1000, knowledge: Knowledge = CATALOGUE_ONLY) -> list[int]:
    return [
        option.gpus
        for option in Replicas(Speeds(A800, knowledge), knowledge, powers_of_two=True).for_job(job, max_gpus)
    ]


def test_options_are_powers_of_two_within_a_node_and_whole_nodes_beyond() -> None:
    assert gpus_of(make_job(gpus=4, workload="bert", reshapable=True)) == [1, 2, 4, 8, 16]
    assert gpus_of(make_job(gpus=4, workload="bert", reshapable=True), max_gpus=4) == [1, 2, 4]
    assert gpus_of(make_job(gpus=4, workload="bert", reshapable=True), max_gpus=0) == [1]


def test_a_plan_that_cannot_be_scaled_keeps_its_request() -> None:
    plan = Plan(tensor=5)
    job = make_job(gpus=5, workload="gpt2", reshapable=True, plan=plan)
    options = Replicas(Speeds(A800), CATALOGUE_ONLY, powers_of_two=True).for_job(job, 1000)
    assert [(option.gpus, option.plan) for option in options] == [(5, plan)]


def test_3d_parallel_plans_scale_their_replicas() -> None:
    plan = Plan(data=2, tensor=4, pipeline=2)
    job = make_job(instances=2, gpus=8, workload="llama7", reshapable=True, plan=plan)
    options = Replicas(Speeds(A800), CATALOGUE_ONLY, powers_of_two=True).for_job(job, 1000)
    assert [(option.gpus, str(option.plan)) for option in options] == [(8, "DP1 TP4 PP2"), (16, "DP2 TP4 PP2")]


def test_fewer_replicas_must_fit_in_memory_or_be_listed_as_measured() -> None:
    plan = Plan(data=8, zero=2, offload=True)
    job = make_job(gpus=8, workload="llama7", reshapable=True, plan=plan)
    assert gpus_of(job) == [2, 4, 8]
    known_to_run = Knowledge(menu={"llama7": (Plan(data=1, zero=2, offload=True),)})
    assert gpus_of(job, knowledge=known_to_run) == [1, 2, 4, 8]


@pytest.mark.parametrize("rigid", [{"reshapable": False}, {"preemptible": False}, {"share": 0.5}, {"workload": ""}])
def test_a_job_that_cannot_be_scaled_has_its_request_only(rigid: dict[str, object]) -> None:
    kind = {"workload": "bert", "reshapable": True} | rigid
    assert gpus_of(make_job(gpus=4, **kind)) == [4]  # type: ignore[arg-type]


# Rounds.


def test_a_job_starts_small_and_doubles_every_round_while_that_is_faster() -> None:
    job = make_job("bert", gpus=4, workload="bert", reshapable=True, work=2000)
    assert starts([job], A800, Sia(restart_seconds=0)) == [
        (0, "bert", (1,)),
        (60, "bert", (2,)),
        (120, "bert", (4,)),
        (180, "bert", (8,)),
    ]


def test_the_restart_factor_delays_further_growth() -> None:
    # Speeds on 1, 2, 4, 8 GPUs are 1, 1.85, 3.20, 5.05. At 60 s the job is younger than a restart, so r = 1. Then
    # r = (T - 78 N) / (T + 78): it grows to 4 GPUs at 300 s, where 3.20 · 222/378 exceeds 1.85 (not yet at 240 s), and
    # to 8 at 600 s, where 5.05 · 444/678 exceeds 3.20 (at 540 s by less than the rounding of costs).
    job = make_job("bert", gpus=4, workload="bert", reshapable=True, work=2000)
    assert starts([job], A800, Sia(), Costs(restart=78.0)) == [
        (0, "bert", (1,)),
        (60, "bert", (2,)),
        (300, "bert", (4,)),
        (600, "bert", (8,)),
    ]


def test_a_job_that_fits_starts_between_rounds() -> None:
    jobs = [make_job("first", work=500), make_job("second", at=10, work=500)]
    assert starts(jobs, make_cluster(2), Sia()) == [(0, "first", (1,)), (10, "second", (1,))]


def test_a_wide_job_is_preempted_by_two_jobs_with_a_lower_total_cost() -> None:
    jobs = [make_job("wide", gpus=4, work=1000), make_job("a", at=100, gpus=2, work=50)]
    jobs.append(make_job("b", at=100, gpus=2, work=50))
    expected = [(0, "wide", (4,)), (100, "a", (2,)), (100, "b", (2,)), (150, "wide", (4,))]
    assert starts(jobs, make_cluster(4), Sia()) == expected


def test_a_wide_job_that_is_not_preemptible_keeps_running() -> None:
    jobs = [make_job("wide", gpus=4, work=1000, preemptible=False), make_job("a", at=100, gpus=2, work=50)]
    jobs.append(make_job("b", at=100, gpus=2, work=50))
    assert starts(jobs, make_cluster(4), Sia()) == [(0, "wide", (4,)), (1000, "a", (2,)), (1000, "b", (2,))]


def test_runs_are_consolidated_to_free_a_whole_node() -> None:
    movable = {"gpus": 2, "reshapable": True}
    jobs = [
        make_job("a", work=1000, **movable),  # type: ignore[arg-type]
        make_job("a-short", gpus=2, work=30),
        make_job("b", work=1000, **movable),  # type: ignore[arg-type]
        make_job("b-short", gpus=2, work=30),
        make_job("wide", at=40, gpus=4, work=100),
    ]
    found = starts(jobs, make_cluster(4, 4), Sia(restart_seconds=0))
    assert [start for start in found if start[0] > 0] == [(60, "a", (2,)), (60, "wide", (4,))]


def test_a_job_on_a_failed_node_resumes_elsewhere() -> None:
    cluster, audit = make_cluster(8, 8, types="A800-80GB"), Audit(make_cluster(8, 8, types="A800-80GB"))
    job = make_job("bert", gpus=8, workload="bert", reshapable=True, work=5000)
    simulate([job], cluster, Sia(), journal=audit, costs=Costs(checkpoint_every=60), faults=[Fault(0, 500, 900)])
    assert audit.ended == {"bert": "finished"}


def test_no_wake_up_is_requested_if_no_allocation_could_change() -> None:
    journal = ListJournal()
    simulate([make_job("only", gpus=2, work=1000)], make_cluster(4), Sia(), journal=journal)
    assert [entry.now for entry in journal.entries if entry.wake_at is not None] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"fairness_power": 0.5},
        {"queue_penalty": 1.0},
        {"round_seconds": 0},
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, float]) -> None:
    with pytest.raises(BadValue):
        Sia(**settings)  # type: ignore[arg-type]
