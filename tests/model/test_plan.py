"""Plans as text: parsing, formatting, and messages about text that is not a plan."""

import pytest
from hypothesis import given, strategies as st

from refold.errors import BadInput, BadValue
from refold.model import MAX_DEGREE, RECOMPUTE, Plan, parse_plan, parse_plan_fields

degree = st.integers(1, MAX_DEGREE)
any_plan = st.builds(
    Plan,
    degree,
    degree,
    degree,
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(RECOMPUTE),
    degree,
    degree,
    st.booleans(),
    degree,
    degree,
    degree,
)


@given(any_plan)
def test_a_formatted_plan_can_be_parsed(plan: Plan) -> None:
    assert parse_plan(str(plan)) == plan


@given(any_plan, any_plan)
def test_different_plans_have_different_texts(one: Plan, other: Plan) -> None:
    assert (str(one) == str(other)) == (one == other)


def test_a_plan_is_formatted_without_its_defaults() -> None:
    assert str(Plan()) == "DP1"
    every = Plan(2, 4, 8, 1, True, "selective", 16, 3, True, 5, 2, 3)
    assert (
        str(every) == "DP2 TP4 PP8 CP5 EP2 interleave 3 SP ZeRO-1 replicate 3 offload recompute selective accumulate 16"
    )
    assert every.gpus == 320


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("dp8,tp2,zero=1,offload", Plan(8, 2, zero=1, offload=True)),
        (" DP 8 + TP 2 ", Plan(8, 2)),
        ("data:2 tensor:3 pipeline:4 accumulation:5", Plan(2, 3, 4, accumulation=5)),
        ("ga4 vpp2 pp2", Plan(pipeline=2, accumulation=4, interleave=2)),
        ("recompute", Plan(recompute="full")),
        ("recompute=none", Plan()),
        ("sp ZeRO-3", Plan(zero=3, sequence_parallel=True)),
        ("tp2", Plan(tensor=2)),
        ("dp64 zero3 replicate=8", Plan(64, zero=3, replicate=8)),
    ],
)
def test_the_notations_of_a_plan(text: str, plan: Plan) -> None:
    assert parse_plan(text) == plan


def test_only_the_fields_of_the_text_are_returned() -> None:
    assert parse_plan_fields("tp2 zero0") == {"tensor": 2, "zero": 0}
    assert parse_plan_fields("sp recompute none") == {"sequence_parallel": True, "recompute": "none"}


HOW = (
    "; write it as 'dp8 tp2 pp4 zero1 accumulate 16', with offload, sp, cp2, ep8, replicate 2, interleave 2 "
    "or recompute none|selective|full as options"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a plan" + HOW),
        ("   ", "'   ' is not a plan" + HOW),
        ("8 GPUs", "'8 GPUs' is not a plan at '8 gpus'" + HOW),
        ("dp8 xp2", "'dp8 xp2' is not a plan at 'xp2'" + HOW),
        ("dp", "'dp' is not a plan at 'dp'" + HOW),
        ("dp full", "'dp full' is not a plan at 'dp full'" + HOW),
        ("recompute 1", "'recompute 1' is not a plan at 'recompute 1'" + HOW),
        ("offload 1", "'offload 1' is not a plan at 'offload 1'" + HOW),
        ("dp2 data3", "plan 'dp2 data3' sets data twice"),
        ("offload sp offload", "plan 'offload sp offload' sets offload twice"),
    ],
)
def test_text_that_is_not_a_plan_is_rejected_where_it_goes_wrong(text: str, message: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_plan(text)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "dp8 pp0",
            "plan has pipeline 0, expected every degree to be at least 1 and at most 1048576",
        ),
        (
            "tp1048577",
            "plan has tensor 1048577, expected every degree to be at least 1 and at most 1048576",
        ),
        ("zero4", "zero is 4, expected ZeRO stages 0 to 3"),
    ],
)
def test_degrees_out_of_range_are_rejected(text: str, message: str) -> None:
    with pytest.raises(BadValue) as raised:
        parse_plan(text)
    assert str(raised.value) == message


def test_a_degree_with_thousands_of_digits_is_not_a_plan() -> None:
    with pytest.raises(BadInput, match=r"^'dp9{5000}' is not a plan at '9+'; write it as"):
        parse_plan("dp" + "9" * 5000)


def test_the_largest_degrees_are_accepted() -> None:
    assert Plan(MAX_DEGREE, accumulation=MAX_DEGREE).gpus == MAX_DEGREE
