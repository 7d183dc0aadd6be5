"""What a scheduler knows of jobs: their speeds on layouts of a cluster."""

from typing import Any

import msgspec
import pytest

from refold.catalogue import find_model
from refold.model import Job, Plan
from refold.perf.fitting import Fitted
from refold.perf.forms import CorrectedForm
from refold.plans.space import USUAL
from refold.plans.speeds import NOTHING_MORE, Knowledge, Speeds, asked_cpus, asked_layout, kind_of
from refold.testing import make_cluster, make_job

GPU = "A800-80GB"
CLUSTER = make_cluster(8, 8, types=GPU, cpus=96, memory_gib=1600)
MIXED = make_cluster(8, 8, types=["A100-80GB", "H100-80GB"])


def known(workload: str = "gpt2", gpus: int = 8, **more: Any) -> Job:
    asked: dict[str, Any] = {"workload": workload, "reshapable": True}
    return make_job(workload or "job", gpus=gpus, **asked | more)


class TestKnown:
    def test_a_job_of_a_model_of_the_catalogue_is_known_on_types_of_the_catalogue(self) -> None:
        assert Speeds(CLUSTER).knows(known())
        assert Speeds(CLUSTER).types_for(known()) == [GPU]
        assert Speeds(MIXED).types_for(known()) == ["A100-80GB", "H100-80GB"]
        assert Speeds(MIXED).types_for(known(types=["H100-80GB"])) == ["H100-80GB"]

    @pytest.mark.parametrize(
        "other",
        [{"reshapable": False}, {"workload": ""}, {"workload": "own"}, {"share": 0.5}, {"gpus": 0}, {"types": ["T4"]}],
    )
    def test_others_are_not(self, other: dict[str, Any]) -> None:
        assert not Speeds(CLUSTER).knows(known(**other))

    def test_nor_is_any_on_gpus_that_are_not_in_the_catalogue(self) -> None:
        assert not Speeds(make_cluster(8, types="own")).knows(known())


class TestFastest:
    def test_it_is_the_best_plan_for_the_layout(self) -> None:
        speeds, job = Speeds(CLUSTER), known()
        best = speeds.fastest(job, GPU, (8,), 64.0)
        assert best is not None
        assert best.plan.gpus == 8
        assert best.fits
        for other in (Plan(8), Plan(4, 2), Plan(8, zero=3), Plan(tensor=8)):
            assert speeds.with_plan(job, GPU, (8,), 64.0, other).steps_per_second <= 1.0001 * best.steps_per_second

    def test_nothing_is_found_where_nothing_fits(self) -> None:
        nothing_offloaded = Knowledge(limits=msgspec.structs.replace(USUAL, offload=False))
        assert Speeds(CLUSTER, nothing_offloaded).fastest(known("llama30"), GPU, (1,), 0.0) is None

    def test_a_menu_has_all_that_may_be_chosen(self) -> None:
        menu = (Plan(4, 2), Plan(2, 4), Plan(4))
        speeds = Speeds(CLUSTER, Knowledge(menu={"gpt2": menu}))
        best = speeds.fastest(known(), GPU, (8,), 64.0)
        assert best is not None
        assert best.plan == Plan(4, 2)  # more tensor parallelism has more to say
        assert speeds.fastest(known(), GPU, (2,), 16.0) is None
        four = speeds.fastest(known(), GPU, (4,), 32.0)
        assert four is not None
        assert four.plan == Plan(4)

    def test_what_is_on_a_menu_is_known_to_run_whatever_memory_is_estimated(self) -> None:
        plan = Plan(data=8)
        speeds = Speeds(CLUSTER, Knowledge(menu={"llama30": (plan,)}))
        assert not speeds.with_plan(known("llama30"), GPU, (8,), 64.0, plan).fits
        best = speeds.fastest(known("llama30"), GPU, (8,), 64.0)
        assert best is not None
        assert best.plan == plan

    def test_nodes_that_are_joined_by_less_are_slower(self) -> None:
        speeds = Speeds(CLUSTER)
        one = speeds.with_plan(known(), GPU, (8,), 64.0, Plan(tensor=8))
        two = speeds.with_plan(known(), GPU, (4, 4), 64.0, Plan(tensor=8))
        assert two.steps_per_second < 0.9 * one.steps_per_second

    def test_an_offloading_plan_needs_the_memory_of_hosts_and_is_faster_with_more_cpus(self) -> None:
        speeds, plan = Speeds(CLUSTER), Plan(8, zero=2, offload=True)
        few, many = (speeds.with_plan(known(), GPU, (8,), cpus, plan) for cpus in (8.0, 64.0))
        assert few.steps_per_second < many.steps_per_second
        assert few.host_mib > 1024
        assert speeds.with_plan(known(), GPU, (8,), 8.0, Plan(8)).host_mib == 0


