"""What a measured speed is the speed of."""

from __future__ import annotations

from typing import NamedTuple

from refold.model.allocation import Allocation
from refold.model.cluster import Cluster
from refold.model.job import Job
from refold.model.plan import Plan


class MeasuredShape(NamedTuple):
    """A kind of job, GPUs on each node (in descending order) of one type, and a plan."""

    workload: str
    batch: int
    sequence: int
    gpu_type: str
    layout: tuple[int, ...]
    plan: Plan


def measured_shape(job: Job, allocation: Allocation, cluster: Cluster) -> MeasuredShape:
    """Return the shape of a run; a run without a plan is data-parallel."""
    gpu_type = cluster.nodes[allocation.placement[0].node].gpu_type
    layout = allocation.gpus_on_node
    plan = allocation.plan or job.plan or Plan(data=max(sum(layout), 1))
    return MeasuredShape(job.workload, job.batch, job.sequence, gpu_type, layout, plan)
