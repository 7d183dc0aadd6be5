"""Which plans a framework can run."""

from collections.abc import Callable
from typing import get_args

import msgspec
import pytest

from refold.model import Plan, parse_plan
from refold.planning.catalogue import engines, find_engine
from refold.planning.perf import PlanFeature, TrainingSetup
from refold.planning.plans import PlanLimits, all_plans, rejection_reasons
from refold.planning.plans.space import NAMES, USES, lacking_features

MakeSetup = Callable[..., TrainingSetup]


def with_engine(setup: TrainingSetup, name: str) -> TrainingSetup:
    return msgspec.structs.replace(setup, engine=find_engine(name))


def test_every_feature_has_a_test_and_a_name() -> None:
    assert set(USES) == set(NAMES) == set(get_args(PlanFeature))


def test_the_default_engine_runs_every_plan() -> None:
    assert not lacking_features(engines()[0])


@pytest.mark.parametrize("name", ["fsdp", "deepspeed", "transformers", "megatron-core", "torchtitan"])
def test_the_plan_space_of_an_engine_has_the_plans_that_break_no_rule(name: str, make_setup: MakeSetup) -> None:
    anything = make_setup("llama-2-7b", on=(4,), batch=4, sequence=2048, gpu_gib=1e6)
    setup, limits = with_engine(anything, name), PlanLimits(max_context=2, max_replicate=2)
    every = all_plans(msgspec.structs.replace(setup, engine=msgspec.structs.replace(setup.engine, runs=())), limits)
    plans = [every.plan(row) for row in range(len(every))]
    found = all_plans(setup, limits)
    expected = {plan for plan in plans if not rejection_reasons(setup, plan, limits)}
    assert {found.plan(row) for row in range(len(found))} == expected
    assert 0 < len(expected) < len(plans)


@pytest.mark.parametrize(
    ("engine", "plan", "reason"),
    [
        ("fsdp", "dp2 pp4 accumulate 4", "fsdp has no pipeline stages"),
        ("fsdp", "dp8 zero1", "fsdp has no ZeRO-1"),
        ("megatron-core", "dp8 zero1 offload", "megatron-core has no offload"),
        ("transformers", "tp8 sp", "transformers has no tensor parallelism, sequence parallelism"),
    ],
)
def test_what_is_missing_is_named(engine: str, plan: str, reason: str, make_setup: MakeSetup) -> None:
    setup = with_engine(make_setup("llama-2-7b", on=(8,), gpu_gib=1e6), engine)
    assert reason in rejection_reasons(setup, parse_plan(plan))


def test_plain_data_parallelism_is_always_possible(make_setup: MakeSetup) -> None:
    for engine in engines():
        setup = with_engine(make_setup("llama-2-7b", on=(8,), batch=64, gpu_gib=1e6), engine.name)
        assert rejection_reasons(setup, Plan(8, accumulation=2)) == []
