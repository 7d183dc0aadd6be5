"""What racks draw: a linear model of power over what is held, as arrays that compiled code can read.

A node draws its idle watts, and up to its busy watts in proportion to its CPUs that are held; where CPUs are not known,
to its GPUs that are held. Each of its GPUs draws the same way by the fraction of it that is held. Memory draws nothing
of its own. What is lost or empty counts as idle, since nobody said that it is switched off.
"""

from __future__ import annotations

from functools import cached_property
from math import inf

import numpy as np
from msgspec.structs import replace

from refold.errors import BadValue
from refold.model import WHOLE, Cluster, Demand, Node, Placement, Shortage
from refold.packing.free import Free
from refold.packing.jit import compiled
from refold.packing.kernels import FITS, ROOM, count_lacks
from refold.packing.layout import CPU_ALL, CPU_FREE, GPUS, MILLI_FREE, Floats, Ints

NO_RACK = ""
"""The name of the group of nodes that are in no rack: it has no limit, and nothing is evened out with it."""

SLACK = 1e-6
"""Watts: a rack is above its limit by more than this only, so that dust of sums does not count."""


class Power:
    """The racks of a cluster: what they draw when idle and when all is held, and what they may draw.

    Racks come in the order of the cluster, those that only nodes name after them, and the nodes without a rack last;
    a rack without nodes is left out. Of each node: `rack_of`, and what a thousandth of a GPU and of a CPU held on it
    add (`watts_per_gpu_milli`, `watts_per_cpu_milli`). Of each rack: `idle`, `full`, `limit` (inf: none), and `scale`,
    what it is even with others by: its limit, or without one `full`; inf where there is nothing to even out.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.names: tuple[str, ...] = _rack_names(cluster)
        index = {name: rack for rack, name in enumerate(self.names)}
        limits = {rack.name: rack.limit_watts for rack in cluster.racks}
        self.rack_of: Ints = np.array([index[node.rack] for node in cluster.nodes], dtype=np.int64)
        slopes = np.array([_slopes(cluster, node) for node in cluster.nodes], dtype=np.float64)
        self.watts_per_gpu_milli: Floats = slopes[:, 0].copy()
        self.watts_per_cpu_milli: Floats = slopes[:, 1].copy()
        self.idle: Floats = self._by_rack(np.array([_idle(cluster, node) for node in cluster.nodes]))
        self.full: Floats = self.idle + self._by_rack(_most(cluster, slopes))
        self.limit: Floats = np.array([limits.get(name, 0.0) or inf for name in self.names], dtype=np.float64)
        even = (self.full > self.idle) & np.array([name != NO_RACK for name in self.names])
        self.scale: Floats = np.where(even, np.where(np.isfinite(self.limit), self.limit, self.full), inf)

    @property
    def known(self) -> bool:
        """Whether the cluster says anything of power."""
        return bool(self.full.any())

    def draw(self, free: Free) -> Floats:
        """Watts that each rack draws with what is held now."""
        nodes = free.nodes[:-1]
        gpu_milli = nodes[:, GPUS] * WHOLE - nodes[:, MILLI_FREE]
        cpu_milli = nodes[:, CPU_ALL] - nodes[:, CPU_FREE]
        held = gpu_milli * self.watts_per_gpu_milli + cpu_milli * self.watts_per_cpu_milli
        now: Floats = self.idle + self._by_rack(held)
        return now

    def of_placement(self, placement: Placement) -> dict[int, float]:
        """Watts that a placement adds to each rack it touches, by the rack's index."""
        added: dict[int, float] = {}
        for share in placement:
            rack = int(self.rack_of[share.node])
            watts = len(share.gpus) * share.gpu_milli * float(self.watts_per_gpu_milli[share.node])
            watts += share.cpu_milli * float(self.watts_per_cpu_milli[share.node])
            added[rack] = added.get(rack, 0.0) + watts
        return added

    def of_instance(self, demand: Demand) -> Floats:
        """Watts that one instance of a demand would add, on each node."""
        gpu_milli = demand.gpus * demand.gpu_milli
        watts: Floats = gpu_milli * self.watts_per_gpu_milli + demand.cpu_milli * self.watts_per_cpu_milli
        return watts

    def keeps_limits(self, free: Free, placement: Placement) -> bool:
        """Whether every rack that a placement adds to stays within its limit, if it were taken beside what is held."""
        now = self.draw(free)
        return all(
            not watts or now[rack] + watts <= self.limit[rack] + SLACK
            for rack, watts in self.of_placement(placement).items()
        )

    def refuse_limits_below_idle(self) -> None:
        """Limits that not even idle racks keep cannot be kept by any placement."""
        for name, idle, limit in zip(self.names, self.idle.tolist(), self.limit.tolist(), strict=True):
            if idle > limit + SLACK:
                raise BadValue(
                    f"rack {name!r} may draw {limit:,g} W (its limit_watts), but its nodes and GPUs draw {idle:,g} W "
                    "when idle; raise the limit, or lower their idle_watts"
                )

    def shortage(self, free: Free, demand: Demand) -> Shortage:
        """How many nodes lack what for one instance, racks at their limits counted as such."""
        found = free.shortage(demand)
        if not found.fit:
            return found
        watts, left = self.of_instance(demand), self.limit - self.draw(free)
        cheapest_first = np.argsort(watts, kind="stable")
        vector = free.vector(demand)
        over, room = _within_limits(free.nodes, free.gpus, vector, cheapest_first, self.rack_of, watts, left)
        return replace(found, room=min(room, found.instances), fit=found.fit - over, at_power_limit=over)

    def fits_when_empty(self, demand: Demand) -> bool:
        """Whether the empty cluster has room for all instances at once with every rack within its limit."""
        return self.shortage(self._empty, demand).room == demand.instances

    @cached_property
    def _empty(self) -> Free:
        return Free(self.cluster)

    def _by_rack(self, of_nodes: Floats) -> Floats:
        return np.bincount(self.rack_of, of_nodes, minlength=len(self.names)).astype(np.float64, copy=False)


