"""Nodes that are reserved for a starving job that cannot preempt.

No job may start there that could still run when the nodes are free. Without it, smaller jobs would take every GPU that
becomes free, and a job that needs a whole node would never start. One job at a time has a reservation. It keeps its
nodes until it starts: if others were reserved whenever they seem to be free sooner, GPUs would be idle in vain.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import NamedTuple

from refold.model import WHOLE, Demand, Seconds
from refold.policies.common import Draft
from refold.policies.refold.jobs import RoundJobs

FREE_QUANTILE = 0.9
"""Probability with which a run is expected to have ended when the reserved nodes are expected to be free."""

END_QUANTILE = 0.97
"""Probability with which a job must end before that time, so that it may start on reserved nodes."""


class NodeReservation(NamedTuple):
    """The nodes that are reserved for a job, and when they are expected to be free."""

    job: str
    nodes: tuple[int, ...]
    free_at: Seconds


def reserve_nodes(jobs: RoundJobs, draft: Draft, job_id: str, before: NodeReservation | None) -> NodeReservation | None:
    """Reserve nodes for the smallest shape of a job: those it had `before`, or else those that will be free soonest.

    Returns None if it needs no whole GPUs, or there are not enough nodes.
    """
    demand = min(jobs.options_of(job_id), key=lambda option: option.gpus).demand
    if not demand.gpus or demand.gpu_milli < WHOLE:
        return None
    chances = _NodeChances(jobs, draft, demand)
    if before is not None and before.job == job_id and all(map(chances.is_usable, before.nodes)):
        chosen = before.nodes
    else:
        usable = (node for node in range(len(jobs.view.cluster.nodes)) if chances.is_usable(node))
        soonest = sorted((chances.seconds_until_free(node), node) for node in usable)
        chosen = tuple(node for _, node in soonest[: demand.instances])
    wait = max(map(chances.seconds_until_free, chosen), default=inf)
    if len(chosen) < demand.instances or wait == inf:
        return None
    return NodeReservation(job_id, chosen, jobs.view.now + wait)


class _NodeChances:
    """When nodes will have room for an instance of a demand."""

    def __init__(self, jobs: RoundJobs, draft: Draft, demand: Demand) -> None:
        self._jobs, self._draft, self._demand = jobs, draft, demand
        self._on_node: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for job_id, held in draft.allocations():
            for share in held.placement:
                if share.gpus:
                    self._on_node[share.node].append((job_id, len(share.gpus)))
        self._remaining: dict[str, Seconds] = {}

    def is_usable(self, node: int) -> bool:
        """Return whether the node, when empty, has room for an instance."""
        spec, demand, view = self._jobs.view.cluster.nodes[node], self._demand, self._jobs.view
        return (
            view.is_up(node)
            and (not demand.gpu_types or spec.gpu_type in demand.gpu_types)
            and sum(view.is_gpu_up(node, gpu) for gpu in range(spec.gpus)) >= demand.gpus
            and spec.cpu_milli >= demand.cpu_milli
            and spec.memory_mib >= demand.memory_mib
        )

    def seconds_until_free(self, node: int) -> Seconds:
        """Return after which time the node is expected to have enough free GPUs."""
        missing = self._demand.gpus - sum(milli == WHOLE for milli in self._draft.free.gpu_milli_of(node))
        if missing <= 0:
            return 0.0
        for seconds, gpus in sorted((self._remaining_time(job_id), gpus) for job_id, gpus in self._on_node[node]):
            missing -= gpus
            if missing <= 0:
                return seconds
        return inf

    def _remaining_time(self, job_id: str) -> Seconds:
        if job_id not in self._remaining:
            self._remaining[job_id] = self._jobs.remaining_time_quantile(job_id, FREE_QUANTILE)
        return self._remaining[job_id]
