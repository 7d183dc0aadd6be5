"""Sia keeps the contract, and shares out as its integer programme says."""

from types import SimpleNamespace

import pytest

from refold.core import Journals, ListJournal, Policy
from refold.core.orders import StartRun
from refold.errors import BadValue
from refold.model import Cluster, Demand, Job, Plan
from refold.plans.speeds import NOTHING_MORE, Knowledge, Speeds
from refold.policies.common.options import Option
from refold.policies.common.rounds import Budget
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
    """When which job was started, with how many GPUs on each node."""
    audit, journal = Audit(cluster), ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(audit, journal), costs=costs or Costs())
    return [
        (entry.now, order.job, order.allocation.gpus_on_node)
        for entry in journal.entries
        for order in entry.orders
        if isinstance(order, StartRun)
    ]


def share(gpus: int, speed: float, *types: str) -> Option:
    return Option(gpus, Demand(1, gpus, gpu_types=types or ("A100",)), None, speed)


SCALES = (share(1, 10.0), share(2, 18.0), share(4, 30.0))


# The programme.


def test_goodput_counts_from_the_smallest_share_and_is_raised_to_the_power() -> None:
    # 1, 1.8, 3 to the power -0.5
    assert sia.costs([JobRow(SCALES, -1, 1.0)], -0.5).tolist() == [1.0, 0.75, 0.58]


def test_the_smallest_share_counts_as_the_gpus_it_takes() -> None:
    # 4 and 7.2 to the power -0.5
    assert sia.costs([JobRow((share(4, 10.0), share(8, 18.0)), -1, 1.0)], -0.5).tolist() == [0.5, 0.37]


def test_a_change_is_charged_with_the_restart_factor() -> None:
    # 0.5, 1.8, 1.5 to the power -0.5: only what is held counts in full
    assert sia.costs([JobRow(SCALES, 1, 0.5)], -0.5).tolist() == [1.41, 0.75, 0.82]
    assert sia.costs([JobRow(SCALES, 1, 0.0)], -0.5).tolist() == [3000.0, 0.75, 3000.0]


@pytest.mark.parametrize(
    ("rows", "gpus", "expected"),
    [
        ([JobRow(SCALES, -1, 1.0)], 4, [2]),
        # 0.75 + 0.75 is less than 0.58 + 1.1 for one that gets all, or 1.0 + 0.75 for three GPUs
        ([JobRow(SCALES, -1, 1.0)] * 2, 4, [1, 1]),
        # who comes first in the list goes first
        ([JobRow((share(1, 1.0),), -1, 1.0)] * 3, 2, [0, 0, -1]),
        # 0.71 + 0.71 + 1.1 is less than 0.5 + 1.1 + 1.1
        ([JobRow((share(4, 1.0),), -1, 1.0), *[JobRow((share(2, 1.0),), -1, 1.0)] * 2], 4, [-1, 0, 0]),
        # 0.5 + 4 · 1.1 is less than 4 · 1.0 + 1.1
        ([JobRow((share(4, 1.0),), -1, 1.0), *[JobRow((share(1, 1.0),), -1, 1.0)] * 4], 4, [0, -1, -1, -1, -1]),
        ([], 4, []),
    ],
)
def test_the_programme_finds_the_least_cost(rows: list[JobRow], gpus: int, expected: list[int]) -> None:
    assert sia.solved(rows, Budget({"A100": gpus * 1000}), -0.5, 1.1, LIMITS) == expected


def test_the_better_type_goes_to_whom_it_helps_more() -> None:
    hardly = JobRow((share(1, 1.0, "A100"), share(1, 1.1, "H100")), -1, 1.0)
    much = JobRow((share(1, 1.0, "A100"), share(1, 4.0, "H100")), -1, 1.0)
    assert sia.solved([hardly, much], Budget({"A100": 1000, "H100": 1000}), -0.5, 1.1, LIMITS) == [0, 1]


def test_a_share_of_several_types_counts_against_all_gpus() -> None:
    either = JobRow((share(2, 1.0, "A100", "H100"),), -1, 1.0)
    assert sia.solved([either], Budget({"A100": 1000, "H100": 1000}), -0.5, 1.1, LIMITS) == [0]
    assert sia.solved([either], Budget({"A100": 1000, "H100": 0}), -0.5, 1.1, LIMITS) == [-1]


def test_everybody_keeps_what_they_have_if_the_solver_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sia, "milp", lambda *_, **__: SimpleNamespace(x=None))
    rows = [JobRow(SCALES, 1, 1.0), JobRow(SCALES, -1, 1.0)]
    assert sia.solved(rows, Budget({"A100": 4000}), -0.5, 1.1, LIMITS) == [1, -1]


# Shapes.


def gpus_of(job: Job, most: int = 1000, knowledge: Knowledge = NOTHING_MORE) -> list[int]:
    return [option.gpus for option in Replicas(Speeds(A800, knowledge), knowledge, powers_of_two=True).of(job, most)]


def test_replicas_are_powers_of_two_inside_a_node_and_whole_nodes_beyond() -> None:
    assert gpus_of(make_job(gpus=4, workload="bert", reshapable=True)) == [1, 2, 4, 8, 16]
    assert gpus_of(make_job(gpus=4, workload="bert", reshapable=True), most=4) == [1, 2, 4]
    assert gpus_of(make_job(gpus=4, workload="bert", reshapable=True), most=0) == [1]


