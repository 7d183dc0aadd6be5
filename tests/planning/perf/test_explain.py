"""The explanation of an estimate against the estimate, for random plans and machines."""

from math import ceil, log2

import msgspec
import pytest
from hypothesis import given, strategies as st

from refold.model.cluster import Link
from refold.model.plan import Plan, Recompute
from refold.planning.perf.engine import Engine
from refold.planning.perf.estimation import estimate
from refold.planning.perf.explanation import explain
from refold.planning.perf.hardware import Crossing, GpuSpec, Machines
from refold.planning.perf.linear_attention import LinearAttention
from refold.planning.perf.shapes import ModelShape
from refold.planning.perf.training_setup import TrainingSetup

GPU = GpuSpec("G", 80.0, 300.0, 20.0, 2000.0, Link("nvlink", 300.0, 3.0), 32.0, 100.0, 400.0, fp8_tflops=600.0)
RACK = msgspec.structs.replace(GPU, gpus_per_node=4, link_domain=16, network_cards=4)

MODELS = [
    ModelShape("decoder", layers=24, hidden=2048, heads=16, ffn=8192, vocabulary=50001),
    ModelShape("grouped", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, vocabulary=128000),
    ModelShape("both", "encoder-decoder", layers=12, encoder_layers=12, hidden=1024, heads=16, vocabulary=32000),
    ModelShape("experts", layers=16, hidden=1024, heads=16, experts=8, experts_per_token=2, vocabulary=32000),
    ModelShape(
        "further",
        layers=15,
        mtp_layers=1,
        hidden=1024,
        heads=16,
        experts=8,
        experts_per_token=4,
        groups_per_token=2,
        vocabulary=32000,
    ),
    ModelShape(
        "hybrid",
        layers=12,
        hidden=1024,
        heads=16,
        experts=8,
        experts_per_token=2,
        vocabulary=32000,
        linear=LinearAttention(9, 16, 64, 8, 128, delta_rule=True),
        attention_free=9,
        attention_gate=True,
    ),
    ModelShape(
        "alternating",
        layers=12,
        hidden=1024,
        heads=16,
        vocabulary=32000,
        norms=1,
        linear=LinearAttention(5, 32, 64, 8, 128),
        attention_free=10,
        ffn_free=7,
    ),
    ModelShape("vit", "vit", layers=12, hidden=768, heads=12, sequence=197),
    ModelShape("resnet", "opaque", parameters_stated=25_000_000, sample_gflop=4.1, sample_mib=90.0),
    ModelShape(
        "traced",
        "opaque",
        layers=6,
        parameters_stated=90_000_000,
        sample_gflop=30.0,
        sample_mib=60.0,
        attention_gflop=1.5,
        traffic_mib=200.0,
        operations=3000,
        product_share=0.9,
        product_width=700.0,
        product_results=150_000.0,
    ),
]

ENGINES = [
    Engine("plain"),
    Engine("old", "tf32", 4.0, 4.0, fused_attention=False, message_seconds=1e-5, launch_seconds=0.01),
    Engine(
        "odd",
        reduces_each_micro_batch=True,
        selective_recompute_share=0.5,
        overlap_tensor=0.3,
        overlap_context=0.5,
        overlap_experts=0.4,
        expert_imbalance=1.3,
        update_passes=1.5,
        compute_factor=1.3,
        launch_factor_full=2.0,
        launch_factor_selective=1.5,
        scatters_gradients=False,
        tensor_inter_node_traffic=2.0,
        tensor_wait_across_nodes=1e-3,
        tensor_wait_in_pipeline=1e-3,
        tensor_factor=1.5,
        stage_wait=0.1,
        stage_wait_from_gpus=16,
        stage_wait_from_tensor=2,
    ),
    Engine(
        "quantised",
        "fp8",
        selective_attention=False,
        selective_recompute_share=0.1,
        expert_passes=9.0,
        expert_bias_passes=7.0,
        expert_launch_seconds=0.01,
        straggler_share=0.01,
        gather_straggler_share=0.02,
    ),
]

