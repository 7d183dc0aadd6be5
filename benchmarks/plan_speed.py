"""Speed of step-time estimates, plan searches and curves: `python -m benchmarks.plan_speed`.

Medians of CPU time on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.measure import median_cpu_seconds
from benchmarks.table import Row, as_text, at_least, at_most
from refold.planning.catalogue import find_engine, find_gpu, find_model
from refold.planning.perf import (
    ModelShape,
    PlanColumns,
    TrainingSetup,
    concatenate_plans,
    estimate_all,
    memory_footprint,
    step_time_parts,
)
from refold.planning.plans import PackedMachines, PlanLimits, all_plans, best_plan, best_plans, gpu_curve

REPEATS = 9
PLAN_COUNT = 200_000

A100, ENGINE = find_gpu("A100-80GB"), find_engine("megatron")
LLAMA_70B, GPT_2 = find_model("llama-2-70b"), find_model("gpt2-xl")

WIDE_LIMITS = PlanLimits(tensor_across_nodes=True, uneven=True, max_interleave=20)
"""The least restrictive limits."""


def main() -> None:
    """Measure and print the table. The exit status is 0 even if goals are missed."""
    argparse.ArgumentParser(prog="python -m benchmarks.plan_speed", description=__doc__).parse_args()
    print(as_text([*estimate_rows(), *search_rows(), *curve_rows()]))


def estimate_rows() -> list[Row]:
    """Measure estimates of many plans in one call, and of a single plan."""
    setting = _setting(LLAMA_70B, 1024, 1024)
    plans = _repeat_plans(all_plans(setting))
    total, time, memory = (
        PLAN_COUNT / _median(partial(each, setting, plans))
        for each in (estimate_all, step_time_parts, memory_footprint)
    )
    single = _median(partial(_repeat, partial(estimate_all, setting, plans.rows(slice(1))), 100)) / 100
    return [
        at_least(f"estimate_all, {PLAN_COUNT:,} plans", total / 1e6, 1.0, _millions(total), "million plans/s"),
        Row("of which time", _millions(time), time),
        Row("of which memory", _millions(memory), memory),
        Row("estimate_all, one plan: time per call", f"{single * 1e3:.2f} ms", single),
    ]


def search_rows() -> list[Row]:
    """Measure searches for the best plans."""
    default = PlanLimits()
    return [
        _search_row(LLAMA_70B, 1024, 1024, default, goal=0.2),
        _search_row(LLAMA_70B, 1024, 1024, WIDE_LIMITS, goal=0.2),
        _search_row(LLAMA_70B, 960, 15360, WIDE_LIMITS),
        _search_row(GPT_2, 64, 512, default),
        _search_row(LLAMA_70B, 1, 1024, default),
    ]


def _search_row(model: ModelShape, gpus: int, batch: int, limits: PlanLimits, goal: float | None = None) -> Row:
    setting = _setting(model, gpus, batch)
    search = best_plans(setting, limits)
    seconds, alone = (_median(partial(find, setting, limits)) for find in (best_plans, best_plan))
    what = (
        f"best_plans, {model.name}, {gpus:,} GPUs, batch {batch:,}{', wide limits' if limits is WIDE_LIMITS else ''}: "
        f"{search.considered:,} plans, {search.out_of_memory:,} do not fit, {search.pruned:,} pruned"
    )
    return _seconds_row(what, seconds, goal, f" (best_plan {alone * 1e3:.1f} ms)")


def curve_rows() -> list[Row]:
    """Measure throughput curves for 1 to 64 GPUs, and lookups of a slope."""
    curve = gpu_curve(LLAMA_70B, PackedMachines(A100), range(1, 65), 1024, 2048, ENGINE)
    slope = _median(partial(_repeat, partial(curve.slope, 9), 1000)) / 1000
    return [
        _curve_row(LLAMA_70B, 1024, goal=0.05),
        _curve_row(GPT_2, 512, goal=0.05),
        _curve_row(LLAMA_70B, 1536, goal=0.05),
        _curve_row(GPT_2, 5040, goal=0.05),
        Row("slope of a curve", f"{slope * 1e6:.1f} µs", slope),
    ]


def _curve_row(model: ModelShape, batch: int, goal: float | None = None) -> Row:
    seconds = _median(partial(gpu_curve, model, PackedMachines(A100), range(1, 65), batch, 2048, ENGINE))
    return _seconds_row(f"curve for 1 to 64 GPUs, {model.name}, batch {batch:,}", seconds, goal)


def _seconds_row(what: str, seconds: float, goal: float | None, more: str = "") -> Row:
    measured = f"{seconds * 1e3:.1f} ms{more}"
    return Row(what, measured, seconds) if goal is None else at_most(what, seconds, goal, measured, "s")


def _setting(model: ModelShape, gpus: int, batch: int) -> TrainingSetup:
    return TrainingSetup(model, PackedMachines(A100)(gpus), ENGINE, batch, 2048)


def _repeat_plans(plans: PlanColumns) -> PlanColumns:
    copies = concatenate_plans([plans] * (PLAN_COUNT // len(plans) + 1)).rows(slice(PLAN_COUNT))
    return copies.rows(np.random.default_rng(0).permutation(PLAN_COUNT))


def _median(work: Callable[[], object]) -> float:
    work()
    return median_cpu_seconds(work, REPEATS)


def _repeat(work: Callable[[], object], times: int) -> None:
    for _ in range(times):
        work()


def _millions(per_second: float) -> str:
    return f"{per_second / 1e6:.2f} million/s"


if __name__ == "__main__":
    main()
