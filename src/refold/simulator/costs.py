"""What the simulator charges: the time that work takes, and the cost of starting, stopping and losing runs.

This is the ground truth of an experiment. The estimates of a policy are independent of it.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

import msgspec
import numpy as np

from refold.errors import BadInput, BadValue
from refold.model import Allocation, Cluster, Job, Seconds


class Costs(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The costs of changes, in seconds. While a run starts or stops, it holds its GPUs and does no work."""

    start: Seconds = 0.0
    stop: Seconds = 0.0
    restart: Seconds = 0.0
    live: Seconds | None = None
    """The cost of a change on the same node without a restart; None: every change is a stop and a restart."""
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
        """Whether these are the speeds of a cluster."""
        return np.array_equal(self.speed_of_node, RecordedSpeeds(cluster).speed_of_node)

    def work(self, job: Job) -> Seconds:
        """Return the recorded duration."""
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
