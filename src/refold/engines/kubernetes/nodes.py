"""The nodes of a Kubernetes cluster as the scheduler's `Cluster`.

The scheduler selects nodes by GPU type only. So nodes with the same GPUs that differ in taints, or in labels that pods
select by, get different types: `H100-80GB` and `H100-80GB/pool=research`. A pod accepts the types whose nodes admit it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from refold.engines.kubernetes.constraints import (
    ANY_VALUE,
    RESOURCE_PREFIX,
    admits,
    blocking_taints,
    constraints_text,
    has_resource,
)
from refold.engines.kubernetes.objects import ApiNode, Pod, PodSpec
from refold.engines.kubernetes.resources import (
    GPU_RESOURCE,
    add_amounts,
    is_accelerator,
    parse_amount,
    to_mib_down,
    to_mib_up,
    to_milli,
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
    Rack,
    Tenant,
)
from refold.planning.catalogue import base_gpu_type, find_gpu

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

Labels = Mapping[str, frozenset[str]]
"""What pods distinguish nodes by (see `selected_labels`)."""

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
        self._accepted: dict[tuple[str, frozenset[bytes]], tuple[str, ...]] = {}
        """The types that pods accept, by resource and constraints. Most pods have the same ones."""

    def kubernetes_name(self, index: int) -> str:
        """Return the name in Kubernetes of a node of the cluster."""
        return self.groups[index].node.name

    def indices(self, name: str) -> list[int]:
        """Return the nodes of the cluster that are on a Kubernetes node."""
        return self._indices.get(name, [])

    def accepted_types(self, specs: Collection[PodSpec], resource: str) -> tuple[str, ...]:
        """Return the GPU types that all these pods accept: the nodes have the resource, and admit the pods."""
        distinct = {constraints_text(spec): spec for spec in specs}
        key = (resource, frozenset(distinct))
        if key not in self._accepted:
            if len(self._accepted) >= MAX_REMEMBERED:
                self._accepted.clear()
            suitable = (group for group in self.groups if group.resource == resource)
            found = {
                group.gpu_type for group in suitable if all(admits(spec, group.node) for spec in distinct.values())
            }
            self._accepted[key] = tuple(sorted(found))
        return self._accepted[key]

    def admits_everywhere(self, specs: Collection[PodSpec]) -> bool:
        """Whether all nodes admit these pods."""
        distinct = {constraints_text(spec): spec for spec in specs}
        return all(admits(spec, group.node) for spec in distinct.values() for group in self.groups)


def map_nodes(
    nodes: Iterable[ApiNode], labels: Labels, name: str = "kubernetes", tenants: tuple[Tenant, ...] = ()
) -> NodeMap:
    """Return the cluster of some nodes. `labels`: what pods select nodes by."""
    groups = [group for node in sorted(nodes, key=lambda node: node.name) for group in _device_groups(node)]
    if not groups:
        raise BadValue("the Kubernetes cluster has no nodes")
    named = _distinguish(groups, labels)
    cluster = Cluster(
        tuple(_model_node(group) for group in named),
        _gpu_types(named),
        _racks(named),
        name=name,
        tenants=tenants,
    )
    return NodeMap(cluster, tuple(named))


def _device_groups(node: ApiNode) -> list[DeviceGroup]:
    """Return the accelerators of a node by kind. CPUs and memory are divided among them by number of devices."""
    amounts = {key: int(parse_amount(amount)) for key, amount in node.status.capacity.items() if is_accelerator(key)}
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


def _distinguish(groups: Sequence[DeviceGroup], labels: Labels) -> list[DeviceGroup]:
    """Add to the GPU types what distinguishes nodes with the same GPUs for pods."""
    traits = [_traits(group.node, labels) if group.gpus else frozenset[str]() for group in groups]
    by_type: dict[str, list[frozenset[str]]] = {}
    for group, own in zip(groups, traits, strict=True):
        by_type.setdefault(group.gpu_type, []).append(own)
    common = {gpu_type: frozenset.intersection(*own) for gpu_type, own in by_type.items()}
    named = [
        group._replace(gpu_type="/".join([group.gpu_type, *sorted(own - common[group.gpu_type])]))
        for group, own in zip(groups, traits, strict=True)
    ]
    kinds = {group.gpu_type for group in named if group.gpus}
    if len(kinds) > MAX_GPU_TYPES:
        raise BadValue(
            f"taints, and labels that pods select nodes by, divide the GPU nodes into {len(kinds)} kinds,"
            f" expected at most {MAX_GPU_TYPES} (labels: {', '.join(sorted(labels))})"
        )
    return named


def _traits(node: ApiNode, labels: Labels) -> frozenset[str]:
    """Return the taints of a node, and its labels and resources that pods select nodes by, as text."""
    taints = {f"!{taint.key}={taint.value}:{taint.effect}" for taint in blocking_taints(node)}
    found: set[str] = set()
    for key, values in labels.items():
        if key.startswith(RESOURCE_PREFIX):
            name = key.removeprefix(RESOURCE_PREFIX)
            found |= {f"{name}>={amount}" for amount in values if has_resource(node, name, Decimal(amount))}
            continue
        value = node.metadata.labels.get(key)
        if value is not None and (value in values or ANY_VALUE in values):
            found.add(f"{key}={value}")
        elif value is not None and "" in values:
            found.add(key)
    return frozenset(taints | found)


def _model_node(group: DeviceGroup) -> Node:
    allocatable, labels = group.node.status.allocatable, group.node.metadata.labels
    cpus = parse_amount(allocatable.get("cpu", 0)) * group.share
    memory = parse_amount(allocatable.get("memory", 0)) * group.share
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
    """Return what pods on the node of a device group use of it."""
    total: dict[str, Decimal] = {}
    for pod in pods:
        add_amounts(total, used_by(pod))
    cpus, memory = total.get("cpu", Decimal(0)) * group.share, total.get("memory", Decimal(0)) * group.share
    return GroupUse(int(total.get(group.resource, 0)), to_milli(cpus), to_mib_up(memory))


def is_same_hardware(node: ApiNode, other: ApiNode) -> bool:
    """Whether two states of a node make no difference for the cluster."""
    if node is other:
        return True
    return (
        node.metadata.labels == other.metadata.labels
        and blocking_taints(node) == blocking_taints(other)
        and node.status.capacity == other.status.capacity
        and _amounts(node) == _amounts(other)
    )


def _amounts(node: ApiNode) -> tuple[object, ...]:
    allocatable = {name: amount for name, amount in node.status.allocatable.items() if not is_accelerator(name)}
    return allocatable, node.metadata.annotations.get(RACK_WATTS_ANNOTATION)


def down_reason(node: ApiNode) -> str:
    """Return why a node accepts no pods, or ''."""
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    if node.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if ready is None or ready.status != "True":
        return f"NotReady: {ready.message or ready.reason}" if ready is not None else "NotReady"
    return ""
