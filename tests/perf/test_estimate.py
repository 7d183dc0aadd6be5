"""Step time and memory hold to what is published about them, and move the way they should."""

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from refold.catalogue import find_engine, find_gpu, find_model, gpus, models
from refold.errors import BadValue
from refold.model.cluster import Link
from refold.model.plan import Plan
from refold.perf.columns import columns_of, joined
from refold.perf.communication import node_rate, ring_seconds
from refold.perf.engine import Engine
from refold.perf.estimation import estimate, estimate_all, model_flops
from refold.perf.hardware import Efficiency, GpuSpec, Machines, machines_of
from refold.perf.memory_model import GIB, memory_of
from refold.perf.setting import Setting
from refold.perf.shapes import ModelShape

GPU = GpuSpec("G", 80.0, 300.0, 20.0, 2000.0, Link("nvlink", 300.0), 32.0, 200.0, 400.0)
GPT = ModelShape("gpt", layers=48, hidden=6144, heads=64, vocabulary=51200, bias=False, tied=False)
MEGATRON = Engine("megatron", fused_attention=False, kept_hidden=10.0, kept_inner=2.0)


def setting_of(model: ModelShape = GPT, gpus: int = 8, batch: int = 512, engine: Engine = MEGATRON) -> Setting:
    return Setting(model, machines_of(GPU, gpus), engine, batch, 2048)


def test_activations_are_those_of_korthikanti_and_others() -> None:
    """Reducing Activation Recomputation in Large Transformer Models, table 2: s·b·h·(10 + 24/t + 5as/ht)."""
    sequence, samples, tensor = 2048, 4, 8
    s, b, h, a, t = sequence, samples, GPT.hidden, GPT.heads, tensor
    layers = 48 * s * b * h * (10 + 24 / t + 5 * a * s / (h * t))
    none = memory_of(setting_of(batch=4), Plan(tensor=8))
    assert none["activations"] * GIB == pytest.approx(layers)
    both = memory_of(setting_of(batch=4), Plan(tensor=8, recompute="selective", sequence_parallel=True))
    one_layer = s * b * h * (34 / t + 5 * a * s / (h * t))  # the layer that is just computed again
    assert both["activations"] * GIB == pytest.approx(48 * s * b * h * 34 / t + one_layer)


def test_arithmetic_is_that_of_narayanan_and_others() -> None:
    """Efficient Large-Scale Language Model Training, appendix, without recomputation."""
    wide = msgspec.structs.replace(GPT, ffn=4 * GPT.hidden)
    setting = setting_of(wide)
    B, s, l, h, V = 512, 2048, 48, GPT.hidden, GPT.vocabulary  # noqa: E741, N806
    assert model_flops(setting) == pytest.approx(72 * B * s * l * h**2 * (1 + s / (6 * h) + V / (12 * l * h)), rel=1e-3)


def test_model_states_take_18_bytes_per_weight_and_zero_shares_them() -> None:
    """ZeRO, figure 1: weights, gradients and states of the optimiser are shared in stages 3, 2 and 1."""
    weights = GPT.parameters
    half = msgspec.structs.replace(MEGATRON, gradient_bytes=2.0)

    def bytes_per_weight(zero: int) -> float:
        needs = memory_of(setting_of(gpus=64, engine=half), Plan(64, zero=zero, accumulation=8))
        gathered = 2 * 2 * GPT.stack_parameters / GPT.blocks * (1 - 1 / 64) if zero == 3 else 0.0
        return ((needs["weights"] + needs["gradients"] + needs["optimizer"]) * GIB - gathered) / weights

    assert [bytes_per_weight(zero) for zero in range(4)] == pytest.approx(
        [16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64], rel=1e-4
    )


def test_the_bubble_is_stages_less_one_of_the_micro_batches_and_interleaving_shrinks_it() -> None:
    setting = setting_of(gpus=8, batch=64)
    plain, chunked = Plan(pipeline=8, accumulation=16), Plan(pipeline=8, accumulation=16, interleave=2)
    found = estimate(setting, plain)
    steady = sum(found.seconds[part] for part in ("compute", "recompute", "launch", "tensor", "pipeline"))
    assert found.seconds["bubble"] == pytest.approx(7 / 16 * steady)
    ticks = estimate(setting, chunked).seconds
    steady = sum(ticks[part] for part in ("compute", "recompute", "launch", "tensor", "pipeline"))
    assert ticks["bubble"] == pytest.approx(7 / 16 / 2 * steady)


