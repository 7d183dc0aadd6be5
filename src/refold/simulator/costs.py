"""What the simulator charges: how long work takes, and what starting, stopping and losing a run costs.

This is the truth of an experiment. What a policy believes is the policy's own affair, and never read from here.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

import msgspec
import numpy as np

from refold.errors import BadInput, BadValue
from refold.model import Allocation, Cluster, Job, Seconds


class Costs(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Seconds that changes take. While a run starts or stops it holds its GPUs and does no work."""

    start: Seconds = 0.0
    stop: Seconds = 0.0
    restart: Seconds = 0.0
    checkpoint_every: Seconds | None = None
    """At these intervals work is saved for the case that a run is lost; None: a lost run loses all it did."""
    report_every: Seconds | None = None
    """At these intervals runs say how far they are, which costs nothing; None: only when they stop."""

    def __post_init__(self) -> None:
        if not all(0 <= cost < inf for cost in (self.start, self.stop, self.restart)):
            raise BadValue(f"costs are seconds ≥ 0, got {self}")
        if self.checkpoint_every is not None and not 0 < self.checkpoint_every < inf:
            raise BadValue(f"checkpoint_every is seconds > 0, got {self.checkpoint_every}")
        if self.report_every is not None and not 0 < self.report_every < inf:
            raise BadValue(f"report_every is seconds > 0, got {self.report_every}")


FREE_OF_CHARGE = Costs()


class SpeedModel(Protocol):
    """How long a job's work takes where it runs."""

    def work(self, job: Job) -> Seconds:
        """Seconds on exactly what it asked for."""
        ...

    def speed(self, job: Job, allocation: Allocation) -> float:
        """How much faster than that it is on this allocation."""
        ...


class RecordedSpeeds:
    """The trace's own durations; a GPU type's `speed` and the share of the GPUs asked for scale them."""

    def __init__(self, cluster: Cluster) -> None:
        speeds = [cluster.gpu_type(node.gpu_type).speed if node.gpus else 1.0 for node in cluster.nodes]
        self.speed_of_node = np.array(speeds, dtype=np.float64)
        self._all_alike = set(speeds) == {1.0}

    def work(self, job: Job) -> Seconds:
        """As recorded."""
        if job.work is None:
            raise BadInput(f"job {job.id!r} has no duration, so it cannot be simulated as recorded")
        return job.work

    def speed(self, job: Job, allocation: Allocation) -> float:
        """A gang is as fast as its slowest part."""
        asked = job.demand.total_gpu_milli
        if asked == 0 or (self._all_alike and not job.reshapable):
            return 1.0
        share = allocation.gpu_milli / asked if job.reshapable else 1.0
        return share * min(float(self.speed_of_node[node]) for node in allocation.nodes)
