"""Modelled speeds of jobs on layouts of a cluster."""

from typing import Any

import msgspec
import pytest

from refold.core import ListJournal
from refold.core.orders import StartRun
from refold.model import Job, Plan
from refold.planning.catalogue import find_model
from refold.planning.perf.fitting import Fitted
from refold.planning.perf.forms import CorrectedForm
from refold.planning.perf.measurement import Measurement
from refold.planning.plans.space import DEFAULT_LIMITS
from refold.planning.plans.speeds import (
    CATALOGUE_ONLY,
    Knowledge,
    Speed,
    Speeds,
)
from refold.planning.plans.workloads import requested_cpus, requested_layout, workload_kind
from refold.simulator import ModelledSpeeds, RecordedSpeeds, simulate
from refold.simulator.registry import make_policy
from refold.testing import make_cluster, make_job

GPU = "A800-80GB"
CLUSTER = make_cluster(8, 8, types=GPU, cpus=96, memory_gib=1600)
MIXED = make_cluster(8, 8, types=["A100-80GB", "H100-80GB"])


def modelled_job(workload: str = "gpt2", gpus: int = 8, **changes: Any) -> Job:
    fields: dict[str, Any] = {"id": workload or "job", "workload": workload, "reshapable": True}
    return make_job(gpus=gpus, **fields | changes)


class TestCanModel:
    def test_a_job_with_model_and_gpu_type_of_the_catalogue_is_modelled(self) -> None:
        assert Speeds(CLUSTER).can_model(modelled_job())
        assert Speeds(CLUSTER).types_for(modelled_job()) == [GPU]
        assert Speeds(MIXED).types_for(modelled_job()) == ["A100-80GB", "H100-80GB"]
        assert Speeds(MIXED).types_for(modelled_job(types=["H100-80GB"])) == ["H100-80GB"]

    @pytest.mark.parametrize(
        "other",
        [{"reshapable": False}, {"workload": ""}, {"workload": "own"}, {"share": 0.5}, {"gpus": 0}, {"types": ["T4"]}],
    )
    def test_other_jobs_are_not_modelled(self, other: dict[str, Any]) -> None:
        assert not Speeds(CLUSTER).can_model(modelled_job(**other))

    def test_jobs_on_unknown_gpus_are_not_modelled(self) -> None:
        assert not Speeds(make_cluster(8, types="own")).can_model(modelled_job())


class TestFastest:
    def test_the_best_plan_for_the_layout_is_used(self) -> None:
        speeds, job = Speeds(CLUSTER), modelled_job()
        best = speeds.fastest(job, GPU, (8,), 64.0)
        assert best is not None
        assert best.plan.gpus == 8
        assert best.fits
        for other in (Plan(8), Plan(4, 2), Plan(8, zero=3), Plan(tensor=8)):
            assert speeds.with_plan(job, GPU, (8,), 64.0, other).steps_per_second <= 1.0001 * best.steps_per_second

    def test_none_if_no_plan_fits(self) -> None:
        nothing_offloaded = Knowledge(limits=msgspec.structs.replace(DEFAULT_LIMITS, offload=False))
        assert Speeds(CLUSTER, nothing_offloaded).fastest(modelled_job("llama30"), GPU, (1,), 0.0) is None

    def test_only_plans_of_the_menu_are_chosen(self) -> None:
        menu = (Plan(4, 2), Plan(2, 4), Plan(4))
        speeds = Speeds(CLUSTER, Knowledge(menu={"gpt2": menu}))
        best = speeds.fastest(modelled_job(), GPU, (8,), 64.0)
        assert best is not None
        assert best.plan == Plan(4, 2)  # more tensor parallelism communicates more
        assert speeds.fastest(modelled_job(), GPU, (2,), 16.0) is None
        four = speeds.fastest(modelled_job(), GPU, (4,), 32.0)
        assert four is not None
        assert four.plan == Plan(4)

    def test_plans_of_the_menu_are_not_checked_for_memory(self) -> None:
        plan = Plan(data=8)
        speeds = Speeds(CLUSTER, Knowledge(menu={"llama30": (plan,)}))
        assert not speeds.with_plan(modelled_job("llama30"), GPU, (8,), 64.0, plan).fits
        best = speeds.fastest(modelled_job("llama30"), GPU, (8,), 64.0)
        assert best is not None
        assert best.plan == plan

    def test_several_nodes_are_slower_than_one(self) -> None:
        speeds = Speeds(CLUSTER)
        single = speeds.with_plan(modelled_job(), GPU, (8,), 64.0, Plan(tensor=8))
        two = speeds.with_plan(modelled_job(), GPU, (4, 4), 64.0, Plan(tensor=8))
        assert two.steps_per_second < 0.9 * single.steps_per_second

    def test_offload_needs_host_memory_and_is_faster_with_more_cpus(self) -> None:
        speeds, plan = Speeds(CLUSTER), Plan(8, zero=2, offload=True)
        few, many = (speeds.with_plan(modelled_job(), GPU, (8,), cpus, plan) for cpus in (8.0, 64.0))
        assert few.steps_per_second < many.steps_per_second
        assert few.host_mib > 1024
        assert speeds.with_plan(modelled_job(), GPU, (8,), 8.0, Plan(8)).host_mib == 0


