"""Fine-tuning: LoRA, QLoRA and 8-bit optimizers, and the engine of Hugging Face's transformers."""

from typing import Any

import msgspec
import numpy as np
import pytest
from benchmarks.accuracy.calibrate import is_fitted_on
from benchmarks.accuracy.device import read_cases
from benchmarks.accuracy.no_samples import memory_errors, time_errors
from benchmarks.accuracy.tables import Case
from hypothesis import given, strategies as some

from refold.errors import BadValue
from refold.model import Plan
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import Precision, TrainingSetup, Tuning, build_machines, estimate, explain
from refold.planning.perf.compute import quantised_bytes

ENGINES = ("transformers", "transformers-bf16", "transformers-eager", "megatron", "fsdp")
LORA_SPECS = {"llama-2-7b": 39_976_960, "mistral-7b": 41_943_040}
"""Trained weights of LoRA of rank 16 in all linear layers, as PEFT counts them."""


def setup_of(
    tuning: Tuning, *, engine: str = "transformers", model: str = "llama-2-7b", gpus: int = 1
) -> TrainingSetup:
    return TrainingSetup(
        find_model(model), build_machines(find_gpu("H200"), gpus), find_engine(engine), 8 * gpus, 1024, tuning
    )


@pytest.mark.parametrize(("model", "trained"), LORA_SPECS.items())
def test_adapters_of_all_linear_layers_are_counted(model: str, trained: int) -> None:
    assert Tuning(16).trained_parameters(find_model(model)) == trained


def test_the_measured_number_of_trained_weights_is_the_estimated_one() -> None:
    # Phi-3 has one matrix for queries, keys and values, and Phi-2 biases: neither is an adapter of its own.
    for case, trained in {"qwen2.5-7b": 40_370_176, "llama-3.2-3b": 24_313_856, "qwen3-1.7b": 17_432_576}.items():
        shape = next(one.model for one in read_cases("transformers_h200") if one.model.name == case)
        assert Tuning(16).trained_parameters(shape) == trained


@pytest.mark.parametrize("engine", ENGINES)
def test_lora_needs_less_memory_and_time_than_full_training_and_qlora_less_memory_still(engine: str) -> None:
    full, lora, qlora = (
        estimate(setup_of(tuning, engine=engine), Plan()) for tuning in (Tuning(), Tuning(16), Tuning(16, True))
    )
    assert qlora.memory_gib < lora.memory_gib < full.memory_gib
    assert lora.step_seconds < full.step_seconds
    assert lora.step_seconds < qlora.step_seconds


@given(some.integers(1, 512), some.sampled_from(ENGINES), some.booleans())
def test_memory_and_update_grow_with_the_rank(rank: int, engine: str, quantized: bool) -> None:
    smaller, larger = (estimate(setup_of(Tuning(one, quantized), engine=engine), Plan()) for one in (rank, rank + 1))
    assert smaller.memory_gib < larger.memory_gib
    assert smaller.seconds["optimizer"] < larger.seconds["optimizer"]


def test_adapters_alone_are_exchanged_between_replicas() -> None:
    full, lora = (estimate(setup_of(tuning, gpus=8), Plan(data=8)) for tuning in (Tuning(), Tuning(16)))
    assert lora.seconds["data"] < full.seconds["data"] or full.seconds["data"] == 0
    frozen, gathered = (estimate(setup_of(Tuning(16), gpus=8), Plan(data=8, zero=zero)) for zero in (1, 3))
    assert gathered.memory["weights"] < frozen.memory["weights"] / 4


def test_an_8_bit_optimizer_keeps_a_quarter_of_the_moments() -> None:
    usual, small = (estimate(setup_of(Tuning(optimizer=name)), Plan()) for name in ("adamw", "adamw-8bit"))
    assert small.memory["optimizer"] == pytest.approx(usual.memory["optimizer"] / 4)
    assert small.seconds["optimizer"] < usual.seconds["optimizer"]


