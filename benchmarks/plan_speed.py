"""How fast plans are estimated and found: `python -m benchmarks.plan_speed`. One core; medians of CPU time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.measure import median_cpu_seconds
from benchmarks.table import Row, as_text, at_least, at_most
from refold.catalogue import find_engine, find_gpu, find_model
from refold.perf import ModelShape, PlanColumns, Setting, estimate_all, joined, memory, step_parts
from refold.plans import Curves, Packed, PlanLimits, all_plans, best_plan, best_plans, gpu_curve

TIMES = 9
MANY = 200_000

A100, ENGINE = find_gpu("A100-80GB"), find_engine("megatron")
LLAMA_70B, GPT_2 = find_model("llama-2-70b"), find_model("gpt2-xl")

WIDE = PlanLimits(tensor_across_nodes=True, uneven=True, max_interleave=20)
"""Everything that can be allowed."""


def main() -> None:
    """Measure and print; ends with 0 whatever was missed: a benchmark is no test."""
    print(as_text([*estimate_rows(), *search_rows(), *curve_rows()]))


def estimate_rows() -> list[Row]:
    """Estimates of many plans in one call, and of one."""
    setting = _setting(LLAMA_70B, 1024, 1024)
    plans = _many(all_plans(setting))
    whole, time, room = (MANY / _median(partial(each, setting, plans)) for each in (estimate_all, step_parts, memory))
    single = _median(partial(_repeated, partial(estimate_all, setting, plans.rows(slice(1))), 100)) / 100
    return [
        at_least(f"estimate_all, {MANY:,} plans", whole / 1e6, 1.0, _millions(whole), "million plans/s"),
        Row("of this: time", _millions(time), time),
        Row("of this: memory", _millions(room), room),
        Row("estimate_all, one plan: what a call costs", f"{single * 1e3:.2f} ms", single),
    ]


def search_rows() -> list[Row]:
    """The best of all plans, with all reasons."""
    usual = PlanLimits()
    return [
        _search_row(LLAMA_70B, 1024, 1024, usual, goal=0.2),
        _search_row(LLAMA_70B, 1024, 1024, WIDE, goal=0.2),
        _search_row(LLAMA_70B, 960, 15360, WIDE),
        _search_row(GPT_2, 64, 512, usual),
        _search_row(LLAMA_70B, 1, 1024, usual),
    ]


def _search_row(model: ModelShape, gpus: int, batch: int, limits: PlanLimits, goal: float | None = None) -> Row:
    setting = _setting(model, gpus, batch)
    search = best_plans(setting, limits)
    seconds, alone = (_median(partial(find, setting, limits)) for find in (best_plans, best_plan))
    what = (
        f"best_plans, {model.name}, {gpus:,} GPUs, batch {batch:,}{', wide limits' if limits is WIDE else ''}: "
        f"{search.considered:,} plans, {search.out_of_memory:,} do not fit, {search.pruned:,} pruned"
    )
    return _seconds_row(what, seconds, goal, f" (best_plan {alone * 1e3:.1f} ms)")


def curve_rows() -> list[Row]:
    """Best throughput for 1 to 64 GPUs, and asking for it again."""
    curves = Curves()
    again = partial(curves.by_gpus, LLAMA_70B, Packed(A100), range(1, 65), 1024, 2048, ENGINE)
    once_more = _median(partial(_repeated, again, 1000)) / 1000
    slope = _median(partial(_repeated, partial(again().slope, 9), 1000)) / 1000
    return [
        _curve_row(LLAMA_70B, 1024, goal=0.05),
        _curve_row(GPT_2, 512, goal=0.05),
        _curve_row(LLAMA_70B, 1536, goal=0.05),
        _curve_row(GPT_2, 5040, goal=0.05),
        Row("the same curve again", f"{once_more * 1e6:.1f} µs", once_more),
        Row("a slope of it", f"{slope * 1e6:.1f} µs", slope),
    ]


def _curve_row(model: ModelShape, batch: int, goal: float | None = None) -> Row:
    seconds = _median(partial(gpu_curve, model, Packed(A100), range(1, 65), batch, 2048, ENGINE))
    return _seconds_row(f"curve for 1 to 64 GPUs, {model.name}, batch {batch:,}", seconds, goal)


def _seconds_row(what: str, seconds: float, goal: float | None, more: str = "") -> Row:
    measured = f"{seconds * 1e3:.1f} ms{more}"
    return Row(what, measured, seconds) if goal is None else at_most(what, seconds, goal, measured, "s")


def _setting(model: ModelShape, gpus: int, batch: int) -> Setting:
    return Setting(model, Packed(A100)(gpus), ENGINE, batch, 2048)


def _many(plans: PlanColumns) -> PlanColumns:
    copies = joined([plans] * (MANY // len(plans) + 1)).rows(slice(MANY))
    return copies.rows(np.random.default_rng(0).permutation(MANY))


def _median(work: Callable[[], object]) -> float:
    work()
    return median_cpu_seconds(work, TIMES)


def _repeated(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def _millions(per_second: float) -> str:
    return f"{per_second / 1e6:.2f} million/s"


if __name__ == "__main__":
    main()
