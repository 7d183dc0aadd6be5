"""What the simulator charges: the time that work takes, and the cost of starting, stopping and losing runs.

This is the ground truth of an experiment. The estimates of a policy are independent of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf, log2
from typing import Protocol

import msgspec
import numpy as np

from refold.errors import BadInput, BadValue
from refold.model import WHOLE, Allocation, Cluster, Job, Plan, Seconds
from refold.planning.catalogue import known_model
from refold.planning.perf import Measurement
from refold.planning.plans import Crossings, Layout, ModelledSpeedSource, Speeds, requested_cpus, requested_layout


class Costs(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The costs of changes, in seconds. While a run starts or stops, it holds its GPUs and does no work."""

    start: Seconds = 0.0
    stop: Seconds = 0.0
    restart: Seconds = 0.0
    live: Seconds | None = None
    """The cost of a change on the same nodes without a restart; None: every change is a stop and a restart.

    Also that of the loss of one of several nodes: a reshapable job loses no work, as its state is in memory of others.
    """
    checkpoint_every: Seconds | None = None
    """The checkpoint interval: a run on a node that goes down loses the work since; None: all of its work."""
    report_every: Seconds | None = None
    """The interval of progress reports, which cost nothing; None: runs report only when they stop."""
    report_speeds: bool = False
    """Whether the reports of jobs with a batch size and a number of steps say how fast they train."""

    def __post_init__(self) -> None:
        if not all(0 <= cost < inf for cost in (self.start, self.stop, self.restart, self.live or 0.0)):
            raise BadValue(f"{self}, expected seconds ≥ 0")
        if self.checkpoint_every is not None and not 0 < self.checkpoint_every < inf:
            raise BadValue(f"checkpoint_every is {self.checkpoint_every}, expected seconds > 0")
        if self.report_every is not None and not 0 < self.report_every < inf:
            raise BadValue(f"report_every is {self.report_every}, expected seconds > 0")


NO_COSTS = Costs()


class SpeedModel(Protocol):
    """The actual speed of jobs in a simulation."""

    def work(self, job: Job) -> Seconds:
        """Return the run time of a job on exactly the requested resources, in seconds."""

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return the speed on an allocation, relative to that on the requested resources."""


class RecordedSpeeds:
    """The durations in the trace, scaled by the `speed` of the GPU type and by the share of the requested GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        speeds = [cluster.gpu_type(node.gpu_type).speed if node.gpus else 1.0 for node in cluster.nodes]
        self.speed_of_node = np.array(speeds, dtype=np.float64)
        self._uniform = set(speeds) == {1.0}

    def is_of(self, cluster: Cluster) -> bool:
        return np.array_equal(self.speed_of_node, RecordedSpeeds(cluster).speed_of_node)

    def work(self, job: Job) -> Seconds:
        if job.work is None:
            raise BadInput(f"job {job.id!r} has no duration, so it cannot be simulated as recorded")
        return job.work

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return the speed of the slowest node: the instances of a gang run in lockstep."""
        requested = job.demand.total_gpu_milli
        if requested == 0 or (self._uniform and not job.reshapable):
            return 1.0
        share = allocation.gpu_milli / requested if job.reshapable else 1.0
        return share * min(float(self.speed_of_node[node]) for node in allocation.nodes)


class CrossingSpeeds:
    """The speeds of another model, divided by how much slower a gang is across the domains that it has.

    On clusters without levels these are the speeds of the other model.
    """

    def __init__(self, base: SpeedModel, crossings: Crossings) -> None:
        self._base, self.crossings = base, crossings

    def work(self, job: Job) -> Seconds:
        """Return the run time on exactly the requested resources, in as few domains as possible."""
        return self._base.work(job)

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return the speed on an allocation, relative to the requested resources in as few domains as possible."""
        return self._base.speed(job, allocation) / self.crossings.slowdown(job, allocation)


def recorded_speeds(cluster: Cluster) -> SpeedModel:
    """Return the durations in the trace; on a cluster with levels, jobs are slower as they declare."""
    recorded = RecordedSpeeds(cluster)
    return CrossingSpeeds(recorded, Crossings(Speeds(cluster), modelled=False)) if cluster.levels else recorded


# Speed models: from the performance model, and from measured step times by model, plan and layout. The step time on a
# layout that was not measured is that of the performance model, corrected by the model's error at the nearest
# measured point: `modelled(here) · measured(there) / modelled(there)`. The nearest point has the same method
# (sharding, offloading, recomputation), then similar degrees, then a similar layout. At a measured point the result
# is the measured time, whatever the performance model says.

METHOD_DISTANCE = 100.0
"""The distance between two methods: larger than between any two layouts."""

DEGREE_DISTANCE = 3.0
"""The distance between two plans per doubling of one degree."""


