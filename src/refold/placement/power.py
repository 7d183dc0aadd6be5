"""Power draw of racks: a linear model over allocated resources, as arrays for the kernels.

The draw of a node rises from its idle watts to its busy watts in proportion to its allocated CPUs or, where CPUs are
unknown, its allocated GPUs. The draw of a GPU rises in the same way with its allocated fraction. Memory has no draw of
its own. Nodes that are down or empty count as idle, since they may still be switched on.
"""

from __future__ import annotations

from functools import cached_property
from math import inf

import numpy as np
from msgspec.structs import replace

from refold.errors import BadValue
from refold.model import WHOLE, Cluster, Demand, Node, Placement, Shortage
from refold.placement.free import FreeResources
from refold.placement.layout import (
    CPU_FREE,
    CPU_TOTAL,
    FIRST_GPU,
    GPUS,
    MILLI_FREE,
    POWER_TOLERANCE_WATTS,
    Floats,
    Ints,
)
from refold.placement.lookahead import count_within_limits

NO_RACK = ""
"""Name of the group of nodes without a rack: it has no limit and does not take part in balancing."""


class Power:
    """The racks of a cluster with their idle draw, full draw and power limit, in watts.

    Racks are in the order of the cluster, followed by racks that are only named by nodes, and by the group of nodes
    without a rack; racks without nodes are left out. Per node: `rack_of`, and the watts that an allocated thousandth
    of a GPU or CPU adds (`watts_per_gpu_milli`, `watts_per_cpu_milli`). Per rack: `idle`, `full`, `limit` (inf: none),
    and `scale`, the draw that racks are balanced relative to: the limit, or `full` without one; inf: not balanced.
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
        self.idle: Floats = self._sum_by_rack(np.array([_idle(cluster, node) for node in cluster.nodes]))
        self.full: Floats = self.idle + self._sum_by_rack(_max_rise(cluster, slopes))
        self.limit: Floats = np.array([limits.get(name, 0.0) or inf for name in self.names], dtype=np.float64)
        balanced = (self.full > self.idle) & np.array([name != NO_RACK for name in self.names])
        self.scale: Floats = np.where(balanced, np.where(np.isfinite(self.limit), self.limit, self.full), inf)

    @property
    def is_modelled(self) -> bool:
        """Whether the cluster definition contains power data."""
        return bool(self.full.any())

    def draw(self, free: FreeResources) -> Floats:
        """Return the current draw of each rack, in watts."""
        nodes = free.nodes[:-1]
        gpu_milli = nodes[:, GPUS] * WHOLE - nodes[:, MILLI_FREE]
        for node, gpu in free.down_gpus:  # only runs that still hold a part of it make it draw more than when idle
            gpu_milli[node] -= WHOLE + free.gpus[nodes[node, FIRST_GPU] + gpu]
        cpu_milli = nodes[:, CPU_TOTAL] - nodes[:, CPU_FREE]
        in_use = gpu_milli * self.watts_per_gpu_milli + cpu_milli * self.watts_per_cpu_milli
        now: Floats = self.idle + self._sum_by_rack(in_use)
        return now

    def placement_watts(self, placement: Placement) -> dict[int, float]:
        """Return the watts that a placement adds, by rack index."""
        added: dict[int, float] = {}
        for share in placement:
            rack = int(self.rack_of[share.node])
            watts = len(share.gpus) * share.gpu_milli * float(self.watts_per_gpu_milli[share.node])
            watts += share.cpu_milli * float(self.watts_per_cpu_milli[share.node])
            added[rack] = added.get(rack, 0.0) + watts
        return added

    def instance_watts(self, demand: Demand) -> Floats:
        """Return the watts that one instance of a demand would add on each node."""
        gpu_milli = demand.gpus * demand.gpu_milli
        watts: Floats = gpu_milli * self.watts_per_gpu_milli + demand.cpu_milli * self.watts_per_cpu_milli
        return watts

    def within_limits(self, free: FreeResources, placement: Placement) -> bool:
        """Whether all racks stay within their limits if a placement is added to the current allocations."""
        now = self.draw(free)
        return all(
            not watts or now[rack] + watts <= self.limit[rack] + POWER_TOLERANCE_WATTS
            for rack, watts in self.placement_watts(placement).items()
        )

    def reject_limits_below_idle(self) -> None:
        """Raise `BadValue` if the idle draw of a rack exceeds its limit, which no placement could change."""
        for name, idle, limit in zip(self.names, self.idle.tolist(), self.limit.tolist(), strict=True):
            if idle > limit + POWER_TOLERANCE_WATTS:
                raise BadValue(
                    f"rack {name!r}: limit_watts is {limit:,g} W, but its nodes and GPUs draw {idle:,g} W "
                    "when idle; raise the limit, or lower their idle_watts"
                )

    def shortage(self, free: FreeResources, demand: Demand) -> Shortage:
        """Count the nodes that cannot host one instance, by shortage, including racks at their power limit."""
        found = free.shortage(demand)
        if not found.nodes_fit:
            return found
        watts, headroom = self.instance_watts(demand), self.limit - self.draw(free)
        cheapest_first = np.argsort(watts, kind="stable")
        vector = free.vector(demand)
        over_limit, fitting = count_within_limits(
            free.arrays, vector, cheapest_first, self.rack_of, watts, headroom, headroom.copy()
        )
        return replace(
            found,
            instances_fit=min(fitting, found.instances_fit),
            nodes_fit=found.nodes_fit - over_limit,
            at_power_limit=over_limit,
        )

    def fits_when_empty(self, demand: Demand) -> bool:
        """Whether all instances fit at once on the empty cluster with every rack within its limit."""
        return self.shortage(self._empty, demand).instances_fit == demand.instances

    @cached_property
    def _empty(self) -> FreeResources:
        return FreeResources(self.cluster)

    def _sum_by_rack(self, per_node: Floats) -> Floats:
        return np.bincount(self.rack_of, per_node, minlength=len(self.names)).astype(np.float64, copy=False)


def _rack_names(cluster: Cluster) -> tuple[str, ...]:
    used = dict.fromkeys(node.rack for node in cluster.nodes)
    listed = [rack.name for rack in cluster.racks if rack.name in used]
    unlisted = [name for name in used if name not in listed and name != NO_RACK]
    return (*listed, *unlisted, *([NO_RACK] if NO_RACK in used else []))


def _idle(cluster: Cluster, node: Node) -> float:
    return node.idle_watts + (node.gpus * cluster.gpu_type(node.gpu_type).idle_watts if node.gpus else 0.0)


def _slopes(cluster: Cluster, node: Node) -> tuple[float, float]:
    """Return the watts per allocated thousandth of a GPU, and per thousandth of a CPU."""
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


def _max_rise(cluster: Cluster, slopes: Floats) -> Floats:
    """Return the draw of each fully allocated node beyond idle."""
    all_in_use = np.array([(node.gpus * WHOLE, node.cpu_milli) for node in cluster.nodes], dtype=np.float64)
    rise: Floats = (slopes * all_in_use).sum(axis=1)
    return rise
