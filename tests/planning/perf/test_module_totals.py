"""Models of traced modules: how totals become an estimate."""

import msgspec
import pytest
from benchmarks.accuracy.calibrate import FITTED_MODULES
from benchmarks.accuracy.device import module_totals, read_cases

from refold.errors import BadValue
from refold.model import Plan
from refold.planning.catalogue import find_engine, find_gpu
from refold.planning.perf import (
    Estimate,
    ModelShape,
    ModuleCosts,
    ModuleTotals,
    ProductTotals,
    TrainingSetup,
    build_machines,
    estimate,
)

ONE_GPU = Plan()


def totals(**changes: object) -> ModuleTotals:
    found = ModuleTotals(samples=8, parameters=1_000_000, weights=10, layers=4, operations=500, peak_bytes=8 * 2.0**20)
    found.products = {"aligned": ProductTotals(24e9, 8e9, 8e9 / 1024, 8e9 / (1024 * 800))}
    found.traffic = {"elementwise": 24 * 2.0**20}
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def on_h200(shape: ModelShape, batch: int, plan: Plan = ONE_GPU) -> Estimate:
    machines = build_machines(find_gpu("H200"), plan.gpus)
    return estimate(TrainingSetup(shape, machines, find_engine("pytorch-bf16"), batch, 1), plan)


def test_the_model_has_the_totals_of_one_sample() -> None:
    shape = totals().shape("m", ModuleCosts(elementwise=2.0, operations_per_weight=3.0))
    assert shape.sample_gflop == 1.0
    assert shape.traffic_mib == 2.0
    assert shape.sample_mib == 1.0
    assert shape.operations == 530
    assert (shape.product_width, shape.product_results, shape.product_share) == pytest.approx((1024, 1024 * 100, 1.0))


def test_layers_divide_the_work_and_do_not_change_it() -> None:
    shape = totals().shape("m")
    one, four = (on_h200(msgspec.structs.replace(shape, layers=layers), 4096) for layers in (1, 4))
    assert one.step_seconds == pytest.approx(four.step_seconds)
    assert one.mfu == pytest.approx(four.mfu)


def test_convolutions_are_less_efficient() -> None:
    products = totals().products["aligned"]
    shape = totals(products={"convolution": products}).shape("m", ModuleCosts(convolution_share=0.5))
    assert shape.product_share == 0.5
    mixed = totals(products={"aligned": products, "convolution": products}).shape(
        "m", ModuleCosts(convolution_share=0.5)
    )
    assert mixed.product_share == pytest.approx(2 / 3)


def test_small_batches_wait_for_the_host() -> None:
    shape = totals(operations=10_000).shape("m")
    one, two = on_h200(shape, 1), on_h200(shape, 2)
    assert one.step_seconds == two.step_seconds > 0.09
    assert on_h200(shape, 2**18).seconds["launch"] == 0


def test_data_parallelism_and_sharding_are_possible() -> None:
    shape = totals().shape("m")
    large = msgspec.structs.replace(shape, parameters_stated=10**10)
    assert on_h200(large, 64, Plan(8)).seconds["data"] > 0
    assert on_h200(shape, 64, Plan(8, zero=3)).memory["optimizer"] < on_h200(shape, 64, Plan(8)).memory["optimizer"]


def test_half_of_the_averages_of_products_is_no_model() -> None:
    with pytest.raises(BadValue, match="needs both product_width and product_results, or neither"):
        ModelShape("m", kind="opaque", parameters_stated=1, sample_gflop=1.0, product_width=3.0)


def test_every_measured_module_was_traced_and_some_are_held_out() -> None:
    names = {case.model.name for case in read_cases("modules_h200")}
    assert names == set(module_totals())
    assert set(FITTED_MODULES) < names
