"""Nodes that are reserved for an overdue job that cannot preempt.

No job may start there that could still run when the nodes are free. Without it, smaller jobs would take every GPU that
becomes free, and a job that needs a whole node would never start. One job at a time has a reservation. It keeps its
nodes until it starts: if others were reserved whenever they seem to be free sooner, GPUs would be idle in vain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from math import inf
from typing import NamedTuple

from refold.model import WHOLE, Demand, Seconds, Share
from refold.policies.common import Draft
from refold.policies.refold.jobs import RoundJobs

FREE_QUANTILE = 0.9
"""Probability with which a run is expected to have ended when the reserved nodes are expected to be free."""

END_QUANTILE = 0.97
"""Probability with which a job must end before that time, so that it may start on reserved nodes."""


class NodeReservation(NamedTuple):
    """The nodes that are reserved for a job, and when they are expected to be free.

    `occupants`: the jobs that ran there when the reservation was made. Only these delay it: when they have ended, no
    other job starts there. Otherwise one run after the other that takes longer than predicted would delay it.
    """

    job: str
    nodes: tuple[int, ...]
    free_at: Seconds
    occupants: frozenset[str]


def reserve_nodes(jobs: RoundJobs, draft: Draft, job_id: str, before: NodeReservation | None) -> NodeReservation | None:
    """Reserve nodes for the smallest shape of a job: those it had `before`, or else those that will be free soonest.

    Returns None if there are not enough nodes.
    """
    demand = min(jobs.options_of(job_id), key=lambda option: option.gpus).demand
    nodes = _OccupiedNodes(jobs, draft, demand)
    if before is not None and before.job == job_id and all(map(nodes.is_usable, before.nodes)):
        chosen, occupants = before.nodes, before.occupants
    else:
        usable = (node for node in range(len(jobs.view.cluster.nodes)) if nodes.is_usable(node))
        soonest = sorted((nodes.seconds_until_free(node), node) for node in usable)
        chosen = tuple(node for _, node in soonest[: demand.instances])
        occupants = nodes.jobs_on(chosen)
    wait = max((nodes.seconds_until_free(node, occupants) for node in chosen), default=inf)
    if len(chosen) < demand.instances or wait == inf:
        return None
    return NodeReservation(job_id, chosen, jobs.view.now + wait, occupants)


class _OccupiedNodes:
    """When nodes will have room for an instance of a demand."""

    def __init__(self, jobs: RoundJobs, draft: Draft, demand: Demand) -> None:
        self._jobs, self._demand = jobs, demand
        self._on_node: dict[int, list[tuple[str, Share]]] = defaultdict(list)
        for job_id, held in draft.allocations():
            for share in held.placement:
                self._on_node[share.node].append((job_id, share))
        self._remaining: dict[str, Seconds] = {}

    def jobs_on(self, nodes: Iterable[int]) -> frozenset[str]:
        """Return the jobs that run on these nodes."""
        return frozenset(job_id for node in nodes for job_id, _ in self._on_node[node])

    def is_usable(self, node: int) -> bool:
        """Return whether the node, when empty, has room for an instance."""
        types = self._demand.gpu_types
        is_of_type = not types or self._jobs.view.cluster.nodes[node].gpu_type in types
        return self._jobs.view.is_up(node) and is_of_type and self._has_room(node, ())

    def seconds_until_free(self, node: int, occupants: Collection[str] | None = None) -> Seconds:
        """Return after which time the node is expected to have room, if only these of the jobs on it are counted."""
        held = [one for one in self._on_node[node] if occupants is None or one[0] in occupants]
        held.sort(key=lambda one: (self._remaining_time(one[0]), one[0]))
        shares = [share for _, share in held]
        ends = [0.0, *(self._remaining_time(job_id) for job_id, _ in held)]
        return next((end for ended, end in enumerate(ends) if self._has_room(node, shares[ended:])), inf)

    def _has_room(self, node: int, held: Iterable[Share]) -> bool:
        """Return whether a node has room for an instance besides what is held."""
        view, demand, spec = self._jobs.view, self._demand, self._jobs.view.cluster.nodes[node]
        gpus = [WHOLE if view.is_gpu_up(node, gpu) else 0 for gpu in range(spec.gpus)]
        cpu_milli, memory_mib = spec.cpu_milli, spec.memory_mib
        for share in held:
            for gpu in share.gpus:
                gpus[gpu] -= share.gpu_milli
            cpu_milli -= share.cpu_milli
            memory_mib -= share.memory_mib
        return (
            sum(free >= demand.gpu_milli for free in gpus) >= demand.gpus
            and (cpu_milli >= demand.cpu_milli or not view.cluster.cpus_known)
            and (memory_mib >= demand.memory_mib or not view.cluster.memory_known)
        )

    def _remaining_time(self, job_id: str) -> Seconds:
        if job_id not in self._remaining:
            self._remaining[job_id] = self._jobs.remaining_time_quantile(job_id, FREE_QUANTILE)
        return self._remaining[job_id]
