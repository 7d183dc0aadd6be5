"""Step time and memory against published formulas, and their monotonicity."""

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from refold.model.cluster import Link
from refold.model.plan import Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model, gpus, models
from refold.planning.perf.columns import concatenate_plans, plans_to_columns
from refold.planning.perf.communication import node_rate, ring_seconds
from refold.planning.perf.engine import Engine
from refold.planning.perf.estimation import estimate, estimate_all, model_flops
from refold.planning.perf.hardware import GpuSpec, Machines, build_machines
from refold.planning.perf.memory_model import GIB, plan_memory_footprint
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup

GPU = GpuSpec("G", 80.0, 300.0, 20.0, 2000.0, Link("nvlink", 300.0), 32.0, 200.0, 400.0)
GPT = ModelShape("gpt", layers=48, hidden=6144, heads=64, vocabulary=51200, bias=False, tied=False)
MEGATRON = Engine("megatron", fused_attention=False, hidden_activation_bytes=10.0, inner_activation_bytes=2.0)


def make_setup(model: ModelShape = GPT, gpus: int = 8, batch: int = 512, engine: Engine = MEGATRON) -> TrainingSetup:
    return TrainingSetup(model, build_machines(GPU, gpus), engine, batch, 2048)


def test_activations_match_korthikanti_et_al() -> None:
    """Reducing Activation Recomputation in Large Transformer Models, table 2: s·b·h·(10 + 24/t + 5as/ht)."""
    sequence, samples, tensor = 2048, 4, 8
    s, b, h, a, t = sequence, samples, GPT.hidden, GPT.heads, tensor
    layers = 48 * s * b * h * (10 + 24 / t + 5 * a * s / (h * t))
    none = plan_memory_footprint(make_setup(batch=4), Plan(tensor=8))
    assert none["activations"] * GIB == pytest.approx(layers)
    both = plan_memory_footprint(make_setup(batch=4), Plan(tensor=8, recompute="selective", sequence_parallel=True))
    one_layer = s * b * h * (34 / t + 5 * a * s / (h * t))  # the layer that is being recomputed
    assert both["activations"] * GIB == pytest.approx(48 * s * b * h * 34 / t + one_layer)


def test_flops_match_narayanan_et_al() -> None:
    """Efficient Large-Scale Language Model Training, appendix, without recomputation."""
    wide = msgspec.structs.replace(GPT, ffn=4 * GPT.hidden)
    setup = make_setup(wide)
    B, s, l, h, V = 512, 2048, 48, GPT.hidden, GPT.vocabulary  # noqa: E741, N806
    assert model_flops(setup) == pytest.approx(72 * B * s * l * h**2 * (1 + s / (6 * h) + V / (12 * l * h)), rel=1e-3)


def test_model_states_take_16_bytes_per_weight_and_zero_shards_them() -> None:
    """ZeRO, figure 1: weights, gradients and optimizer states are sharded in stages 3, 2 and 1."""
    weights = GPT.parameters
    half = msgspec.structs.replace(MEGATRON, gradient_bytes=2.0)

    def bytes_per_weight(zero: int) -> float:
        needs = plan_memory_footprint(make_setup(gpus=64, engine=half), Plan(64, zero=zero, accumulation=8))
        gathered = 2 * 2 * GPT.stack_parameters / GPT.blocks * (1 - 1 / 64) if zero == 3 else 0.0
        return ((needs["weights"] + needs["gradients"] + needs["optimizer"]) * GIB - gathered) / weights

    assert [bytes_per_weight(zero) for zero in range(4)] == pytest.approx(
        [16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64], rel=1e-4
    )


