"""The space of plans, the best of them, and what is said of the others, in worked cases."""

from collections.abc import Callable
from itertools import pairwise
from math import floor, log

import pytest

from refold.errors import BadValue
from refold.model.plan import Plan, plan_from_text
from refold.perf.setting import Setting
from refold.plans import Pins, PlanLimits, RejectedPlans, all_plans, best_plan, best_plans, ranking, why_not
from refold.plans.rules import gib
from refold.plans.space import divisors

MakeSetting = Callable[..., Setting]


def plans_of(setting: Setting, limits: PlanLimits) -> set[Plan]:
    columns = all_plans(setting, limits)
    return {columns.plan(row) for row in range(len(columns))}


def test_a_small_space_can_be_written_down(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(2,), batch=2)
    plain = PlanLimits(recompute=("none",), sequence_parallel=(False,))
    assert plans_of(setting, plain) == {
        *map(plan_from_text, ["dp2", "dp2 zero1", "dp2 zero2", "dp2 zero3"]),
        *map(plan_from_text, ["dp2 zero1 offload", "dp2 zero2 offload", "dp2 zero3 offload"]),
        *map(plan_from_text, ["tp2", "tp2 accumulate 2"]),
        *map(plan_from_text, ["pp2", "pp2 accumulate 2"]),
        *(plan_from_text(f"pp2 accumulate 2 interleave {chunks}") for chunks in (2, 4, 8)),
    }


def test_one_gpu_says_nothing_twice(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(1,), batch=1)
    assert plans_of(setting, PlanLimits(recompute=("none",))) == {Plan(), Plan(offload=True)}
    assert plans_of(setting, PlanLimits(recompute=("none",), pinned=Pins(zero=2))) == {Plan(zero=2, offload=True)}


def test_an_opaque_model_has_data_parallel_plans_only(make_setting: MakeSetting) -> None:
    setting = make_setting("resnet", on=(4,), batch=8)
    assert plans_of(setting, PlanLimits(offload=False, zero=(0, 2))) == {
        *map(plan_from_text, ["dp4", "dp4 accumulate 2", "dp4 zero2", "dp4 zero2 accumulate 2"])
    }


def test_what_is_pinned_is_in_every_plan(make_setting: MakeSetting) -> None:
    pins = Pins(tensor=4, accumulation=8, recompute="full")
    found = plans_of(make_setting(on=(8, 8)), PlanLimits(pinned=pins))
    assert found
    assert {(plan.tensor, plan.accumulation, plan.recompute) for plan in found} == {(4, 8, "full")}


def test_pins_for_everything_leave_that_plan(make_setting: MakeSetting) -> None:
    plan = plan_from_text("dp2 tp4 pp2 zero1 recompute full accumulate 16 interleave 5 sp")
    pins = Pins(2, 4, 2, 1, False, "full", 16, 5, True)
    assert plans_of(make_setting(on=(8, 8)), PlanLimits(pinned=pins)) == {plan}


@pytest.mark.parametrize(("number", "ways"), [(1, [1]), (36, [1, 2, 3, 4, 6, 9, 12, 18, 36]), (97, [1, 97])])
def test_divisors_come_in_order(number: int, ways: list[int]) -> None:
    assert divisors(number) == ways


def test_no_degree_is_larger_than_a_plan_can_have() -> None:
    assert max(divisors(2**40)) == 2**20


def test_the_best_come_first_and_all_fit(make_setting: MakeSetting) -> None:
    setting = make_setting(on=(8,) * 8)
    search = best_plans(setting, count=20)
    seconds = [found.step_seconds for found in search.best]
    assert len(seconds) == 20
    assert all(one <= other * ranking.NEARLY for one, other in pairwise(seconds))
    assert all(found.fits and not why_not(setting, found.plan) for found in search.best)
    best = best_plan(setting)
    assert best is not None
    assert best.plan == search.best[0].plan


def test_every_plan_is_accounted_for(make_setting: MakeSetting) -> None:
    search = best_plans(make_setting(on=(8,) * 8))
    short = [lost for lost in search.lost if "memory" in lost.reason]
    assert search.considered == len(all_plans(make_setting(on=(8,) * 8)))
    assert sum(lost.plans for lost in short) == search.out_of_memory > 0


def test_the_other_families_are_said_to_be_slower_by_how_much(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(8,) * 2)
    search = best_plans(setting)
    slower = [lost for lost in search.lost if lost.reason == "slower"]
    assert {"pipeline parallel", "offload"} <= {lost.name for lost in slower}
    assert [lost.by for lost in slower] == sorted(lost.by for lost in slower)
    for lost in slower:
        near = lost.by <= ranking.NEARLY
        how = "as fast to within 1 %, but not as simple" if near else f"{lost.by:.2f} times as long at best"
        assert lost.because == f"{lost.name}, {how}"
        assert lost.by >= 1 / ranking.NEARLY
        assert not why_not(setting, lost.example)


