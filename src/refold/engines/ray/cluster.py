"""The connection to a Ray cluster, which may be lost and made again, its nodes, and what is reported about them.

Ray ends a process that has lost the head node: after a minute, or at once when another one has its address. So the
daemon looks for itself whether the head node can be reached, and disconnects before that.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import Any, NamedTuple

from refold.core import Event, NodeLost, NodeReturned
from refold.engines.ray.tasks import connect_ray
from refold.errors import BadValue
from refold.model import MAX_GPUS_PER_NODE, WHOLE, Allocation, Cluster, Node, Seconds, Share, Tenant
from refold.planning.catalogue import gpu_link
from refold.server import LiveState, UseByOthers
from refold.simulator.traces import UNKNOWN_GPU_TYPE

PROBE_TIMEOUT: Seconds = 2.0

ACCELERATOR_PREFIX = "accelerator_type:"

PREFIX = "ray: "
"""Nodes that are down for a reason that begins so return when Ray has them; others when an operator says so."""

GONE = f"{PREFIX}it is gone"
TOLERANCE = 0.01
"""Of a GPU or CPU: Ray counts in floating-point numbers, and runs that need nothing have a thousandth of a CPU."""

FORGET_SECONDS: Seconds = 300.0
"""How long a node that Ray does not have any more is shown as down; then the cluster is one without it."""

FreeResources = Mapping[str, Mapping[str, float]]
"""Resources that are not reserved, by the id of a node."""


class RayConnection:
    """A connection to the cluster that Ray is connected to."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.address: str = ray.get_runtime_context().gcs_address

    def is_reachable(self) -> bool:
        """Whether something answers at the address of the head node."""
        host, _, port = self.address.rpartition(":")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT):
            return True
        return False

    def disconnect(self) -> None:
        """Give the connection up."""
        self.ray.shutdown()

    def connect(self) -> None:
        """Connect to the cluster at the same address. Raises RefoldError."""
        connect_ray(self.ray, self.address)

    def free_resources(self) -> Mapping[str, Mapping[str, float]]:
        """Return what is not reserved on each node, by the id of the node."""
        found: Mapping[str, Mapping[str, float]] = self.ray._private.state.available_resources_per_node()
        return found


class RayNode(NamedTuple):
    """A node of Ray with GPUs. `id` is new each time that Ray is started on it; `name` stays, if no other has it."""

    id: str
    name: str
    address: str
    is_alive: bool
    gpus: int
    gpu_type: str
    cpus: float
    memory_mib: int
    labels: tuple[tuple[str, str], ...] = ()


class RayNodes(NamedTuple):
    """The cluster, and the nodes that it was made from, in the same order."""

    cluster: Cluster
    nodes: tuple[RayNode, ...]


def read_nodes(described: Iterable[Mapping[str, Any]]) -> list[RayNode]:
    """Read what `ray.nodes()` returns: the nodes with GPUs that are alive, and those that are dead and not replaced."""
    found = [_read_node(entry) for entry in described]
    alive = [node for node in found if node.is_alive and node.gpus]
    counts = Counter(node.name for node in alive)
    return sorted(_distinguish(node, counts[node.name]) for node in alive)


def _read_node(entry: Mapping[str, Any]) -> RayNode:
    resources: Mapping[str, float] = entry.get("Resources") or {}
    types = [name.removeprefix(ACCELERATOR_PREFIX) for name in resources if name.startswith(ACCELERATOR_PREFIX)]
    return RayNode(
        entry["NodeID"],
        entry.get("NodeManagerHostname") or entry["NodeManagerAddress"],
        entry["NodeManagerAddress"],
        bool(entry.get("Alive")),
        int(resources.get("GPU", 0)),
        types[0] if types else UNKNOWN_GPU_TYPE,
        float(resources.get("CPU", 0)),
        int(resources.get("memory", 0) / 2**20),
        tuple(sorted((entry.get("Labels") or {}).items())),
    )


def _distinguish(node: RayNode, count: int) -> RayNode:
    """Return a node with a name that no other has: several may be on one machine."""
    return node if count == 1 else node._replace(name=f"{node.name}-{node.id[:8]}")


class KnownNodes:
    """The nodes that a cluster is made of, by name: those that Ray has, and those that it had until lately."""

    def __init__(self, nodes: Mapping[str, RayNode] | None = None) -> None:
        self.nodes = dict(nodes or {})
        self._missing_since: dict[str, Seconds] = {}

    def update(self, found: Mapping[str, RayNode], now: Seconds) -> bool:
        """Take over what Ray has; return whether the cluster is another one. Missing nodes are only down at first."""
        missing = self.nodes.keys() - found.keys()
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        gone = {name for name, since in self._missing_since.items() if found and now - since > FORGET_SECONDS}
        if not gone and all(self.nodes.get(name) == node for name, node in found.items()):
            return False
        self.nodes = {name: node for name, node in self.nodes.items() if name not in gone} | {**found}
        return True


def map_nodes(nodes: Sequence[RayNode], tenants: tuple[Tenant, ...] = (), levels: Sequence[str] = ()) -> RayNodes:
    """Return the cluster of the nodes. Raises BadValue if there are none. `levels`: labels, outermost first."""
    if not nodes:
        raise BadValue("the Ray cluster has no nodes with GPUs")
    found = Cluster(tuple(map(_model_node, nodes)), name="ray", tenants=tenants)
    return RayNodes(found.with_levels_of_labels(levels, [dict(node.labels) for node in nodes]), tuple(nodes))


def _model_node(node: RayNode) -> Node:
    gpus = min(node.gpus, MAX_GPUS_PER_NODE)
    return Node(node.name, gpus, node.gpu_type, int(node.cpus * WHOLE), node.memory_mib, inside=gpu_link(node.gpu_type))


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
