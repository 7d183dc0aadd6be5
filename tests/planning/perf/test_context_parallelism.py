"""Context parallelism: what it divides, what it exchanges, and when the exchange is hidden."""

from typing import Any

import msgspec
import pytest

from refold.model.cluster import Link
from refold.model.plan import Plan
from refold.planning.perf.engine import Engine
from refold.planning.perf.estimation import Estimate, estimate
from refold.planning.perf.hardware import GpuSpec, Machines
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup

GPU = GpuSpec("G", 80.0, 300.0, 20.0, 2000.0, Link("nvlink", 300.0, 3.0), 32.0, 100.0, 400.0)
MODEL = ModelShape("m", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, vocabulary=128_000)


def setup(
    gpus: int = 8, *, sequence: int = 8192, batch: int = 8, overlap: float = 1.0, kv_heads: int = 8
) -> TrainingSetup:
    machines = Machines(GPU, (8,) * max(1, gpus // 8), GPU.link, Link("network", 50.0, 10.0))
    model = msgspec.structs.replace(MODEL, kv_heads=kv_heads)
    return TrainingSetup(model, machines, Engine("e", overlap_context=overlap), batch, sequence)


def on(plan: Plan, **options: Any) -> Estimate:
    return estimate(setup(plan.gpus, **options), plan)


def test_compute_and_activations_of_a_sequence_are_divided() -> None:
    alone, two = on(Plan(8, zero=1)), on(Plan(4, zero=1, context=2, accumulation=2))
    assert two.seconds["compute"] == pytest.approx(alone.seconds["compute"], rel=0.1)
    longer = on(Plan(4, zero=1, context=2, accumulation=2), sequence=16_384)
    assert longer.memory["activations"] == pytest.approx(alone.memory["activations"], rel=0.05)


def test_weights_are_sharded_over_all_gpus_that_hold_them() -> None:
    assert on(Plan(4, zero=3, context=2)).memory["optimizer"] == on(Plan(8, zero=3)).memory["optimizer"]
    assert on(Plan(context=8, zero=1)).memory["optimizer"] == on(Plan(8, zero=1)).memory["optimizer"]


def test_gradients_are_summed_over_all_gpus_that_hold_the_weights() -> None:
    plans = Plan(16), Plan(8, context=2), Plan(1, context=16)
    exposed = [on(plan, sequence=512, batch=16).seconds["data"] for plan in plans]
    assert exposed[0] > 0
    assert exposed == pytest.approx([exposed[0]] * 3, rel=0.05)


def test_bytes_are_those_of_keys_and_values() -> None:
    """8 of 32 heads have keys: 2 × 1,024 elements of two bytes per token, forward once, backward twice."""
    plan = Plan(context=8)
    seconds = on(plan, batch=1, overlap=0.0).seconds["context"]
    payload = 8192 * 2 * 1024 * 2
    once = payload * 7 / 8 / (300e9 * GPU.efficiency.link) + 3e-6 * 3
    assert seconds == pytest.approx(3 * once * 32)
    more_heads = on(plan, batch=1, overlap=0.0, kv_heads=32).seconds["context"]
    assert seconds < more_heads < 4 * seconds


def test_a_ring_hides_the_exchange_behind_the_attention_of_long_sequences() -> None:
    plan = Plan(2, context=8)
    gathered = [on(plan, sequence=sequence, overlap=0.0).seconds["context"] for sequence in (2048, 131_072)]
    ring = [on(plan, sequence=sequence).seconds["context"] for sequence in (2048, 131_072)]
    assert 0 < ring[0] < gathered[0]
    assert ring[1] == 0 < gathered[1]


def test_an_exchange_between_nodes_takes_longer() -> None:
    inside, across = Plan(2, context=8), Plan(1, context=16)
    assert on(inside, batch=2, overlap=0.0).seconds["context"] < on(across, batch=2, overlap=0.0).seconds["context"]


def test_a_repeated_forward_pass_repeats_the_exchange() -> None:
    plan = Plan(context=8)
    repeated = on(msgspec.structs.replace(plan, recompute="full"), overlap=0.0).seconds["context"]
    assert repeated == pytest.approx(4 / 3 * on(plan, overlap=0.0).seconds["context"])


def test_a_million_tokens_fit_with_context_parallelism_only() -> None:
    plan = Plan(1, tensor=8, zero=0, recompute="full", sequence_parallel=True)
    assert not estimate(setup(8, sequence=2**20, batch=1), plan).fits
    wide = msgspec.structs.replace(plan, context=16, zero=1)
    assert estimate(setup(128, sequence=2**20, batch=1), wide).fits
