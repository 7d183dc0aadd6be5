"""Throughput curves by GPUs and by CPUs."""

from collections.abc import Callable

import pytest

from refold.errors import BadValue
from refold.model.cluster import Link
from refold.model.plan import Plan
from refold.planning.perf.engine import Engine
from refold.planning.perf.hardware import GpuSpec
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup
from refold.planning.plans import Curve, CurvePoint, PackedMachines, PlanLimits, cpu_curve, gpu_curve

MakeSetup = Callable[..., TrainingSetup]

CURVE = Curve((CurvePoint(2, 10.0, Plan(2)), CurvePoint(4, 18.0, Plan(4)), CurvePoint(8, 30.0, Plan(8))))


@pytest.mark.parametrize(
    ("amount", "throughput", "slope", "slope_below"),
    [
        (0, 0.0, 5.0, 0.0),
        (1, 0.0, 10.0, 0.0),
        (2, 10.0, 4.0, 5.0),
        (3, 10.0, 8.0, 0.0),
        (4, 18.0, 3.0, 4.0),
        (8, 30.0, 0.0, 3.0),
        (9, 30.0, 0.0, 0.0),
    ],
)
def test_a_curve_is_evaluated_by_its_steps(amount: int, throughput: float, slope: float, slope_below: float) -> None:
    assert CURVE.samples_per_second(amount) == throughput
    assert CURVE.slope(amount) == slope
    assert CURVE.slope_below(amount) == slope_below


def test_surplus_amounts_are_not_used() -> None:
    assert CURVE.at(7) == CurvePoint(4, 18.0, Plan(4))
    assert CURVE.at(1) is None


def test_a_decreasing_curve_is_rejected() -> None:
    with pytest.raises(BadValue, match="expected increasing amounts and throughput"):
        Curve((CurvePoint(2, 10.0, Plan(2)), CurvePoint(4, 9.0, Plan(4))))


def test_a_curve_is_flat_where_batch_and_layers_are_not_divisible(a100: GpuSpec, models: dict[str, ModelShape]) -> None:
    curve = gpu_curve(models["llama-2-7b"], PackedMachines(a100), range(1, 65), 256, 4096, Engine("test"))
    assert [point.amount for point in curve.points] == [1, 2, 4, 8, 16, 32, 64]
    assert curve.at(9) == curve.at(8)
    assert all(point.plan.gpus == point.amount for point in curve.points)


def test_a_curve_starts_where_a_plan_fits(a100: GpuSpec, models: dict[str, ModelShape]) -> None:
    limits = PlanLimits(offload=False)
    curve = gpu_curve(models["llama-2-70b"], PackedMachines(a100), range(1, 65), 256, 4096, Engine("test"), limits)
    assert curve.points[0].amount >= 16
    assert curve.samples_per_second(8) == 0.0


def test_a_curve_without_plans_is_empty(a100: GpuSpec, models: dict[str, ModelShape], make_setup: MakeSetup) -> None:
    empty = Curve(())
    assert gpu_curve(models["llama-2-7b"], PackedMachines(a100), [], 256, 4096, Engine("test")) == empty
    assert gpu_curve(models["llama-2-7b"], PackedMachines(a100), [7], 256, 4096, Engine("test")) == empty
    assert cpu_curve(make_setup(on=(7,)), [1, 2]) == empty
    assert empty.slope(3) == empty.slope_below(3) == 0.0


def test_cpus_matter_if_the_best_plan_offloads(make_setup: MakeSetup) -> None:
    curve = cpu_curve(make_setup("llama-2-7b", on=(1,), batch=16), range(1, 65))
    assert all(point.plan.offload for point in curve.points)
    assert curve.points[0].amount == 1
    assert curve.slope(1) > curve.slope(16) > 0


def test_cpus_do_not_matter_without_offload(make_setup: MakeSetup) -> None:
    curve = cpu_curve(make_setup("llama-2-7b", on=(8,) * 4), range(1, 65), PlanLimits(offload=False))
    assert [point.amount for point in curve.points] == [1]
    assert curve.slope(1) == 0.0


def test_zero_cpus_are_rejected(make_setup: MakeSetup) -> None:
    with pytest.raises(BadValue, match="starts at 0, expected more than 0 CPUs"):
        cpu_curve(make_setup(), [0, 1])


def test_packed_machines_fill_nodes_in_order(a100: GpuSpec) -> None:
    packed = PackedMachines(a100, network=Link("slow", 1.0), cpus_per_gpu=12.0, memory_gib_per_gpu=100.0)
    machines = packed(20)
    assert machines.gpus_on_node == (8, 8, 4)
    assert (machines.inside, machines.network) == (a100.link, Link("slow", 1.0))
    assert (machines.cpus, machines.memory_gib) == (240.0, 2000.0)
    assert PackedMachines(a100, gpus_per_node=4)(4).gpus_on_node == (4,)
