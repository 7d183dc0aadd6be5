"""Speed of a job relative to its request, and the smallest demand that is equally fast.

A guaranteed job is guaranteed the performance of its request, not the amount of resources. What it can rely on is its
*minimum*: the fewest GPUs that, with any plan, are as fast as the request with the job's own plan. The rest may be
reclaimed for other jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from refold.model import WHOLE, Allocation, Demand, Job, Plan, Share
from refold.planning.plans.speeds import Speeds
from refold.planning.plans.workloads import WorkloadKind, requested_cpus, workload_kind

GUARANTEE_TOLERANCE = 0.01
"""A speed below the guaranteed one by up to this share meets the guarantee."""

ROUNDING_SPEED = 1e-9
"""Relative speeds within this of 1 count as equal."""


class SpeedSource(Protocol):
    """Source of relative speeds: a performance model, or a table of measurements."""

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return the speed of a job on an allocation, relative to its request."""


class ModelledSpeedSource:
    """Speeds by the performance model; other jobs run in proportion to their share of the requested GPUs."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Return the steps per second on an allocation, relative to the request."""
        if not self._speeds.can_model(job):
            requested = job.demand.total_gpu_milli
            return allocation.gpu_milli / requested if job.reshapable and requested else 1.0
        gpu_type = self._speeds.cluster.nodes[allocation.placement[0].node].gpu_type
        plan = allocation.plan or self._speeds.own_plan(job)
        layout, cpus = allocation.gpus_on_node, allocation.cpu_milli / WHOLE
        actual = self._speeds.with_plan(job, gpu_type, layout, cpus, plan)
        return actual.steps_per_second / self._speeds.requested_speed(job).steps_per_second


class Minimums:
    """The minimum demand of each job, cached by kind of job.

    The performance model chooses the plan for a number of GPUs; `speed_source` decides whether it is fast enough.
    """

    def __init__(self, speeds: Speeds, speed_source: SpeedSource) -> None:
        self._speeds, self._speed_source = speeds, speed_source
        self._cache: dict[tuple[WorkloadKind, Demand, Plan | None], Demand] = {}

    def for_job(self, job: Job) -> Demand:
        """Return the minimum demand, on as few nodes as possible; never more GPUs than requested."""
        if not self._speeds.can_model(job):
            return job.demand
        key = (workload_kind(job), job.demand, job.plan)
        if key not in self._cache:
            self._cache[key] = next(self._equivalent_demands(job), job.demand)
        return self._cache[key]

    def _equivalent_demands(self, job: Job) -> Iterator[Demand]:
        """Yield the demands with fewer GPUs that are as fast as the request, fewest GPUs first."""
        cpus_per_gpu = requested_cpus(job) / (job.demand.instances * job.demand.gpus)
        for gpus in range(1, job.demand.instances * job.demand.gpus):
            for gpu_type in self._speeds.types_for(job):
                allocation = self._best_on(job, gpu_type, gpus, cpus_per_gpu)
                if allocation is not None and self._speed_source.speed(job, allocation) >= 1 - ROUNDING_SPEED:
                    share, instances = allocation.placement[0], len(allocation.placement)
                    yield Demand(instances, len(share.gpus), WHOLE, share.cpu_milli, 0, (gpu_type,))

    def _best_on(self, job: Job, gpu_type: str, gpus: int, cpus_per_gpu: float) -> Allocation | None:
        """Return an allocation of `gpus`, split equally over the fewest nodes, with the best plan; None: impossible."""
        nodes = [
            index for index, node in enumerate(self._speeds.cluster.nodes) if node.gpus and node.gpu_type == gpu_type
        ]
        max_gpus = max(self._speeds.cluster.nodes[index].gpus for index in nodes)
        per_node = next(per_node for per_node in range(min(max_gpus, gpus), 0, -1) if gpus % per_node == 0)
        if gpus // per_node > len(nodes):
            return None
        speed = self._speeds.fastest(job, gpu_type, (per_node,) * (gpus // per_node), cpus_per_gpu * gpus)
        if speed is None:
            return None
        cpu_milli = round(cpus_per_gpu * per_node * WHOLE)
        shares = (Share(node, tuple(range(per_node)), WHOLE, cpu_milli) for node in nodes[: gpus // per_node])
        return Allocation(tuple(shares), speed.plan)
