"""The messages of the validity rules of plans."""

from collections.abc import Callable

import pytest

from refold.model.plan import parse_plan
from refold.planning.perf.estimation import estimate
from refold.planning.perf.training_setup import TrainingSetup
from refold.planning.plans import RULES, Pins, PlanLimits, rejection_reasons

MakeSetup = Callable[..., TrainingSetup]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("dp8", ["the plan uses 8 GPUs, but the machines have 48"]),
        ("dp16 tp3", ["64 heads are not divisible by tensor 3", "hidden width 8192 is not divisible by tensor 3",
                      "tensor-parallel groups of 3 do not fit evenly into nodes of 8 GPUs"]),
        ("dp3 tp16", ["tensor-parallel groups of 16 do not fit evenly into nodes of 8 GPUs",
                      "batch 512 is not divisible by 3"]),
        ("dp16 pp3", ["80 layers are not divisible by pipeline 3"]),
        ("dp8 pp6 accumulate 64", ["80 layers are not divisible by pipeline 6"]),
        ("dp48", ["batch 512 is not divisible by 48"]),
        ("dp48 accumulate 2", ["batch 512 is not divisible by 96 (data 48 × accumulation 2)"]),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_divide_evenly_is_rejected_with_the_numbers(
    make_setup: MakeSetup, plan: str, expected: list[str]
) -> None:
    assert rejection_reasons(make_setup(on=(8,) * 6), parse_plan(plan)) == expected


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("dp4 pp4 interleave 3 accumulate 4", "80 layers are not divisible by pipeline 4 × interleave 3"),
        ("dp4 pp4 interleave 5 accumulate 2",
         "interleave needs an accumulation that is a multiple of pipeline 4, but it is 2"),
        ("dp16 interleave 2", "interleave 2 needs a pipeline"),
        ("dp16 sp", "sequence parallelism needs tensor parallelism, and tensor is 1"),
        ("dp4 pp4 zero2", "ZeRO-2 shards gradients, which a pipeline accumulates over micro-batches; "
                          "use at most ZeRO-1 with a pipeline"),
        ("tp8 pp2 zero1", "ZeRO-1 shards states across replicas, but data is 1"),
        ("dp16 offload", "offload with 16 replicas needs ZeRO-1 or higher: each replica would store all states"),
        ("dp2 tp8 zero3 offload",
         "offload is possible with data parallelism only, not with tensor, pipeline or context parallelism"),
    ],
)  # fmt: skip
def test_incompatible_techniques_are_rejected(make_setup: MakeSetup, plan: str, expected: str) -> None:
    assert rejection_reasons(make_setup(on=(8, 8)), parse_plan(plan)) == [expected]


def test_sequences_must_be_split_evenly(make_setup: MakeSetup) -> None:
    setup = make_setup(on=(8, 8), sequence=4001)
    assert rejection_reasons(setup, parse_plan("dp2 tp8 sp")) == ["sequence 4001 is not divisible by tensor 8"]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor", "allowed"),
    [(64, 8, 4, True), (64, 8, 8, True), (64, 8, 16, True), (64, 1, 16, True), (24, 6, 4, False), (24, 6, 12, True)],
)
def test_key_heads_must_be_split_or_replicated_evenly(
    make_setup: MakeSetup, heads: int, kv_heads: int, tensor: int, allowed: bool
) -> None:
    setup = make_setup(on=(tensor,), heads=heads, kv_heads=kv_heads, hidden=heads * 128, ffn=heads * 512)
    broken = [why for why in rejection_reasons(setup, parse_plan(f"tp{tensor}")) if "key heads" in why]
    message = [f"{kv_heads} key heads cannot be split or replicated evenly by tensor {tensor}"]
    assert broken == ([] if allowed else message)


def test_feed_forward_must_be_split_evenly(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(8,), ffn=11004)
    assert rejection_reasons(setup, parse_plan("tp8")) == ["feed-forward width 11004 is not divisible by tensor 8"]


def test_tensor_groups_span_nodes_only_if_allowed(make_setup: MakeSetup) -> None:
    setup, plan = make_setup("llama-2-7b", on=(8, 4)), parse_plan("tp8 pp2")
    pair = make_setup("llama-2-7b", on=(4, 4)), parse_plan("tp8 accumulate 512")
    assert "tensor-parallel groups of 8 do not fit evenly into nodes of 8 and 4 GPUs" in rejection_reasons(setup, plan)
    assert rejection_reasons(*pair) == ["tensor-parallel groups of 8 do not fit evenly into nodes of 4 GPUs"]
    assert rejection_reasons(*pair, PlanLimits(tensor_across_nodes=True)) == []


def test_stages_and_chunks_are_uneven_only_if_allowed(make_setup: MakeSetup) -> None:
    setup, uneven = make_setup("llama-2-7b", on=(6,)), PlanLimits(uneven=True)
    assert rejection_reasons(setup, parse_plan("pp6 accumulate 512")) == ["32 layers are not divisible by pipeline 6"]
    assert rejection_reasons(setup, parse_plan("pp6 accumulate 512"), uneven) == []
    assert rejection_reasons(make_setup("llama-2-7b", on=(6,), layers=4), parse_plan("pp6"), uneven) == [
        "4 layers are too few for pipeline 6"
    ]
    interleaved = parse_plan("pp6 interleave 2 accumulate 6")
    assert rejection_reasons(setup, interleaved)[0] == "32 layers are not divisible by pipeline 6 × interleave 2"
    assert rejection_reasons(setup, interleaved, uneven) == [
        reason for reason in rejection_reasons(setup, interleaved) if "layers" not in reason
    ]


