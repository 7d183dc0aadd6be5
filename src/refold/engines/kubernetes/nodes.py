"""The nodes of a Kubernetes cluster as the scheduler's `Cluster`, and which of them pods may be on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

from refold.core import Event, NodeDrained, NodeLost, NodeReturned
from refold.engines.kubernetes.api_server import FORBIDDEN, NOT_FOUND, ApiError, ApiServer, as_dict
from refold.engines.kubernetes.constraints import NodeIndex, blocking_taints, constraints_text, refusal
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import ApiNode, Pod, PodSpec
from refold.engines.kubernetes.resources import (
    GPU_RESOURCE,
    allocatable,
    amount_of,
    is_accelerator,
    is_foreign,
    to_mib_down,
    to_mib_up,
    to_milli,
    total_amounts,
    used_by,
)
from refold.errors import BadValue, UnknownName
from refold.model import (
    MAX_AMOUNT,
    MAX_GPU_TYPES,
    MAX_GPUS_PER_NODE,
    PCIE,
    WHOLE,
    Cluster,
    GpuType,
    Link,
    MiB,
    Milli,
    Node,
    NodeSet,
    Rack,
    Tenant,
)
from refold.planning.catalogue import base_gpu_type, find_gpu
from refold.server import Inbox, LiveState, UseByOthers

PRODUCT_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
MEMORY_LABEL = "nvidia.com/gpu.memory"
"""Memory of a GPU in MiB."""

RACK_LABELS = (
    "refold.dev/rack",
    "topology.kubernetes.io/rack",
    "cloud.provider.com/topology-rack",
    "nvidia.com/gpu.clique",
    "topology.kubernetes.io/zone",
)
"""The first of these that a node has is its rack: a physical rack, an NVLink domain, or a zone."""

RACK_WATTS_ANNOTATION = "refold.dev/rack-limit-watts"
"""The power limit of the node's rack; the smallest value on its nodes counts."""

log = logging.getLogger("refold")

UNKNOWN_GPU = "GPU"
MAX_REMEMBERED = 1000
"""Combinations of constraints for which a `NodeMap` remembers the answer."""

MIG_PREFIX = "nvidia.com/mig-"


class DeviceGroup(NamedTuple):
    """The accelerators of one kind on one node, or a node without any: a node of the scheduler."""

    node: ApiNode
    resource: str
    gpus: int
    share: Decimal
    """Its part of the CPUs and the memory of the node."""
    gpu_type: str

    @property
    def name(self) -> str:
        """The name of the node; with the kind of slice, if this is not the first group of the node."""
        return self.node.name if self.share == 1 or self.resource == GPU_RESOURCE else _slice_name(self)


def _slice_name(group: DeviceGroup) -> str:
    return f"{group.node.name}:{group.resource.rpartition('/')[2]}"


class NodeMap:
    """The cluster, and the nodes that it was made from. Both have the same order."""

    def __init__(self, cluster: Cluster, groups: tuple[DeviceGroup, ...]) -> None:
        self.cluster = cluster
        self.groups = groups
        self._indices: dict[str, list[int]] = {}
        for index, group in enumerate(groups):
            self._indices.setdefault(group.node.name, []).append(index)
        self._index = NodeIndex(group.node for group in groups)
        self._with_resource: dict[str, int] = {"": (1 << len(groups)) - 1}
        for index, group in enumerate(groups):
            self._with_resource[group.resource] = self._with_resource.get(group.resource, 0) | 1 << index
        self._allowed: dict[PodConstraints, NodeSet | None] = {}
        """The nodes that pods may be on, by their constraints. Most pods have the same ones."""

    def kubernetes_name(self, index: int) -> str:
        return self.groups[index].node.name

    def indices(self, name: str) -> list[int]:
        return self._indices.get(name, [])

    def update(self, node: ApiNode) -> None:
        """Take the present labels, taints and resources of a node."""
        for index in self.indices(node.name):
            self._index.replace(index, node)
        self._allowed.clear()

    def allowed_nodes(self, constraints: PodConstraints) -> NodeSet | None:
        """Return the nodes that all these pods may be on, as the nodes are now; None: all nodes."""
        if constraints not in self._allowed:
            if len(self._allowed) >= MAX_REMEMBERED:
                self._allowed.clear()
            found = self._with_resource.get(constraints.resource, 0)
            for spec in constraints.specs:
                found &= self._index.admitting(spec)
            is_all = found == self._with_resource[""]
            self._allowed[constraints] = None if is_all else NodeSet.from_mask(found)
        return self._allowed[constraints]


