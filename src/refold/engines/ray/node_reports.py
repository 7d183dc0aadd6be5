"""Nodes of Ray that come and go, and what others use on them, as events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from refold.core import Event, NodeLost, NodeReturned
from refold.engines.ray.cluster import RayNode
from refold.model import WHOLE, Allocation, Share
from refold.server import LiveState, UseByOthers

PREFIX = "ray: "
"""Nodes that are down for a reason that begins so return when Ray has them; others when an operator says so."""

GONE = f"{PREFIX}it is gone"
TOLERANCE = 0.01
"""Of a GPU or CPU: Ray counts in floating-point numbers, and runs that need nothing have a thousandth of a CPU."""

FreeResources = Mapping[str, Mapping[str, float]]
"""What nobody has reserved, by the id of a node."""


class Use(NamedTuple):
    """What is used on a node."""

    gpus: float
    cpus: float
    memory_mib: float


class RayNodeReports:
    """Reports the state and the use of nodes."""

    def __init__(self, state: LiveState, nodes: Sequence[RayNode]) -> None:
        self._state = state
        self._nodes = nodes
        self._use_by_others = UseByOthers(state)
        self._last: dict[int, Use] = {}

    def current_runs(self) -> dict[tuple[str, int], Allocation]:
        """Return what the runs hold now."""
        return {(run.job, run.number): run.allocation for run in self._state.view.runs.values()}

    def lost(self, why: str) -> list[Event]:
        """Return that all nodes are lost."""
        return [NodeLost(index, PREFIX + why) for index in range(len(self._nodes)) if self._state.view.is_up(index)]

    def events(self, present: Collection[str], free: FreeResources, runs: Iterable[Allocation]) -> list[Event]:
        """Return what has changed, given the names of the nodes that Ray has, and runs that may have been there."""
        shares = [share for run in runs for share in run.placement]
        found: list[Event | None] = []
        for index, node in enumerate(self._nodes):
            found.append(self._availability(index, node.name in present))
            if node.id in free:
                found.append(self._use(index, node, free[node.id], [each for each in shares if each.node == index]))
        return [event for event in found if event is not None]

    def _availability(self, index: int, is_present: bool) -> Event | None:
        view = self._state.view
        if not is_present:
            return NodeLost(index, GONE) if view.is_up(index) else None
        is_ours = view.down_reason(index).startswith(PREFIX)
        return NodeReturned(index) if is_ours and not view.is_up(index) else None

    def _use(self, index: int, node: RayNode, free: Mapping[str, float], shares: Sequence[Share]) -> Event | None:
        """Return what others use on a node, if that has changed and was read twice: Ray is late about runs that end."""
        now = others_use(node, free, shares)
        before, self._last[index] = self._last.get(index, now), now
        used = Use(*map(min, before, now))
        return self._use_by_others.change(
            index, ceil(used.gpus - TOLERANCE), int(used.cpus * WHOLE), int(used.memory_mib)
        )


def others_use(node: RayNode, free: Mapping[str, float], shares: Sequence[Share]) -> Use:
    """Return what is reserved on a node, and not for these shares of runs."""
    gpus = node.gpus - free.get("GPU", 0.0) - sum(len(each.gpus) * each.gpu_milli for each in shares) / WHOLE
    cpus = node.cpus - free.get("CPU", 0.0) - sum(each.cpu_milli for each in shares) / WHOLE
    memory = node.memory_mib - free.get("memory", 0.0) / 2**20 - sum(each.memory_mib for each in shares)
    return Use(max(0.0, gpus), cpus if cpus > TOLERANCE else 0.0, max(0.0, memory))