def test_a_fit_corrects_only_its_model_and_gpu_type() -> None:
    corrections = {parameter.name: 1.0 for parameter in CorrectedForm.default_parameters} | {"compute": 1.5}
    fit = Fitted("corrected", find_model("gpt2").name, GPU, corrections, {}, (), (), ())
    plain, fitted = Speeds(CLUSTER), Speeds(CLUSTER, Knowledge((fit,)))
    assert (
        fitted.requested_speed(modelled_job()).steps_per_second
        < 0.75 * plain.requested_speed(modelled_job()).steps_per_second
    )
    assert fitted.requested_speed(modelled_job("bert")) == plain.requested_speed(modelled_job("bert"))
    other = Speeds(make_cluster(8, types="A100-80GB"), Knowledge((fit,)))
    assert other.requested_speed(modelled_job()) == Speeds(make_cluster(8, types="A100-80GB")).requested_speed(
        modelled_job()
    )


class TestScaled:
    def test_the_own_plan_is_scaled_by_replicas(self) -> None:
        speeds, job = Speeds(CLUSTER), modelled_job(plan=Plan(4, 2, zero=1))
        for gpus in (2, 4, 8, 16):
            layout = (gpus,) if gpus <= 8 else (8, 8)
            scaled = speeds.scaled(job, GPU, layout, 0.0)
            assert scaled is not None
            assert scaled.plan == Plan(gpus // 2, 2, zero=1)

    def test_none_if_the_replicas_do_not_divide(self) -> None:
        speeds, job = Speeds(CLUSTER), modelled_job(plan=Plan(4, 2))
        assert speeds.scaled(job, GPU, (1,), 0.0) is None
        assert speeds.scaled(job, GPU, (3,), 0.0) is None
        assert speeds.scaled(job, GPU, (6,), 0.0) is None  # a batch of 16 is not divisible by 3

    def test_accumulation_is_kept_while_the_batch_is_divisible(self) -> None:
        speeds, job = Speeds(CLUSTER), modelled_job(plan=Plan(2, accumulation=8), gpus=2)
        counts = [speeds.scaled(job, GPU, (gpus,), 0.0) for gpus in (1, 2, 4)]
        assert [speed.plan.accumulation for speed in counts if speed is not None] == [8, 8, 1]


class TestRequestedSpeed:
    def test_the_requested_speed_uses_the_own_plan_and_request(self) -> None:
        speeds, plan = Speeds(CLUSTER), Plan(8, zero=2, offload=True)
        job = modelled_job(plan=plan, cpus=16)
        assert speeds.requested_speed(job) == speeds.with_plan(job, GPU, (8,), 16.0, plan)

    def test_the_default_plan_is_data_parallelism(self) -> None:
        assert Speeds(CLUSTER).own_plan(modelled_job(gpus=4, instances=2)) == Plan(8)
        assert Speeds(CLUSTER).requested_speed(modelled_job()).plan == Plan(8)

    def test_the_slowest_accepted_gpu_type_counts(self) -> None:
        speeds = Speeds(MIXED)
        job = modelled_job(plan=Plan(8))
        speeds_by_type = [
            speeds.with_plan(job, name, (8,), 0.0, Plan(8)).steps_per_second for name in speeds.types_for(job)
        ]
        assert speeds.requested_speed(job).steps_per_second == min(speeds_by_type) < max(speeds_by_type)

    def test_layout_cpus_and_kind_of_a_job(self) -> None:
        job = modelled_job(gpus=4, instances=2, cpus=3, batch=64, sequence=512)
        assert (requested_layout(job), requested_cpus(job), tuple(workload_kind(job))) == (
            (4, 4),
            6.0,
            ("gpt2", 64, 512, None, None),
        )

    def test_the_batch_defaults_to_that_of_the_model(self) -> None:
        speeds = Speeds(CLUSTER)
        assert speeds.batch(modelled_job()) == find_model("gpt2").batch
        assert speeds.batch(modelled_job(batch=64)) == 64
        assert (
            speeds.requested_speed(modelled_job(batch=64)).steps_per_second
            < speeds.requested_speed(modelled_job()).steps_per_second
        )


def test_knowledge_round_trips_through_plain_values() -> None:
    knowledge = Knowledge(menu={"gpt2": (Plan(4, 2), Plan(8))})
    assert Knowledge.from_settings(msgspec.to_builtins(knowledge)) == knowledge
    assert Knowledge.from_settings({}) == CATALOGUE_ONLY
    assert Knowledge.from_settings(knowledge) is knowledge


class TestMeasuredSteps:
    """Workloads and devices that the catalogue does not have: their speed is what was measured."""

    SLOTS = make_cluster(4, types="slot")
    ROWS = (
        Measurement("own", "slot", (1,), Plan(), 12, 1, step_seconds=2.0),
        Measurement("own", "slot", (1,), Plan(), 12, 1, step_seconds=1.0),
        Measurement("own", "slot", (2,), Plan(tensor=2), 12, 1, step_seconds=0.7),
        Measurement("own", "slot", (2,), Plan(data=2), 12, 1, step_seconds=0.5),
        Measurement("own", "slot", (4,), Plan(data=4), 12, 1, step_seconds=0.4),
    )

    def speeds(self, rows: tuple[Measurement, ...] = ROWS) -> Speeds:
        return Speeds(self.SLOTS, Knowledge(measured=rows))

    def job(self, **changes: Any) -> Job:
        return modelled_job("own", gpus=1, batch=12, **changes)

    def test_a_measured_job_can_be_reshaped(self) -> None:
        speeds = self.speeds()
        assert speeds.can_model(self.job())
        assert speeds.types_for(self.job()) == ["slot"]
        assert speeds.batch(self.job()) == 12
        assert not speeds.can_model(modelled_job("own", gpus=1, batch=24))
        assert not speeds.can_model(modelled_job("other", gpus=1, batch=12))

    def test_the_fastest_measured_plan_is_chosen(self) -> None:
        assert self.speeds().fastest(self.job(), "slot", (2,), 0.0) == Speed(2.0, Plan(data=2))
        assert self.speeds().fastest(self.job(), "slot", (4,), 0.0) == Speed(2.5, Plan(data=4))

    def test_the_last_measurement_of_a_plan_counts(self) -> None:
        assert self.speeds().requested_speed(self.job()) == Speed(1.0, Plan())

    def test_a_given_plan_is_as_fast_as_measured_or_else_as_the_best_on_as_many_gpus(self) -> None:
        speeds, job = self.speeds(), self.job()
        assert speeds.with_plan(job, "slot", (2,), 0.0, Plan(tensor=2)).steps_per_second == pytest.approx(1 / 0.7)
        assert speeds.with_plan(job, "slot", (2,), 0.0, Plan(pipeline=2)).steps_per_second == pytest.approx(2.0)

    def test_between_measured_sizes_the_step_time_is_interpolated(self) -> None:
        speed = self.speeds().fastest(self.job(), "slot", (3,), 0.0)
        assert speed is not None
        assert speed.plan == Plan(data=3)
        assert 2.0 < speed.steps_per_second < 2.5

    def test_beyond_the_largest_measured_size_more_gpus_gain_nothing(self) -> None:
        job, speeds = self.job(), self.speeds(self.ROWS[:2])
        assert speeds.fastest(job, "slot", (4,), 0.0) == Speed(1.0, Plan(data=4))

    def test_below_the_smallest_measured_size_the_speed_is_in_proportion(self) -> None:
        speed = self.speeds(self.ROWS[-1:]).fastest(self.job(), "slot", (2,), 0.0)
        assert speed is not None and speed.plan == Plan(data=2)
        assert speed.steps_per_second == pytest.approx(1.25)

    def test_a_batch_that_cannot_be_divided_is_not_fast_on_any_plan(self) -> None:
        rows = (Measurement("own", "slot", (1,), Plan(), 5, 1, step_seconds=1.0),)
        assert self.speeds(rows).fastest(modelled_job("own", gpus=1, batch=5), "slot", (4,), 0.0) is None

    def test_the_catalogue_comes_first(self) -> None:
        row = Measurement("gpt2", GPU, (8,), Plan(8), 16, 1, step_seconds=1000.0)
        job = modelled_job(batch=16)
        assert Speeds(CLUSTER, Knowledge(measured=(row,))).requested_speed(job) == Speeds(CLUSTER).requested_speed(job)

    def test_knowledge_is_read_from_plain_values(self) -> None:
        knowledge = Knowledge(measured=self.ROWS)
        assert Knowledge.from_settings(msgspec.to_builtins(knowledge)) == knowledge

    def test_a_refold_policy_reshapes_measured_jobs(self) -> None:
        policy = make_policy(
            "refold", {"knowledge": msgspec.to_builtins(Knowledge(measured=self.ROWS)), "restart_seconds": 1}
        )
        jobs = [
            self.job(id="a", at=0.0, work=None, steps=100, gpu_range=(1, 4)),
            self.job(id="b", at=5.0, work=None, steps=100, gpu_range=(1, 4)),
        ]
        journal = ListJournal()
        speeds = self.speeds()
        simulate(jobs, self.SLOTS, policy, charge=ModelledSpeeds(speeds, RecordedSpeeds(self.SLOTS)), journal=journal)
        plans = [
            order.allocation.plan for entry in journal.entries for order in entry.orders if isinstance(order, StartRun)
        ]
        assert len(plans) > 2 and {plan.gpus for plan in plans if plan} > {1}