class PodConstraints:
    """What limits the nodes of some pods: their kind of GPU ('': none), and specs that differ in their constraints."""

    def __init__(self, specs: Iterable[PodSpec], resource: str) -> None:
        distinct = {constraints_text(spec): spec for spec in specs}
        self.resource, self.specs = resource, tuple(distinct.values())
        self._key = resource, frozenset(distinct)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PodConstraints) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def map_nodes(
    nodes: Iterable[ApiNode],
    name: str = "kubernetes",
    tenants: tuple[Tenant, ...] = (),
    levels: Sequence[str] = (),
) -> NodeMap:
    """Return the cluster of some nodes. `levels`: labels whose values are domains, outermost first."""
    groups = [group for node in sorted(nodes, key=lambda node: node.name) for group in _device_groups(node)]
    if not groups:
        raise BadValue("the Kubernetes cluster has no nodes")
    groups = _with_rare_types_merged(groups)
    cluster = Cluster(
        tuple(_model_node(group) for group in groups),
        _gpu_types(groups),
        _racks(groups),
        name=name,
        tenants=tenants,
    )
    labels = [group.node.metadata.labels for group in groups]
    return NodeMap(cluster.with_levels_of_labels(levels, labels), tuple(groups))


def _device_groups(node: ApiNode) -> list[DeviceGroup]:
    """Return the accelerators of a node by kind. CPUs and memory are divided among them by number of devices."""
    amounts = {key: int(amount_of(node.status.capacity, key)) for key in node.status.capacity if is_accelerator(key)}
    counts = {key: min(count, MAX_GPUS_PER_NODE) for key, count in sorted(amounts.items()) if count > 0}
    total = sum(counts.values())
    if not total:
        return [DeviceGroup(node, "", 0, Decimal(1), "")]
    return [
        DeviceGroup(node, key, count, Decimal(count) / total, _base_type(node, key)) for key, count in counts.items()
    ]


def _base_type(node: ApiNode, resource: str) -> str:
    product = next((node.metadata.labels[label] for label in PRODUCT_LABELS if label in node.metadata.labels), "")
    gpu = gpu_type_name(product) if product else UNKNOWN_GPU
    return f"{gpu}-MIG-{resource.removeprefix(MIG_PREFIX)}" if resource.startswith(MIG_PREFIX) else gpu


def gpu_type_name(product: str) -> str:
    """Return the catalogue's name of a GPU product, or the product without its vendor."""
    try:
        return find_gpu(product).name
    except UnknownName:
        return product.removeprefix("NVIDIA-")[:64]


def _with_rare_types_merged(groups: Sequence[DeviceGroup]) -> list[DeviceGroup]:
    """Give the GPUs of the rarest types one type, if nodes have labels with more types than a cluster may have."""
    counts = Counter(group.gpu_type for group in groups if group.gpus)
    most = MAX_GPU_TYPES if len(counts) <= MAX_GPU_TYPES else MAX_GPU_TYPES - 1
    kept = {name for name, _ in counts.most_common(most)}
    return [
        group if not group.gpus or group.gpu_type in kept else group._replace(gpu_type=UNKNOWN_GPU) for group in groups
    ]


def _model_node(group: DeviceGroup) -> Node:
    labels = group.node.metadata.labels
    cpus, memory = allocatable(group.node, "cpu") * group.share, allocatable(group.node, "memory") * group.share
    rack = next((labels[label] for label in RACK_LABELS if label in labels), "")
    cpu_milli = min(int(cpus * WHOLE), MAX_AMOUNT)
    return Node(group.name, group.gpus, group.gpu_type, cpu_milli, to_mib_down(memory), rack, _link(group.gpu_type))


def _link(gpu_type: str) -> Link:
    try:
        return find_gpu(base_gpu_type(gpu_type)).link
    except UnknownName:
        return PCIE


def _gpu_types(groups: Iterable[DeviceGroup]) -> tuple[GpuType, ...]:
    """Describe the GPU types; of a type with GPUs of several sizes, the smallest counts."""
    memory: dict[str, list[int]] = {}
    for group in groups:
        if group.gpus:
            written = group.node.metadata.labels.get(MEMORY_LABEL, "")
            sizes = memory.setdefault(group.gpu_type, [])
            sizes += [int(written)] if written.isdecimal() and group.resource == GPU_RESOURCE else []
    return tuple(
        GpuType(name, memory_gib=round(min(sizes, default=0) / 1024, 1)) for name, sizes in sorted(memory.items())
    )


def _racks(groups: Iterable[DeviceGroup]) -> tuple[Rack, ...]:
    """Return the racks with a power limit."""
    limits: dict[str, float] = {}
    for group in groups:
        rack = _model_node(group).rack
        try:
            watts = float(group.node.metadata.annotations.get(RACK_WATTS_ANNOTATION, ""))
        except ValueError:
            continue
        if rack and 0 < watts <= MAX_AMOUNT:
            limits[rack] = min(watts, limits.get(rack, watts))
    return tuple(Rack(name, watts) for name, watts in sorted(limits.items()))


class GroupUse(NamedTuple):
    """What pods use of a device group: its GPUs, and its part of the CPUs and the memory of its node."""

    gpus: int
    cpu_milli: Milli
    memory_mib: MiB


def group_use(group: DeviceGroup, pods: Iterable[Pod]) -> GroupUse:
    total = total_amounts(map(used_by, pods))
    cpus, memory = total.get("cpu", Decimal(0)) * group.share, total.get("memory", Decimal(0)) * group.share
    return GroupUse(int(total.get(group.resource, 0)), to_milli(cpus), to_mib_up(memory))


