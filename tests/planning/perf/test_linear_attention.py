"""Layers with linear attention: time, memory and communication of hybrid models."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from refold.errors import BadValue
from refold.model import parse_plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import LinearAttention, ModelShape, TrainingSetup, Tuning, build_machines, estimate
from refold.planning.perf.compute import scan_flops_per_token
from refold.planning.plans import rejection_reasons

QWEN = find_model("qwen3-next-80b-a3b")
NANO = find_model("nemotron-3-nano-30b-a3b")


def setup_of(model: ModelShape, sequence: int = 8192, gpus: int = 8, tuning: Tuning | None = None) -> TrainingSetup:
    machines = build_machines(find_gpu("H100"), gpus)
    engine = find_engine("megatron-core")
    return TrainingSetup(model, machines, engine, 4 * gpus, sequence, tuning or Tuning())


@pytest.mark.parametrize(
    ("tflops", "gigabytes_per_second", "heads", "milliseconds"),
    [
        pytest.param(989, 3350, 96, 1.893, id="H100"),
        pytest.param(148, 4000, 96, 3.199, id="H20"),
        pytest.param(989, 3350, 64, 1.245, id="H100, 64 heads"),
        pytest.param(148, 4000, 64, 2.006, id="H20, 64 heads"),
    ],
)
def test_a_scan_takes_as_long_as_published(
    tflops: float, gigabytes_per_second: float, heads: int, milliseconds: float
) -> None:
    """Forward pass of chunk_gated_delta_rule of flash-linear-attention: 8,192 tokens, heads of 128 (FlashKDA, 2026)."""
    scan = LinearAttention(1, heads, 128, heads, 128, chunk=64, delta_rule=True)
    efficiency = find_gpu("H100").efficiency
    products = scan.scan_flops() / (tflops * 1e12 * efficiency.attention)
    traffic = scan.scan_bytes() / (gigabytes_per_second * 1e9 * efficiency.memory)
    assert 8192e3 * (products + traffic) == pytest.approx(milliseconds, rel=0.1)


def test_the_products_of_a_scan_are_those_of_its_chunks() -> None:
    """Of Mamba-2 per token: queries × keys of 2 groups, and per head scores × values, and two products with states."""
    scan = LinearAttention(1, heads=4, head_size=8, key_heads=2, key_size=16, chunk=32)
    assert scan.scan_flops() == 2 * (2 * 16 * 32 + 4 * (32 * 8 + 2 * 16 * 8))
    delta = replace(scan, delta_rule=True)
    assert delta.scan_flops() == 4 * (6 * 32 * 16 + 4 * 32 * 8 + 6 * 16 * 8)


def test_the_time_per_token_of_a_scan_does_not_grow_with_the_sequence() -> None:
    only_linear = ModelShape(
        "linear", layers=8, hidden=4096, linear=LinearAttention(8, 64, 64, 8, 128), attention_free=8
    )
    only_full = ModelShape("full", layers=8, hidden=4096, heads=32)
    plan = parse_plan("dp8 zero1 recompute full accumulate 4")

    def growth(model: ModelShape) -> float:
        short, long = (estimate(setup_of(model, sequence), plan).seconds["compute"] for sequence in (8192, 131_072))
        return long / short / 16

    assert growth(only_linear) == pytest.approx(1, abs=0.05)  # with more tokens, products are a little faster
    assert growth(only_full) > 2


def test_model_flops_include_the_scan() -> None:
    setup = setup_of(NANO)
    linear = NANO.linear
    assert linear is not None
    assert scan_flops_per_token(setup) == pytest.approx(linear.scan_flops() * 23 / 52)


def test_layers_with_one_part_communicate_once_in_each_pass() -> None:
    """Layers of Nemotron have attention or a feed-forward block: half the collectives of a layer with both."""
    plan = parse_plan("dp4 tp2 sp zero1 recompute full accumulate 8")
    with_both = replace(NANO, ffn_free=0)
    assert (NANO.parts, with_both.parts, find_model("llama-3-8b").parts) == (1, 81 / 52, 2)
    seconds = [estimate(setup_of(model), plan).seconds["tensor"] for model in (NANO, with_both)]
    assert seconds[1] / seconds[0] == pytest.approx(81 / 52)


@pytest.mark.parametrize(("model", "overlaps"), [(QWEN, True), (NANO, False)], ids=["delta rule", "state space"])
def test_the_exchange_of_tokens_does_not_overlap_beside_state_space_layers(model: ModelShape, overlaps: bool) -> None:
    setup = setup_of(model)
    plan = parse_plan("dp8 ep8 zero1 accumulate 4")
    exchanged = estimate(setup, plan).seconds["expert"]
    alone = replace(setup, engine=replace(setup.engine, overlap_experts=0.0))
    assert (exchanged < estimate(alone, plan).seconds["expert"]) == overlaps


def test_activations_of_linear_attention_are_saved() -> None:
    plan = parse_plan("dp8 ep8 zero1 accumulate 4")
    wide = replace(QWEN, linear=LinearAttention(36, 64, 128, 16, 128, chunk=64, delta_rule=True), parameters_stated=0)
    narrow = replace(QWEN, parameters_stated=0)
    more = [estimate(setup_of(model), plan).memory["activations"] for model in (narrow, wide)]
    saved = 36 * 4 * 32 * 128 * find_engine("megatron-core").inner_activation_bytes * 8192 / 2**30
    assert more[1] - more[0] == pytest.approx(saved, rel=0.01)


def test_tensor_parallelism_divides_the_key_heads_of_linear_attention() -> None:
    reasons = rejection_reasons(setup_of(replace(NANO, heads=32, kv_heads=32), gpus=16), parse_plan("dp1 tp16"))
    assert "the 8 key heads of linear attention are not divisible by tensor 16" in reasons


def test_adapters_are_on_the_projections_of_linear_attention_too() -> None:
    linear = NANO.linear
    assert linear is not None
    adapters = Tuning(16).adapters(replace(NANO, ffn_free=52), experts=1)
    attention = 4 * 6 + 2 * 23
    assert adapters.number * 52 == pytest.approx(attention)
    assert adapters.outputs * 52 == pytest.approx(
        6 * (32 * 128 + 2 * 256 + 2688) + 23 * (linear.projected_width + 2688)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 0}, "linear attention: heads is 0, expected a number ≥ 1"),
        ({"heads": 12}, "12 heads are not divisible by 8 key_heads"),
        ({"chunk": -1}, "chunk is -1"),
    ],
)
def test_values_that_are_impossible_are_errors(change: dict[str, int], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        replace(LinearAttention(1, 16, 64, 8, 128), **change)


def test_a_model_cannot_have_more_layers_of_a_kind_than_layers() -> None:
    for change in ({"attention_free": 53}, {"ffn_free": 53}, {"linear": LinearAttention(53, 16, 64, 8, 128)}):
        with pytest.raises(BadValue, match="at most the 52 layers"):
            replace(NANO, **change)