def test_what_did_not_fit_names_the_nearest_miss(make_setting: MakeSetting) -> None:
    setting = make_setting(on=(8,) * 8)
    (short,) = (lost for lost in best_plans(setting).lost if lost.reason == "memory")
    assert str(short) == f"{short.plans:,} plans: out of memory, by {gib(short.by)} GiB at least ({short.example})"
    assert why_not(setting, short.example)[0].startswith(f"out of memory by {gib(short.by)} GiB: ")


def test_short_hosts_are_told_apart_from_short_gpus(make_setting: MakeSetting) -> None:
    search = best_plans(make_setting("llama-2-7b", on=(8,), host_gib=100.0))
    (short,) = (lost for lost in search.lost if lost.reason == "host memory")
    assert short.example.offload


def test_ways_to_divide_that_one_would_try_are_refused_with_the_rule(make_setting: MakeSetting) -> None:
    search = best_plans(make_setting(on=(8,) * 6))
    assert [lost for lost in search.lost if lost.reason == "rule"] == [
        RejectedPlans("rule", "heads", 15, "64 heads do not divide by tensor 3", Plan(data=16, tensor=3)),
        RejectedPlans(
            "rule", "node", 2, "groups of tensor 16 do not stay within nodes of 8 GPUs", Plan(data=3, tensor=16)
        ),
        RejectedPlans("rule", "layers", 14, "80 layers do not divide by pipeline 3", Plan(data=16, pipeline=3)),
        RejectedPlans("rule", "batch", 14, "batch 512 does not divide by 48", Plan(data=48)),
    ]


def test_where_no_way_divides_the_rules_say_so_and_fewer_gpus_are_offered(make_setting: MakeSetting) -> None:
    search = best_plans(make_setting("llama-2-7b", on=(7,)))
    assert (search.best, search.considered) == ((), 0)
    assert [str(lost) for lost in search.lost] == [
        "1 way: 32 heads do not divide by tensor 7 (DP1 TP7)",
        "1 way: 32 layers do not divide by pipeline 7 (DP1 PP7)",
        "1 way: batch 512 does not divide by 7 (DP7)",
    ]
    assert search.enough_gpus is None
    assert [advice.split(":")[0] for advice in search.advice] == ["4 × A100 would do"]


def test_where_nothing_fits_the_nearest_misses_and_enough_gpus_are_named(make_setting: MakeSetting) -> None:
    limits = PlanLimits(offload=False)
    search = best_plans(make_setting(on=(8,)), limits, count=3)
    assert search.best == ()
    assert len(search.misses) == 3
    spare = [found.spare_gib for found in search.misses]
    assert spare == sorted(spare, reverse=True)
    assert search.enough_gpus is not None
    few, enough = ((8,) * (search.enough_gpus // size) for size in (16, 8))
    assert best_plan(make_setting(on=few), limits) is None
    found = best_plan(make_setting(on=enough), limits)
    assert found is not None
    assert search.advice[0] == f"{search.enough_gpus} × A100 would do: {found.plan}"


def test_limits_that_are_in_the_way_are_pointed_at(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(8,))
    free = best_plan(setting)
    assert free is not None
    search = best_plans(setting, PlanLimits(pinned=Pins(8, 1, 1, zero=0, recompute="none")))
    assert search.best == ()
    assert search.advice == (f"without these limits it would fit: {free.plan}",)


def test_a_pin_that_cannot_be_met_says_which_rule_it_breaks(make_setting: MakeSetting) -> None:
    search = best_plans(make_setting("llama-2-7b", on=(8,)), PlanLimits(pinned=Pins(data=3, tensor=2, pipeline=1)))
    assert [str(lost) for lost in search.lost] == ["1 way: the plan uses 6 GPUs, and the machines have 8 (DP3 TP2)"]


def test_of_equally_fast_plans_the_simplest_is_best(make_setting: MakeSetting) -> None:
    setting = make_setting("llama-2-7b", on=(8,), batch=8)
    best = best_plans(setting, count=200).best
    least = min(found.step_seconds for found in best)
    for one, other in pairwise(best):
        levels = [floor(log(found.step_seconds / least) / log(ranking.NEARLY)) for found in (one, other)]
        assert levels == sorted(levels)
        if levels[0] == levels[1]:
            simplicity = [
                (found.plan.offload, found.plan.pipeline, found.plan.tensor, found.plan.zero) for found in (one, other)
            ]
            assert simplicity == sorted(simplicity)


def test_at_least_one_plan_is_asked_for(make_setting: MakeSetting) -> None:
    with pytest.raises(BadValue, match="at least one best plan, not 0"):
        best_plans(make_setting(), count=0)
