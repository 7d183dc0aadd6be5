"""What must hold for every plan: faster hardware, larger batches, less memory; and the effect of each correction."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from refold.model import Link, Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import (
    CorrectedForm,
    Machines,
    Measurement,
    TrainingSetup,
    apply_corrections,
    build_machines,
    choose_samples_adaptively,
    estimate,
    fit,
)

GPU, MODEL, ENGINE = find_gpu("A100-80GB"), find_model("gpt2-xl"), find_engine("megatron")
TIMES = ("compute", "recompute", "launch", "tensor", "pipeline", "bubble", "data", "optimizer", "offload")

degrees = st.sampled_from([1, 2, 4, 8])
plans = st.builds(
    Plan,
    degrees,
    degrees,
    st.sampled_from([1, 2, 4]),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["none", "selective", "full"]),
    accumulation=degrees,
    sequence_parallel=st.booleans(),
)


def setup_on(machines: Machines, batch: int = 256) -> TrainingSetup:
    return TrainingSetup(MODEL, machines, ENGINE, batch, 1024)


FOUR_NODES = build_machines(GPU, 32, cpus=128.0)


@settings(max_examples=40)
@given(plans, st.sampled_from(["inside", "network"]), st.floats(1.0, 10.0))
def test_a_faster_link_is_never_slower(plan: Plan, link: str, factor: float) -> None:
    slow = getattr(FOUR_NODES, link)
    fast = Link("fast", slow.gigabytes_per_second * factor, slow.latency_microseconds)
    better = estimate(setup_on(msgspec.structs.replace(FOUR_NODES, **{link: fast})), plan)
    assert better.step_seconds <= estimate(setup_on(FOUR_NODES), plan).step_seconds * (1 + 1e-12)


@settings(max_examples=40)
@given(plans, st.sampled_from(["memory_gigabytes_per_second", "pcie_gigabytes_per_second", "half_tflops"]))
def test_a_gpu_with_a_higher_rate_is_never_slower_and_needs_the_same_memory(plan: Plan, rate: str) -> None:
    gpu = msgspec.structs.replace(GPU, **{rate: 2 * getattr(GPU, rate)})
    better = estimate(setup_on(msgspec.structs.replace(FOUR_NODES, gpu=gpu)), plan)
    base = estimate(setup_on(FOUR_NODES), plan)
    assert better.step_seconds <= base.step_seconds * (1 + 1e-12)
    assert (better.memory, better.host_gib) == (base.memory, base.host_gib)


@settings(max_examples=40)
@given(plans)
def test_more_recomputation_takes_more_time_and_less_memory(plan: Plan) -> None:
    modes = [estimate(setup_on(FOUR_NODES), msgspec.structs.replace(plan, recompute=mode)) for mode in ("none", "full")]
    assert modes[0].memory["activations"] >= modes[1].memory["activations"]
    assert modes[0].step_seconds <= modes[1].step_seconds
    assert modes[0].mfu >= modes[1].mfu  # repeated work does not count


@settings(max_examples=40)
@given(plans)
def test_twice_the_micro_batches_take_twice_the_time_per_micro_batch(plan: Plan) -> None:
    twice = msgspec.structs.replace(plan, accumulation=2 * plan.accumulation)
    base, more = estimate(setup_on(FOUR_NODES), plan).seconds, estimate(setup_on(FOUR_NODES, 512), twice).seconds
    for part in ("compute", "recompute", "launch", "tensor", "pipeline"):
        assert more[part] == pytest.approx(2 * base[part])
    for part in ("bubble", "optimizer", "offload"):
        assert more[part] == pytest.approx(base[part])
    assert base["data"] * (1 - 1e-9) <= more["data"] <= 2 * base["data"] * (1 + 1e-9)


@settings(max_examples=40)
@given(plans)
def test_a_larger_micro_batch_needs_more_activations_and_nothing_else(plan: Plan) -> None:
    small, large = (estimate(setup_on(FOUR_NODES, batch), plan) for batch in (256, 512))
    if plan.pipeline == 1:
        assert large.memory["activations"] == pytest.approx(2 * small.memory["activations"])
        assert large.memory["logits"] == pytest.approx(2 * small.memory["logits"])
        for part in ("weights", "gradients", "optimizer", "overhead"):
            assert large.memory[part] == small.memory[part]
    assert large.memory_gib > small.memory_gib


@settings(max_examples=40)
@given(plans)
def test_throughput_and_utilisation_follow_from_the_step_time(plan: Plan) -> None:
    found = estimate(setup_on(FOUR_NODES), plan)
    assert found.samples_per_second == pytest.approx(256 / found.step_seconds)
    assert found.tokens_per_second == pytest.approx(1024 * found.samples_per_second)
    assert 0 < found.mfu < 1


AFFECTED = {
    "compute": {"compute"},
    "small": {"compute"},
    "launch": {"launch"},
    "link": {"tensor"},
    "network": {"data"},
    "update": {"optimizer"},
    "host": set(),
}


@pytest.mark.parametrize("name", AFFECTED)
def test_a_correction_changes_its_component_of_a_plan_across_nodes(name: str) -> None:
    """Four replicas of eight GPUs each: gradients cross the network, tensor parallelism does not."""
    plan = Plan(4, 8, accumulation=32)
    base = msgspec.structs.replace(
        setup_on(FOUR_NODES), engine=msgspec.structs.replace(ENGINE, launch_seconds=0.05, overlap_gradients=0.0)
    )
    none = {parameter.name: 1.0 for parameter in CorrectedForm.default_parameters}
    assert apply_corrections(base, none) == base
    before, after = (estimate(apply_corrections(base, {**none, name: factor}), plan).seconds for factor in (1.0, 1.5))
    slower = {part for part in TIMES if after[part] > before[part] * 1.01}
    assert slower == AFFECTED[name]


def test_the_host_correction_changes_transfers_and_updates_of_offload() -> None:
    none = {parameter.name: 1.0 for parameter in CorrectedForm.default_parameters}
    plan = Plan(8, zero=2, offload=True)
    base = setup_on(build_machines(GPU, 8, cpus=8.0))
    before = estimate(base, plan).seconds
    after = estimate(apply_corrections(base, {**none, "host": 2.0}), plan).seconds
    assert after["offload"] == pytest.approx(2 * before["offload"])
    assert after["optimizer"] - ENGINE.step_seconds == pytest.approx(2 * (before["optimizer"] - ENGINE.step_seconds))


def sample(plan: Plan) -> Measurement:
    return Measurement("gpt2-xl", GPU.name, (plan.gpus,), plan, 256, 1024, step_seconds=1.0)


def setup_for(measurement: Measurement) -> TrainingSetup:
    return setup_on(build_machines(GPU, measurement.plan.gpus, cpus=32.0))


FORM = CorrectedForm(setup_for)
CANDIDATES = [sample(Plan(count, accumulation=steps)) for count in (1, 2, 4, 8) for steps in (1, 4)] + [
    sample(Plan(count, zero=2, offload=True)) for count in (1, 8)
]


def measured(corrections: list[float]) -> list[Measurement]:
    steps = FORM.predict(np.array(corrections), CANDIDATES).step
    return [msgspec.structs.replace(one, step_seconds=float(step)) for one, step in zip(CANDIDATES, steps, strict=True)]


def test_samples_are_chosen_one_by_one_without_repetition() -> None:
    samples = measured([1.4] + [1.0] * 6)[:6]
    chosen = choose_samples_adaptively(FORM, samples, 4)
    assert len(set(chosen)) == 4
    assert choose_samples_adaptively(FORM, samples, 3) == chosen[:3]
    assert sorted(choose_samples_adaptively(FORM, samples, 99)) == list(range(len(samples)))
    assert choose_samples_adaptively(FORM, samples, 0) == []


def test_a_few_chosen_samples_predict_the_others() -> None:
    samples = measured([1.4] + [1.0] * 6)
    chosen = choose_samples_adaptively(FORM, samples, 4)
    fitted = fit(FORM, [samples[index] for index in chosen], min_samples=4)
    steps = FORM.predict(np.array(list(fitted.values.values())), samples).step
    assert steps / [one.step_seconds for one in samples] == pytest.approx(np.ones(len(samples)), abs=0.05)


def test_a_wider_prior_is_corrected_further_by_the_same_samples() -> None:
    samples = measured([3.0] + [1.0] * 6)
    narrow, wide = (fit(CorrectedForm(setup_for, scale), samples).values["compute"] for scale in (0.2, 3.0))
    assert 1.0 < narrow < wide == pytest.approx(3.0, rel=0.05)


def test_more_samples_make_every_value_more_certain() -> None:
    samples = measured([1.2] + [1.0] * 6)
    few, many = fit(FORM, samples[:4], min_samples=4), fit(FORM, samples)
    assert all(many.spread[name] <= few.spread[name] * (1 + 1e-6) for name in few.spread)