@pytest.mark.parametrize("tuning", [Tuning(16), Tuning(64, True), Tuning(8, optimizer="adamw-8bit")], ids=str)
@pytest.mark.parametrize("plan", [Plan(data=8), Plan(data=4, tensor=2, zero=1), Plan(data=8, zero=3)], ids=str)
def test_the_formulas_give_the_estimate(tuning: Tuning, plan: Plan) -> None:
    setup = setup_of(tuning, gpus=8)
    values = {line.name: line.value for section in explain(setup, plan) for line in section.lines}
    found = estimate(setup, plan)
    assert values["step"] == pytest.approx(found.step_seconds)
    assert values["memory"] == pytest.approx(found.memory_gib)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Tuning(-1), "rank of LoRA is -1"),
        (lambda: Tuning(quantized=True), "QLoRA needs the rank"),
        (lambda: setup_of(Tuning(4), model="resnet50"), "LoRA needs the shapes of resnet50"),
    ],
)
def test_impossible_tuning_is_rejected(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(BadValue, match=message):
        build()


def _held_out(*, lora: bool) -> list[Case]:
    cases = [case for case in read_cases("transformers_h200") if case.step_seconds and not is_fitted_on(case)]
    return [case for case in cases if (case.tuning.lora_rank > 0) == lora]


@pytest.mark.parametrize("lora", [False, True], ids=["full", "LoRA"])
def test_models_that_were_not_fitted_are_estimated_within_the_goals(lora: bool) -> None:
    cases = _held_out(lora=lora)
    time, memory = time_errors(cases), memory_errors(cases)
    assert time is not None
    assert len({case.model.name for case in cases}) >= (3 if lora else 10)
    assert time.median < 0.10
    assert memory.median < 0.07


def test_gradients_take_the_place_of_activations_unless_they_are_accumulated() -> None:
    at_once, accumulated = (estimate(setup_of(Tuning()), Plan(accumulation=count)) for count in (1, 8))
    assert at_once.memory["gradients"] < accumulated.memory["gradients"]
    assert accumulated.memory["gradients"] >= 4 * find_model("llama-2-7b").parameters / 2**30
    assert np.isclose(sum(at_once.memory.values()), at_once.memory_gib)


def test_an_opaque_setup_of_all_weights_is_unchanged() -> None:
    assert setup_of(Tuning(), model="resnet50").trained_share == 1.0


def test_frozen_layers_have_no_backward_pass_and_keep_nothing() -> None:
    full, half = (estimate(setup_of(Tuning(frozen_layers=layers), engine="fsdp"), Plan()) for layers in (0, 16))
    model = find_model("llama-2-7b")
    assert half.memory["activations"] == pytest.approx(full.memory["activations"] / 2)
    trained = 1 - Tuning(frozen_layers=16).trained_share(model)
    frozen = model.stack_parameters / 2 + model.vocabulary * model.hidden
    assert trained == pytest.approx(frozen / model.parameters)
    assert half.memory["optimizer"] == pytest.approx(full.memory["optimizer"] * (1 - trained))
    assert 0.5 * full.seconds["compute"] < half.seconds["compute"] < 0.75 * full.seconds["compute"]


@given(some.integers(0, 31), some.integers(0, 1024), some.sampled_from(ENGINES))
def test_frozen_layers_and_packing_are_explained(layers: int, packed: int, engine: str) -> None:
    setup = msgspec.structs.replace(setup_of(Tuning(frozen_layers=layers), engine=engine), packed=packed)
    plan = Plan(recompute="full", accumulation=2)
    lines = {line.name: line.value for section in explain(setup, plan) for line in section.lines}
    assert lines["step"] == pytest.approx(estimate(setup, plan).step_seconds)


def test_packed_samples_attend_only_to_themselves() -> None:
    def attention(packed: int, engine: str = "fsdp") -> float:
        setup = msgspec.structs.replace(setup_of(Tuning(), engine=engine), packed=packed)
        return next(line.value for part in explain(setup, Plan()) for line in part.lines if line.name == "attention")

    half_keys = find_gpu("H200").efficiency.half_keys  # with which attention is half as fast
    assert attention(256) == pytest.approx(attention(0) * (256 + half_keys) / (1024 + half_keys))
    assert attention(1024) == attention(0)
    with pytest.raises(BadValue, match="samples of 4,096 tokens cannot be packed into sequences of 1,024"):
        attention(4096)
    assert attention(256, "transformers-eager") == attention(0, "transformers-eager")


@pytest.mark.parametrize(
    ("tuning", "problem"),
    [
        (Tuning(frozen_layers=32), "32 layers are frozen, but llama-2-7b has 32: nothing would be trained"),
        (lambda: Tuning(16, frozen_layers=2), "with LoRA, all layers are frozen already"),
    ],
)
def test_frozen_layers_that_make_no_sense_are_rejected(tuning: Any, problem: str) -> None:
    with pytest.raises(BadValue) as raised:
        setup_of(tuning() if callable(tuning) else tuning)
    assert str(raised.value) == problem


def test_adapters_of_attention_alone_are_fewer_and_faster() -> None:
    everywhere, attention = (
        estimate(setup_of(Tuning(16, lora_layers=layers), engine="transformers"), Plan())
        for layers in ("all", "attention")
    )
    model = find_model("llama-2-7b")
    trained = [Tuning(16, lora_layers=layers).trained_parameters(model) for layers in ("all", "attention")]
    assert trained == [39_976_960, 16 * 32 * 8 * 4096]  # PEFT counts the same for rank 16
    assert attention.step_seconds < 0.9 * everywhere.step_seconds
    assert attention.memory_gib < everywhere.memory_gib


def test_dequantizing_takes_as_much_more_time_as_litgpt_measured() -> None:
    def seconds(model: str, quantized: bool) -> float:
        machines, engine = build_machines(find_gpu("A100-40GB"), 1), find_engine("transformers-bf16")
        setup = TrainingSetup(find_model(model), machines, engine, 1, 1304, Tuning(8, quantized))
        return estimate(setup, Plan()).seconds["compute"]

    for model, added in (("llama-2-7b", 0.079), ("llama-2-13b", 0.194)):
        assert seconds(model, True) - seconds(model, False) == pytest.approx(added, rel=0.2)


def test_dequantizing_takes_time_in_steps_that_are_bound_by_the_host_too() -> None:
    """litgpt on an A100: QLoRA takes 1.56 times as long as LoRA with 7 B weights, and twice as long with 13 B."""

    def ratio(model: str) -> float:
        machines, engine = build_machines(find_gpu("A100-40GB"), 1), find_engine("transformers-bf16")
        tunings = (Tuning(8, quantized, lora_layers="attention") for quantized in (False, True))
        setups = [TrainingSetup(find_model(model), machines, engine, 1, 256, tuning) for tuning in tunings]
        lora, qlora = (estimate(setup, Plan()).step_seconds for setup in setups)
        return qlora / lora

    assert ratio("llama-2-7b") == pytest.approx(1.56, rel=0.12)
    assert ratio("llama-2-13b") == pytest.approx(2.0, rel=0.2)


def test_inputs_of_frozen_weights_are_quantised_once() -> None:
    """Without gradients of weights, no transposed copy is needed: 3 bytes for each element instead of 4."""
    setup = setup_of(Tuning(16), engine="megatron-core")
    setup = msgspec.structs.replace(setup, engine=setup.engine.with_precision("fp8"))
    full = msgspec.structs.replace(setup, tuning=Tuning())
    assert quantised_bytes(setup) == pytest.approx(3 / 4 * quantised_bytes(full))


@pytest.mark.parametrize(("precision", "bytes_each"), [("fp8", 1.0), ("mxfp8", 2.0625), ("nvfp4", 0.5625)])
def test_frozen_weights_are_stored_in_the_precision_of_products(precision: Precision, bytes_each: float) -> None:
    """Llama 2 70B on a B200; the embedding and the output layer stay in half precision."""
    engine, model = find_engine("megatron-core").with_precision(precision), find_model("llama-2-70b")
    machines, tuning = build_machines(find_gpu("B200"), 8), Tuning(16, stored_quantised=True)
    setup = TrainingSetup(model, machines, engine, 8, 8192, tuning)
    ends = model.parameters - model.stack_parameters
    stored = bytes_each * model.stack_parameters + 2 * ends + 2 * tuning.trained_parameters(model)
    assert estimate(setup, Plan(8)).memory["weights"] == pytest.approx(stored / 2**30, rel=1e-4)


def test_weights_that_cannot_be_stored_in_low_precision_are_errors() -> None:
    for rank, quantized in ((0, False), (8, True)):
        with pytest.raises(BadValue, match="only weights that LoRA leaves frozen"):
            Tuning(rank, quantized, stored_quantised=True)
    with pytest.raises(BadValue, match="but transformers computes in half precision"):
        setup_of(Tuning(8, stored_quantised=True))


def test_cuda_graphs_take_the_host_out_of_steps_of_few_tokens() -> None:
    setup = msgspec.structs.replace(setup_of(Tuning(16)), batch=1, sequence=128)
    graphs = msgspec.structs.replace(setup, engine=setup.engine.with_cuda_graphs())
    assert estimate(setup, Plan()).seconds["launch"] > 0.1
    assert estimate(graphs, Plan()).seconds["launch"] == 0
    assert estimate(graphs, Plan()).seconds["compute"] == estimate(setup, Plan()).seconds["compute"]