class MeasuredSpeeds:
    """Speeds from a table of measured steps. For jobs of other models the `fallback` is used."""

    def __init__(self, table: Sequence[Measurement], speeds: Speeds, fallback: SpeedModel) -> None:
        self._speeds = speeds
        self._fallback = fallback
        self._rows: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
        for row in table:
            if row.step_seconds is not None:
                self._rows[row.model, row.batch].append(row)
        self._seconds: dict[tuple[object, ...], Seconds] = {}

    def work(self, job: Job) -> Seconds:
        """Return the time of all steps on the requested resources with the job's own plan."""
        if not self._is_measured(job) or job.steps is None:
            return self._fallback.work(job)
        return job.steps * self._requested_step_seconds(job)

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return the step time on the requested resources divided by that on the allocation."""
        if not self._is_measured(job) or job.steps is None:
            return self._fallback.speed(job, allocation)
        plan = allocation.plan or self._speeds.own_plan(job)
        gpu_type = self._speeds.cluster.nodes[allocation.placement[0].node].gpu_type
        layout, cpus = allocation.gpus_on_node, allocation.cpu_milli / WHOLE
        return self._requested_step_seconds(job) / self.step_seconds(job, gpu_type, layout, cpus, plan)

    def step_seconds(self, job: Job, gpu_type: str, layout: Layout, cpus: float, plan: Plan) -> Seconds:
        """Return the step time on a layout with a plan."""
        key = (job.workload, self._speeds.batch(job), gpu_type, layout, cpus if plan.offload else 0.0, plan)
        if key not in self._seconds:
            nearest = min(self._rows_for(job), key=lambda row: _distance(plan, layout, row))
            here = self._speeds.with_plan(job, gpu_type, layout, cpus, plan)
            row_layout = _sorted_layout(nearest.gpus_on_node)
            there = self._speeds.with_plan(job, gpu_type, row_layout, nearest.cpus, nearest.plan)
            measured = nearest.step_seconds or inf
            exact = _distance(plan, layout, nearest)[:2] == (0, 0) and not plan.offload
            self._seconds[key] = measured * (1 if exact else there.steps_per_second / here.steps_per_second)
        return self._seconds[key]

    def _requested_step_seconds(self, job: Job) -> Seconds:
        gpu_type = self._speeds.types_for(job)[0]
        return self.step_seconds(job, gpu_type, requested_layout(job), requested_cpus(job), self._speeds.own_plan(job))

    def _is_measured(self, job: Job) -> bool:
        return self._speeds.can_model(job) and bool(self._rows_for(job))

    def _rows_for(self, job: Job) -> list[Measurement]:
        model = known_model(job.workload)
        return self._rows.get((model.name, self._speeds.batch(job)), []) if model else []


def _sorted_layout(gpus_on_node: Sequence[int]) -> Layout:
    return tuple(sorted(gpus_on_node, reverse=True))


def _distance(plan: Plan, layout: Layout, row: Measurement) -> tuple[float, float, bool, float]:
    """Return the distance of a measured point: method and degrees, then layout, then other differences of the plan.

    Between equally distant points, the faster one is nearer.
    """
    method = sum(METHOD_DISTANCE for own, other in zip(_method(plan), _method(row.plan), strict=True) if own != other)
    degrees = DEGREE_DISTANCE * sum(
        abs(log2(own / other))
        for own, other in zip(
            (plan.data, plan.tensor, plan.pipeline), (row.plan.data, row.plan.tensor, row.plan.pipeline), strict=True
        )
    )
    row_layout = _sorted_layout(row.gpus_on_node)
    nodes, gpus = abs(log2(len(layout) / len(row_layout))), abs(log2(layout[0] / row_layout[0]))
    layout_distance = nodes + gpus + 0.1 * (layout != row_layout)
    return method + degrees, layout_distance, plan != row.plan, row.step_seconds or inf


def _method(plan: Plan) -> tuple[bool, bool, bool, bool]:
    """Return the method of a plan, without its degrees. ZeRO with a single replica does not count as sharding."""
    model_parallel = plan.tensor * plan.pipeline > 1
    return plan.zero > 0 and plan.data > 1 and not plan.offload, plan.offload, plan.recompute == "full", model_parallel


class ModelledSpeeds:
    """Speeds from the performance model. For jobs that it cannot model, the `fallback` is used.

    The run time on the requested resources is as recorded, or if it was not recorded, that of the performance model.
    """

    def __init__(self, speeds: Speeds, fallback: SpeedModel) -> None:
        self._speeds, self._fallback = speeds, fallback
        self._source = ModelledSpeedSource(speeds)

    def work(self, job: Job) -> Seconds:
        """Return the recorded run time, or the time of all steps on the requested resources."""
        if job.work is not None or not self._speeds.can_model(job):
            return self._fallback.work(job)
        if job.steps is None:
            raise BadInput(f"job {job.id!r} has neither a duration nor a number of steps, so it cannot be simulated")
        return job.steps / self._speeds.requested_speed(job).steps_per_second

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return the step time on the requested resources divided by that on the allocation."""
        source = self._source if self._speeds.can_model(job) else self._fallback
        return source.speed(job, allocation)
