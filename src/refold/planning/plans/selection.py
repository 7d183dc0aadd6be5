"""Memory check, timing and ranking of many plans, exact but without timing all of them, and why plans were rejected."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from refold.model import Plan
from refold.planning.perf import (
    Column,
    PlanColumns,
    TrainingSetup,
    head_time,
    layer_time,
    memory_footprint,
    plans_to_columns,
    step_time_parts,
)
from refold.planning.plans.rules import RULES, SinglePlan, format_gib
from refold.planning.plans.space import Ints, Mask, PlanLimits, divisors

Rows = NDArray[np.intp]

SIMPLEST_FIRST = (
    "offload",
    "pipeline",
    "tensor",
    "context",
    "expert",
    "zero",
    "replicate",
    "recompute",
    "interleave",
    "sequence_parallel",
    "accumulation",
)
"""Tie-break between equally fast plans: the simplest first, by the first of these fields that differs."""

TIE_FACTOR = 1.01
"""Plans whose step times are within this factor count as equally fast: estimates are not more exact."""

MIN_PLANS_TO_BOUND = 2000
"""With fewer plans, timing all of them is as fast as computing bounds first."""

FIRST_TIMED_PER_FAMILY = 128
"""How many plans of each family with the lowest bounds are timed first, to rule out others."""

BOUND_TOLERANCE = 1e-6
"""Relative tolerance of bounds: sums of the same numbers differ in their last digits."""

Reason = Literal["slower", "memory", "host memory", "rule"]

FAMILIES = (
    "data parallel",
    "ZeRO-1 or ZeRO-2",
    "ZeRO-3",
    "tensor parallel",
    "pipeline parallel",
    "tensor and pipeline parallel",
    "offload",
)
"""Families of plans, by their main technique. Each may be combined with data parallelism; tensor and pipeline
parallelism with ZeRO-1, and tensor parallelism without a pipeline also with ZeRO-2."""


class MemoryHeadroom(NamedTuple):
    """Free GiB on the fullest GPU and on all hosts together; negative: missing memory."""

    gpu: Column
    host: Column

    @property
    def fits(self) -> Mask:
        return np.asarray((self.gpu >= 0) & (self.host >= 0))

    @property
    def missing(self) -> Column:
        """Missing GiB, of GPU or host memory, whichever is more."""
        return np.maximum(0.0, -np.minimum(self.gpu, self.host))


def memory_headroom(setups: Sequence[TrainingSetup], plans: PlanColumns, setup_index: Ints | int = 0) -> MemoryHeadroom:
    """Return the memory headroom of plans, each for one of several setups that differ in their machines."""
    needs = memory_footprint(setups[0], plans)
    machines = [setup.machines for setup in setups]
    gpu = np.array([machine.usable_gib for machine in machines])
    host = np.array([machine.memory_gib or np.inf for machine in machines])
    return MemoryHeadroom(gpu[setup_index] - needs.total, host[setup_index] - needs.host)


def step_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return the step time of each plan; parts are added in a fixed order, so sums do not depend on other plans."""
    return reduce(np.add, step_time_parts(setup, plans))


def lower_bound_seconds(setup: TrainingSetup, plans: PlanColumns) -> Column:
    """Return a lower bound of the step time: compute only, including the pipeline bubble."""
    layer = layer_time(setup, plans)
    stage_seconds = setup.stage_blocks(plans) * (layer.forward + layer.backward + layer.recompute)
    micro_batches = plans.accumulation + (plans.pipeline - 1) / plans.interleave
    return micro_batches * (stage_seconds + head_time(setup, plans) / plans.pipeline)


def time_candidates(setup: TrainingSetup, plans: PlanColumns, family: Rows, count: int) -> Column:
    """Return the step time of every plan that may be among the `count` fastest or the fastest of its family.

    All others get infinity. The plans of each family with the lowest bounds are timed first; plans whose bound is
    slower than those are not timed.
    """
    if len(plans) <= MIN_PLANS_TO_BOUND:
        return step_seconds(setup, plans)
    bound = lower_bound_seconds(setup, plans)
    first = _most_promising(bound, family)
    seconds = np.full(len(plans), np.inf)
    seconds[first] = step_seconds(setup, plans.rows(first))
    best_of_family = np.full(family.max() + 1, np.inf)
    np.minimum.at(best_of_family, family[first], seconds[first])
    slowest_of_best = np.partition(seconds, count - 1)[count - 1] if count <= len(plans) else np.inf
    remaining = np.isinf(seconds) & (
        bound <= np.maximum(best_of_family[family], slowest_of_best) * (TIE_FACTOR + BOUND_TOLERANCE)
    )
    seconds[remaining] = step_seconds(setup, plans.rows(remaining))
    return seconds


def _most_promising(bound: Column, family: Rows) -> Rows:
    order = np.argsort(bound, kind="stable")
    ordered = family[order]
    return np.concatenate([order[ordered == index][:FIRST_TIMED_PER_FAMILY] for index in range(family.max() + 1)])


def fastest(plans: PlanColumns, seconds: Column, count: int) -> Rows:
    """Return the `count` fastest plans in order, with the simplest first among equally fast ones.

    Equally fast means the same level above the fastest plan: up to 1 % slower, up to 2 %, and so on.
    """
    if not len(plans):
        return np.zeros(0, np.intp)
    return _first_in_order(plans, np.floor(np.log(seconds / seconds.min()) / np.log(TIE_FACTOR)), seconds, count)


