"""Why plans were not chosen: counted reasons, each with an example."""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec
import numpy as np

from refold.model import Plan
from refold.perf import Column, PlanColumns, Setting, columns_of
from refold.plans.ranking import NEARLY, MemoryHeadroom, Rows, fastest, nearest
from refold.plans.rules import RULES, SinglePlan, gib
from refold.plans.space import Mask, PlanLimits, divisors

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
"""Kinds of plans that people think in. Each may be combined with data parallelism, those with slices with ZeRO-1,
and with ZeRO-2 where there is no pipeline."""


class RejectedPlans(msgspec.Struct, frozen=True):
    """Why some plans were not chosen.

    `name` is that of a family, a memory or a rule; under a rule, `plans` counts ways to divide the GPUs, since what
    is impossible is not counted plan by plan. `by`: so many times as long, or so many GiB missing, at the least.
    """

    reason: Reason
    name: str
    plans: int
    because: str
    example: Plan
    by: float = 0.0

    def __str__(self) -> str:
        one, more = ("way", "ways") if self.reason == "rule" else ("plan", "plans")
        return f"{self.plans:,} {one if self.plans == 1 else more}: {self.because} ({self.example})"


def family_of(plans: PlanColumns) -> Rows:
    """The index of each plan's family."""
    split, staged = plans.tensor > 1, plans.pipeline > 1
    return np.select(
        [plans.offload > 0, plans.zero == 3, split & staged, staged, split, plans.zero > 0], [6, 2, 5, 4, 3, 1], 0
    ).astype(np.intp)


def slower(plans: PlanColumns, seconds: Column, family: Rows) -> tuple[RejectedPlans, ...]:
    """The best of each family but the winner's, and how much longer it takes; quickest family first."""
    if not len(plans):
        return ()
    winner = fastest(plans, seconds, 1)[0]
    lost = []
    for known in np.unique(family[family != family[winner]]):
        of_family = np.flatnonzero(family == known)
        best = of_family[fastest(plans.rows(of_family), seconds[of_family], 1)[0]]
        times = float(seconds[best] / seconds[winner])
        how = f"{times:.2f} times as long at best" if times > NEARLY else "as fast to within 1 %, but not as simple"
        because = f"{FAMILIES[known]}, {how}"
        lost.append(RejectedPlans("slower", FAMILIES[known], len(of_family), because, plans.plan(best), times))
    return tuple(sorted(lost, key=lambda each: each.by))


def out_of_memory(plans: PlanColumns, room: MemoryHeadroom) -> tuple[RejectedPlans, ...]:
    """What does not fit on GPUs, and what fits there but not on hosts."""
    on_gpu = room.gpu < 0
    on_host = ~on_gpu & (room.host < 0)
    lost = []
    kinds: tuple[tuple[Reason, Mask, Column], ...] = (("memory", on_gpu, room.gpu), ("host memory", on_host, room.host))
    for name, short, spare in kinds:
        rows = np.flatnonzero(short)
        if len(rows):
            least = rows[nearest(plans.rows(rows), -spare[rows], 1)[0]]
            by = float(-spare[least])
            because = f"out of {name}, by {gib(by)} GiB at least"
            lost.append(RejectedPlans(name, name, len(rows), because, plans.plan(least), by))
    return tuple(lost)


def impossible(setting: Setting, limits: PlanLimits) -> tuple[RejectedPlans, ...]:
    """Ways to divide the GPUs that one would think of, and that break a rule: counted under the first they break."""
    plans = _natural_candidates(setting, limits)
    unbroken = np.ones(len(plans), bool)
    lost = []
    for rule in RULES:
        rows = np.flatnonzero(unbroken & rule.broken(setting, plans, limits))
        if len(rows):
            example = plans.plan(int(rows[np.argmin((plans.tensor * plans.pipeline)[rows])]))
            lost.append(
                RejectedPlans(
                    "rule", rule.name, len(rows), rule.sentence(SinglePlan(setting, example, limits)), example
                )
            )
            unbroken[rows] = False
    return tuple(lost)


def _natural_candidates(setting: Setting, limits: PlanLimits) -> PlanColumns:
    """Every way to write the GPUs as data × tensor × pipeline, and the simplest of everything else.

    Where pins leave no such way, as many GPUs as they leave room for.
    """
    gpus, pins, simplest = setting.machines.gpus, limits.pinned, limits.simplest()
    degrees = [
        (pins.data or max(1, gpus // (tensor * pipeline)), tensor, pipeline)
        for tensor in ([pins.tensor] if pins.tensor else divisors(gpus))
        for pipeline in ([pins.pipeline] if pins.pipeline else divisors(gpus))
    ]
    exact = [each for each in degrees if prod(each) == gpus]
    return columns_of(
        [
            msgspec.structs.replace(simplest, data=data, tensor=tensor, pipeline=pipeline)
            for data, tensor, pipeline in exact or degrees
        ]
    )
