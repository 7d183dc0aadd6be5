"""Faults of a simulation: nodes and GPUs that go down and come up again, and jobs that never end by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import msgspec
import numpy as np

from refold.core import GpuLost, GpuReturned, NodeLost, NodeReturned
from refold.errors import BadValue
from refold.model import Cluster, Job, Seconds
from refold.simulator.agenda import Agenda


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node, or one of its GPUs, goes down at `lost`, and comes up at `returned` (infinity: never)."""

    node: int
    lost: Seconds
    returned: Seconds
    gpu: int | None = None

    def __post_init__(self) -> None:
        if not -inf < self.lost < self.returned:
            part = f"node {self.node}" if self.gpu is None else f"GPU {self.gpu} of node {self.node}"
            raise BadValue(f"{part} comes up at {self.returned}, expected a time after {self.lost}")

    @property
    def events(self) -> tuple[NodeLost | GpuLost, NodeReturned | GpuReturned]:
        """What is reported when it goes down, and when it comes up."""
        if self.gpu is None:
            return NodeLost(self.node), NodeReturned(self.node)
        return GpuLost(self.node, self.gpu), GpuReturned(self.node, self.gpu)


def random_faults(cluster: Cluster, *, between: Seconds, repair: Seconds, until: Seconds, seed: int) -> list[Fault]:
    """Draw faults up to the time `until`, independently per node, with exponentially distributed times.

    `between` is the mean time between a repair and the next failure of a node; `repair` is the mean time to repair.
    """
    if not (between > 0 and repair > 0):
        raise BadValue(f"between is {between} and repair is {repair}, expected seconds > 0")
    random = np.random.default_rng(seed)
    faults: list[Fault] = []
    for node in range(len(cluster.nodes)):
        lost = random.exponential(between)
        while lost < until:
            returned = lost + max(1.0, random.exponential(repair))
            faults.append(Fault(node, lost, returned))
            lost = returned + random.exponential(between)
    return sorted(faults, key=lambda fault: (fault.lost, fault.node))


def schedule_faults(agenda: Agenda, faults: Iterable[Fault]) -> None:
    for fault in faults:
        lost, returned = fault.events
        agenda.add(fault.lost, lost)
        if fault.returned < inf:
            agenda.add(fault.returned, returned)


class Stuck(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A job that hangs after `after` seconds of work: it makes no more progress, reports nothing, and never ends."""

    job: str
    after: Seconds

    def __post_init__(self) -> None:
        if not 0 <= self.after < inf:
            raise BadValue(f"job {self.job!r} hangs after {self.after}, expected seconds ≥ 0")


class Endless(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A job that continues to work and to report progress beyond its actual work, and never ends."""

    job: str


NeverEnds = Stuck | Endless
"""A job that holds its resources until its run is stopped."""


def random_never_ending_jobs(
    jobs: Sequence[Job], *, stuck: float = 0.0, endless: float = 0.0, seed: int = 0
) -> list[NeverEnds]:
    """Draw for each job whether it hangs at a random point of its work, or is endless.

    `stuck` and `endless` are the probabilities.
    """
    if not (stuck >= 0 and endless >= 0 and stuck + endless <= 1):
        raise BadValue(f"stuck is {stuck} and endless is {endless}, expected shares ≥ 0 with a sum of at most 1")
    random = np.random.default_rng(seed)
    never_ending: list[NeverEnds] = []
    for job, draw, progress in zip(
        jobs, random.random(len(jobs)).tolist(), random.random(len(jobs)).tolist(), strict=True
    ):
        if draw < stuck:
            never_ending.append(Stuck(job.id, progress * (job.work or 0.0)))
        elif draw < stuck + endless:
            never_ending.append(Endless(job.id))
    return never_ending