def test_the_bubble_is_stages_minus_one_micro_batches_divided_by_interleave() -> None:
    setup = make_setup(gpus=8, batch=64)
    plain, chunked = Plan(pipeline=8, accumulation=16), Plan(pipeline=8, accumulation=16, interleave=2)
    result = estimate(setup, plain)
    steady = sum(result.seconds[part] for part in ("compute", "recompute", "launch", "tensor", "pipeline"))
    assert result.seconds["bubble"] == pytest.approx(7 / 16 * steady)
    interleaved = estimate(setup, chunked).seconds
    steady = sum(interleaved[part] for part in ("compute", "recompute", "launch", "tensor", "pipeline"))
    assert interleaved["bubble"] == pytest.approx(7 / 16 / 2 * steady)


def test_a_ring_transfers_all_but_one_share_over_its_slowest_link() -> None:
    one, two = np.ones(1), np.full(1, 2.0)
    node = build_machines(GPU, 8)
    rate = 300e9 * GPU.efficiency.link
    assert ring_seconds(node, 8e9 * one, 8 * one, one) == pytest.approx(7 / 8 * 8e9 / rate)
    nodes = build_machines(GPU, 16)
    assert ring_seconds(nodes, 8e9 * one, 16 * one, one) == pytest.approx(1 / 2 * 8e9 / node_rate(nodes))
    shared = ring_seconds(nodes, 8e9 * one, 8 * one, two)  # two groups share the network of a node
    assert shared == pytest.approx(1 / 2 * 8e9 * 2 / node_rate(nodes))


def test_a_node_with_few_gpus_uses_few_network_cards() -> None:
    network = Link("network", 200.0)
    whole = Machines(GPU, (8, 8), GPU.link, network)
    part = Machines(GPU, (8, 2), GPU.link, network)
    assert node_rate(part) == pytest.approx(node_rate(whole) / 4)


def test_full_recomputation_takes_one_more_forward_pass() -> None:
    setup = make_setup(batch=8, engine=msgspec.structs.replace(MEGATRON, launch_seconds=0.0))
    none, full = (estimate(setup, Plan(8, recompute=mode)).seconds for mode in ("none", "full"))
    head = 3 * 2 * 2048 * GPT.vocabulary * GPT.hidden / (300e12 * GPU.efficiency.matmul)
    assert none["recompute"] == 0
    assert full["recompute"] == pytest.approx((none["compute"] - head) / 3, rel=0.02)


def test_unaligned_head_sizes_make_attention_slow() -> None:
    """BLOOM's authors measured 152 TFLOP/s with 96 heads of 144 and 106 with 128 heads of 108, all else equal."""
    good = ModelShape("good", layers=78, hidden=13824, heads=96, vocabulary=250880)
    bad = msgspec.structs.replace(good, heads=128)
    machines, engine = build_machines(find_gpu("A100"), 384), find_engine("deepspeed-2022")
    plan = Plan(8, 4, 12, 1, recompute="full", accumulation=64)
    fast, slow = (
        estimate(TrainingSetup(model, machines, engine, 2048, 2048), plan).step_seconds for model in (good, bad)
    )
    assert 1.2 < slow / fast < 1.7


def test_offload_moves_states_to_hosts_and_is_faster_with_more_threads() -> None:
    def with_cpus(cpus: float) -> TrainingSetup:
        machines = build_machines(GPU, 8, cpus=cpus, memory_gib=1000.0)
        return TrainingSetup(GPT, machines, MEGATRON, 512, 2048)

    plan = Plan(8, zero=2, offload=True, accumulation=8)
    slow, fast, most_threads = (estimate(with_cpus(cpus), plan) for cpus in (4.0, 8.0, 1000.0))
    assert slow.memory["optimizer"] == 0
    assert slow.memory["gradients"] * GIB == pytest.approx(2 * GPT.parameters / 8)  # accumulated over micro-batches
    assert estimate(with_cpus(4.0), Plan(8, zero=2, offload=True)).memory["gradients"] == 0
    assert slow.host_gib == pytest.approx(24 * GPT.parameters / GIB)
    assert slow.seconds["optimizer"] == pytest.approx(2 * fast.seconds["optimizer"], rel=0.02)
    assert most_threads.seconds["optimizer"] == pytest.approx(
        30 * GPT.parameters / 200e9, rel=0.02
    )  # bound by host memory
    assert slow.seconds["offload"] > 0