def test_the_first_and_the_last_chunk_may_have_no_layer(make_setup: MakeSetup) -> None:
    """Llama 3.1 405B has 126 layers, and was trained with 16 stages of 8 chunks."""
    uneven = PlanLimits(uneven=True)
    for layers, text in ((126, None), (125, "125 layers are too few for pipeline 16 × interleave 8")):
        setup = make_setup("llama-2-7b", on=(8, 8), layers=layers)
        reasons = rejection_reasons(setup, parse_plan("pp16 interleave 8 accumulate 16"), uneven)
        assert [reason for reason in reasons if "layers" in reason] == ([text] if text else [])


def test_an_opaque_model_is_data_parallel_only(make_setup: MakeSetup) -> None:
    setup = make_setup("resnet", on=(8,))
    expected = ["'resnet' is an opaque model: only data parallelism without recomputation is possible"]
    assert rejection_reasons(setup, parse_plan("dp4 tp2")) == expected
    assert rejection_reasons(setup, parse_plan("dp4 pp2")) == expected
    assert rejection_reasons(setup, parse_plan("dp8 recompute full")) == expected
    assert rejection_reasons(setup, parse_plan("dp8 zero2 accumulate 8")) == []


def test_violated_pins_and_limits_are_reported(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(8,))
    pinned = PlanLimits(pinned=Pins(tensor=4, recompute="full"))
    narrow = PlanLimits(max_tensor=1, max_interleave=1, zero=(0, 1), offload=False, sequence_parallel=(False,))
    assert rejection_reasons(setup, parse_plan("dp4 tp2 zero1 recompute full"), pinned) == [
        "tensor is 2, but pinned to 4"
    ]
    assert rejection_reasons(setup, parse_plan("dp4 tp2 sp zero2"), narrow) == [
        "outside the limits: zero 2 (allowed: 0, 1), sequence_parallel True (allowed: False), tensor 2 (at most 1)"
    ]


def test_a_pin_replaces_the_choices_of_its_field(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(8,))
    limits = PlanLimits(max_tensor=1, zero=(0,), pinned=Pins(tensor=2, zero=1))
    assert rejection_reasons(setup, parse_plan("dp4 tp2 zero1 recompute full accumulate 128"), limits) == []


def test_missing_memory_is_reported_with_amounts(make_setup: MakeSetup) -> None:
    setup, plan = make_setup(on=(8,)), parse_plan("dp8")
    found = estimate(setup, plan)
    assert rejection_reasons(setup, plan) == [
        f"out of memory by {-found.spare_gib:,.1f} GiB: needs {found.memory_gib:,.1f} of 75.2 GiB"
    ]


def test_missing_host_memory_is_reported_with_amounts(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(1,), batch=1, host_gib=64.0)
    plan = parse_plan("offload recompute full")
    found = estimate(setup, plan)
    assert rejection_reasons(setup, plan) == [
        f"out of host memory by {-found.host_spare_gib:,.1f} GiB: needs {found.host_gib:,.1f} of 64.0 GiB"
    ]


def test_rule_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_sequences_are_divided_into_two_equal_parts_for_each_gpu(make_setup: MakeSetup) -> None:
    anything = PlanLimits(max_context=64)
    setup = make_setup("llama-2-7b", on=(8,), sequence=4104)
    assert rejection_reasons(setup, parse_plan("dp2 cp4 zero3 recompute full accumulate 64"), anything) == []
    assert rejection_reasons(setup, parse_plan("cp8 zero3 recompute full accumulate 64"), anything) == [
        "sequence 4104 is not divisible by 16: with context 8, each GPU has two parts of it"
    ]
    assert rejection_reasons(setup, parse_plan("dp4 cp2"))[0] == "outside the limits: context 2 (at most 1)"


def test_hybrid_sharding_divides_replicas_into_groups(make_setup: MakeSetup) -> None:
    anything = PlanLimits(max_replicate=8, max_expert=8)
    setup = make_setup("llama-2-7b", on=(8,))

    def reason(text: str) -> str:
        return rejection_reasons(setup, parse_plan(text), anything)[0]

    assert rejection_reasons(setup, parse_plan("dp8 zero3 replicate 2 recompute full accumulate 8"), anything) == []
    assert reason("dp8 zero1 replicate 2") == "replicate 2 (hybrid sharding) needs ZeRO-2 or higher"
    assert reason("dp8 zero3 replicate 3") == (
        "8 replicas (data × context) cannot be divided into 3 groups for hybrid sharding"
    )
    assert reason("dp8 zero3 replicate 8") == "replicate 8 leaves groups of one GPU, over which ZeRO cannot shard"
    assert reason("dp8 zero3 offload replicate 2") == (
        "hybrid sharding is not possible with expert parallelism or offload"
    )


def test_experts_are_divided_among_replicas(make_setup: MakeSetup) -> None:
    anything = PlanLimits(max_expert=64)
    setup = make_setup("llama-2-7b", on=(8,), experts=16, experts_per_token=2, ffn=512)
    assert rejection_reasons(setup, parse_plan("dp8 ep8 zero1 accumulate 64"), anything) == []
    assert rejection_reasons(setup, parse_plan("dp8 ep3"), anything)[0] == "16 experts are not divisible among 3 GPUs"
    assert rejection_reasons(setup, parse_plan("dp2 tp4 ep4"), anything)[0] == (
        "experts are divided among replicas, but 2 (data × context) is not divisible by expert 4"
    )
    assert rejection_reasons(setup, parse_plan("dp8 ep8 zero1 offload accumulate 64"), anything) == [
        "offload is not possible with expert parallelism"
    ]
    assert (
        rejection_reasons(make_setup("llama-2-7b", on=(8,)), parse_plan("dp8 ep8"), anything)[0]
        == "the model has no experts"
    )