def test_a_ring_moves_all_but_one_share_over_the_slowest_link_it_crosses() -> None:
    one, two = np.ones(1), np.full(1, 2.0)
    node = machines_of(GPU, 8)
    rate = 300e9 * GPU.efficiency.link
    assert ring_seconds(node, 8e9 * one, 8 * one, one) == pytest.approx(7 / 8 * 8e9 / rate)
    nodes = machines_of(GPU, 16)
    assert ring_seconds(nodes, 8e9 * one, 16 * one, one) == pytest.approx(1 / 2 * 8e9 / node_rate(nodes))
    shared = ring_seconds(nodes, 8e9 * one, 8 * one, two)  # two such groups share what a node sends
    assert shared == pytest.approx(1 / 2 * 8e9 * 2 / node_rate(nodes))


def test_a_node_that_lends_few_gpus_lends_few_network_cards() -> None:
    network = Link("network", 200.0)
    whole = Machines(GPU, (8, 8), GPU.link, network)
    part = Machines(GPU, (8, 2), GPU.link, network)
    assert node_rate(part) == pytest.approx(node_rate(whole) / 4)


def test_full_recomputation_computes_a_forward_pass_again() -> None:
    setting = setting_of(batch=8, engine=msgspec.structs.replace(MEGATRON, launch_seconds=0.0))
    none, full = (estimate(setting, Plan(8, recompute=mode)).seconds for mode in ("none", "full"))
    head = 3 * 2 * 2048 * GPT.vocabulary * GPT.hidden / (300e12 * GPU.efficiency.matmul)
    assert none["recompute"] == 0
    assert full["recompute"] == pytest.approx((none["compute"] - head) / 3, rel=0.02)


def test_heads_whose_size_tensor_cores_do_not_take_make_attention_slow() -> None:
    """BLOOM's authors saw 152 TFLOP/s with 96 heads of 144 and 106 with 128 heads of 108, all else equal."""
    good = ModelShape("good", layers=78, hidden=13824, heads=96, vocabulary=250880)
    bad = msgspec.structs.replace(good, heads=128)
    machines, engine = machines_of(find_gpu("A100"), 384), find_engine("deepspeed-2022")
    plan = Plan(8, 4, 12, 1, recompute="full", accumulation=64)
    fast, slow = (estimate(Setting(model, machines, engine, 2048, 2048), plan).step_seconds for model in (good, bad))
    assert 1.2 < slow / fast < 1.7


def test_offloading_takes_states_to_the_hosts_and_more_threads_make_it_faster() -> None:
    def with_cpus(cpus: float) -> Setting:
        machines = machines_of(GPU, 8, cpus=cpus, memory_gib=1000.0)
        return Setting(GPT, machines, MEGATRON, 512, 2048)

    plan = Plan(8, zero=2, offload=True, accumulation=8)
    slow, fast, most = (estimate(with_cpus(cpus), plan) for cpus in (4.0, 8.0, 1000.0))
    assert slow.memory["optimizer"] == 0
    assert slow.memory["gradients"] * GIB == pytest.approx(2 * GPT.parameters / 8)  # of several micro-batches
    assert estimate(with_cpus(4.0), Plan(8, zero=2, offload=True)).memory["gradients"] == 0
    assert slow.host_gib == pytest.approx(24 * GPT.parameters / GIB)
    assert slow.seconds["optimizer"] == pytest.approx(2 * fast.seconds["optimizer"], rel=0.02)
    assert most.seconds["optimizer"] == pytest.approx(30 * GPT.parameters / 200e9, rel=0.02)  # the host's memory
    assert slow.seconds["offload"] > 0


def test_an_opaque_model_costs_what_was_measured_of_it() -> None:
    resnet = find_model("resnet50")
    setting = Setting(resnet, machines_of(find_gpu("A100"), 1), find_engine("megatron"), 256, 1)
    found = estimate(setting, Plan())
    assert found.samples_per_second == pytest.approx(256 / found.step_seconds)
    assert found.memory["activations"] == pytest.approx(256 * resnet.sample_mib / 1024)
    assert found.mfu < find_gpu("A100").efficiency.matmul