def test_an_opaque_model_is_estimated_from_its_totals() -> None:
    resnet = find_model("resnet50")
    setup = TrainingSetup(resnet, build_machines(find_gpu("A100"), 1), find_engine("megatron"), 256, 1)
    result = estimate(setup, Plan())
    assert result.samples_per_second == pytest.approx(256 / result.step_seconds)
    assert result.memory["activations"] == pytest.approx(256 * resnet.sample_mib / 1024)
    assert result.mfu < find_gpu("A100").efficiency.matmul


degrees = st.sampled_from([1, 2, 4, 8])
plans = st.builds(Plan, degrees, degrees, st.sampled_from([1, 2, 4]), st.integers(0, 3), accumulation=degrees)


@given(plans, st.sampled_from([8, 16, 64]))
def test_components_add_up_and_are_not_negative(plan: Plan, gpus: int) -> None:
    result = estimate(make_setup(gpus=gpus), plan)
    assert all(seconds >= 0 for seconds in result.seconds.values())
    assert all(gib >= 0 for gib in result.memory.values())
    assert sum(result.seconds.values()) == pytest.approx(result.step_seconds)
    assert sum(result.memory.values()) == pytest.approx(result.memory_gib)


@given(st.lists(plans, min_size=1, max_size=20))
def test_an_estimate_does_not_depend_on_other_plans(several: list[Plan]) -> None:
    setup = make_setup(gpus=64)
    all_at_once = estimate_all(setup, plans_to_columns(several))
    for row, plan in enumerate(several):
        single = estimate_all(setup, plans_to_columns([plan]))
        assert single.step_seconds[0] == all_at_once.step_seconds[row]
        assert single.memory.total[0] == all_at_once.memory.total[row]


@given(plans)
def test_more_sharding_never_takes_more_memory(plan: Plan) -> None:
    setup = make_setup(gpus=64)
    footprints = [estimate(setup, msgspec.structs.replace(plan, zero=zero)).memory_gib for zero in range(3)]
    assert footprints == sorted(footprints, reverse=True)


@given(plans, st.floats(1.0, 4.0))
def test_a_faster_gpu_is_never_slower(plan: Plan, faster: float) -> None:
    setup = make_setup(gpus=64)
    gpu = msgspec.structs.replace(GPU, half_tflops=300.0 * faster)
    machines = msgspec.structs.replace(setup.machines, gpu=gpu)
    better = estimate(msgspec.structs.replace(setup, machines=machines), plan)
    assert better.step_seconds <= estimate(setup, plan).step_seconds * (1 + 1e-12)


@pytest.mark.parametrize("model", models(), ids=lambda model: model.name)
def test_every_model_of_the_catalogue_can_be_estimated_on_every_gpu(model: ModelShape) -> None:
    for gpu in gpus():
        setup = TrainingSetup(
            model, build_machines(gpu, gpu.gpus_per_node), find_engine("megatron"), 256, model.sequence
        )
        result = estimate(setup, Plan(gpu.gpus_per_node))
        assert 0 < result.mfu < 1
        assert np.isfinite(result.memory_gib)


def test_columns_convert_back_to_the_same_plans() -> None:
    several = [Plan(2, 4, 8, 1, False, "selective", 16, 2, True), Plan(1, offload=True, recompute="full")]
    columns = concatenate_plans([plans_to_columns(several[:1]), plans_to_columns(several[1:])])
    assert [columns.plan(row) for row in range(len(columns))] == several
    assert columns.rows(np.array([1])).plan(0) == several[1]
    assert {field.name for field in dataclasses.fields(columns)} == set(Plan.__struct_fields__)