degrees = st.sampled_from([1, 2, 3, 4, 8])
recompute: st.SearchStrategy[Recompute] = st.sampled_from(["none", "selective", "full"])
plans = st.builds(
    Plan,
    degrees,
    degrees,
    degrees,
    st.integers(0, 3),
    st.booleans(),
    recompute,
    st.sampled_from([1, 2, 6, 32]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from([1, 1, 2, 4]),
    st.sampled_from([1, 1, 2, 8]),
    st.sampled_from([1, 1, 2, 4]),
).filter(lambda plan: plan.data * plan.context % (plan.expert * plan.replicate) == 0)
setups = st.builds(
    TrainingSetup,
    st.sampled_from(MODELS),
    st.builds(
        Machines,
        st.sampled_from([GPU, RACK]),
        st.sampled_from([(8,), (8, 8), (4,) * 8, (2, 3, 3), (1, 7), (8,) * 16]),
        st.just(GPU.link),
        st.just(Link("network", 50.0, 10.0)),
        st.sampled_from([0.0, 64.0]),
        crossings=st.sampled_from([(), (Crossing((16, 48), Link("network", 10.0)), Crossing((60, 4), GPU.link))]),
    ),
    st.sampled_from(ENGINES),
    st.sampled_from([64, 512]),
    st.sampled_from([512, 2048]),
)

LINE_NAMES = {
    "tensor": "tensor_time",
    "context": "context_time",
    "expert": "expert_time",
    "pipeline": "pipeline_time",
    "data": "data_time",
}
"""Names of the lines of components whose own name has another meaning in the formulas."""


@given(setups, plans)
def test_every_component_of_an_estimate_equals_its_formula(setup: TrainingSetup, plan: Plan) -> None:
    lines = {line.name: line.value for section in explain(setup, plan) for line in section.lines}
    result = estimate(setup, plan)
    for part, seconds in result.seconds.items():
        assert lines[LINE_NAMES.get(part, part)] == pytest.approx(seconds, rel=1e-9, abs=1e-15), part
    assert lines["step"] == pytest.approx(result.step_seconds)
    assert lines["memory"] == pytest.approx(result.memory_gib)
    assert lines["spare"] == pytest.approx(result.spare_gib)


def test_a_line_shows_its_formula_with_numbers() -> None:
    setup = TrainingSetup(MODELS[0], Machines(GPU, (8,), GPU.link, Link("network", 50.0)), ENGINES[0], 64, 1024)
    lines = {line.name: line for section in explain(setup, Plan(8, accumulation=2)) for line in section.lines}
    tokens = lines["tokens"]
    assert tokens.formula == "batch * sequence / (data * micro_batches)"
    assert tokens.numbers == "64 * 1024 / (8 * 2)"
    assert tokens.value == 4096


@pytest.mark.parametrize("gpus_on_node", [(8,), (2, 3, 3), (1, 7)])
def test_the_pipeline_time_on_uneven_nodes_equals_its_formula(gpus_on_node: tuple[int, ...]) -> None:
    machines = Machines(GPU, gpus_on_node, GPU.link, Link("network", 50.0))
    setup, plan = TrainingSetup(MODELS[0], machines, ENGINES[0], 64, 512), Plan(pipeline=2)
    lines = {line.name: line.value for section in explain(setup, plan) for line in section.lines}
    assert lines["pipeline_time"] == pytest.approx(estimate(setup, plan).seconds["pipeline"])


@given(setups, plans)
def test_every_line_can_be_computed_from_the_lines_before_it(setup: TrainingSetup, plan: Plan) -> None:
    functions = {"max": max, "min": min, "ceil": ceil, "log2": log2}
    values: dict[str, float] = {}
    for section in explain(setup, plan):
        for line in section.lines:
            if line.formula:
                found = eval(line.formula, {"__builtins__": {}}, {**values, **functions})
                assert line.value == pytest.approx(found, rel=1e-12, abs=1e-300), line.name
            values[line.name] = line.value


def test_an_explanation_goes_from_inputs_to_memory() -> None:
    setup = TrainingSetup(MODELS[0], Machines(GPU, (8,), GPU.link, Link("network", 50.0)), ENGINES[0], 64, 1024)
    sections = explain(setup, Plan(8))
    assert [section.title for section in sections] == [
        "Inputs",
        "One layer, one micro-batch",
        "Communication",
        "Step",
        "Memory of the fullest GPU",
    ]
    assert all(line.meaning and (line.numbers if line.formula else not line.numbers) for line in sections[3].lines)
