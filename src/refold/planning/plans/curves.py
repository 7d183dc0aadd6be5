"""Throughput curves: best throughput over all plans, against the number of GPUs or CPUs.

A curve is a step function: one GPU more than 8 often gains nothing, since batch and layers are divisible by 8 but not
by 9, while 8 more gain much. Allocations that are at most 1 % faster than a smaller one, or on which no plan fits, are
left out: a job with such an allocation runs as on the smaller one and could release the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from refold.errors import BadValue
from refold.model import Link, Plan
from refold.planning.perf import (
    Column,
    Engine,
    GpuSpec,
    Machines,
    ModelShape,
    PlanColumns,
    TrainingSetup,
    concatenate_plans,
)
from refold.planning.plans.selection import TIE_FACTOR, fastest, memory_headroom, step_seconds, time_candidates
from refold.planning.plans.space import DEFAULT_LIMITS, PlanLimits, all_plans, plans_on

MIN_SPEEDUP = TIE_FACTOR
"""A larger allocation must be this many times as fast to be included (as in Rubick's curves)."""


class CurvePoint(msgspec.Struct, frozen=True):
    """One step of a curve: the best plan with this number of GPUs or CPUs."""

    amount: float
    samples_per_second: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Curve:
    """Best throughput by amount, as strictly increasing steps."""

    points: tuple[CurvePoint, ...]

    def __post_init__(self) -> None:
        for lower, higher in zip(self.points, self.points[1:], strict=False):
            if not (lower.amount < higher.amount and lower.samples_per_second < higher.samples_per_second):
                raise BadValue(f"curve has {higher} after {lower}, expected increasing amounts and throughput")

    def at(self, amount: float) -> CurvePoint | None:
        """Return the step that applies to an amount; None if nothing fits. The amount of the step is what is used."""
        step = self._count_steps(amount)
        return self.points[step - 1] if step else None

    def samples_per_second(self, amount: float) -> float:
        """Return the best throughput with an amount; 0 if nothing fits."""
        point = self.at(amount)
        return point.samples_per_second if point else 0.0

    def slope(self, amount: float) -> float:
        """Return the throughput gained per additional unit, averaged up to the next step; 0 on the last step."""
        step = self._count_steps(amount)
        if step == len(self.points):
            return 0.0
        above = self.points[step]
        return (above.samples_per_second - self.samples_per_second(amount)) / (above.amount - amount)

    def slope_below(self, amount: float) -> float:
        """Return the throughput lost per removed unit, averaged down to the previous step; 0 for unused units."""
        step = self._count_steps(amount)
        if not step or self.points[step - 1].amount < amount:
            return 0.0
        below = self.points[step - 2] if step > 1 else None
        lost = self.points[step - 1].samples_per_second - (below.samples_per_second if below else 0.0)
        return lost / (amount - (below.amount if below else 0.0))

    def _count_steps(self, amount: float) -> int:
        return bisect_right(self.points, amount, key=lambda point: point.amount)


class PackedMachines(msgspec.Struct, frozen=True, omit_defaults=True):
    """Machines for any number of GPUs of a type: full nodes, and the rest on the last one.

    Links and node size default to those of the GPU type; CPUs and memory are as in `Machines`, but per GPU.
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
    limits: PlanLimits = DEFAULT_LIMITS,
) -> Curve:
    """Return the curve of best throughput against the number of GPUs, on the machines for each number."""
    setups = [TrainingSetup(model, machines_for(count), engine, batch, sequence) for count in sorted(set(counts))]
    if not setups:
        return Curve(())
    plans, setup_index = plans_on(setups, limits)
    fits = memory_headroom(setups, plans, setup_index).fits
    plans, bounds = plans.rows(fits), np.searchsorted(setup_index[fits], np.arange(len(setups) + 1))
    points = []
    for setup, start, end in zip(setups, bounds, bounds[1:], strict=False):
        if start < end:
            candidates = plans.rows(slice(start, end))
            seconds = time_candidates(setup, candidates, np.zeros(len(candidates), np.intp), 1)
            points.append(_best_point(setup.machines.gpus, setup, candidates, seconds))
    return Curve(_keep_useful(points))


def cpu_curve(setup: TrainingSetup, cpus: Iterable[float], limits: PlanLimits = DEFAULT_LIMITS) -> Curve:
    """Return the curve of best throughput against the number of CPUs; only plans with offload depend on it."""
    amounts = sorted(set(cpus))
    if amounts and amounts[0] <= 0:
        raise BadValue(f"CPU curve starts at {amounts[0]}, expected more than 0 CPUs")
    plans = all_plans(setup, limits)
    plans = plans.rows(memory_headroom([setup], plans).fits)
    if not len(plans):
        return Curve(())
    on_gpu = plans.rows(plans.offload == 0)
    seconds = step_seconds(setup, on_gpu)
    best = seconds <= seconds.min(initial=np.inf) * TIE_FACTOR
    candidates = concatenate_plans([on_gpu.rows(best), plans.rows(plans.offload > 0)])
    points = []
    for amount in amounts:
        machines = msgspec.structs.replace(setup.machines, cpus=amount)
        variant = msgspec.structs.replace(setup, machines=machines)
        points.append(_best_point(amount, variant, candidates, step_seconds(variant, candidates)))
    return Curve(_keep_useful(points))


def _best_point(amount: float, setup: TrainingSetup, plans: PlanColumns, seconds: Column) -> CurvePoint:
    best = int(fastest(plans, seconds, 1)[0])
    return CurvePoint(amount, setup.batch / float(seconds[best]), plans.plan(best))


def _keep_useful(points: Iterable[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Return the points, in increasing order, that are enough faster than the previous one."""
    steps: list[CurvePoint] = []
    for point in points:
        if not steps or point.samples_per_second > MIN_SPEEDUP * steps[-1].samples_per_second:
            steps.append(point)
    return tuple(steps)
