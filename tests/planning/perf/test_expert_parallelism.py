"""Expert parallelism: which weights it divides, which tokens it sends, and how full the experts are."""

from typing import Any

import msgspec
import pytest

from refold.model.cluster import Link
from refold.model.plan import Plan
from refold.planning.perf.engine import Engine
from refold.planning.perf.estimation import Estimate, estimate
from refold.planning.perf.hardware import GpuSpec, Machines
from refold.planning.perf.memory_model import GIB
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup

GPU = GpuSpec("G", 80.0, 300.0, 20.0, 2000.0, Link("nvlink", 300.0, 3.0), 32.0, 100.0, 400.0)
HIDDEN, LAYERS, TOKENS = 2048, 16, 4096
MODEL = ModelShape(
    "m", layers=LAYERS, hidden=HIDDEN, heads=16, ffn=1024, gated=True, bias=False, experts=64, experts_per_token=4
)


def on(plan: Plan, *, overlap: float = 0.0, imbalance: float = 1.0, **changes: Any) -> Estimate:
    machines = Machines(GPU, (8,) * max(1, plan.gpus // 8), GPU.link, Link("network", 50.0, 10.0))
    engine = Engine("e", overlap_experts=overlap, expert_imbalance=imbalance, launch_seconds=0.0)
    model = msgspec.structs.replace(MODEL, **changes)
    return estimate(TrainingSetup(model, machines, engine, plan.data, TOKENS), plan)


def routed_gib(each: float) -> float:
    return each * MODEL.routed_parameters / GIB


def test_weights_and_gradients_of_experts_are_divided() -> None:
    one, eight = on(Plan(8)), on(Plan(8, expert=8))
    assert one.memory["weights"] - eight.memory["weights"] == pytest.approx(7 / 8 * routed_gib(2.0))
    assert one.memory["gradients"] - eight.memory["gradients"] == pytest.approx(7 / 8 * routed_gib(4.0))


def test_sharded_optimizer_states_do_not_become_fewer() -> None:
    assert on(Plan(16, zero=1)).memory["optimizer"] == pytest.approx(on(Plan(16, zero=1, expert=8)).memory["optimizer"])


def test_gradients_of_experts_are_summed_over_fewer_gpus() -> None:
    alone, divided = (on(Plan(16, expert=expert), overlap=1.0).seconds["data"] for expert in (1, 16))
    assert divided < alone / 3


def test_tokens_are_sent_to_each_other_gpu_of_a_node_once() -> None:
    """A token has none of its four experts on a certain one of eight GPUs with a probability of (7 / 8)⁴."""
    seconds = on(Plan(8, expert=8)).seconds["expert"]
    once = TOKENS * HIDDEN * 2 * 7 * (1 - (7 / 8) ** 4) / (300e9 * GPU.efficiency.link) + 3e-6 * 3
    assert seconds == pytest.approx(4 * LAYERS * once)


def test_tokens_with_limited_groups_are_sent_to_fewer_nodes() -> None:
    """Four nodes: without a limit, a token has experts on 4 × (1 - (3 / 4)⁴) = 2.7 of them."""
    anywhere, limited = (on(Plan(32, expert=32), groups_per_token=groups).seconds["expert"] for groups in (0, 2))
    latency = 4 * LAYERS * (3 * 3 + 2 * 10) * 1e-6
    assert (limited - latency) / (anywhere - latency) == pytest.approx(2 / (4 * (1 - (3 / 4) ** 4)))


def test_tokens_are_sent_to_each_other_node_once() -> None:
    """Two nodes: a token with four experts has one on the other node with a probability of 15 / 16."""
    seconds = on(Plan(16, expert=16)).seconds["expert"]
    once = TOKENS * HIDDEN * 2 * (1 - 1 / 2**4) * 8 / (50e9 * GPU.efficiency.network) + (3 * 3 + 10) * 1e-6
    assert seconds == pytest.approx(4 * LAYERS * once)


def test_the_exchange_is_repeated_overlaps_and_follows_the_fullest_gpu() -> None:
    plan = Plan(8, expert=8)
    base = on(plan).seconds["expert"]
    assert on(msgspec.structs.replace(plan, recompute="full")).seconds["expert"] == pytest.approx(1.5 * base)
    compute = on(plan).seconds["compute"]
    assert on(plan, overlap=0.01).seconds["expert"] == pytest.approx(base - 0.01 * compute)
    assert on(plan, overlap=1.0).seconds["expert"] == 0
    assert on(plan, imbalance=1.5).seconds["expert"] == pytest.approx(1.5 * base, rel=0.02)


def test_between_nodes_the_exchange_overlaps_only_in_a_pipeline() -> None:
    alone, pipeline = Plan(16, expert=16), Plan(16, pipeline=2, expert=16, accumulation=1)
    assert on(alone, overlap=0.1).seconds["expert"] == on(alone).seconds["expert"]
    assert on(pipeline, overlap=0.1).seconds["expert"] < on(pipeline).seconds["expert"]


def test_experts_with_few_tokens_are_slower() -> None:
    """With all experts on every GPU, each has 256 tokens; divided among eight GPUs, 2,048."""
    assert on(Plan(8)).seconds["compute"] > 1.2 * on(Plan(8, expert=8)).seconds["compute"]
    assert on(Plan(8, expert=8), imbalance=1.2).seconds["compute"] > on(Plan(8, expert=8)).seconds["compute"]


def test_layers_without_experts_send_no_tokens() -> None:
    half = on(Plan(8, expert=8), dense_layers=LAYERS // 2, dense_ffn=4096).seconds["expert"]
    assert half == pytest.approx(on(Plan(8, expert=8)).seconds["expert"] / 2)


def test_a_model_without_experts_is_as_before() -> None:
    assert on(Plan(8), experts=1, experts_per_token=1).seconds["expert"] == 0