@compiled
def _within_limits(
    nodes: Ints, gpus: Ints, demands: Ints, order: Ints, rack_of: Ints, watts: Floats, left: Floats
) -> tuple[int, int]:
    """Of the nodes with room for an instance, how many are in racks without the power for one; and room for how many.

    Instances are equal, so that filling the cheapest nodes of each rack first leaves room for as many as there can be.
    """
    over, room, still = 0, 0, left.copy()
    for node in order:
        lacks = count_lacks(nodes[node : node + 2], gpus, demands, 0)
        if lacks[FITS] == 0:
            continue
        rack, count = rack_of[node], lacks[ROOM]
        if watts[node] > 0.0:
            if watts[node] > left[rack] + SLACK:
                over += 1
                continue
            if still[rack] < np.inf:
                count = min(count, int(max(0.0, still[rack] + SLACK) // watts[node]))
                still[rack] -= count * watts[node]
        room += count
    return over, room


def _rack_names(cluster: Cluster) -> tuple[str, ...]:
    used = dict.fromkeys(node.rack for node in cluster.nodes)
    listed = [rack.name for rack in cluster.racks if rack.name in used]
    only_named = [name for name in used if name not in listed and name != NO_RACK]
    return (*listed, *only_named, *([NO_RACK] if NO_RACK in used else []))


def _idle(cluster: Cluster, node: Node) -> float:
    return node.idle_watts + (node.gpus * cluster.gpu_type(node.gpu_type).idle_watts if node.gpus else 0.0)


def _slopes(cluster: Cluster, node: Node) -> tuple[float, float]:
    """Watts per thousandth of a GPU held, and per thousandth of a CPU."""
    per_gpu = per_cpu = 0.0
    if node.gpus:
        gpu = cluster.gpu_type(node.gpu_type)
        per_gpu = max(0.0, gpu.busy_watts - gpu.idle_watts) / WHOLE
    rise = max(0.0, node.busy_watts - node.idle_watts)
    if cluster.cpus_known and node.cpu_milli:
        per_cpu = rise / node.cpu_milli
    elif node.gpus:
        per_gpu += rise / (node.gpus * WHOLE)
    return per_gpu, per_cpu


def _most(cluster: Cluster, slopes: Floats) -> Floats:
    """What each node draws beyond idle when all of it is held."""
    all_held = np.array([(node.gpus * WHOLE, node.cpu_milli) for node in cluster.nodes], dtype=np.float64)
    most: Floats = (slopes * all_held).sum(axis=1)
    return most
