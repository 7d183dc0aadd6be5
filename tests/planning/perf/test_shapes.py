"""Counts of weights from shapes, layouts of machines, and measurements: by hand, and what they reject."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import msgspec
import pytest

from refold.errors import BadValue
from refold.model import Link, Plan
from refold.planning.perf import (
    Efficiency,
    Engine,
    GpuSpec,
    Machines,
    Measurement,
    ModelShape,
    TrainingSetup,
    build_machines,
)

GPU = GpuSpec("G", 80.0, 300.0, 20.0, 2000.0, Link("nvlink", 300.0), 32.0, 200.0, 400.0)
H, F, V = 8, 32, 100
"""Hidden width, feed-forward width (four times that), vocabulary."""


def shape(**changes: Any) -> ModelShape:
    return ModelShape("m", **{"layers": 2, "hidden": H, "heads": 4, "vocabulary": V, "bias": False, **changes})


@pytest.mark.parametrize(
    ("model", "attention", "expert", "stack", "total"),
    [
        (shape(), 4 * H * H, 2 * H * F, 2 * (12 * H * H + 2 * H), 2 * (12 * H * H + 2 * H) + V * H),
        (
            shape(bias=True),
            4 * H * H + 4 * H,
            2 * H * F + F + H,
            2 * (12 * H * H + 4 * H + F + H + 4 * H),
            2 * (12 * H * H + 13 * H) + V * H,
        ),
        (
            shape(kv_heads=1, gated=True, ffn=24, tied=False, positions=16),
            2 * H * H + 2 * H * 2,  # one key head of width 2
            3 * H * 24,
            2 * (2 * H * H + 4 * H + 72 * H + 2 * H),
            2 * (2 * H * H + 78 * H) + 2 * V * H + 16 * H,
        ),
        (
            shape(head_size=4, heads=3),
            4 * H * 12,  # heads need not add up to the hidden width
            2 * H * F,
            2 * (48 * H + 8 * H * H + 2 * H),
            2 * (50 * H + 8 * H * H) + V * H,
        ),
        (
            shape(experts=4, experts_per_token=2),
            4 * H * H,
            2 * H * F,
            2 * (4 * H * H + 4 * 8 * H * H + 4 * H + 2 * H),  # with the router
            2 * (36 * H * H + 6 * H) + V * H,
        ),
        (
            shape(kind="encoder-decoder", encoder_layers=3),
            4 * H * H,
            2 * H * F,
            5 * (8 * H * H + 2 * H) + 7 * 4 * H * H,  # the decoder also attends to the encoder
            5 * (8 * H * H + 2 * H) + 28 * H * H + V * H,
        ),
    ],
    ids=["plain", "biased", "gated", "wide heads", "experts", "encoder-decoder"],
)
def test_weights_are_counted_from_the_shapes(
    model: ModelShape, attention: int, expert: int, stack: int, total: int
) -> None:
    assert (model.attention_parameters, model.expert_parameters) == (attention, expert)
    assert (model.stack_parameters, model.parameters) == (stack, total)


def test_only_some_experts_are_active_for_a_token() -> None:
    model = shape(experts=4, experts_per_token=1)
    assert model.stack_parameters - model.active_parameters == 2 * 3 * model.expert_parameters
    assert shape().active_parameters == shape().stack_parameters


def test_a_published_count_replaces_the_total_but_not_the_layers() -> None:
    model = shape(parameters_stated=5_000)
    assert (model.parameters, model.stack_parameters) == (5_000, shape().stack_parameters)


def test_an_opaque_model_has_its_published_count_only() -> None:
    model = ModelShape("r", "opaque", parameters_stated=25, sample_gflop=4.0)
    assert (model.parameters, model.stack_parameters, model.active_parameters) == (25, 25, 25)
    assert (model.embedding_parameters, model.head_parameters, model.predicts_tokens) == (0, 0, False)


def test_only_language_models_predict_tokens() -> None:
    kinds = {"decoder": True, "encoder": True, "vit": False}
    assert {kind: shape(kind=kind).predicts_tokens for kind in kinds} == kinds


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: shape(layers=0), "model 'm': layers is 0, expected a number ≥ 1"),
        (lambda: shape(hidden=0), "model 'm': hidden is 0, expected a number ≥ 1"),
        (lambda: shape(positions=-1), "model 'm': positions is -1, expected a number ≥ 0"),
        (lambda: shape(sample_mib=inf), "model 'm': sample_mib is inf, expected a number ≥ 0"),
        (lambda: shape(heads=3), "model 'm': hidden 8 is not divisible by 3 heads"),
        (lambda: shape(kv_heads=3), "model 'm': 4 heads are not divisible by 3 kv_heads"),
        (lambda: shape(experts=2, experts_per_token=3), "model 'm': experts_per_token is 3, expected ≤ 2"),
        (
            lambda: shape(kind="encoder-decoder"),
            "model 'm': encoder_layers is required for kind 'encoder-decoder', and only then",
        ),
        (
            lambda: shape(encoder_layers=2),
            "model 'm': encoder_layers is required for kind 'encoder-decoder', and only then",
        ),
        (
            lambda: ModelShape("r", "opaque", parameters_stated=5),
            "opaque model 'r' needs parameters_stated and sample_gflop",
        ),
        (
            lambda: ModelShape("r", "opaque", parameters_stated=1, sample_gflop=nan),
            "model 'r': sample_gflop is nan, expected a number ≥ 0",
        ),
        (lambda: build_machines(GPU, 0), "0 GPUs, expected at least 1"),
        (lambda: build_machines(GPU, 4, nodes=5), "4 GPUs cannot be spread over 5 nodes"),
        (lambda: build_machines(GPU, 4, nodes=-1), "4 GPUs cannot be spread over -1 nodes"),
        (
            lambda: Machines(GPU, (4, 0), GPU.link, GPU.link),
            "gpus_on_node is (4, 0), expected at least one GPU on each node",
        ),
        (lambda: Machines(GPU, (), GPU.link, GPU.link), "gpus_on_node is (), expected at least one GPU on each node"),
        (
            lambda: Machines(GPU, (1,), GPU.link, GPU.link, -1.0, 2.0),
            "cpus is -1.0 and memory_gib is 2.0, expected numbers ≥ 0",
        ),
        (
            lambda: msgspec.structs.replace(GPU, network_cards=0),
            "GPU 'G': memory, rates, bandwidths, power and counts must be > 0",
        ),
        (
            lambda: msgspec.structs.replace(GPU, half_tflops=nan),
            "GPU 'G': memory, rates, bandwidths, power and counts must be > 0",
        ),
        (
            lambda: Machines(GPU, (1,), GPU.link, GPU.link, inf),
            "cpus is inf and memory_gib is 0.0, expected numbers ≥ 0",
        ),
        (lambda: Engine("e", launch_seconds=nan), "engine 'e': launch_seconds is nan, expected a number ≥ 0"),
        (
            lambda: Engine("e", overlap_tensor=-0.1),
            "engine 'e': overlap_tensor is -0.1, expected a number ≥ 0",
        ),
        (
            lambda: TrainingSetup(shape(), build_machines(GPU, 1), Engine("e"), 0, 1),
            "batch is 0 and sequence is 1, expected at least 1",
        ),
        (
            lambda: TrainingSetup(shape(), build_machines(GPU, 1), Engine("e"), 1, 0),
            "batch is 1 and sequence is 0, expected at least 1",
        ),
    ],
)
def test_invalid_shapes_and_machines_are_rejected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(BadValue) as raised:
        build()
    assert str(raised.value) == message


@pytest.mark.parametrize("share", ["matmul", "attention", "memory", "link", "network", "pcie"])
def test_every_share_of_a_rate_is_above_0_and_at_most_1(share: str) -> None:
    assert getattr(Efficiency(**{share: 1.0}), share) == 1.0
    for value in (0.0, 1.001, nan):
        with pytest.raises(BadValue, match="expected shares > 0 and ≤ 1"):
            Efficiency(**{share: value})


@pytest.mark.parametrize(
    ("gpus", "nodes", "layout"),
    [
        (1, 0, (1,)),
        (8, 0, (8,)),
        (20, 0, (8, 8, 4)),
        (20, 2, (10, 10)),
        (7, 3, (3, 2, 2)),
        (3, 3, (1, 1, 1)),
    ],
)
def test_machines_fill_nodes_unless_they_are_spread(gpus: int, nodes: int, layout: tuple[int, ...]) -> None:
    machines = build_machines(GPU, gpus, nodes=nodes, cpus=5.0, memory_gib=6.0)
    assert machines == Machines(GPU, layout, GPU.link, Link("network", 200.0), 5.0, 6.0)
    assert (machines.gpus, machines.nodes) == (gpus, len(layout))


def measurement(**changes: Any) -> Measurement:
    fields = {"model": "m", "gpu": "G", "gpus_on_node": (4,), "plan": Plan(4, accumulation=2), "batch": 32}
    return Measurement(**{**fields, "sequence": 512, "step_seconds": 0.5, **changes})


def test_a_measurement_knows_its_micro_batch_and_throughput() -> None:
    assert (measurement().micro_batch, measurement().samples_per_second) == (4.0, 64.0)
    assert measurement(status="oom", step_seconds=None).samples_per_second == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus_on_node": (2,)}, "DP4 accumulate 2 uses 4 GPUs, but gpus_on_node is (2,)"),
        ({"gpus_on_node": (4, 0)}, "DP4 accumulate 2 uses 4 GPUs, but gpus_on_node is (4, 0)"),
        ({"batch": 0}, "batch and sequence must be ≥ 1"),
        ({"sequence": 0}, "batch and sequence must be ≥ 1"),
        ({"batch": 12}, "batch 12 is not divisible by 4 replicas × 2 micro-batches"),
        ({"step_seconds": None}, "step_seconds is required with status 'ok', and only then"),
        ({"status": "oom"}, "step_seconds is required with status 'ok', and only then"),
        ({"forward_seconds": -1.0}, "value is -1.0, expected a number ≥ 0"),
        ({"reserved_gib": nan}, "value is nan, expected a number ≥ 0"),
        ({"step_seconds": 0.0}, "step_seconds is 0.0, expected > 0"),
        ({"step_seconds": inf}, "step_seconds is inf, expected > 0"),
    ],
)
def test_an_impossible_measurement_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue) as raised:
        measurement(**changes)
    assert str(raised.value) == f"measurement of 'm': {message}"