def test_what_was_measured_of_a_model_on_a_type_corrects_its_estimate_and_no_other() -> None:
    corrections = {one.name: 1.0 for one in CorrectedForm.usual} | {"compute": 1.5}
    fit = Fitted("corrected", find_model("gpt2").name, GPU, corrections, {}, (), (), ())
    plain, fitted = Speeds(CLUSTER), Speeds(CLUSTER, Knowledge((fit,)))
    assert fitted.asked(known()).steps_per_second < 0.75 * plain.asked(known()).steps_per_second
    assert fitted.asked(known("bert")) == plain.asked(known("bert"))
    other = Speeds(make_cluster(8, types="A100-80GB"), Knowledge((fit,)))
    assert other.asked(known()) == Speeds(make_cluster(8, types="A100-80GB")).asked(known())


class TestScaled:
    def test_the_own_plan_gets_more_or_fewer_replicas(self) -> None:
        speeds, job = Speeds(CLUSTER), known(plan=Plan(4, 2, zero=1))
        for gpus in (2, 4, 8, 16):
            layout = (gpus,) if gpus <= 8 else (8, 8)
            scaled = speeds.scaled(job, GPU, layout, 0.0)
            assert scaled is not None
            assert scaled.plan == Plan(gpus // 2, 2, zero=1)

    def test_where_replicas_cannot_be_so_many_there_is_nothing(self) -> None:
        speeds, job = Speeds(CLUSTER), known(plan=Plan(4, 2))
        assert speeds.scaled(job, GPU, (1,), 0.0) is None
        assert speeds.scaled(job, GPU, (3,), 0.0) is None
        assert speeds.scaled(job, GPU, (6,), 0.0) is None  # a batch of 16 cannot be split by 3

    def test_micro_batches_are_kept_as_long_as_there_are_samples_for_them(self) -> None:
        speeds, job = Speeds(CLUSTER), known(plan=Plan(2, accumulation=8), gpus=2)
        counts = [speeds.scaled(job, GPU, (gpus,), 0.0) for gpus in (1, 2, 4)]
        assert [one.plan.accumulation for one in counts if one is not None] == [8, 8, 1]


class TestAsked:
    def test_it_is_the_speed_of_the_own_plan_on_what_was_asked_for(self) -> None:
        speeds, plan = Speeds(CLUSTER), Plan(8, zero=2, offload=True)
        job = known(plan=plan, cpus=16)
        assert speeds.asked(job) == speeds.with_plan(job, GPU, (8,), 16.0, plan)

    def test_who_brings_no_plan_means_data_parallelism(self) -> None:
        assert Speeds(CLUSTER).own_plan(known(gpus=4, instances=2)) == Plan(8)
        assert Speeds(CLUSTER).asked(known()).plan == Plan(8)

    def test_of_several_types_the_slowest_counts(self) -> None:
        speeds = Speeds(MIXED)
        job = known(plan=Plan(8))
        each = [speeds.with_plan(job, name, (8,), 0.0, Plan(8)).steps_per_second for name in speeds.types_for(job)]
        assert speeds.asked(job).steps_per_second == min(each) < max(each)

    def test_layout_cpus_and_kind_are_read_off_a_job(self) -> None:
        job = known(gpus=4, instances=2, cpus=3, batch=64, sequence=512)
        assert (asked_layout(job), asked_cpus(job), tuple(kind_of(job))) == ((4, 4), 6.0, ("gpt2", 64, 512))

    def test_a_batch_is_the_jobs_own_or_the_models(self) -> None:
        speeds = Speeds(CLUSTER)
        assert speeds.batch(known()) == find_model("gpt2").batch
        assert speeds.batch(known(batch=64)) == 64
        assert speeds.asked(known(batch=64)).steps_per_second < speeds.asked(known()).steps_per_second


def test_knowledge_is_what_it_was_after_a_journal() -> None:
    knowledge = Knowledge(menu={"gpt2": (Plan(4, 2), Plan(8))})
    assert Knowledge.of(msgspec.to_builtins(knowledge)) == knowledge
    assert Knowledge.of({}) == NOTHING_MORE
    assert Knowledge.of(knowledge) is knowledge