def nearest_to_fitting(plans: PlanColumns, missing: Column, count: int) -> Rows:
    """Return the `count` plans with the least missing memory, in order; ties: the simplest first."""
    return _first_in_order(plans, missing.astype(np.float32), missing, count)


def _first_in_order(plans: PlanColumns, first: NDArray[np.floating], last: Column, count: int) -> Rows:
    """Return the first `count` plans by `first`, then simplicity, then `last`.

    Single precision ignores differences in the last digits.
    """
    limit = np.partition(first, count - 1)[count - 1] if count < len(first) else np.inf
    near = np.flatnonzero((first <= limit) & np.isfinite(first))
    simplicity = [getattr(plans, name)[near] for name in reversed(SIMPLEST_FIRST)]
    return near[np.lexsort([last[near].astype(np.float32), *simplicity, first[near]])][:count]


class RejectedPlans(msgspec.Struct, frozen=True):
    """A group of rejected plans and the reason.

    `name` is that of a family, a kind of memory or a rule. For a rule, `plans` counts ways to divide the GPUs, since
    impossible plans are not enumerated. `margin` is the smallest slowdown factor, or the smallest missing GiB.
    """

    reason: Reason
    name: str
    plans: int
    explanation: str
    example: Plan
    margin: float = 0.0

    def __str__(self) -> str:
        singular, plural = ("combination", "combinations") if self.reason == "rule" else ("plan", "plans")
        return f"{self.plans:,} {singular if self.plans == 1 else plural}: {self.explanation} ({self.example})"


def family_of(plans: PlanColumns) -> Rows:
    split, staged = plans.tensor > 1, plans.pipeline > 1
    return np.select(
        [plans.offload > 0, plans.zero == 3, split & staged, staged, split, plans.zero > 0], [6, 2, 5, 4, 3, 1], 0
    ).astype(np.intp)


def slower_families(plans: PlanColumns, seconds: Column, family: Rows) -> tuple[RejectedPlans, ...]:
    """Return the best plan of each family except the winner's, and its slowdown; fastest family first."""
    if not len(plans):
        return ()
    winner = fastest(plans, seconds, 1)[0]
    rejected = []
    for index in np.unique(family[family != family[winner]]):
        of_family = np.flatnonzero(family == index)
        best = of_family[fastest(plans.rows(of_family), seconds[of_family], 1)[0]]
        times = float(seconds[best] / seconds[winner])
        comparison = (
            f"at least {times:.2f} × the step time" if times > TIE_FACTOR else "within 1 % as fast, but less simple"
        )
        explanation = f"{FAMILIES[index]}, {comparison}"
        rejected.append(RejectedPlans("slower", FAMILIES[index], len(of_family), explanation, plans.plan(best), times))
    return tuple(sorted(rejected, key=lambda item: item.margin))


def plans_out_of_memory(plans: PlanColumns, headroom: MemoryHeadroom) -> tuple[RejectedPlans, ...]:
    """Return the plans that do not fit into GPU memory, and those that fit there but not into host memory."""
    on_gpu = headroom.gpu < 0
    on_host = ~on_gpu & (headroom.host < 0)
    rejected = []
    kinds: tuple[tuple[Reason, Mask, Column], ...] = (
        ("memory", on_gpu, headroom.gpu),
        ("host memory", on_host, headroom.host),
    )
    for name, does_not_fit, spare in kinds:
        rows = np.flatnonzero(does_not_fit)
        if len(rows):
            least = rows[nearest_to_fitting(plans.rows(rows), -spare[rows], 1)[0]]
            margin = float(-spare[least])
            explanation = f"out of {name} by at least {format_gib(margin)} GiB"
            rejected.append(RejectedPlans(name, name, len(rows), explanation, plans.plan(least), margin))
    return tuple(rejected)


def plans_breaking_rules(setup: TrainingSetup, limits: PlanLimits) -> tuple[RejectedPlans, ...]:
    """Return the simple ways to divide the GPUs that break a rule, counted under the first rule they break."""
    plans = _simple_candidates(setup, limits)
    unbroken = np.ones(len(plans), bool)
    rejected = []
    for rule in RULES:
        rows = np.flatnonzero(unbroken & rule.broken(setup, plans, limits))
        if len(rows):
            example = plans.plan(int(rows[np.argmin((plans.tensor * plans.pipeline)[rows])]))
            rejected.append(
                RejectedPlans("rule", rule.name, len(rows), rule.message(SinglePlan(setup, example, limits)), example)
            )
            unbroken[rows] = False
    return tuple(rejected)


def _simple_candidates(setup: TrainingSetup, limits: PlanLimits) -> PlanColumns:
    """Return every way to write the GPUs as data × tensor × pipeline × context, with the simplest other choices.

    If pins allow no such way, ways that use as many GPUs as the pins allow.
    """
    gpus, pins, simplest = setup.machines.gpus, limits.pinned, limits.simplest()
    degrees = [
        (pins.data or max(1, gpus // (tensor * pipeline * context)), tensor, pipeline, context)
        for tensor in ([pins.tensor] if pins.tensor else divisors(gpus))
        for pipeline in ([pins.pipeline] if pins.pipeline else divisors(gpus))
        for context in ([pins.context] if pins.context else divisors(gpus) if limits.max_context > 1 else [1])
    ]
    exact = [item for item in degrees if prod(item) == gpus]
    return plans_to_columns(
        [
            msgspec.structs.replace(simplest, data=data, tensor=tensor, pipeline=pipeline, context=context)
            for data, tensor, pipeline, context in exact or degrees
        ]
    )
