"""Step time and memory of a small transformer, computed by hand from the documented formulas.

The GPU reaches all of its data-sheet rates and the framework adds nothing of its own, unless a test says so.
"""

from typing import Any

import msgspec
import numpy as np
import pytest

from refold.model import Link, Plan
from refold.planning.perf import (
    Efficiency,
    Engine,
    GpuSpec,
    Machines,
    ModelShape,
    TrainingSetup,
    build_machines,
    estimate,
)
from refold.planning.perf.communication import group_layout, ring_seconds
from refold.planning.perf.memory_model import GIB, stage_parameters_of

PEAK, MEMORY, LINK, PCIE, NODE_NETWORK = 100e12, 1000e9, 100e9, 10e9, 80e9
"""FLOP/s, and bytes per second of GPU memory, of the link inside a node, of PCIe, and of the network of a node."""

IDEAL = Efficiency(
    1.0, half_tokens=0.0, half_width=0.0, attention=1.0, half_keys=0.0, memory=1.0, link=1.0, network=1.0, pcie=1.0
)
GPU = GpuSpec("G", 80.0, 100.0, 10.0, 1000.0, Link("nvlink", 100.0), 10.0, 80.0, 400.0, efficiency=IDEAL)
BARE = Engine(
    "bare",
    passes_hidden=0.0,
    passes_inner=0.0,
    launch_seconds=0.0,
    step_seconds=0.0,
    overlap_gradients=0.0,
    overlap_shards=0.0,
    overhead_gib=0.0,
)
MODEL = ModelShape("small", layers=4, hidden=64, heads=8, bias=False, tied=False)
LAYER_WEIGHTS = 12 * 64**2 + 2 * 64  # attention 4h², feed-forward 8h², two norms
WEIGHTS = 4 * LAYER_WEIGHTS
BATCH, SEQUENCE = 16, 128
TOKENS = BATCH * SEQUENCE


def make_setup(gpus: int = 1, model: ModelShape = MODEL, *, machines: Machines | None = None, **engine: Any) -> Any:
    framework = msgspec.structs.replace(BARE, **engine)
    return TrainingSetup(model, machines or build_machines(GPU, gpus), framework, BATCH, SEQUENCE)


def seconds(setup: TrainingSetup, plan: Plan, part: str) -> float:
    return estimate(setup, plan).seconds[part]


def gib(setup: TrainingSetup, plan: Plan, part: str) -> float:
    return estimate(setup, plan).memory[part]


def test_compute_is_two_flops_per_weight_and_token_and_twice_that_backward() -> None:
    matmul = 2 * WEIGHTS * TOKENS / PEAK
    attention = 4 * (4 * SEQUENCE * 64 / 2) * TOKENS / PEAK  # causal: half of queries × keys and scores × values
    assert seconds(make_setup(), Plan(), "compute") == pytest.approx(3 * matmul + 3.5 * attention)


def test_attention_of_an_encoder_is_not_halved() -> None:
    encoder = msgspec.structs.replace(MODEL, kind="encoder")
    matmul, attention = 2 * WEIGHTS * TOKENS / PEAK, 4 * 4 * SEQUENCE * 64 * TOKENS / PEAK
    assert seconds(make_setup(model=encoder), Plan(), "compute") == pytest.approx(3 * matmul + 3.5 * attention)


def test_unfused_attention_reads_and_writes_its_scores() -> None:
    matmul, attention = 2 * WEIGHTS * TOKENS / PEAK, 4 * 4 * SEQUENCE * 64 * TOKENS / PEAK
    scores = 4 * 5 * 2 * 8 * SEQUENCE * TOKENS / MEMORY  # five passes over two bytes per head and pair of tokens
    expected = 3 * (matmul + attention + scores)
    assert seconds(make_setup(fused_attention=False), Plan(), "compute") == pytest.approx(expected)


@pytest.mark.parametrize(("gated", "matrices"), [(False, 2), (True, 3)])
def test_memory_passes_outside_matrix_products(gated: bool, matrices: int) -> None:
    setup = make_setup(model=msgspec.structs.replace(MODEL, gated=gated))
    slower = make_setup(model=setup.model, passes_hidden=10.0, passes_inner=2.0)
    inner = 4 * 64 + matrices * 256  # queries, keys, values and their sum; the feed-forward widths
    traffic = 4 * TOKENS * 2 * (10 * 64 + 2 * inner)
    added = seconds(slower, Plan(), "compute") - seconds(setup, Plan(), "compute")
    assert added == pytest.approx(3 * traffic / MEMORY)


