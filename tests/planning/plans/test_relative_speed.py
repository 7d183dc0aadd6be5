"""Speeds relative to the request, minimum demands against brute force, and the machines that speeds are modelled on."""

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from refold.errors import BadValue
from refold.model import Allocation, Demand, Job, Link, Node, Plan, Share
from refold.planning.catalogue import GENERAL_ENGINE, find_engine, find_gpu, find_model
from refold.planning.perf import Machines, TrainingSetup, estimate
from refold.planning.plans import (
    Knowledge,
    Minimums,
    ModelledSpeedSource,
    PackedMachines,
    Pins,
    PlanLimits,
    Speeds,
    best_plan,
)
from refold.testing import make_cluster, make_job

GPU = "A800-80GB"
CLUSTER = make_cluster(8, 8, types=GPU)


def training_job(gpus: int = 8, **changes: Any) -> Job:
    return make_job("a", gpus=gpus, **{"reshapable": True, "workload": "gpt2", **changes})


def on(*layout: int, plan: Plan | None = None) -> Allocation:
    return Allocation(tuple(Share(node, tuple(range(gpus))) for node, gpus in enumerate(layout)), plan)


class TestModelledSpeedSource:
    SPEEDS = Speeds(CLUSTER)
    SOURCE = ModelledSpeedSource(SPEEDS)

    def test_a_job_on_its_request_has_speed_one(self) -> None:
        assert self.SOURCE.speed(training_job(), on(8)) == pytest.approx(1.0)
        assert self.SOURCE.speed(training_job(4, instances=2), on(4, 4)) == pytest.approx(1.0)

    def test_other_allocations_are_compared_by_their_step_times(self) -> None:
        job = training_job()
        requested = self.SPEEDS.requested_speed(job).steps_per_second
        for layout, plan in (((4,), Plan(4)), ((8, 8), Plan(16)), ((8,), Plan(4, 2))):
            found = self.SPEEDS.with_plan(job, GPU, layout, 0.0, plan).steps_per_second
            assert self.SOURCE.speed(job, on(*layout, plan=plan)) == pytest.approx(found / requested)

    def test_without_a_plan_the_own_plan_is_used(self) -> None:
        job = training_job(plan=Plan(4, 2))
        assert self.SOURCE.speed(job, on(8)) == self.SOURCE.speed(job, on(8, plan=Plan(4, 2))) == pytest.approx(1.0)
        assert self.SOURCE.speed(job, on(8, plan=Plan(8))) != pytest.approx(1.0)

    def test_jobs_that_cannot_be_modelled_run_in_proportion_to_their_gpus(self) -> None:
        unknown = training_job(workload="own")
        assert [self.SOURCE.speed(unknown, on(gpus)) for gpus in (2, 4, 8)] == [0.25, 0.5, 1.0]
        fixed = training_job(workload="own", reshapable=False)
        assert self.SOURCE.speed(fixed, on(2)) == 1.0
        assert self.SOURCE.speed(training_job(0, cpus=1), on(1)) == 1.0

    def test_an_unknown_gpu_type_is_modelled_as_a_known_one(self) -> None:
        mixed = make_cluster(8, 8, types=["homemade", GPU])
        source = ModelledSpeedSource(Speeds(mixed))
        assert source.speed(training_job(), on(8)) == pytest.approx(1.0)


