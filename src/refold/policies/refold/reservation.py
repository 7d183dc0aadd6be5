"""Nodes that are reserved for an overdue job that cannot preempt.

No job may start there that could still run when the nodes are free. Without it, smaller jobs would take every GPU that
becomes free, and a job that needs a whole node would never start. One job at a time has a reservation. It keeps its
nodes until they should be free: if it changed whenever others seem to be free sooner, GPUs would be idle in vain.
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
    `keep_until`: when the nodes were expected to be free at first. If they are not, others may be better.
    """

    job: str
    nodes: tuple[int, ...]
    free_at: Seconds
    occupants: frozenset[str]
    keep_until: Seconds


def reserve_nodes(jobs: RoundJobs, draft: Draft, job_id: str, before: NodeReservation | None) -> NodeReservation | None:
    """Reserve nodes for the smallest shape of a job: those it had `before`, or else those that will be free soonest.

    Returns None if there are not enough nodes. It loses its nodes if another job that goes before it starts there.
    """
    demand = min(jobs.options_of(job_id), key=lambda option: option.gpus).demand
    nodes = _OccupiedNodes(jobs, draft, demand)
    if before is not None and before.job == job_id and _can_keep(jobs, nodes, before):
        chosen, occupants, keep_until = nodes.share_out(before.nodes), before.occupants, before.keep_until
    else:
        usable = [node for node in range(len(jobs.view.cluster.nodes)) if nodes.capacity(node)]
        if sum(map(nodes.capacity, usable)) < demand.instances:
            return None
        chosen = nodes.share_out(sorted(usable, key=lambda node: (nodes.seconds_until_free(node, 1), node)))
        is_same = before is not None and before.job == job_id and before.nodes == tuple(chosen)
        occupants, keep_until = before.occupants if before and is_same else nodes.jobs_on(chosen), None
    wait = max((nodes.seconds_until_free(node, count, occupants) for node, count in chosen.items()), default=inf)
    if sum(chosen.values()) < demand.instances or wait == inf:
        return None
    free_at = jobs.view.now + wait
    return NodeReservation(job_id, tuple(chosen), free_at, occupants, free_at if keep_until is None else keep_until)


def _can_keep(jobs: RoundJobs, nodes: _OccupiedNodes, before: NodeReservation) -> bool:
    """Return whether a job keeps its nodes: they are up and not late, and no other goes before it there."""
    if jobs.view.now > before.keep_until or not all(map(nodes.capacity, before.nodes)):
        return False
    newcomers = nodes.jobs_on(before.nodes) - before.occupants
    return not any(jobs.goes_before(other, before.job) for other in newcomers)


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

    def capacity(self, node: int) -> int:
        """Return how many instances the node has room for when it is empty."""
        view = self._jobs.view
        is_accepted = self._demand.accepts(node, view.cluster.nodes[node])
        return self._instances(node, ()) if view.is_up(node) and is_accepted else 0

    def share_out(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return how many instances each of these nodes gets, the first ones as many as they have room for."""
        missing, chosen = self._demand.instances, dict[int, int]()
        for node in nodes:
            if missing:
                chosen[node] = min(missing, self.capacity(node))
                missing -= chosen[node]
        return chosen

    def seconds_until_free(self, node: int, count: int, occupants: Collection[str] | None = None) -> Seconds:
        """Return when the node is expected to have room for instances, if only these of the jobs on it are counted."""
        held = [one for one in self._on_node[node] if occupants is None or one[0] in occupants]
        held.sort(key=lambda one: (self._remaining_time(one[0]), one[0]))
        shares = [share for _, share in held]
        ends = [0.0, *(self._remaining_time(job_id) for job_id, _ in held)]
        return next((end for ended, end in enumerate(ends) if self._instances(node, shares[ended:]) >= count), inf)

    def _instances(self, node: int, held: Iterable[Share]) -> int:
        """Return for how many instances a node has room besides what is held."""
        view, demand, spec = self._jobs.view, self._demand, self._jobs.view.cluster.nodes[node]
        gpus = [WHOLE if view.is_gpu_up(node, gpu) else 0 for gpu in range(spec.gpus)]
        cpu_milli, memory_mib = spec.cpu_milli, spec.memory_mib
        for share in held:
            for gpu in share.gpus:
                gpus[gpu] -= share.gpu_milli
            cpu_milli -= share.cpu_milli
            memory_mib -= share.memory_mib
        limits = [demand.instances]
        if demand.gpus:
            limits.append(sum(free // demand.gpu_milli for free in gpus) // demand.gpus)
        if demand.cpu_milli and view.cluster.cpus_known:
            limits.append(cpu_milli // demand.cpu_milli)
        if demand.memory_mib and view.cluster.memory_known:
            limits.append(memory_mib // demand.memory_mib)
        return max(0, min(limits))

    def _remaining_time(self, job_id: str) -> Seconds:
        if job_id not in self._remaining:
            self._remaining[job_id] = self._jobs.remaining_time_quantile(job_id, FREE_QUANTILE)
        return self._remaining[job_id]