def test_sequence_parallelism_splits_the_passes_over_the_hidden_width() -> None:
    plain, split = Plan(tensor=4), Plan(tensor=4, sequence_parallel=True)
    setup = make_setup(4, passes_hidden=10.0)
    saved = 3 * 4 * TOKENS * 2 * 10 * 64 * (1 - 1 / 4) / MEMORY
    assert seconds(setup, plain, "compute") - seconds(setup, split, "compute") == pytest.approx(saved)


@pytest.mark.parametrize(
    ("vocabulary", "pads_vocabulary", "slowdown"), [(1000, False, 1), (1001, False, 7), (1001, True, 1)]
)
def test_the_output_layer_is_slow_unless_its_width_is_a_multiple_of_8(
    vocabulary: int, pads_vocabulary: bool, slowdown: int
) -> None:
    with_head = msgspec.structs.replace(MODEL, vocabulary=vocabulary)
    logits = TOKENS * vocabulary
    head = slowdown * 3 * 2 * logits * 64 / PEAK + 12 * logits / MEMORY
    setup = make_setup(model=with_head, pads_vocabulary=pads_vocabulary)
    assert seconds(setup, Plan(), "compute") - seconds(make_setup(), Plan(), "compute") == pytest.approx(head)


@pytest.mark.parametrize(("arithmetic", "slowdown"), [("half", 1.0), ("tf32", 2.0), ("single", 10.0)])
def test_the_peak_depends_on_the_arithmetic(arithmetic: str, slowdown: float) -> None:
    half, other = (estimate(make_setup(arithmetic=name), Plan()) for name in ("half", arithmetic))
    assert other.seconds["compute"] == pytest.approx(slowdown * half.seconds["compute"])
    assert other.mfu == pytest.approx(half.mfu * slowdown * half.step_seconds / other.step_seconds)  # of the lower peak


def test_half_of_the_rate_is_reached_with_half_tokens_rows_of_1024_columns() -> None:
    wide = ModelShape("wide", layers=1, hidden=1024, heads=8, bias=False)
    efficiency = msgspec.structs.replace(IDEAL, half_tokens=float(TOKENS), half_width=1024.0)
    slow = msgspec.structs.replace(GPU, efficiency=efficiency)
    matmul = 3 * 2 * wide.stack_parameters * TOKENS / PEAK
    attention = 3.5 * 2 * SEQUENCE * 1024 * TOKENS / PEAK
    fast = seconds(make_setup(model=wide), Plan(), "compute")
    assert fast == pytest.approx(matmul + attention)
    both_halved = seconds(make_setup(model=wide, machines=build_machines(slow, 1)), Plan(), "compute")
    assert both_halved == pytest.approx(4 * matmul + attention)


def test_tensor_parallelism_takes_four_all_reduces_per_layer() -> None:
    payload = TOKENS * 64 * 2
    all_reduce = 2 * payload * (1 - 1 / 4) / LINK
    setup, half_hidden = make_setup(4), make_setup(4, overlap_tensor=0.5)
    assert seconds(setup, Plan(tensor=4), "tensor") == pytest.approx(4 * 4 * all_reduce)
    assert seconds(setup, Plan(tensor=4, recompute="full"), "tensor") == pytest.approx(4 * 6 * all_reduce)
    assert seconds(half_hidden, Plan(tensor=4), "tensor") == pytest.approx(4 * 4 * (1 - 0.5 * 3 / 4) * all_reduce)
    slower = make_setup(4, tensor_factor=1.75)
    assert seconds(slower, Plan(tensor=4), "tensor") == pytest.approx(1.75 * 4 * 4 * all_reduce)
    assert seconds(setup, Plan(4), "tensor") == 0


def test_a_pipeline_transfers_activations_forward_and_backward() -> None:
    payload = TOKENS / 8 * 64 * 2
    setup = make_setup(4)
    assert seconds(setup, Plan(pipeline=4, accumulation=8), "pipeline") == pytest.approx(8 * 2 * payload / LINK)
    interleaved = Plan(pipeline=2, tensor=2, accumulation=8, interleave=2)
    assert seconds(setup, interleaved, "pipeline") == pytest.approx(8 * 2 * 2 * payload / 2 / LINK)
    across = make_setup(machines=build_machines(GPU, 16, nodes=2))
    per_card = NODE_NETWORK / 8  # one network card per GPU
    assert seconds(across, Plan(8, pipeline=2), "pipeline") == pytest.approx(2 * (TOKENS / 8 * 128) / per_card)


