"""Nodes of Slurm that come and go, and what jobs of others use on them, as events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from refold.backends.slurm import GpuGroup, SlurmCluster, SlurmNode
from refold.core import Event, NodeDrained, NodeLost, NodeReturned, NodeUsed
from refold.model import WHOLE, Allocation
from refold.server import Inbox, LiveState

PREFIX = "slurm: "
"""Nodes that are down for a reason that begins so return when Slurm says so; others when an operator does."""


class SlurmNodeReports:
    """Reports the state and the use of nodes."""

    def __init__(self, state: LiveState, inbox: Inbox, nodes: SlurmCluster) -> None:
        self._state = state
        self._inbox = inbox
        self._nodes = nodes
        self._reported: dict[int, NodeUsed] = {}

    def current_runs(self) -> dict[tuple[str, int], Allocation]:
        """Return what the runs hold now."""
        return {(run.job, run.number): run.allocation for run in self._state.view.runs.values()}

    def report(self, nodes: Mapping[str, SlurmNode], runs: Collection[Allocation]) -> None:
        """Report what has changed. `runs`: those that may have been in Slurm when the nodes were read."""
        for index, group in enumerate(self._nodes.groups):
            node = nodes.get(group.node.name)
            for event in (self._availability(index, node), self._use(index, group, node, runs)):
                if event is not None:
                    self._inbox.report(event)

    def _availability(self, index: int, node: SlurmNode | None) -> Event | None:
        view = self._state.view
        down = node.down_reason if node is not None else "it is not configured any more"
        is_ours = view.down_reason(index).startswith(PREFIX)
        if down:
            return NodeLost(index, PREFIX + down) if view.is_up(index) or (is_ours and view.is_drained(index)) else None
        if node is not None and node.drain_reason:
            return NodeDrained(index, PREFIX + node.drain_reason) if view.is_up(index) else None
        return NodeReturned(index) if is_ours and not view.is_up(index) else None

    def _use(self, index: int, group: GpuGroup, node: SlurmNode | None, runs: Iterable[Allocation]) -> Event | None:
        """Return what others use on a node, if that is not what was reported last.

        CPUs and memory that Slurm has given to runs beyond what their jobs request count as used by others.
        """
        if node is None:
            return None
        shares = [share for run in runs for share in run.placement if share.node == index]
        gpus = node.used_gpus.get(group.slurm_type, 0) - sum(len(share.gpus) for share in shares)
        cpu = int(node.used_cpus * WHOLE * group.share) - sum(share.cpu_milli for share in shares)
        memory = int(node.used_memory_mib * group.share) - sum(share.memory_mib for share in shares)
        used = NodeUsed(index, self._choose_gpus(index, max(0, gpus)), max(0, cpu), max(0, memory))
        if used == self._reported.get(index, NodeUsed(index)):
            return None
        self._reported[index] = used
        return used

    def _choose_gpus(self, index: int, count: int) -> tuple[int, ...]:
        """Return GPUs that no run has: those that were reported before, then the last ones. Slurm chooses GPUs."""
        before = self._reported.get(index, NodeUsed(index)).gpus
        free = [gpu for gpu, milli in enumerate(self._state.view.free_gpu_milli(index)) if milli == WHOLE]
        candidates = [*before, *(gpu for gpu in reversed(free) if gpu not in before)]
        return tuple(sorted(candidates[:count]))
