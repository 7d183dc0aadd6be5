"""Low precision, links, multi-token prediction and stragglers, against hand-computed values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from refold.errors import BadValue
from refold.model import Link, Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import (
    Engine,
    Estimate,
    GpuSpec,
    Machines,
    Precision,
    TrainingSetup,
    build_machines,
    estimate,
    estimate_all,
    plans_to_columns,
)

GPU = GpuSpec(
    "G",
    80.0,
    300.0,
    20.0,
    2000.0,
    Link("nvlink", 300.0, 3.0),
    32.0,
    50.0,
    400.0,
    fp8_tflops=600.0,
    fp4_tflops=1200.0,
)
MODEL = find_model("llama-3-8b")


def on_one(engine: Engine, *, gpu: GpuSpec = GPU, **changes: Any) -> Estimate:
    model = msgspec.structs.replace(MODEL, **changes)
    return estimate(TrainingSetup(model, build_machines(gpu, 1), engine, 4, 4096), Plan(accumulation=4))


@pytest.mark.parametrize("precision", ["fp8", "mxfp8", "nvfp4"])
def test_only_the_products_of_layers_become_faster(precision: Precision) -> None:
    """With free quantisation and no loss for few rows, twice the rate halves the products and nothing else."""
    ideal = msgspec.structs.replace(GPU.efficiency, fp8=0.7, fp4=0.7, half_tokens=0.0, memory=1.0)
    gpu = msgspec.structs.replace(GPU, efficiency=ideal, memory_gigabytes_per_second=1e12)
    half = on_one(Engine("e", launch_seconds=0.0), gpu=gpu).seconds["compute"]
    low = on_one(Engine("e", launch_seconds=0.0).with_precision(precision), gpu=gpu).seconds["compute"]
    width = 4096 / (4096 + ideal.half_width)
    products = 3 * 4 * 4096 * 2 * MODEL.active_parameters / (300e12 * 0.7 * width)
    faster = 4 if precision == "nvfp4" else 2
    assert half - low == pytest.approx(products * (1 - 1 / faster))


def test_few_rows_lose_as_much_time_in_any_precision() -> None:
    """Time = rows / rate + a constant: the difference between two sizes halves, the constant stays."""
    engine = Engine("e", launch_seconds=0.0, passes_hidden=0.0, passes_inner=0.0)
    times = {}
    for precision in ("bf16", "fp8"):
        for batch in (1, 2):
            setup = TrainingSetup(MODEL, build_machines(GPU, 1), engine.with_precision(precision), batch, 512)
            times[precision, batch] = estimate(setup, Plan()).seconds["compute"]
    lost_half = 2 * times["bf16", 1] - times["bf16", 2]
    lost_low = 2 * times["fp8", 1] - times["fp8", 2]
    assert lost_low == pytest.approx(lost_half)


def test_activations_are_saved_quantised() -> None:
    half, low = on_one(Engine("e")).memory, on_one(Engine("e").with_precision("fp8")).memory
    assert low["activations"] == pytest.approx(0.8 * half["activations"])
    assert low["weights"] == half["weights"]


def test_a_gpu_without_the_arithmetic_is_refused() -> None:
    cases: list[tuple[str, Precision]] = [("A100", "fp8"), ("H100", "nvfp4")]
    for gpu, precision in cases:
        engine = find_engine("megatron-core").with_precision(precision)
        with pytest.raises(BadValue, match=f"has no matrix products in {precision}"):
            TrainingSetup(MODEL, build_machines(find_gpu(gpu), 8), engine, 8, 4096)
    with pytest.raises(BadValue, match="computes in tf32 precision, not in fp8"):
        find_engine("deepspeed-2023-fp32").with_precision("fp8")


@pytest.mark.parametrize(
    ("gpus", "domains"),
    [(4, (4,)), (8, (8,)), (72, (72,)), (76, (40, 36)), (128, (64, 64)), (256, (64,) * 4), (6, (6,))],
)
def test_nodes_of_a_rack_are_one_domain(gpus: int, domains: tuple[int, ...]) -> None:
    assert build_machines(find_gpu("GB200"), gpus).domains == domains


def test_without_racks_a_node_is_a_domain() -> None:
    assert build_machines(find_gpu("H100"), 20).domains == (8, 8, 4)


def test_inside_a_rack_the_network_does_not_matter() -> None:
    rack = find_gpu("GB300")
    engine, plan = find_engine("megatron-core"), Plan(8, tensor=8, zero=1)
    for gpus, is_equal in ((64, True), (128, False)):
        layout = build_machines(rack, gpus)
        slow = msgspec.structs.replace(layout, network=Link("network", 1.0))
        plan = msgspec.structs.replace(plan, data=gpus // 8)
        fast_step, slow_step = (
            estimate(TrainingSetup(MODEL, machines, engine, gpus, 8192), plan).step_seconds
            for machines in (layout, slow)
        )
        assert (fast_step == slow_step) == is_equal


def test_a_layer_that_predicts_a_further_token_costs_a_layer_and_an_output_layer() -> None:
    engine = Engine("e", launch_seconds=0.0)
    base, more, deeper = on_one(engine), on_one(engine, mtp_layers=1), on_one(engine, layers=MODEL.layers + 1)
    wide = on_one(engine, vocabulary=2 * MODEL.vocabulary)
    head = wide.seconds["compute"] - base.seconds["compute"]
    assert more.seconds["compute"] == pytest.approx(deeper.seconds["compute"] + head)


def test_stragglers_lengthen_a_step_with_each_doubling_of_the_nodes() -> None:
    engine = Engine("e", straggler_share=0.01, gather_straggler_share=0.02)
    for nodes, doublings in ((1, 0), (4, 2), (16, 4)):
        machines = Machines(GPU, (8,) * nodes, GPU.link, Link("network", 50.0))
        for zero, share in ((1, 0.01), (3, 0.03)):
            found = estimate(TrainingSetup(MODEL, machines, engine, 8 * nodes, 4096), Plan(8 * nodes, zero=zero))
            waiting = found.seconds["stragglers"]
            assert waiting == pytest.approx(share * doublings * (found.step_seconds - waiting))


def test_transfers_through_the_host_do_not_overlap() -> None:
    engine = Engine("e", overlap_gradients=1.0)
    seconds = {}
    for peer_to_peer in (True, False):
        gpu = msgspec.structs.replace(GPU, peer_to_peer=peer_to_peer)
        found = estimate(TrainingSetup(MODEL, build_machines(gpu, 8), engine, 8, 4096), Plan(8))
        seconds[peer_to_peer] = found.seconds["data"]
    exchange = 2 * 2 * MODEL.parameters * 7 / 8 / (300e9 * GPU.efficiency.link)
    assert seconds[True] == 0
    assert seconds[False] == pytest.approx(exchange, rel=1e-3)


def test_many_plans_are_evaluated_as_one_by_one() -> None:
    """More plans than a block: every row equals its own estimate."""
    setup = TrainingSetup(MODEL, build_machines(GPU, 8), find_engine("megatron-core"), 64, 4096)
    plans = [Plan(8 // tensor, tensor, accumulation=count) for tensor in (1, 2, 4, 8) for count in (1, 2, 4, 8)]
    many = plans_to_columns(plans * 2500)
    found = estimate_all(setup, many)
    assert len(many) == 40_000
    for row in (0, 16_383, 16_384, 39_999):
        single = estimate(setup, plans[row % 16])
        assert (found.step_seconds[row], found.memory.total[row]) == (single.step_seconds, single.memory_gib)
