"""Plan space and plan search in worked examples: the best plans, and the reasons for rejecting others."""

from collections.abc import Callable
from itertools import pairwise
from math import floor, log

import msgspec
import pytest

from refold.errors import BadValue
from refold.model.plan import Plan, parse_plan
from refold.planning.perf.training_setup import TrainingSetup
from refold.planning.plans import (
    Pins,
    PlanLimits,
    RejectedPlans,
    all_plans,
    best_plan,
    best_plans,
    rejection_reasons,
    selection,
)
from refold.planning.plans.rules import format_gib
from refold.planning.plans.space import divisors

MakeSetup = Callable[..., TrainingSetup]


def plans_of(setup: TrainingSetup, limits: PlanLimits) -> set[Plan]:
    columns = all_plans(setup, limits)
    return {columns.plan(row) for row in range(len(columns))}


def test_a_small_plan_space(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(2,), batch=2)
    plain = PlanLimits(recompute=("none",), sequence_parallel=(False,))
    assert plans_of(setup, plain) == {
        *map(parse_plan, ["dp2", "dp2 zero1", "dp2 zero2", "dp2 zero3"]),
        *map(parse_plan, ["dp2 zero1 offload", "dp2 zero2 offload", "dp2 zero3 offload"]),
        *map(parse_plan, ["tp2", "tp2 accumulate 2"]),
        *map(parse_plan, ["pp2", "pp2 accumulate 2"]),
        *(parse_plan(f"pp2 accumulate 2 interleave {chunks}") for chunks in (2, 4, 8)),
    }


def test_equivalent_plans_on_one_gpu_are_listed_once(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(1,), batch=1)
    assert plans_of(setup, PlanLimits(recompute=("none",))) == {Plan(), Plan(offload=True)}
    assert plans_of(setup, PlanLimits(recompute=("none",), pinned=Pins(zero=2))) == {Plan(zero=2, offload=True)}


def test_an_opaque_model_has_data_parallel_plans_only(make_setup: MakeSetup) -> None:
    setup = make_setup("resnet", on=(4,), batch=8)
    assert plans_of(setup, PlanLimits(offload=False, zero=(0, 2))) == {
        *map(parse_plan, ["dp4", "dp4 accumulate 2", "dp4 zero2", "dp4 zero2 accumulate 2"])
    }


def test_every_plan_has_the_pinned_values(make_setup: MakeSetup) -> None:
    pins = Pins(tensor=4, accumulation=8, recompute="full")
    found = plans_of(make_setup(on=(8, 8)), PlanLimits(pinned=pins))
    assert found
    assert {(plan.tensor, plan.accumulation, plan.recompute) for plan in found} == {(4, 8, "full")}


def test_pins_for_all_fields_leave_one_plan(make_setup: MakeSetup) -> None:
    plan = parse_plan("dp2 tp4 pp2 zero1 recompute full accumulate 16 interleave 5 sp")
    pins = Pins(2, 4, 2, 1, False, "full", 16, 5, True)
    assert plans_of(make_setup(on=(8, 8)), PlanLimits(pinned=pins)) == {plan}


@pytest.mark.parametrize(("number", "expected"), [(1, [1]), (36, [1, 2, 3, 4, 6, 9, 12, 18, 36]), (97, [1, 97])])
def test_divisors_are_sorted(number: int, expected: list[int]) -> None:
    assert divisors(number) == expected


def test_divisors_are_limited_to_the_maximum_degree() -> None:
    assert max(divisors(2**40)) == 2**20


def test_the_best_plans_are_sorted_and_fit(make_setup: MakeSetup) -> None:
    setup = make_setup(on=(8,) * 8)
    search = best_plans(setup, count=20)
    seconds = [found.step_seconds for found in search.best]
    assert len(seconds) == 20
    assert all(first <= second * selection.TIE_FACTOR for first, second in pairwise(seconds))
    assert all(found.fits and not rejection_reasons(setup, found.plan) for found in search.best)
    best = best_plan(setup)
    assert best is not None
    assert best.plan == search.best[0].plan


def test_all_plans_out_of_memory_are_counted(make_setup: MakeSetup) -> None:
    search = best_plans(make_setup(on=(8,) * 8))
    out_of_memory = [group for group in search.rejected if "memory" in group.reason]
    assert search.considered == len(all_plans(make_setup(on=(8,) * 8)))
    assert sum(group.plans for group in out_of_memory) == search.out_of_memory > 0


def test_slower_families_are_reported_with_their_slowdown(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(8,) * 2)
    search = best_plans(setup)
    slower = [group for group in search.rejected if group.reason == "slower"]
    assert {"pipeline parallel", "offload"} <= {group.name for group in slower}
    assert [group.margin for group in slower] == sorted(group.margin for group in slower)
    for group in slower:
        tied = group.margin <= selection.TIE_FACTOR
        comparison = "within 1 % as fast, but less simple" if tied else f"at least {group.margin:.2f} × the step time"
        assert group.explanation == f"{group.name}, {comparison}"
        assert group.margin >= 1 / selection.TIE_FACTOR
        assert not rejection_reasons(setup, group.example)


def test_plans_out_of_memory_are_reported_with_the_nearest_miss(make_setup: MakeSetup) -> None:
    setup = make_setup(on=(8,) * 8)
    (out_of_memory,) = (group for group in best_plans(setup).rejected if group.reason == "memory")
    missing, example = f"{format_gib(out_of_memory.margin)} GiB", out_of_memory.example
    assert str(out_of_memory) == f"{out_of_memory.plans:,} plans: out of memory by at least {missing} ({example})"
    assert rejection_reasons(setup, example)[0].startswith(f"out of memory by {missing}: ")