def test_an_uneven_pipeline_waits_for_its_longest_stage() -> None:
    five = msgspec.structs.replace(MODEL, layers=5)
    one_layer = seconds(make_setup(), Plan(), "compute") / 4
    assert seconds(make_setup(2, five), Plan(pipeline=2), "compute") == pytest.approx(3 * one_layer)


def test_waits_of_a_stage_for_its_neighbours() -> None:
    setup = make_setup(4, stage_wait=0.5, stage_wait_from_gpus=4)
    transfers = seconds(make_setup(4), Plan(pipeline=4, accumulation=2), "pipeline")
    assert seconds(setup, Plan(pipeline=4, accumulation=2), "pipeline") == pytest.approx(2 * 2 * 0.5 + transfers)
    assert seconds(setup, Plan(4), "pipeline") == 0
    one_neighbour = make_setup(2, stage_wait=0.5)
    assert seconds(one_neighbour, Plan(pipeline=2), "pipeline") == pytest.approx(0.5, abs=1e-4)
    too_small = make_setup(2, stage_wait=0.5, stage_wait_from_gpus=4)
    assert seconds(too_small, Plan(pipeline=2), "pipeline") == pytest.approx(0.0, abs=1e-4)
    wide = make_setup(4, stage_wait=0.5, stage_wait_from_gpus=8, stage_wait_from_tensor=2)
    assert seconds(wide, Plan(pipeline=2, tensor=2), "pipeline") == pytest.approx(0.5, abs=1e-4)
    assert seconds(wide, Plan(2, pipeline=2), "pipeline") == pytest.approx(0.0, abs=1e-4)


PASS = 2 * WEIGHTS * (1 - 1 / 8) / LINK
"""A reduce-scatter of the gradients or an all-gather of the weights: two bytes each, over eight GPUs."""


@pytest.mark.parametrize(
    ("zero", "accumulation", "passes"),
    [
        (0, 1, 2),  # an all-reduce
        (0, 2, 2),
        (1, 2, 1 + 1),  # scatter gradients and gather weights once per step
        (2, 1, 1 + 1),
        (2, 2, 2 + 1),  # scatter for each micro-batch
        (3, 2, 2 + 2 * 2),  # and gather for each forward and backward pass
    ],
)
def test_data_parallel_communication_by_zero_stage(zero: int, accumulation: int, passes: int) -> None:
    plan = Plan(8, zero=zero, accumulation=accumulation)
    assert seconds(make_setup(8), plan, "data") == pytest.approx(passes * PASS)


def test_frameworks_exchange_gradients_differently() -> None:
    setup = make_setup(8, reduces_each_micro_batch=True)
    assert seconds(setup, Plan(8, accumulation=2), "data") == pytest.approx(2 * 2 * PASS)
    setup = make_setup(8, scatters_gradients=False)
    assert seconds(setup, Plan(8, zero=1), "data") == pytest.approx((2 + 1) * PASS)
    setup = make_setup(8, message_seconds=0.25)
    assert seconds(setup, Plan(8), "data") == pytest.approx(2 * PASS + 0.25 * 8 * 4)
    assert seconds(setup, Plan(tensor=8), "data") == 0  # no replicas, no messages


def test_gradients_overlap_with_the_backward_pass() -> None:
    backward = 2 * 2 * WEIGHTS * TOKENS / 8 / PEAK + 2.5 * 4 * 2 * SEQUENCE * 64 * TOKENS / 8 / PEAK
    setup = make_setup(8, overlap_gradients=0.5)
    assert seconds(setup, Plan(8), "data") == pytest.approx(max(0.0, 2 * PASS - 0.5 * backward))
    fast_link = build_machines(msgspec.structs.replace(GPU, link=Link("nvlink", 1e6)), 8)
    assert seconds(make_setup(machines=fast_link, overlap_gradients=0.5), Plan(8), "data") == 0


def test_the_optimizer_reads_and_writes_its_states_once() -> None:
    update = WEIGHTS * (2 * 12 + 4 + 2) / MEMORY
    setup = make_setup(8, step_seconds=0.5, update_passes=3.0)
    assert seconds(setup, Plan(8), "optimizer") == pytest.approx(3 * update + 0.5)
    assert seconds(setup, Plan(8, zero=1), "optimizer") == pytest.approx(3 * update / 8 + 0.5)


