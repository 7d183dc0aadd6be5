"""Charging what was measured: step times by model, plan and layout, and a stated interpolation between them.

A step on a layout that was not measured takes as long as the performance model says, times how far that model is off
at the nearest point that was measured: `modelled(here) · measured(there) / modelled(there)`. Near is the same way of
computing (sharding, offloading, recomputation), then similar degrees, then a similar layout. On a measured point that
is the measured time, whatever the model says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf, log2

from refold.catalogue import known_model
from refold.model import WHOLE, Allocation, Job, Plan, Seconds
from refold.perf import Measurement
from refold.plans import Layout, Speeds, asked_cpus, asked_layout
from refold.simulator.costs import SpeedModel

ANOTHER_WAY = 100.0
"""How far apart two ways of computing are: farther than any two layouts."""

ANOTHER_DEGREE = 3.0
"""How far apart plans are for each doubling of one degree against another."""


class MeasuredSpeeds:
    """The truth of an experiment: a table of measured steps. Jobs of other models are charged by another charge."""

    def __init__(self, table: Sequence[Measurement], speeds: Speeds, otherwise: SpeedModel) -> None:
        self._speeds = speeds
        self._otherwise = otherwise
        self._rows: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
        for row in table:
            if row.step_seconds is not None:
                self._rows[row.model, row.batch].append(row)
        self._seconds: dict[tuple[object, ...], Seconds] = {}

    def work(self, job: Job) -> Seconds:
        """All steps, as the job asked to run them."""
        if not self._knows(job) or job.steps is None:
            return self._otherwise.work(job)
        return job.steps * self._asked(job)

    def speed(self, job: Job, allocation: Allocation) -> float:
        """A step as asked for, against a step here."""
        if not self._knows(job) or job.steps is None:
            return self._otherwise.speed(job, allocation)
        plan = allocation.plan or self._speeds.own_plan(job)
        gpu_type = self._speeds.cluster.nodes[allocation.placement[0].node].gpu_type
        layout, cpus = allocation.gpus_on_node, allocation.cpu_milli / WHOLE
        return self._asked(job) / self.step_seconds(job, gpu_type, layout, cpus, plan)

    def step_seconds(self, job: Job, gpu_type: str, layout: Layout, cpus: float, plan: Plan) -> Seconds:
        """How long a step takes there."""
        asked = (job.workload, self._speeds.batch(job), gpu_type, layout, cpus if plan.offload else 0.0, plan)
        if asked not in self._seconds:
            near = min(self._rows_for(job), key=lambda row: _distance(plan, layout, row))
            here = self._speeds.with_plan(job, gpu_type, layout, cpus, plan)
            there = self._speeds.with_plan(job, gpu_type, _in_order(near.gpus_on_node), near.cpus, near.plan)
            measured = near.step_seconds or inf
            exact = _distance(plan, layout, near)[:2] == (0, 0) and not plan.offload
            self._seconds[asked] = measured * (1 if exact else there.steps_per_second / here.steps_per_second)
        return self._seconds[asked]

    def _asked(self, job: Job) -> Seconds:
        gpu_type = self._speeds.types_for(job)[0]
        return self.step_seconds(job, gpu_type, asked_layout(job), asked_cpus(job), self._speeds.own_plan(job))

    def _knows(self, job: Job) -> bool:
        return self._speeds.knows(job) and bool(self._rows_for(job))

    def _rows_for(self, job: Job) -> list[Measurement]:
        model = known_model(job.workload)
        return self._rows.get((model.name, self._speeds.batch(job)), []) if model else []


def _in_order(gpus_on_node: Sequence[int]) -> Layout:
    return tuple(sorted(gpus_on_node, reverse=True))


def _distance(plan: Plan, layout: Layout, row: Measurement) -> tuple[float, float, bool, float]:
    """How far a measured point is: way and degrees, then layout, then what else there is of a plan.

    Of equally far ones the faster is nearer.
    """
    ways = sum(ANOTHER_WAY for mine, other in zip(_way(plan), _way(row.plan), strict=True) if mine != other)
    degrees = ANOTHER_DEGREE * sum(
        abs(log2(mine / other))
        for mine, other in zip(
            (plan.data, plan.tensor, plan.pipeline), (row.plan.data, row.plan.tensor, row.plan.pipeline), strict=True
        )
    )
    there = _in_order(row.gpus_on_node)
    places = abs(log2(len(layout) / len(there))) + abs(log2(layout[0] / there[0])) + 0.1 * (layout != there)
    return ways + degrees, places, plan != row.plan, row.step_seconds or inf


def _way(plan: Plan) -> tuple[bool, bool, bool, bool]:
    """How a plan computes, but for its degrees; sharding on one replica is none."""
    sliced = plan.tensor * plan.pipeline > 1
    return plan.zero > 0 and plan.data > 1 and not plan.offload, plan.offload, plan.recompute == "full", sliced
