"""How much faster a job gets with more: best throughput over all plans, against the number of GPUs, or of CPUs.

A curve is a stair: from 8 GPUs one more often brings nothing, since batch and layers divide by 8 and not by 9, and 8
more bring much. An allocation that is no more than 1 % faster than a smaller one is left out, and so is one on
which nothing fits: whoever has it runs as on the smaller one, and could give the rest back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from refold.errors import BadValue
from refold.model import Link, Plan
from refold.perf import Column, Engine, GpuSpec, Machines, ModelShape, PlanColumns, Setting, joined
from refold.plans.ranking import NEARLY, fastest, room_left, seconds_of_the_best, step_seconds
from refold.plans.space import USUAL, PlanLimits, all_plans, plans_on

WORTH_MORE = NEARLY
"""More is worth having if it is so many times as fast (as in Rubick's curves)."""


class CurvePoint(msgspec.Struct, frozen=True):
    """One step of a curve: with so many GPUs, or CPUs, this plan is the best."""

    amount: float
    samples_per_second: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Curve:
    """Best throughput by amount: the steps of a stair, each higher than the one before."""

    points: tuple[CurvePoint, ...]

    def __post_init__(self) -> None:
        for lower, higher in zip(self.points, self.points[1:], strict=False):
            if not (lower.amount < higher.amount and lower.samples_per_second < higher.samples_per_second):
                raise BadValue(f"a curve rises from step to step, not from {lower} to {higher}")

    def at(self, amount: float) -> CurvePoint | None:
        """How a job runs with so much; None: not at all. The point's own amount is what it uses."""
        step = self._steps_up_to(amount)
        return self.points[step - 1] if step else None

    def samples_per_second(self, amount: float) -> float:
        """Best throughput with so much; 0 where nothing fits."""
        point = self.at(amount)
        return point.samples_per_second if point else 0.0

    def slope(self, amount: float) -> float:
        """Throughput that each unit more would bring, on average up to the next step; 0 on the last."""
        step = self._steps_up_to(amount)
        if step == len(self.points):
            return 0.0
        above = self.points[step]
        return (above.samples_per_second - self.samples_per_second(amount)) / (above.amount - amount)

    def slope_below(self, amount: float) -> float:
        """Throughput that each unit less would cost, on average down to the step below; 0 for what is not used."""
        step = self._steps_up_to(amount)
        if not step or self.points[step - 1].amount < amount:
            return 0.0
        below = self.points[step - 2] if step > 1 else None
        lost = self.points[step - 1].samples_per_second - (below.samples_per_second if below else 0.0)
        return lost / (amount - (below.amount if below else 0.0))

    def fewest(self, samples_per_second: float) -> CurvePoint | None:
        """The least that reaches a throughput, to within what curves leave out; None: it is out of reach."""
        wanted = samples_per_second / WORTH_MORE
        step = bisect_left(self.points, wanted, key=lambda point: point.samples_per_second)
        return self.points[step] if step < len(self.points) else None

    def _steps_up_to(self, amount: float) -> int:
        return bisect_right(self.points, amount, key=lambda point: point.amount)


class Packed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Machines for any number of GPUs of a type: nodes filled one after another, and the rest on the last.

    Links and the size of nodes are those usual for the type, where nothing is said; CPUs and memory as in Machines.
    """

    gpu: GpuSpec
    inside: Link | None = None
    network: Link | None = None
    gpus_per_node: int = 0
    cpus_per_gpu: float = 0.0
    memory_gib_per_gpu: float = 0.0

    def __call__(self, gpus: int) -> Machines:
        size = self.gpus_per_node or self.gpu.gpus_per_node
        nodes, rest = divmod(gpus, size)
        return Machines(
            self.gpu,
            (size,) * nodes + ((rest,) if rest else ()),
            self.inside or self.gpu.link,
            self.network or Link("network", self.gpu.node_network_gigabytes_per_second),
            self.cpus_per_gpu * gpus,
            self.memory_gib_per_gpu * gpus,
        )


def gpu_curve(
    model: ModelShape,
    machines_for: Callable[[int], Machines],
    counts: Iterable[int],
    batch: int,
    sequence: int,
    engine: Engine,
    limits: PlanLimits = USUAL,
) -> Curve:
    """Best throughput against the number of GPUs, on the machines that there are for each number."""
    settings = [Setting(model, machines_for(count), engine, batch, sequence) for count in sorted(set(counts))]
    if not settings:
        return Curve(())
    plans, which = plans_on(settings, limits)
    fits = room_left(settings, plans, which).fits
    plans, ends = plans.rows(fits), np.searchsorted(which[fits], np.arange(len(settings) + 1))
    points = []
    for setting, start, end in zip(settings, ends, ends[1:], strict=False):
        if start < end:
            here = plans.rows(slice(start, end))
            seconds = seconds_of_the_best(setting, here, np.zeros(len(here), np.intp), 1)
            points.append(_best_point(setting.machines.gpus, setting, here, seconds))
    return Curve(_steps(points))


def cpu_curve(setting: Setting, cpus: Iterable[float], limits: PlanLimits = USUAL) -> Curve:
    """Best throughput against the number of CPUs, on the same GPUs. Only plans that offload can tell a difference."""
    amounts = sorted(set(cpus))
    if amounts and amounts[0] <= 0:
        raise BadValue(f"a curve by CPUs starts above 0, not at {amounts[0]}: without any, nothing runs")
    plans = all_plans(setting, limits)
    plans = plans.rows(room_left([setting], plans).fits)
    if not len(plans):
        return Curve(())
    on_gpu = plans.rows(plans.offload == 0)
    seconds = step_seconds(setting, on_gpu)
    best = seconds <= seconds.min(initial=np.inf) * NEARLY
    candidates = joined([on_gpu.rows(best), plans.rows(plans.offload > 0)])
    points = []
    for amount in amounts:
        machines = msgspec.structs.replace(setting.machines, cpus=amount)
        there = msgspec.structs.replace(setting, machines=machines)
        points.append(_best_point(amount, there, candidates, step_seconds(there, candidates)))
    return Curve(_steps(points))


def _best_point(amount: float, setting: Setting, plans: PlanColumns, seconds: Column) -> CurvePoint:
    best = int(fastest(plans, seconds, 1)[0])
    return CurvePoint(amount, setting.batch / float(seconds[best]), plans.plan(best))


def _steps(points: Iterable[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Those of the points, from the least on, that are worth having beside the last that was."""
    steps: list[CurvePoint] = []
    for point in points:
        if not steps or point.samples_per_second > WORTH_MORE * steps[-1].samples_per_second:
            steps.append(point)
    return tuple(steps)


class Curves:
    """Curves that were asked for before, by everything that they depend on."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Curve] = {}

    def by_gpus(
        self,
        model: ModelShape,
        machines_for: Packed,
        counts: Sequence[int],
        batch: int,
        sequence: int,
        engine: Engine,
        limits: PlanLimits = USUAL,
    ) -> Curve:
        """As `gpu_curve`."""
        asked = (model, machines_for, tuple(counts), batch, sequence, engine, limits)
        if asked not in self._known:
            self._known[asked] = gpu_curve(*asked)
        return self._known[asked]

    def by_cpus(self, setting: Setting, cpus: Sequence[float], limits: PlanLimits = USUAL) -> Curve:
        """As `cpu_curve`."""
        asked = (setting, tuple(cpus), limits)
        if asked not in self._known:
            self._known[asked] = cpu_curve(*asked)
        return self._known[asked]