def test_a_plan_that_cannot_have_other_replicas_is_kept_as_it_was_asked_for() -> None:
    plan = Plan(tensor=5)
    job = make_job(gpus=5, workload="gpt2", reshapable=True, plan=plan)
    options = Replicas(Speeds(A800), NOTHING_MORE, powers_of_two=True).of(job, 1000)
    assert [(option.gpus, option.plan) for option in options] == [(5, plan)]


def test_three_dimensional_plans_scale_their_replicas() -> None:
    plan = Plan(data=2, tensor=4, pipeline=2)
    job = make_job(instances=2, gpus=8, workload="llama7", reshapable=True, plan=plan)
    options = Replicas(Speeds(A800), NOTHING_MORE, powers_of_two=True).of(job, 1000)
    assert [(option.gpus, str(option.plan)) for option in options] == [(8, "DP1 TP4 PP2"), (16, "DP2 TP4 PP2")]


def test_fewer_replicas_have_to_fit_into_memory_or_be_known_to() -> None:
    plan = Plan(data=8, zero=2, offload=True)
    job = make_job(gpus=8, workload="llama7", reshapable=True, plan=plan)
    assert gpus_of(job) == [2, 4, 8]
    known_to_run = Knowledge(menu={"llama7": (Plan(data=1, zero=2, offload=True),)})
    assert gpus_of(job, knowledge=known_to_run) == [1, 2, 4, 8]


@pytest.mark.parametrize("rigid", [{"reshapable": False}, {"preemptible": False}, {"share": 0.5}, {"workload": ""}])
def test_who_cannot_be_changed_has_what_was_asked_for(rigid: dict[str, object]) -> None:
    kind = {"workload": "bert", "reshapable": True} | rigid
    assert gpus_of(make_job(gpus=4, **kind)) == [4]  # type: ignore[arg-type]


# Rounds.


def test_a_job_begins_small_and_doubles_once_a_round_while_that_is_faster() -> None:
    job = make_job("bert", gpus=4, workload="bert", reshapable=True, work=2000)
    assert starts([job], A800, Sia(restart_seconds=0)) == [
        (0, "bert", (1,)),
        (60, "bert", (2,)),
        (120, "bert", (4,)),
        (180, "bert", (8,)),
    ]


def test_restarts_that_have_cost_much_are_not_repeated_soon() -> None:
    # On 1, 2, 4, 8 GPUs it does 1, 1.85, 3.20, 5.05 times as much. At 60 it is younger than a restart is long. Then
    # r = (T - 78 N) / (T + 78): 4 GPUs are worth it at 300, where 3.20 · 222/378 is above 1.85 and was not at 240;
    # 8 at 600, where 5.05 · 444/678 is above 3.20 and was not, beyond hundredths of the cost, at 540.
    job = make_job("bert", gpus=4, workload="bert", reshapable=True, work=2000)
    assert starts([job], A800, Sia(), Costs(restart=78.0)) == [
        (0, "bert", (1,)),
        (60, "bert", (2,)),
        (300, "bert", (4,)),
        (600, "bert", (8,)),
    ]


def test_who_comes_between_rounds_and_fits_begins_at_once() -> None:
    jobs = [make_job("first", work=500), make_job("second", at=10, work=500)]
    assert starts(jobs, make_cluster(2), Sia()) == [(0, "first", (1,)), (10, "second", (1,))]


def test_a_wide_job_gives_way_to_two_that_are_worth_more_together() -> None:
    jobs = [make_job("wide", gpus=4, work=1000), make_job("a", at=100, gpus=2, work=50)]
    jobs.append(make_job("b", at=100, gpus=2, work=50))
    expected = [(0, "wide", (4,)), (100, "a", (2,)), (100, "b", (2,)), (150, "wide", (4,))]
    assert starts(jobs, make_cluster(4), Sia()) == expected


def test_a_wide_job_that_is_not_preemptible_does_not() -> None:
    jobs = [make_job("wide", gpus=4, work=1000, preemptible=False), make_job("a", at=100, gpus=2, work=50)]
    jobs.append(make_job("b", at=100, gpus=2, work=50))
    assert starts(jobs, make_cluster(4), Sia()) == [(0, "wide", (4,)), (1000, "a", (2,)), (1000, "b", (2,))]


def test_runs_are_moved_together_to_make_room_for_a_whole_node() -> None:
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


def test_a_job_on_a_lost_node_goes_on_elsewhere() -> None:
    cluster, audit = make_cluster(8, 8, types="A800-80GB"), Audit(make_cluster(8, 8, types="A800-80GB"))
    job = make_job("bert", gpus=8, workload="bert", reshapable=True, work=5000)
    simulate([job], cluster, Sia(), journal=audit, costs=Costs(checkpoint_every=60), faults=[Fault(0, 500, 900)])
    assert audit.over == {"bert": "finished"}


def test_nothing_is_woken_for_where_no_share_could_change() -> None:
    journal = ListJournal()
    simulate([make_job("only", gpus=2, work=1000)], make_cluster(4), Sia(), journal=journal)
    assert [entry.now for entry in journal.entries if entry.wake_at is not None] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"fairness_power": 0.5},
        {"queue_penalty": 1.0},
        {"growth": 1.0},
        {"gap": -1.0},
        {"nodes": 0},
        {"round_seconds": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadValue):
        Sia(**wrong)  # type: ignore[arg-type]
