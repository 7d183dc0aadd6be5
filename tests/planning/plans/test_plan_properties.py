"""Plan search and curves against brute force, on random small setups."""

import dataclasses
from dataclasses import fields

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from refold.model.cluster import Link
from refold.model.plan import RECOMPUTE
from refold.planning.perf.columns import PlanColumns, concatenate_plans
from refold.planning.perf.engine import Engine
from refold.planning.perf.estimation import estimate_all
from refold.planning.perf.hardware import GpuSpec, Machines
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup
from refold.planning.plans import (
    RULES,
    Curve,
    CurvePoint,
    PackedMachines,
    Pins,
    PlanLimits,
    all_plans,
    best_plan,
    best_plans,
    cpu_curve,
    gpu_curve,
    selection,
)
from refold.planning.plans.curves import MIN_SPEEDUP
from refold.planning.plans.selection import lower_bound_seconds, step_seconds

OPAQUE = ModelShape("opaque", kind="opaque", parameters_stated=300_000_000, sample_gflop=50.0, sample_mib=200.0)

GPUS = st.builds(
    GpuSpec,
    name=st.just("random"),
    memory_gib=st.sampled_from([3.0, 8.0, 24.0, 80.0]),
    half_tflops=st.sampled_from([50.0, 300.0]),
    single_tflops=st.just(20.0),
    memory_gigabytes_per_second=st.just(2000.0),
    link=st.sampled_from([Link("nvlink", 300.0, 5.0), Link("pcie", 16.0)]),
    pcie_gigabytes_per_second=st.just(16.0),
    node_network_gigabytes_per_second=st.sampled_from([1.0, 100.0]),
    watts=st.just(400.0),
    gpus_per_node=st.sampled_from([2, 4, 8]),
)

ENGINES = st.builds(
    Engine,
    name=st.just("random"),
    fused_attention=st.booleans(),
    launch_seconds=st.sampled_from([0.0, 0.001]),
    reduces_each_micro_batch=st.booleans(),
    overlap_gradients=st.sampled_from([0.0, 0.8]),
    stage_wait=st.sampled_from([0.0, 0.01]),
)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    heads = draw(st.sampled_from([2, 4, 6, 12]))
    return ModelShape(
        "random",
        layers=draw(st.sampled_from([4, 5, 12])),
        hidden=heads * draw(st.sampled_from([64, 256])),
        heads=heads,
        kv_heads=draw(st.sampled_from([count for count in (0, 1, 2, 3, 6) if count == 0 or heads % count == 0])),
        ffn=draw(st.sampled_from([0, 3072, 1000])),
        vocabulary=32000,
        experts=draw(st.sampled_from([1, 1, 4])),
    )


@st.composite
def random_setups(draw: st.DrawFn) -> TrainingSetup:
    gpu = draw(GPUS)
    layout = draw(st.sampled_from([(4,), (2, 2), (4, 4), (6, 6), (8,), (12,), (3, 3), (4, 2), (1,), (4, 3)]))
    host = draw(st.sampled_from([0.0, 8.0, 100.0]))
    machines = Machines(gpu, layout, gpu.link, Link("network", 10.0), memory_gib=host)
    model = draw(st.one_of(shapes(), shapes(), shapes(), st.just(OPAQUE)))
    batch, sequence = draw(st.sampled_from([24, 12, 16, 8, 5])), draw(st.sampled_from([512, 2048, 7]))
    return TrainingSetup(model, machines, draw(ENGINES), batch, sequence)


def maybe(*values: object) -> st.SearchStrategy[object]:
    return st.sampled_from([*[None] * 6, *values])


PINS = st.builds(
    Pins,
    data=maybe(1, 2),
    tensor=maybe(1, 2, 3),
    pipeline=maybe(1, 2),
    zero=maybe(0, 1, 3),
    offload=maybe(False, True),
    recompute=maybe(*RECOMPUTE),
    accumulation=maybe(1, 4),
    interleave=maybe(1, 2),
    sequence_parallel=maybe(False, True),
    context=maybe(1, 2),
    expert=maybe(1, 2),
    replicate=maybe(1, 2),
)

