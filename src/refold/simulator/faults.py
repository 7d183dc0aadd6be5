"""Nodes that are lost and return."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec
import numpy as np

from refold.core.events import NodeLost, NodeReturned
from refold.errors import BadValue
from refold.model import Cluster
from refold.model.units import Seconds
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
