"""Curves: throughput by GPUs and by CPUs, as stairs."""

from collections.abc import Callable

import pytest

from refold.errors import BadValue
from refold.model.cluster import Link
from refold.model.plan import Plan
from refold.perf.engine import Engine
from refold.perf.hardware import GpuSpec
from refold.perf.setting import Setting
from refold.perf.shapes import ModelShape
from refold.plans import Curve, CurvePoint, Curves, Packed, PlanLimits, cpu_curve, gpu_curve
from refold.plans.space import USUAL

MakeSetting = Callable[..., Setting]

STAIR = Curve((CurvePoint(2, 10.0, Plan(2)), CurvePoint(4, 18.0, Plan(4)), CurvePoint(8, 30.0, Plan(8))))


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
def test_a_stair_is_read_by_its_steps(amount: int, throughput: float, slope: float, slope_below: float) -> None:
    assert STAIR.samples_per_second(amount) == throughput
    assert STAIR.slope(amount) == slope
    assert STAIR.slope_below(amount) == slope_below


def test_what_is_not_needed_is_not_used() -> None:
    assert STAIR.at(7) == CurvePoint(4, 18.0, Plan(4))
    assert STAIR.at(1) is None


def test_the_fewest_that_reach_a_throughput() -> None:
    assert STAIR.fewest(1.0) == STAIR.points[0]
    assert STAIR.fewest(18.0) == STAIR.points[1]
    assert STAIR.fewest(18.1) == STAIR.points[1]  # within the 1 % that curves leave out
    assert STAIR.fewest(19.0) == STAIR.points[2]
    assert STAIR.fewest(31.0) is None


def test_a_stair_that_goes_down_cannot_be_built() -> None:
    with pytest.raises(BadValue, match="rises from step to step"):
        Curve((CurvePoint(2, 10.0, Plan(2)), CurvePoint(4, 9.0, Plan(4))))


def test_a_curve_is_flat_where_batch_and_layers_do_not_divide(a100: GpuSpec, models: dict[str, ModelShape]) -> None:
    curve = gpu_curve(models["llama-2-7b"], Packed(a100), range(1, 65), 256, 4096, Engine("test"))
    assert [point.amount for point in curve.points] == [1, 2, 4, 8, 16, 32, 64]
    assert curve.at(9) == curve.at(8)
    assert all(point.plan.gpus == point.amount for point in curve.points)


def test_a_curve_starts_where_something_fits(a100: GpuSpec, models: dict[str, ModelShape]) -> None:
    limits = PlanLimits(offload=False)
    curve = gpu_curve(models["llama-2-70b"], Packed(a100), range(1, 65), 256, 4096, Engine("test"), limits)
    assert curve.points[0].amount >= 16
    assert curve.samples_per_second(8) == 0.0


def test_a_curve_over_nothing_is_empty(a100: GpuSpec, models: dict[str, ModelShape], make_setting: MakeSetting) -> None:
    nothing = Curve(())
    assert gpu_curve(models["llama-2-7b"], Packed(a100), [], 256, 4096, Engine("test")) == nothing
    assert gpu_curve(models["llama-2-7b"], Packed(a100), [7], 256, 4096, Engine("test")) == nothing
    assert cpu_curve(make_setting(on=(7,)), [1, 2]) == nothing
    assert nothing.slope(3) == nothing.slope_below(3) == 0.0


def test_cpus_matter_where_the_best_plan_offloads(make_setting: MakeSetting) -> None:
    curve = cpu_curve(make_setting("llama-2-7b", on=(1,), batch=16), range(1, 65))
    assert all(point.plan.offload for point in curve.points)
    assert curve.points[0].amount == 1
    assert curve.slope(1) > curve.slope(16) > 0


def test_cpus_do_not_matter_where_it_does_not(make_setting: MakeSetting) -> None:
    curve = cpu_curve(make_setting("llama-2-7b", on=(8,) * 4), range(1, 65), PlanLimits(offload=False))
    assert [point.amount for point in curve.points] == [1]
    assert curve.slope(1) == 0.0


def test_no_cpus_are_no_point_of_a_curve(make_setting: MakeSetting) -> None:
    with pytest.raises(BadValue, match="starts above 0, not at 0"):
        cpu_curve(make_setting(), [0, 1])


def test_packed_machines_fill_one_node_after_another(a100: GpuSpec) -> None:
    packed = Packed(a100, network=Link("slow", 1.0), cpus_per_gpu=12.0, memory_gib_per_gpu=100.0)
    machines = packed(20)
    assert machines.gpus_on_node == (8, 8, 4)
    assert (machines.inside, machines.network) == (a100.link, Link("slow", 1.0))
    assert (machines.cpus, machines.memory_gib) == (240.0, 2000.0)
    assert Packed(a100, gpus_per_node=4)(4).gpus_on_node == (4,)


def test_a_curve_is_computed_once_for_all_who_ask_the_same(
    a100: GpuSpec, models: dict[str, ModelShape], make_setting: MakeSetting
) -> None:
    curves = Curves()

    def ask(batch: int = 16, limits: PlanLimits = USUAL) -> Curve:
        return curves.by_gpus(models["llama-2-7b"], Packed(a100), range(1, 9), batch, 2048, Engine("test"), limits)

    assert ask() is ask()
    assert ask() is not ask(batch=32)
    assert ask() is not ask(limits=PlanLimits(offload=False))
    setting = make_setting("llama-2-7b", on=(1,))
    assert curves.by_cpus(setting, [1, 2]) is curves.by_cpus(setting, [1, 2])
    assert curves.by_cpus(setting, [1, 2]) == cpu_curve(setting, [1, 2])