degrees = st.sampled_from([1, 2, 4, 8])
plans = st.builds(Plan, degrees, degrees, st.sampled_from([1, 2, 4]), st.integers(0, 3), accumulation=degrees)


@given(plans, st.sampled_from([8, 16, 64]))
def test_parts_add_up_and_are_never_negative(plan: Plan, gpus: int) -> None:
    found = estimate(setting_of(gpus=gpus), plan)
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert all(gib >= 0 for gib in found.memory.values())
    assert sum(found.seconds.values()) == pytest.approx(found.step_seconds)
    assert sum(found.memory.values()) == pytest.approx(found.memory_gib)


@given(st.lists(plans, min_size=1, max_size=20))
def test_an_estimate_does_not_depend_on_what_else_is_estimated(many: list[Plan]) -> None:
    setting = setting_of(gpus=64)
    together = estimate_all(setting, columns_of(many))
    for row, plan in enumerate(many):
        alone = estimate_all(setting, columns_of([plan]))
        assert alone.step_seconds[0] == together.step_seconds[row]
        assert alone.memory.total[0] == together.memory.total[row]


@given(plans)
def test_sharding_more_never_takes_more_memory(plan: Plan) -> None:
    setting = setting_of(gpus=64)
    fewer = [estimate(setting, msgspec.structs.replace(plan, zero=zero)).memory_gib for zero in range(3)]
    assert fewer == sorted(fewer, reverse=True)


@given(plans, st.floats(1.0, 4.0))
def test_a_faster_gpu_is_never_slower(plan: Plan, faster: float) -> None:
    setting = setting_of(gpus=64)
    gpu = msgspec.structs.replace(GPU, half_tflops=300.0 * faster)
    machines = msgspec.structs.replace(setting.machines, gpu=gpu)
    better = estimate(msgspec.structs.replace(setting, machines=machines), plan)
    assert better.step_seconds <= estimate(setting, plan).step_seconds * (1 + 1e-12)


@pytest.mark.parametrize("model", models(), ids=lambda model: model.name)
def test_every_model_of_the_catalogue_can_be_estimated_on_every_gpu(model: ModelShape) -> None:
    for gpu in gpus():
        setting = Setting(model, machines_of(gpu, gpu.gpus_per_node), find_engine("megatron"), 256, model.sequence)
        found = estimate(setting, Plan(gpu.gpus_per_node))
        assert 0 < found.mfu < 1
        assert np.isfinite(found.memory_gib)


def test_columns_give_back_the_plans_they_were_made_of() -> None:
    many = [Plan(2, 4, 8, 1, False, "selective", 16, 2, True), Plan(1, offload=True, recompute="full")]
    columns = joined([columns_of(many[:1]), columns_of(many[1:])])
    assert [columns.plan(row) for row in range(len(columns))] == many
    assert columns.rows(np.array([1])).plan(0) == many[1]
    assert {field.name for field in dataclasses.fields(columns)} == set(Plan.__struct_fields__)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ModelShape("m", hidden=100, heads=3),
        lambda: ModelShape("m", heads=4, hidden=64, kv_heads=3),
        lambda: ModelShape("m", layers=0),
        lambda: ModelShape("m", "encoder-decoder"),
        lambda: ModelShape("m", "opaque"),
        lambda: ModelShape("m", experts=2, experts_per_token=3),
        lambda: ModelShape("m", "opaque", parameters_stated=1, sample_gflop=float("nan")),
        lambda: Efficiency(matmul=1.5),
        lambda: Engine("e", launch_seconds=-1.0),
        lambda: Engine("e", launch_seconds=float("nan")),
        lambda: machines_of(GPU, 0),
        lambda: machines_of(GPU, 4, nodes=5),
        lambda: Setting(GPT, machines_of(GPU, 1), MEGATRON, 0, 1),
        lambda: Setting(GPT, machines_of(GPU, 1), MEGATRON, 1, -1),
        lambda: Machines(GPU, (0,), GPU.link, GPU.link),
        lambda: Machines(GPU, (1,), GPU.link, GPU.link, float("inf")),
    ],
)
def test_what_cannot_be_is_refused(build: Any) -> None:
    with pytest.raises(BadValue):
        build()