def test_offload_transfers_gradients_and_weights_and_updates_on_the_host() -> None:
    machines = build_machines(GPU, 2, cpus=4.0)
    setup = make_setup(machines=machines, cpu_seconds_per_parameter=1e-6, step_seconds=0.5)
    plan = Plan(2, zero=1, offload=True)
    assert seconds(setup, plan, "offload") == pytest.approx(2 * 2 * WEIGHTS / 2 / PCIE)
    assert seconds(setup, plan, "optimizer") == pytest.approx(WEIGHTS / 2 * 1e-6 / 2 + 0.5)
    default_threads = make_setup(2, cpu_seconds_per_parameter=1e-6)
    assert seconds(default_threads, plan, "optimizer") == pytest.approx(WEIGHTS / 2 * 1e-6 / 8)
    assert seconds(setup, Plan(2, zero=1), "offload") == 0


def test_launching_kernels_bounds_the_time_of_a_layer() -> None:
    computed = seconds(make_setup(), Plan(), "compute")
    slow = make_setup(launch_seconds=0.5)
    assert seconds(slow, Plan(), "launch") == pytest.approx(4 * 0.5 - computed)
    recomputed = estimate(slow, Plan(recompute="full")).seconds
    busy = recomputed["compute"] + recomputed["recompute"]
    assert recomputed["launch"] == pytest.approx(4 * 0.5 * 4 / 3 - busy)
    assert seconds(make_setup(launch_seconds=1e-9), Plan(), "launch") == 0


def test_tensor_parallel_ranks_beyond_a_node_add_waiting_time() -> None:
    across = build_machines(GPU, 8, nodes=4)
    plain, waiting = make_setup(machines=across), make_setup(machines=across, tensor_wait_across_nodes=0.5)
    busy = sum(estimate(plain, Plan(2, 4)).seconds[part] for part in ("compute", "tensor"))
    assert seconds(waiting, Plan(2, 4), "launch") == pytest.approx(4 * 0.5 * (4 - 2) - busy)
    assert seconds(waiting, Plan(4, 2), "launch") == 0
    pipelined = make_setup(machines=across, tensor_wait_in_pipeline=0.5)
    plan = Plan(2, 2, 2)
    parts = estimate(pipelined, plan).seconds
    assert parts["launch"] == pytest.approx(2 * 0.5 * 2 - parts["compute"] - parts["tensor"])
    assert seconds(pipelined, Plan(4, pipeline=2), "launch") == 0


def test_a_group_inside_a_node_uses_the_link_and_its_latency() -> None:
    machines = Machines(GPU, (8,), Link("nvlink", 100.0, 5.0), Link("network", 80.0, 20.0))
    one = np.ones(1)
    assert ring_seconds(machines, 1e9 * one, 4 * one, one)[0] == pytest.approx(0.75 * 1e9 / LINK + 2 * 5e-6)


def test_a_group_across_nodes_adds_the_latencies_of_both_links() -> None:
    machines = Machines(GPU, (8, 8, 8, 8), Link("nvlink", 100.0, 5.0), Link("network", 80.0, 20.0))
    one = np.ones(1)
    expected = 0.75 * 1e9 / NODE_NETWORK + 3 * 5e-6 + 2 * 20e-6
    assert ring_seconds(machines, 1e9 * one, 32 * one, one)[0] == pytest.approx(expected)
    doubled = ring_seconds(machines, 1e9 * one, 32 * one, one, inter_node_factor=2.0)[0]
    assert doubled == pytest.approx(expected + 0.75 * 1e9 / NODE_NETWORK)


@pytest.mark.parametrize(
    ("layout", "members", "stride", "expected"),
    [
        ((8,), 4, 2, (4, 1, 2)),
        ((8, 8), 8, 1, (8, 1, 1)),
        ((8, 8), 16, 1, (8, 2, 1)),
        ((8, 8), 4, 4, (2, 2, 4)),
        ((8, 8), 2, 8, (1, 2, 8)),
        ((6, 6), 4, 1, (4, 1, 1)),  # does not divide a node, but as many as a node has
        ((6, 2), 4, 1, (4, 1, 1)),
    ],
)
def test_groups_are_laid_out_on_nodes(
    layout: tuple[int, ...], members: int, stride: int, expected: tuple[float, float, float]
) -> None:
    machines = Machines(GPU, layout, GPU.link, GPU.link)
    found = group_layout(machines, np.full(1, float(members)), np.full(1, float(stride)))
    assert tuple(float(column[0]) for column in found[:3]) == expected
    assert found.levels == ()


