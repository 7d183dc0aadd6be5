"""How fast a job is against what it asked for, and the least that is as good as that.

A guaranteed job is promised the performance of what it asked for, not the amount. So what it may count on, and what
others may count on that it gives back, is its *minimum*: the fewest GPUs that, with any plan, are as fast as what it
asked for with its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from refold.model import WHOLE, Allocation, Demand, Job, Plan, Share
from refold.plans.speeds import Kind, Speeds, asked_cpus, kind_of

DUST = 1e-9
"""Two ways to the same speed may differ by so much."""


class SpeedSource(Protocol):
    """Whoever says how fast jobs are: a model, or a table of measurements."""

    def speed(self, job: Job, allocation: Allocation) -> float:
        """How many times as fast as on what it asked for."""
        ...


class ModelledSpeedSource:
    """As the performance model says; a job that it does not know is as fast as the share of what it asked for."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Steps per second there, against those on what was asked for."""
        if not self._speeds.knows(job):
            asked = job.demand.total_gpu_milli
            return allocation.gpu_milli / asked if job.reshapable and asked else 1.0
        gpu_type = self._speeds.cluster.nodes[allocation.placement[0].node].gpu_type
        plan = allocation.plan or self._speeds.own_plan(job)
        layout, cpus = allocation.gpus_on_node, allocation.cpu_milli / WHOLE
        here = self._speeds.with_plan(job, gpu_type, layout, cpus, plan)
        return here.steps_per_second / self._speeds.asked(job).steps_per_second


class Minimums:
    """The minimum of each job, kept by kind of job.

    Which plan is best on so many GPUs is the model's to say; whether it is fast enough, the pace's.
    """

    def __init__(self, speeds: Speeds, pace: SpeedSource) -> None:
        self._speeds, self._pace = speeds, pace
        self._kept: dict[tuple[Kind, Demand, Plan | None], Demand] = {}

    def of(self, job: Job) -> Demand:
        """On as few nodes as can be; never more GPUs than it asked for."""
        if not self._speeds.knows(job):
            return job.demand
        key = (kind_of(job), job.demand, job.plan)
        if key not in self._kept:
            self._kept[key] = next(self._as_good(job), job.demand)
        return self._kept[key]

    def _as_good(self, job: Job) -> Iterator[Demand]:
        """Everything with fewer GPUs that is as fast, from the fewest on."""
        cpus_per_gpu = asked_cpus(job) / (job.demand.instances * job.demand.gpus)
        for gpus in range(1, job.demand.instances * job.demand.gpus):
            for gpu_type in self._speeds.types_for(job):
                allocation = self._best_on(job, gpu_type, gpus, cpus_per_gpu)
                if allocation is not None and self._pace.speed(job, allocation) >= 1 - DUST:
                    share, instances = allocation.placement[0], len(allocation.placement)
                    yield Demand(instances, len(share.gpus), WHOLE, share.cpu_milli, 0, (gpu_type,))

    def _best_on(self, job: Job, gpu_type: str, gpus: int, cpus_per_gpu: float) -> Allocation | None:
        """So many GPUs, in equal parts on the fewest nodes, with the best plan for them."""
        nodes = [
            index for index, node in enumerate(self._speeds.cluster.nodes) if node.gpus and node.gpu_type == gpu_type
        ]
        most = max(self._speeds.cluster.nodes[index].gpus for index in nodes)
        each = next(each for each in range(min(most, gpus), 0, -1) if gpus % each == 0)
        if gpus // each > len(nodes):
            return None
        speed = self._speeds.fastest(job, gpu_type, (each,) * (gpus // each), cpus_per_gpu * gpus)
        if speed is None:
            return None
        cpu_milli = round(cpus_per_gpu * each * WHOLE)
        shares = (Share(node, tuple(range(each)), WHOLE, cpu_milli) for node in nodes[: gpus // each])
        return Allocation(tuple(shares), speed.plan)
