"""Reasons why plans were rejected, with counts and an example each."""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec
import numpy as np

from refold.model import Plan
from refold.planning.perf import Column, PlanColumns, TrainingSetup, plans_to_columns
from refold.planning.plans.ranking import TIE_FACTOR, MemoryHeadroom, Rows, fastest, nearest_to_fitting
from refold.planning.plans.rules import RULES, SinglePlan, format_gib
from refold.planning.plans.space import Mask, PlanLimits, divisors

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
    """Return the index of the family of each plan."""
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
