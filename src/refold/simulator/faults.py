"""What goes wrong: nodes that are lost and return, and jobs that never end by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import msgspec
import numpy as np

from refold.core import NodeLost, NodeReturned
from refold.errors import BadValue
from refold.model import Cluster, Job, Seconds
from refold.simulator.agenda import Agenda


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node is lost at one time and returns at another, or never (infinity)."""

    node: int
    lost: Seconds
    returned: Seconds

    def __post_init__(self) -> None:
        if not -inf < self.lost < self.returned:
            raise BadValue(f"node {self.node} returns at {self.returned}, before it is lost at {self.lost}")


def seeded_faults(cluster: Cluster, *, between: Seconds, repair: Seconds, until: Seconds, seed: int) -> list[Fault]:
    """Faults with exponential times, independent per node: `between` failures of one node, and to `repair` it."""
    if not (between > 0 and repair > 0):
        raise BadValue(f"mean times are seconds > 0, got {between} between faults and {repair} to repair")
    chance = np.random.default_rng(seed)
    faults: list[Fault] = []
    for node in range(len(cluster.nodes)):
        lost = chance.exponential(between)
        while lost < until:
            returned = lost + max(1.0, chance.exponential(repair))
            faults.append(Fault(node, lost, returned))
            lost = returned + chance.exponential(between)
    return sorted(faults, key=lambda fault: (fault.lost, fault.node))


def put_on(agenda: Agenda, faults: Iterable[Fault]) -> None:
    """Let them happen."""
    for fault in faults:
        agenda.add(fault.lost, NodeLost(fault.node))
        if fault.returned < inf:
            agenda.add(fault.returned, NodeReturned(fault.node))


class Stuck(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A job hangs once it has done so many seconds of its work: it does no more, reports no more, and never ends."""

    job: str
    after: Seconds

    def __post_init__(self) -> None:
        if not 0 <= self.after < inf:
            raise BadValue(f"job {self.job!r} gets stuck after {self.after}, expected seconds ≥ 0")


class Endless(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A job works on beyond its end, reports more and more, and never ends."""

    job: str


NeverEnds = Stuck | Endless
"""A job that holds what it has until somebody stops it."""


def seeded_never_ending(
    jobs: Sequence[Job], *, stuck: float = 0.0, endless: float = 0.0, seed: int = 0
) -> list[NeverEnds]:
    """Of each job by lot, whether it gets stuck, at some point of its work, or is endless: shares from 0 to 1."""
    if not (stuck >= 0 and endless >= 0 and stuck + endless <= 1):
        raise BadValue(f"shares of jobs are 0 to 1 together, got {stuck} stuck and {endless} endless")
    chance = np.random.default_rng(seed)
    drawn: list[NeverEnds] = []
    for job, lot, part in zip(jobs, chance.random(len(jobs)).tolist(), chance.random(len(jobs)).tolist(), strict=True):
        if lot < stuck:
            drawn.append(Stuck(job.id, part * (job.work or 0.0)))
        elif lot < stuck + endless:
            drawn.append(Endless(job.id))
    return drawn
