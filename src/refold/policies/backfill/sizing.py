"""Sizes of jobs with a GPU range: the numbers of GPUs that a job may get, and its speed with each.

A job that trains a known model has the useful sizes, each with its best plan. Any other job is assumed to speed up
linearly: twice as many GPUs halve its run time.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from refold.model import WHOLE, Cluster, Demand, Job, Plan
from refold.placement import FreeResources
from refold.planning.plans import Knowledge, Speeds
from refold.policies.common import OptionCache, allowed_gpu_range


class JobSize(NamedTuple):
    """A demand, its plan (None: the job's own), and its speed relative to what the job requested."""

    demand: Demand
    plan: Plan | None
    speedup: float


class Sizes:
    """The sizes of jobs on one cluster."""

    def __init__(self, cluster: Cluster, knowledge: Knowledge) -> None:
        self._speeds = Speeds(cluster, knowledge)
        self._options = OptionCache(self._speeds)
        self._free = FreeResources(cluster)

    def for_job(self, job: Job) -> list[JobSize]:
        """Return the sizes that a job may have: as requested, or those of its GPU range."""
        if job.gpu_range is None:
            return [JobSize(job.demand, None, 1.0)]
        if self._speeds.can_model(job):
            requested_speed = self._speeds.requested_speed(job).steps_per_second
            options = self._options.for_job(job)
            self._options.forget(job.id)
            return [JobSize(option.demand, option.plan, option.speed / requested_speed) for option in options]
        sizes = [self._linear_size(job, gpus) for gpus in _doublings(*allowed_gpu_range(job, self._speeds.cluster))]
        fitting = [size for size in sizes if self._free.fits_when_empty(size.demand)]
        return [*fitting, JobSize(job.demand, None, 1.0)]

    def _linear_size(self, job: Job, gpus: int) -> JobSize:
        """Return a size as equal instances on as few nodes as possible, with the requested CPUs and memory per GPU."""
        requested = job.demand
        each = next(each for each in range(min(gpus, self._speeds.cluster.max_node_gpus), 0, -1) if gpus % each == 0)
        demand = msgspec.structs.replace(
            requested,
            instances=gpus // each,
            gpus=each,
            cpu_milli=requested.cpu_milli * each // requested.gpus,
            memory_mib=requested.memory_mib * each // requested.gpus,
        )
        return JobSize(demand, None, gpus * WHOLE / requested.total_gpu_milli)


def _doublings(least: int, most: int) -> list[int]:
    """Return the least, repeatedly doubled, and the most."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return [*sizes, most]