class ByTable:
    """Speeds by the total number of GPUs."""

    def __init__(self, speed_of: dict[int, float]) -> None:
        self._speed_of = speed_of

    def speed(self, job: Job, allocation: Allocation) -> float:
        return self._speed_of[allocation.gpu_milli // 1000]


class TestMinimums:
    @pytest.mark.parametrize(
        ("speeds", "minimum"),
        [
            (dict.fromkeys(range(1, 8), 0.5), 8),  # nothing less is as fast: the request itself
            (dict.fromkeys(range(1, 8), 1.0), 1),
            ({gpus: 1.0 if gpus == 4 else 0.9 for gpus in range(1, 8)}, 4),
            ({gpus: 1.0 - 1e-12 if gpus >= 2 else 0.9 for gpus in range(1, 8)}, 2),  # rounding errors
            (dict.fromkeys(range(1, 8), 1.0 - 1e-06), 8),
        ],
    )
    def test_the_minimum_is_the_fewest_gpus_that_are_as_fast(self, speeds: dict[int, float], minimum: int) -> None:
        found = Minimums(Speeds(CLUSTER), ByTable(speeds)).for_job(training_job(cpus=16))
        assert found.total_gpus == minimum
        assert found.cpu_milli == 2000 * minimum  # CPUs in proportion

    @settings(max_examples=15)
    @given(st.lists(st.sampled_from([0.5, 0.99, 1.0, 1.2]), min_size=15, max_size=15))
    def test_minimums_equal_those_of_all_numbers_of_gpus(self, table: list[float]) -> None:
        """Sixteen GPUs on two nodes: every number that splits evenly over one or two nodes, and has a plan."""
        speeds = Speeds(CLUSTER)
        job = training_job(8, instances=2)
        fast = [
            gpus
            for gpus, nodes in product(range(1, 16), (1, 2))
            if gpus % nodes == 0
            and gpus // nodes <= 8
            and table[gpus - 1] >= 1.0
            and speeds.fastest(job, GPU, (gpus // nodes,) * nodes, 0.0) is not None
        ]
        found = Minimums(speeds, ByTable(dict(enumerate(table, 1)))).for_job(job)
        assert found.total_gpus == min(fast, default=16)

    def test_jobs_that_cannot_be_modelled_need_what_they_request(self) -> None:
        job = training_job(workload="own", cpus=3)
        assert Minimums(Speeds(CLUSTER), ByTable({})).for_job(job) == job.demand

    def test_minimums_of_different_jobs_do_not_mix(self) -> None:
        minimums = Minimums(Speeds(CLUSTER), ByTable({gpus: 1.0 if gpus >= 4 else 0.5 for gpus in range(1, 8)}))
        assert minimums.for_job(training_job(8)) == Demand(1, 4, gpu_types=(GPU,))
        assert minimums.for_job(training_job(2)) == Demand(1, 2)
        assert minimums.for_job(training_job(8, workload="bert")) == Demand(1, 4, gpu_types=(GPU,))
        assert minimums.for_job(training_job(8)) == Demand(1, 4, gpu_types=(GPU,))


class TestMachinesOfSpeeds:
    """A speed is that of the estimate on machines as the cluster describes them."""

    JOB = training_job(plan=Plan(8))

    def expected(self, layout: tuple[int, ...], inside: Link, network: Link, **more: Any) -> float:
        gpu, model = find_gpu(GPU), find_model("gpt2")
        machines = Machines(gpu, layout, inside, network, **more)
        setup = TrainingSetup(model, machines, find_engine(GENERAL_ENGINE), model.batch, model.sequence)
        return 1 / estimate(setup, Plan(sum(layout))).step_seconds

    def test_links_default_to_those_of_the_gpu_type(self) -> None:
        gpu = find_gpu(GPU)
        found = Speeds(CLUSTER).with_plan(self.JOB, GPU, (4, 4), 0.0, Plan(8)).steps_per_second
        network = Link("network", gpu.node_network_gigabytes_per_second)
        assert found == pytest.approx(self.expected((4, 4), gpu.link, network))

    def test_links_of_the_cluster_are_used_if_it_describes_them(self) -> None:
        inside, network = Link("nvlink", 50.0), Link("ethernet", 3.0)
        nodes = tuple(Node(f"n{index}", 8, GPU, inside=inside) for index in range(2))
        cluster = msgspec.structs.replace(CLUSTER, nodes=nodes, network=network)
        found = Speeds(cluster).with_plan(self.JOB, GPU, (4, 4), 0.0, Plan(8)).steps_per_second
        assert found == pytest.approx(self.expected((4, 4), inside, network))

    @pytest.mark.parametrize(("memory_known", "fits"), [(True, False), (False, True)])
    def test_offload_is_limited_by_the_memory_of_the_nodes_if_it_is_known(self, memory_known: bool, fits: bool) -> None:
        small = make_cluster(8, 8, types=GPU, memory_gib=1)
        cluster = msgspec.structs.replace(small, memory_known=memory_known)
        plan = Plan(8, zero=2, offload=True)
        assert Speeds(cluster).with_plan(self.JOB, GPU, (8,), 8.0, plan).fits is fits

    def test_speeds_of_different_workloads_do_not_mix(self) -> None:
        shared = Speeds(CLUSTER)
        jobs = [training_job(workload=name, batch=batch) for name in ("gpt2", "bert") for batch in (16, 32)]
        together = [shared.fastest(job, GPU, (8,), 64.0) for job in jobs + jobs]
        alone = [Speeds(CLUSTER).fastest(job, GPU, (8,), 64.0) for job in jobs]
        assert together == alone + alone
        assert len(set(alone)) == 4

    def test_limits_of_the_knowledge_apply_to_the_search(self) -> None:
        limited = Speeds(CLUSTER, Knowledge(limits=PlanLimits(pinned=Pins(data=2, pipeline=4))))
        found = limited.fastest(training_job(), GPU, (8,), 0.0)
        assert found is not None
        assert (found.plan.data, found.plan.tensor, found.plan.pipeline) == (2, 1, 4)
        assert limited.fastest(training_job(), GPU, (4,), 0.0) is None


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        (PlanLimits(max_tensor=2), lambda plan: plan.tensor <= 2),
        (PlanLimits(zero=(0, 1)), lambda plan: plan.zero <= 1),
        (PlanLimits(offload=False), lambda plan: not plan.offload),
        (PlanLimits(recompute=("full",)), lambda plan: plan.recompute == "full"),
        (PlanLimits(max_interleave=1), lambda plan: plan.interleave == 1),
        (PlanLimits(pinned=Pins(pipeline=4)), lambda plan: plan.pipeline == 4),
    ],
)
@pytest.mark.parametrize("gpus", [4, 8])
def test_the_best_plan_obeys_limits_and_is_never_better_than_without(
    limits: PlanLimits, allowed: Any, gpus: int
) -> None:
    model, gpu = find_model("llama-2-7b"), find_gpu(GPU)
    machines = PackedMachines(gpu, cpus_per_gpu=8.0)(gpus)
    setup = TrainingSetup(model, machines, find_engine(GENERAL_ENGINE), 64, 2048)
    free, limited = best_plan(setup), best_plan(setup, limits)
    assert free is not None
    assert limited is not None
    assert allowed(limited.plan)
    assert limited.step_seconds >= free.step_seconds / 1.01  # the simplest of plans within 1 % is best


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: PlanLimits(max_tensor=0),
            "max_tensor is 0, expected at least 1, which disables it",
        ),
        (
            lambda: PlanLimits(max_interleave=0),
            "max_interleave is 0, expected at least 1, which disables it",
        ),
        (lambda: PlanLimits(zero=()), "zero, recompute and sequence_parallel must each allow at least one choice"),
        (
            lambda: PlanLimits(recompute=()),
            "zero, recompute and sequence_parallel must each allow at least one choice",
        ),
        (lambda: PlanLimits(zero=(0, 4)), "zero is (0, 4), expected stages from 0 to 3"),
        (
            lambda: Pins(data=0),
            "plan has data 0, expected every degree to be at least 1 and at most 1048576",
        ),
        (lambda: Pins(zero=4), "zero is 4, expected ZeRO stages 0 to 3"),
    ],
)
def test_invalid_limits_are_rejected_with_what_would_work(build: Any, message: str) -> None:
    with pytest.raises(BadValue) as raised:
        build()
    assert str(raised.value) == message


def test_the_simplest_plan_within_limits_has_the_pins_and_the_first_choices() -> None:
    limits = PlanLimits(zero=(3, 1), recompute=("full", "selective"), pinned=Pins(data=2, offload=True))
    assert limits.simplest() == Plan(2, zero=1, offload=True, recompute="selective")
    assert PlanLimits().simplest() == Plan()
