"""Choosing how many GPUs a job gets that leaves it open: the sizes it may have, and how fast it is with each.

A job that trains a known model has the sizes that are worth having, with the best plan for each; of another it is
believed that twice as many GPUs halve its time.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from refold.model import WHOLE, Cluster, Demand, Job, Plan
from refold.packing import Free
from refold.plans import Knowledge, Speeds
from refold.policies.common import OptionCache, range_of


class JobSize(NamedTuple):
    """What to ask for, with which plan (None: its own), and how many times as fast that is as what it asked for."""

    demand: Demand
    plan: Plan | None
    faster: float


class Sizes:
    """The sizes of jobs, on one cluster."""

    def __init__(self, cluster: Cluster, knowledge: Knowledge) -> None:
        self._speeds = Speeds(cluster, knowledge)
        self._options = OptionCache(self._speeds)
        self._free = Free(cluster)
        self._whole_node = max(node.gpus for node in cluster.nodes)

    def of(self, job: Job) -> list[JobSize]:
        """The sizes that a job may have: as asked, or from the fewest GPUs to the most."""
        if job.gpu_range is None:
            return [JobSize(job.demand, None, 1.0)]
        if self._speeds.knows(job):
            as_asked = self._speeds.asked(job).steps_per_second
            options = self._options.of(job)
            self._options.forget(job.id)
            return [JobSize(option.demand, option.plan, option.speed / as_asked) for option in options]
        sizes = [self._size(job, gpus) for gpus in _doubled(*range_of(job, self._speeds.cluster))]
        fitting = [size for size in sizes if self._free.fits_when_empty(size.demand)]
        return [*fitting, JobSize(job.demand, None, 1.0)]

    def _size(self, job: Job, gpus: int) -> JobSize:
        """So many GPUs as equal instances on as few nodes as can be, with CPUs and memory as they were per GPU."""
        asked = job.demand
        each = next(each for each in range(min(gpus, self._whole_node), 0, -1) if gpus % each == 0)
        demand = msgspec.structs.replace(
            asked,
            instances=gpus // each,
            gpus=each,
            cpu_milli=asked.cpu_milli * each // asked.gpus,
            memory_mib=asked.memory_mib * each // asked.gpus,
        )
        return JobSize(demand, None, gpus * WHOLE / asked.total_gpu_milli)


def _doubled(least: int, most: int) -> list[int]:
    """The least, twice that, and so on, and the most."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return [*sizes, most]