def is_unchanged(node: ApiNode, other: ApiNode) -> bool:
    """Whether two states of a node make no difference for the cluster, nor for the pods that it admits."""
    if node is other:
        return True
    return (
        node.metadata.labels == other.metadata.labels
        and blocking_taints(node) == blocking_taints(other)
        and node.status.capacity == other.status.capacity
        and _amounts(node) == _amounts(other)
    )


def _amounts(node: ApiNode) -> tuple[object, ...]:
    amounts = {name: amount for name, amount in node.status.allocatable.items() if not is_accelerator(name)}
    return amounts, node.metadata.annotations.get(RACK_WATTS_ANNOTATION)


def binding_problem(spec: PodSpec, name: str, node: ApiNode | None) -> str:
    """Return why a pod cannot be bound to a node that a decision chose; '' if it can. The node may have changed."""
    if node is None:
        return f"node {name} does not exist any more"
    if why := down_reason(node):
        return f"node {name} is down: {why}"
    if node.spec.unschedulable:
        return f"node {name} is cordoned"
    why = refusal(spec, node)
    return f"node {name} {why}" if why else ""


def down_reason(node: ApiNode) -> str:
    """Return why a node accepts no pods, or ''."""
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    if node.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if ready is None or ready.status != "True":
        return f"NotReady: {ready.message or ready.reason}" if ready is not None else "NotReady"
    return ""


# Nodes that come and go, and what pods of other schedulers use, as events.

PREFIX = "kubernetes: "
"""Nodes that are down for a reason that begins so return when Kubernetes says so; others when an operator does."""


class NodeReports:
    def __init__(self, state: LiveState, inbox: Inbox, mirror: Mirror, nodes: NodeMap) -> None:
        self._state = state
        self._inbox = inbox
        self._mirror = mirror
        self._nodes = nodes
        self._use_by_others = UseByOthers(state)
        self._has_warned = False

    def report(self, names: Iterable[str]) -> None:
        for name in names:
            for index in self._nodes.indices(name):
                for event in (self._availability(index, name), self._use(index, name)):
                    if event is not None:
                        self._inbox.report(event)

    def _availability(self, index: int, name: str) -> Event | None:
        view, node = self._state.view, self._mirror.nodes.get(name)
        why = down_reason(node) if node is not None else "the node was deleted"
        is_ours = view.down_reason(index).startswith(PREFIX)
        if why:
            return NodeLost(index, PREFIX + why) if view.is_up(index) or (is_ours and view.is_drained(index)) else None
        if node is not None and node.spec.unschedulable:
            return NodeDrained(index, f"{PREFIX}cordoned") if view.is_up(index) else None
        return NodeReturned(index) if is_ours and not view.is_up(index) else None

    def _use(self, index: int, name: str) -> Event | None:
        """Return what others use on a node, if that is not what was reported last."""
        group = self._nodes.groups[index]
        pods = self._mirror.pods_on_node(name).values()
        others = [pod for pod in pods if not pod.has_ended and not self._is_of_current_run(pod)]
        use = group_use(group, others)
        if not self._has_warned and (foreign := next(filter(is_foreign, others), None)) is not None:
            self._has_warned = True
            scheduler = foreign.spec.scheduler_name or "an unknown scheduler"
            pod = f"pod {foreign.key}, bound by {scheduler}, uses GPUs of node {name}"
            log.warning("%s. Nodes may be overcommitted: see docs/kubernetes.md#other-schedulers", pod)
        return self._use_by_others.change(index, use.gpus + self._unhealthy(group, name), use.cpu_milli, use.memory_mib)

    def _is_of_current_run(self, pod: Pod) -> bool:
        key = self._mirror.run_of(pod)
        run = self._state.view.runs.get(key[0]) if key is not None else None
        return run is not None and key is not None and run.number == key[1]

    def _unhealthy(self, group: DeviceGroup, name: str) -> int:
        """Return the number of GPUs that the device plug-in does not offer."""
        node = self._mirror.nodes.get(name)
        if node is None or not group.gpus:
            return 0
        return max(0, group.gpus - int(allocatable(node, group.resource)))


KUEUE_GROUP = "/apis/kueue.x-k8s.io"
HOSTNAME_LABEL = "kubernetes.io/hostname"
"""Kueue's innermost level is often the node itself, which is none here."""


def kueue_levels(api: ApiServer) -> tuple[str, ...]:
    """Return the labels of the levels of Kueue's Topology, outermost first.

    None if there is no Topology or several, or if they may not be read. Blocks while the API server answers.
    """
    try:
        version = as_dict(api.call("GET", KUEUE_GROUP)).get("preferredVersion", {}).get("version", "")
        found = as_dict(api.call("GET", f"{KUEUE_GROUP}/{version}/topologies")).get("items", [])
    except ApiError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
        return ()
    if len(found) != 1:
        return ()
    labels = (level["nodeLabel"] for level in found[0]["spec"]["levels"])
    return tuple(label for label in labels if label != HOSTNAME_LABEL)