HEAD = msgspec.structs.replace(MODEL, vocabulary=1000)


def test_the_weights_of_the_first_and_the_last_stage() -> None:
    plan, setup = Plan(pipeline=2), make_setup(2, HEAD)
    assert [stage_parameters_of(setup, plan, is_last=last).total for last in (False, True)] == [
        2 * LAYER_WEIGHTS + 1000 * 64,
        2 * LAYER_WEIGHTS + 1000 * 64,
    ]
    tied = make_setup(2, msgspec.structs.replace(HEAD, tied=True))
    assert (
        stage_parameters_of(tied, plan, is_last=True).total == 2 * LAYER_WEIGHTS + 1000 * 64
    )  # a copy of the embedding
    assert stage_parameters_of(tied, Plan(2), is_last=True).total == WEIGHTS + 1000 * 64  # no copy on the only stage
    assert stage_parameters_of(setup, Plan(tensor=2), is_last=True).total == (WEIGHTS + 2 * 1000 * 64) / 2
    uneven = make_setup(3, HEAD)
    assert stage_parameters_of(uneven, Plan(pipeline=3), is_last=False).total == 2 * LAYER_WEIGHTS + 1000 * 64


def test_the_fullest_of_uneven_stages_is_the_first_or_the_second() -> None:
    """Ten layers on four stages: 2, 3, 3 and 2, with 4, 3, 2 and 1 micro-batches in flight."""
    model = msgspec.structs.replace(HEAD, layers=10)
    setup, plan = make_setup(4, model), Plan(pipeline=4, accumulation=8)
    assert gib(setup, plan, "weights") * GIB == pytest.approx(2 * 3 * LAYER_WEIGHTS)
    tokens = setup.tokens / 8
    assert gib(setup, plan, "activations") * GIB == pytest.approx(tokens * 3 * 3 * LAYER_BYTES)
    even = make_setup(4, msgspec.structs.replace(HEAD, layers=12))
    assert gib(even, plan, "activations") * GIB == pytest.approx(tokens * 3 * 4 * LAYER_BYTES)


def test_memory_of_weights_gradients_and_optimizer_by_zero_stage() -> None:
    def bytes_of_states(zero: int) -> tuple[float, ...]:
        setup = make_setup(8)
        plan = Plan(8, zero=zero)
        return tuple(gib(setup, plan, part) * GIB for part in ("weights", "gradients", "optimizer"))

    gathered = 2 * 2 * LAYER_WEIGHTS * (1 - 1 / 8)  # two layers, except the part that is there already
    assert [bytes_of_states(zero) for zero in range(4)] == [
        pytest.approx((2 * WEIGHTS, 4 * WEIGHTS, 12 * WEIGHTS)),
        pytest.approx((2 * WEIGHTS, 4 * WEIGHTS, 12 * WEIGHTS / 8)),
        pytest.approx((2 * WEIGHTS, 4 * WEIGHTS / 8, 12 * WEIGHTS / 8)),
        pytest.approx((2 * WEIGHTS / 8 + gathered, 4 * WEIGHTS / 8, 12 * WEIGHTS / 8)),
    ]


LAYER_BYTES = 6 * 64 + 2 * (4 * 64 + 2 * 256)
"""Saved activations of a layer, per token."""


@pytest.mark.parametrize(
    ("plan", "per_token"),
    [
        (Plan(), 4 * LAYER_BYTES),
        (Plan(recompute="full"), 4 * 2 * 64 + LAYER_BYTES),  # inputs of the layers, and the one being recomputed
        (Plan(pipeline=4, accumulation=8), 4 * LAYER_BYTES),  # one layer, of four micro-batches in flight
        (Plan(pipeline=4, accumulation=2), 2 * LAYER_BYTES),
        (Plan(pipeline=2, accumulation=8, interleave=2), 2 * (2 * (1 + 1 / 4)) * LAYER_BYTES),
        (Plan(tensor=4), 4 * (6 * 64 + (LAYER_BYTES - 6 * 64) / 4)),
        (Plan(tensor=4, sequence_parallel=True), 4 * LAYER_BYTES / 4),
    ],
    ids=str,
)
def test_activations_are_those_of_all_micro_batches_in_flight(plan: Plan, per_token: float) -> None:
    tokens = TOKENS / plan.accumulation
    assert gib(make_setup(plan.gpus), plan, "activations") * GIB == pytest.approx(tokens * per_token)