LIMITS = st.builds(
    PlanLimits,
    max_tensor=st.sampled_from([100, 2, 1]),
    max_interleave=st.integers(1, 3),
    max_context=st.sampled_from([1, 1, 2, 100]),
    max_expert=st.sampled_from([1, 2, 100]),
    max_replicate=st.sampled_from([1, 1, 2, 100]),
    tensor_across_nodes=st.booleans(),
    zero=st.sampled_from([(0, 1, 2, 3), (0, 1), (3, 1, 0), (2, 3)]),
    offload=st.booleans(),
    recompute=st.sampled_from([RECOMPUTE, RECOMPUTE, ("full",), ("none", "full")]),
    sequence_parallel=st.sampled_from([(False, True), (False,)]),
    uneven=st.booleans(),
    pinned=st.one_of(st.just(Pins()), st.just(Pins()), PINS),
)


def every_combination(setup: TrainingSetup) -> PlanColumns:
    """All combinations of degrees that use all GPUs; most of them are invalid.

    Hybrid sharding is combined only with what it is possible with, and with expert parallelism and offload.
    """
    gpus = setup.machines.gpus
    divisors = [count for count in range(1, gpus + 1) if gpus % count == 0]
    degrees = [(data, tensor, context) for data in divisors for tensor in range(1, gpus + 1) for context in divisors]
    experts = [1] if setup.model.experts == 1 else range(1, 6)
    which, expert, pipeline, zero, offload, recompute, accumulation, interleave, sequence_parallel = (
        axis.ravel()
        for axis in np.meshgrid(
            np.arange(len(degrees)),
            experts,
            divisors,
            range(4),
            range(2),
            range(3),
            range(1, setup.batch + 1),
            range(1, 4),
            range(2),
        )
    )
    data, tensor, context = np.array(degrees)[which].T
    exact = data * tensor * pipeline * context == gpus
    columns = (data, tensor, pipeline, zero, offload, recompute, accumulation, interleave, sequence_parallel, context)
    ones = np.ones(len(which))
    plans = PlanColumns(*(np.asarray(column[exact], float) for column in (*columns, expert, ones)))
    sharded = plans.rows((plans.zero > 1) & (plans.pipeline == 1) & (plans.interleave == 1))
    hybrid = [dataclasses.replace(sharded, replicate=np.full(len(sharded), float(each))) for each in divisors[1:]]
    return concatenate_plans([plans, *hybrid])


def as_rows(plans: PlanColumns) -> NDArray[np.float64]:
    return np.column_stack([getattr(plans, field.name) for field in fields(plans)])


@settings(max_examples=5)
@given(random_setups(), LIMITS)
def test_the_plan_space_contains_exactly_the_plans_that_break_no_rule(setup: TrainingSetup, limits: PlanLimits) -> None:
    candidates = every_combination(setup)
    broken = np.logical_or.reduce([rule.broken(setup, candidates, limits) for rule in RULES])
    redundant = (candidates.data == 1) & (candidates.offload > 0) & (candidates.zero > min(limits.choices("zero")))
    expected = as_rows(candidates.rows(~broken & ~redundant))
    built = as_rows(all_plans(setup, limits))
    assert sorted(map(tuple, built)) == sorted(map(tuple, expected))


@given(random_setups(), LIMITS)
def test_the_lower_bound_never_exceeds_the_step_time(setup: TrainingSetup, limits: PlanLimits) -> None:
    plans = all_plans(setup, limits)
    assert (lower_bound_seconds(setup, plans) <= step_seconds(setup, plans) * (1 + selection.BOUND_TOLERANCE)).all()


