"""What makes a plan impossible, in words with its numbers."""

from collections.abc import Callable

import pytest

from refold.errors import BadValue
from refold.model.plan import plan_from_text
from refold.perf.estimation import estimate
from refold.perf.setting import Setting
from refold.plans import RULES, Pins, PlanLimits, why_not

MakeSetting = Callable[..., Setting]


@pytest.mark.parametrize(
    ("plan", "because"),
    [
        ("dp8", ["the plan uses 8 GPUs, and the machines have 48"]),
        ("dp16 tp3", ["64 heads do not divide by tensor 3", "hidden width 8192 does not divide by tensor 3",
                      "groups of tensor 3 do not stay within nodes of 8 GPUs"]),
        ("dp3 tp16", ["groups of tensor 16 do not stay within nodes of 8 GPUs",
                      "batch 512 does not divide by 3"]),
        ("dp16 pp3", ["80 layers do not divide by pipeline 3"]),
        ("dp8 pp6 accumulate 64", ["80 layers do not divide by pipeline 6"]),
        ("dp48", ["batch 512 does not divide by 48"]),
        ("dp48 accumulate 2", ["batch 512 does not divide by 96 (data 48 × accumulation 2)"]),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_divide_is_told_which_numbers_do_not(
    make_setting: MakeSetting, plan: str, because: list[str]
) -> None:
    assert why_not(make_setting(on=(8,) * 6), plan_from_text(plan)) == because


@pytest.mark.parametrize(
    ("plan", "because"),
    [
        ("dp4 pp4 interleave 3 accumulate 4", "80 layers do not divide by pipeline 4 × interleave 3"),
        ("dp4 pp4 interleave 5 accumulate 2",
         "interleaved stages work in rounds: accumulation 2 is no multiple of pipeline 4"),
        ("dp16 interleave 2", "interleave 2 needs a pipeline"),
        ("dp16 sp", "sequence parallelism splits what tensor parallelism leaves whole, and tensor is 1"),
        ("dp4 pp4 zero2", "ZeRO-2 keeps a share of the gradients only, and a pipeline adds them up over micro-batches: "
                          "at most ZeRO-1 goes with it"),
        ("tp8 pp2 zero1", "ZeRO-1 shares states among replicas, and there is only one"),
        ("dp16 offload", "offloading needs ZeRO-1 or more, or each of 16 replicas would keep all states on a host"),
        ("dp2 tp8 zero3 offload",
         "offloading goes with data parallelism only, not with tensor or pipeline parallelism"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said(make_setting: MakeSetting, plan: str, because: str) -> None:
    assert why_not(make_setting(on=(8, 8)), plan_from_text(plan)) == [because]


def test_a_sequence_is_split_evenly(make_setting: MakeSetting) -> None:
    setting = make_setting(on=(8, 8), sequence=4001)
    assert why_not(setting, plan_from_text("dp2 tp8 sp")) == ["sequence 4001 does not divide by tensor 8"]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tensor", "allowed"),
    [(64, 8, 4, True), (64, 8, 8, True), (64, 8, 16, True), (64, 1, 16, True), (24, 6, 4, False), (24, 6, 12, True)],
)
def test_key_heads_are_split_or_copied_evenly(
    make_setting: MakeSetting, heads: int, kv_heads: int, tensor: int, allowed: bool
) -> None:
    setting = make_setting(on=(tensor,), heads=heads, kv_heads=kv_heads, hidden=heads * 128, ffn=heads * 512)
    broken = [why for why in why_not(setting, plan_from_text(f"tp{tensor}")) if "key heads" in why]
    said = [f"{kv_heads} key heads are neither split nor copied evenly by tensor {tensor}"]
    assert broken == ([] if allowed else said)


def test_feed_forward_is_split_evenly(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(8,), ffn=11004)
    assert why_not(setting, plan_from_text("tp8")) == ["feed-forward width 11004 does not divide by tensor 8"]


def test_tensor_groups_cross_nodes_only_where_that_is_allowed(make_setting: MakeSetting) -> None:
    setting, plan = make_setting("llama-2-7b", on=(8, 4)), plan_from_text("tp8 pp2")
    pair = make_setting("llama-2-7b", on=(4, 4)), plan_from_text("tp8 accumulate 512")
    assert "groups of tensor 8 do not stay within nodes of 8 and 4 GPUs" in why_not(setting, plan)
    assert why_not(*pair) == ["groups of tensor 8 do not stay within nodes of 4 GPUs"]
    assert why_not(*pair, PlanLimits(tensor_across_nodes=True)) == []


def test_stages_are_uneven_only_where_that_is_allowed_and_never_in_turns(make_setting: MakeSetting) -> None:
    setting, uneven = make_setting("llama-2-7b", on=(6,)), PlanLimits(uneven=True)
    assert why_not(setting, plan_from_text("pp6 accumulate 512")) == ["32 layers do not divide by pipeline 6"]
    assert why_not(setting, plan_from_text("pp6 accumulate 512"), uneven) == []
    assert why_not(make_setting("llama-2-7b", on=(6,), layers=4), plan_from_text("pp6"), uneven) == [
        "4 layers are too few for pipeline 6"
    ]
    assert why_not(setting, plan_from_text("pp6 interleave 2 accumulate 6"), uneven)[0] == (
        "32 layers do not divide by pipeline 6 × interleave 2"
    )


def test_an_opaque_model_is_data_parallel_only(make_setting: MakeSetting) -> None:
    setting = make_setting("resnet", on=(8,))
    only = ["of 'resnet' only totals are known: data parallelism only, and no recomputing"]
    assert why_not(setting, plan_from_text("dp4 tp2")) == only
    assert why_not(setting, plan_from_text("dp4 pp2")) == only
    assert why_not(setting, plan_from_text("dp8 recompute full")) == only
    assert why_not(setting, plan_from_text("dp8 zero2 accumulate 8")) == []


def test_pins_and_limits_are_named(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(8,))
    pinned = PlanLimits(pinned=Pins(tensor=4, recompute="full"))
    narrow = PlanLimits(max_tensor=1, max_interleave=1, zero=(0, 1), offload=False, sequence_parallel=(False,))
    assert why_not(setting, plan_from_text("dp4 tp2 zero1 recompute full"), pinned) == ["tensor is pinned to 4, not 2"]
    assert why_not(setting, plan_from_text("dp4 tp2 sp zero2"), narrow) == [
        "outside the limits: zero 2 (of 0, 1), sequence_parallel True (of False), tensor 2 (at most 1)"
    ]


def test_a_pin_replaces_the_choices_for_what_it_fixes(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(8,))
    limits = PlanLimits(max_tensor=1, zero=(0,), pinned=Pins(tensor=2, zero=1))
    assert why_not(setting, plan_from_text("dp4 tp2 zero1 recompute full accumulate 128"), limits) == []


def test_memory_is_named_with_what_is_needed_and_what_is_there(make_setting: MakeSetting) -> None:
    setting, plan = make_setting(on=(8,)), plan_from_text("dp8")
    found = estimate(setting, plan)
    assert why_not(setting, plan) == [
        f"out of memory by {-found.spare_gib:,.1f} GiB: needs {found.memory_gib:,.1f} of 75.2 GiB"
    ]


def test_host_memory_is_named_alike(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(1,), batch=1, host_gib=64.0)
    plan = plan_from_text("offload recompute full")
    found = estimate(setting, plan)
    assert why_not(setting, plan) == [
        f"out of host memory by {-found.host_spare_gib:,.1f} GiB: needs {found.host_gib:,.1f} of 64.0 GiB"
    ]


def test_every_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PlanLimits(zero=(4,)),
        lambda: PlanLimits(zero=()),
        lambda: PlanLimits(max_tensor=0),
        lambda: PlanLimits(max_interleave=0),
        lambda: Pins(data=0),
        lambda: Pins(zero=4),
    ],
)
def test_limits_that_allow_nothing_cannot_be_built(wrong: Callable[[], object]) -> None:
    with pytest.raises(BadValue):
        wrong()
