"""First come, first served, without placement kernels: the policy of a daemon whose own policy is not compiled yet."""

from __future__ import annotations

from refold.core import View
from refold.model import NO_CHANGE, Allocation, Cluster, Decision, Demand, Node, Placement, Share, Start
from refold.packing import FreeResources, Power
from refold.policies.common import Reasons


class Fcfs:
    """Order of the queue, each job on the first nodes where it fits; while one does not fit, no other job starts.

    Jobs of higher priority come first. It visits every node for every job, and is meant for clusters of a few nodes.
    Racks stay within their power limits.
    """

    name = "fcfs"

    def __init__(self) -> None:
        self._reasons = Reasons()
        self._power: Power | None = None

    def decide(self, view: View) -> Decision:
        """Start jobs from the front of the queue up to the first one that does not fit."""
        trial = view.trial()
        starts: list[Start] = []
        for job in sorted(view.waiting.values(), key=lambda job: -job.priority):
            placement = _first_fit(trial.free, job.demand, self._power_of(view.cluster))
            if placement is None:
                self._reasons.note_resources(view, job)
                break
            trial.take(placement)
            starts.append(Start(job.id, Allocation(placement)))
        waits = self._reasons.collect(view, starts)
        return Decision(tuple(starts), waits=waits) if starts or waits else NO_CHANGE

    def _power_of(self, cluster: Cluster) -> Power:
        if self._power is None:
            self._power = Power(cluster)
        return self._power


def _first_fit(free: FreeResources, demand: Demand, power: Power) -> Placement | None:
    """Return the first nodes and GPUs that are free for all instances of a demand, in racks with enough power."""
    taken: list[Share] = []
    for index, node in enumerate(free.cluster.nodes):
        while len(taken) < demand.instances and (share := _fitting_share(free, index, node, demand, power)) is not None:
            taken.append(share)
    free.release(taken)
    return tuple(taken) if len(taken) == demand.instances else None


def _fitting_share(free: FreeResources, index: int, node: Node, demand: Demand, power: Power) -> Share | None:
    """Take resources for one instance on a node, and return them; None if it does not fit."""
    if demand.gpus and demand.gpu_types and node.gpu_type not in demand.gpu_types:
        return None
    gpus = [gpu for gpu, milli in enumerate(free.gpu_milli_of(index)) if milli >= demand.gpu_milli]
    if len(gpus) < demand.gpus:
        return None
    share = Share(index, tuple(gpus[: demand.gpus]), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
    return share if power.within_limits(free, (share,)) and free.take((share,)) is None else None