def test_logits_are_on_the_last_stage_only() -> None:
    large = make_setup(2, msgspec.structs.replace(MODEL, vocabulary=64_000))
    assert gib(large, Plan(2), "logits") * GIB == pytest.approx(6 * TOKENS / 2 * 64_000)
    assert gib(large, Plan(tensor=2), "logits") * GIB == pytest.approx(6 * TOKENS * 64_000 / 2)
    assert gib(large, Plan(pipeline=2), "logits") > 0  # the last stage is the fullest
    small = make_setup(2, msgspec.structs.replace(MODEL, vocabulary=8))
    assert gib(small, Plan(pipeline=2, accumulation=2), "logits") == 0  # the first one is


def test_host_memory_of_offloaded_states() -> None:
    states = 16 * 1.5 * WEIGHTS / GIB
    assert estimate(make_setup(2), Plan(2, zero=1, offload=True)).host_gib == pytest.approx(states)
    assert estimate(make_setup(2), Plan(2, offload=True)).host_gib == pytest.approx(2 * states)  # every replica's
    assert estimate(make_setup(2), Plan(2, zero=1)).host_gib == 0


def test_a_plan_fits_up_to_94_percent_of_the_memory() -> None:
    needed = estimate(make_setup(overhead_gib=10.0), Plan()).memory_gib
    assert needed == pytest.approx(10.0, rel=0.01)
    for memory_gib, fits in ((needed / 0.94 * 1.001, True), (needed / 0.94 * 0.999, False)):
        machines = build_machines(msgspec.structs.replace(GPU, memory_gib=memory_gib), 1)
        found = estimate(make_setup(machines=machines, overhead_gib=10.0), Plan())
        assert found.fits is fits
        assert found.spare_gib == pytest.approx(0.94 * memory_gib - needed)


def test_host_memory_is_unlimited_unless_it_is_known() -> None:
    plan = Plan(offload=True)
    needed = estimate(make_setup(), plan).host_gib
    assert estimate(make_setup(), plan).host_spare_gib == np.inf
    for memory_gib, fits in ((needed * 1.01, True), (needed * 0.99, False)):
        setup = make_setup(machines=build_machines(GPU, 1, memory_gib=memory_gib))
        assert estimate(setup, plan).fits is fits


def test_selective_recomputation_repeats_attention_and_its_scores() -> None:
    attention, scores = 4 * 4 * SEQUENCE * 64 * TOKENS / PEAK, 4 * 5 * 2 * 8 * SEQUENCE * TOKENS / MEMORY
    unfused = make_setup(fused_attention=False)
    assert seconds(unfused, Plan(recompute="selective"), "recompute") == pytest.approx(attention + scores)
    partly = make_setup(fused_attention=False, selective_recompute_share=0.25)
    matmul = 2 * WEIGHTS * TOKENS / PEAK
    expected = attention + scores + 0.25 * matmul
    assert seconds(partly, Plan(recompute="selective"), "recompute") == pytest.approx(expected)


def test_the_first_stage_of_a_pipeline_determines_the_update_and_the_fuller_one_the_memory() -> None:
    """The first stage has the embeddings of 1,000 tokens and 4,000 positions, the last one only the output layer."""
    setup = make_setup(2, msgspec.structs.replace(HEAD, positions=4000))
    first, last = 2 * LAYER_WEIGHTS + 5000 * 64, 2 * LAYER_WEIGHTS + 1000 * 64
    plan = Plan(pipeline=2)
    assert seconds(setup, plan, "optimizer") == pytest.approx(first * 30 / MEMORY)
    states = {part: gib(setup, plan, part) * GIB for part in ("weights", "gradients", "optimizer")}
    assert gib(setup, plan, "logits") * GIB == pytest.approx(6 * TOKENS * 1000)  # the last stage is the fuller one
    assert states == pytest.approx({"weights": 2 * last, "gradients": 4 * last, "optimizer": 12 * last})
    many = Plan(pipeline=2, accumulation=16)
    assert gib(setup, many, "logits") == 0  # with small micro-batches, it is the first one
    assert gib(setup, many, "weights") * GIB == pytest.approx(2 * first)


def test_a_batch_of_one_sample_is_estimated() -> None:
    one = msgspec.structs.replace(make_setup(), batch=1)
    assert seconds(one, Plan(), "compute") == pytest.approx(seconds(make_setup(), Plan(), "compute") / 16)
