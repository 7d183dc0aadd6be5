"""The nodes of a Ray cluster as the scheduler's `Cluster`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from refold.errors import BadValue, UnknownName
from refold.model import MAX_GPUS_PER_NODE, PCIE, WHOLE, Cluster, Link, Node, Tenant
from refold.planning.catalogue import base_gpu_type, find_gpu
from refold.simulator.traces import UNKNOWN_GPU_TYPE

ACCELERATOR_PREFIX = "accelerator_type:"


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
    )


def _distinguish(node: RayNode, count: int) -> RayNode:
    """Return a node with a name that no other has: several may be on one machine."""
    return node if count == 1 else node._replace(name=f"{node.name}-{node.id[:8]}")


def map_nodes(nodes: Sequence[RayNode], tenants: tuple[Tenant, ...] = ()) -> RayNodes:
    """Return the cluster of the nodes. Raises BadValue if there are none."""
    if not nodes:
        raise BadValue("the Ray cluster has no nodes with GPUs")
    found = Cluster(tuple(map(_model_node, nodes)), name="ray", tenants=tenants)
    return RayNodes(found, tuple(nodes))


def _model_node(node: RayNode) -> Node:
    gpus = min(node.gpus, MAX_GPUS_PER_NODE)
    return Node(node.name, gpus, node.gpu_type, int(node.cpus * WHOLE), node.memory_mib, inside=_link(node.gpu_type))


def _link(gpu_type: str) -> Link:
    try:
        return find_gpu(base_gpu_type(gpu_type)).link
    except UnknownName:
        return PCIE