def test_host_memory_is_reported_separately(make_setup: MakeSetup) -> None:
    search = best_plans(make_setup("llama-2-7b", on=(8,), host_gib=100.0))
    (out_of_memory,) = (group for group in search.rejected if group.reason == "host memory")
    assert out_of_memory.example.offload


def test_invalid_divisions_are_reported_by_rule(make_setup: MakeSetup) -> None:
    search = best_plans(make_setup(on=(8,) * 6))
    assert [group for group in search.rejected if group.reason == "rule"] == [
        RejectedPlans("rule", "heads", 15, "64 heads are not divisible by tensor 3", Plan(data=16, tensor=3)),
        RejectedPlans(
            "rule",
            "node",
            2,
            "tensor-parallel groups of 16 do not fit evenly into nodes of 8 GPUs",
            Plan(data=3, tensor=16),
        ),
        RejectedPlans("rule", "layers", 14, "80 layers are not divisible by pipeline 3", Plan(data=16, pipeline=3)),
        RejectedPlans("rule", "batch", 14, "batch 512 is not divisible by 48", Plan(data=48)),
    ]


def test_if_no_plan_uses_all_gpus_fewer_gpus_are_advised(make_setup: MakeSetup) -> None:
    search = best_plans(make_setup("llama-2-7b", on=(7,)))
    assert (search.best, search.considered) == ((), 0)
    assert [str(group) for group in search.rejected] == [
        "1 combination: 32 heads are not divisible by tensor 7 (DP1 TP7)",
        "1 combination: 32 layers are not divisible by pipeline 7 (DP1 PP7)",
        "1 combination: batch 512 is not divisible by 7 (DP7)",
    ]
    assert search.enough_gpus is None
    assert [advice.split(":")[0] for advice in search.advice] == [
        "with --batch 532, a multiple of 7 GPUs, this plan would fit",
        "4 × A100 would be enough",
    ]


def test_if_nothing_fits_more_gpus_are_advised(make_setup: MakeSetup) -> None:
    limits = PlanLimits(offload=False)
    search = best_plans(make_setup(on=(8,)), limits, count=3)
    assert search.best == ()
    assert len(search.misses) == 3
    spare = [found.spare_gib for found in search.misses]
    assert spare == sorted(spare, reverse=True)
    assert search.enough_gpus is not None
    few, enough = ((8,) * (search.enough_gpus // size) for size in (16, 8))
    assert best_plan(make_setup(on=few), limits) is None
    found = best_plan(make_setup(on=enough), limits)
    assert found is not None
    assert search.advice[0] == f"{search.enough_gpus} × A100 would be enough: {found.plan}"


def test_limits_that_prevent_a_fit_are_reported(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(8,))
    unlimited = best_plan(setup)
    assert unlimited is not None
    search = best_plans(setup, PlanLimits(pinned=Pins(8, 1, 1, zero=0, recompute="none")))
    assert search.best == ()
    assert search.advice == (f"without these limits this plan would fit: {unlimited.plan}",)


def test_an_impossible_pin_is_reported_with_its_rule(make_setup: MakeSetup) -> None:
    search = best_plans(make_setup("llama-2-7b", on=(8,)), PlanLimits(pinned=Pins(data=3, tensor=2, pipeline=1)))
    assert [str(group) for group in search.rejected] == [
        "1 combination: the plan uses 6 GPUs, but the machines have 8 (DP3 TP2)"
    ]


def test_the_simplest_of_equally_fast_plans_is_best(make_setup: MakeSetup) -> None:
    setup = make_setup("llama-2-7b", on=(8,), batch=8)
    best = best_plans(setup, count=200).best
    least = min(found.step_seconds for found in best)
    for first, second in pairwise(best):
        levels = [floor(log(found.step_seconds / least) / log(selection.TIE_FACTOR)) for found in (first, second)]
        assert levels == sorted(levels)
        if levels[0] == levels[1]:
            simplicity = [
                (found.plan.offload, found.plan.pipeline, found.plan.tensor, found.plan.zero)
                for found in (first, second)
            ]
            assert simplicity == sorted(simplicity)


def test_a_count_of_zero_is_rejected(make_setup: MakeSetup) -> None:
    with pytest.raises(BadValue, match="count is 0, expected at least 1 plan"):
        best_plans(make_setup(), count=0)


def test_uneven_stages_are_advised_where_layers_do_not_divide(make_setup: MakeSetup) -> None:
    """78 layers do not divide by four stages, so that full recomputation or two stages are needed."""
    setup = make_setup("llama-2-70b", on=(8,) * 4, layers=78, batch=64)
    limits = PlanLimits(zero=(0,), offload=False)
    even, uneven = best_plans(setup, limits), best_plans(setup, msgspec.structs.replace(limits, uneven=True))
    share = uneven.best[0].step_seconds / even.best[0].step_seconds
    assert share < 0.99
    assert even.advice == (
        f"with --uneven, {uneven.best[0].plan} would take {share:.2f} × the step time of the best plan",
    )
    assert uneven.advice == ()


def test_a_number_of_gpus_that_divides_the_batch_is_advised(make_setup: MakeSetup) -> None:
    search = best_plans(make_setup("llama-2-7b", on=(8,) * 125, batch=24))
    assert search.best == ()
    assert search.advice[0].startswith("24 × A100 would be enough: ")