@given(random_setups(), LIMITS, st.sampled_from([1, 2, 5, 1000]))
def test_pruning_does_not_change_the_result(setup: TrainingSetup, limits: PlanLimits, count: int) -> None:
    plans = all_plans(setup, limits)
    estimates = estimate_all(setup, plans)
    least = estimates.step_seconds[estimates.fits].min(initial=np.inf)
    order = sorted(
        np.flatnonzero(estimates.fits),
        key=lambda row: (
            np.floor(np.log(estimates.step_seconds[row] / least) / np.log(selection.TIE_FACTOR)),
            *(getattr(plans, name)[row] for name in selection.SIMPLEST_FIRST),
            np.float32(estimates.step_seconds[row]),
        ),
    )
    unpruned = best_plans(setup, limits, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "MIN_PLANS_TO_BOUND", 0)
        patch.setattr(selection, "FIRST_TIMED_PER_FAMILY", 1)
        pruned = best_plans(setup, limits, count)
        best = best_plan(setup, limits)
    assert [result.plan for result in pruned.best] == [plans.plan(int(row)) for row in order[:count]]
    assert unpruned == msgspec.structs.replace(pruned, pruned=0)
    assert ([best.plan] if best else []) == [result.plan for result in pruned.best[:1]]


def test_pruning_leaves_plans_untimed() -> None:
    gpu = GpuSpec("g", 80.0, 300.0, 20.0, 2000.0, Link("nvlink", 300.0), 16.0, 100.0, 400.0)
    machines = Machines(gpu, (8,) * 8, gpu.link, Link("network", 100.0))
    model = ModelShape("m", layers=24, hidden=2048, heads=32, vocabulary=32000)
    search = best_plans(TrainingSetup(model, machines, Engine("e"), 2520, 2048), PlanLimits(tensor_across_nodes=True))
    assert 0 < search.pruned < search.considered - search.out_of_memory


def assert_same_steps(curve: Curve, steps: list[CurvePoint]) -> None:
    assert [(point.amount, point.plan) for point in curve.points] == [(point.amount, point.plan) for point in steps]
    throughputs = [point.samples_per_second for point in steps]
    assert [point.samples_per_second for point in curve.points] == pytest.approx(throughputs, rel=1e-12)


@settings(max_examples=40)
@given(random_setups(), LIMITS)
def test_a_curve_by_gpus_is_the_best_plan_at_each_number(setup: TrainingSetup, limits: PlanLimits) -> None:
    def machines_for(gpus: int) -> Machines:
        return PackedMachines(setup.machines.gpu, memory_gib_per_gpu=20.0)(gpus)

    steps: list[CurvePoint] = []
    for count in range(1, 13):
        estimates = best_plan(msgspec.structs.replace(setup, machines=machines_for(count)), limits)
        if estimates and estimates.samples_per_second > (MIN_SPEEDUP * steps[-1].samples_per_second if steps else 0.0):
            steps.append(CurvePoint(count, estimates.samples_per_second, estimates.plan))
    curve = gpu_curve(setup.model, machines_for, range(1, 13), setup.batch, setup.sequence, setup.engine, limits)
    assert_same_steps(curve, steps)


@settings(max_examples=40)
@given(random_setups(), LIMITS)
def test_a_curve_by_cpus_is_the_best_plan_at_each_number(setup: TrainingSetup, limits: PlanLimits) -> None:
    steps: list[CurvePoint] = []
    for cpus in (1, 2, 4, 8, 64):
        machines = msgspec.structs.replace(setup.machines, cpus=cpus)
        estimates = best_plan(msgspec.structs.replace(setup, machines=machines), limits)
        if estimates and estimates.samples_per_second > (MIN_SPEEDUP * steps[-1].samples_per_second if steps else 0.0):
            steps.append(CurvePoint(cpus, estimates.samples_per_second, estimates.plan))
    curve = cpu_curve(setup, [1, 2, 4, 8, 64], limits)
    assert_same_steps(curve, steps)
