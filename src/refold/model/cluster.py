"""The hardware: nodes with GPUs, in racks, joined by links. Frozen; what is free now is the View's to say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import inf, isfinite

import msgspec

from refold.errors import BadValue, UnknownName
from refold.model.units import MiB, Milli

MAX_GPUS_PER_NODE = 62
"""The GPUs of a node are kept as bits of one signed word."""

MAX_GPU_TYPES = 62
"""So are the GPU types of a cluster."""

LARGEST = 2**40
"""No amount of a node is larger than this: sums over nodes stay whole numbers of 64 bits."""


def _refuse_busy_below_idle(who: str, idle_watts: float, busy_watts: float) -> None:
    """0 busy watts: nobody said, so that it draws as much as when it is idle."""
    if 0 < busy_watts < idle_watts:
        raise BadValue(f"{who}: busy_watts is {busy_watts:g}, expected at least its idle_watts, {idle_watts:g}")


class GpuType(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A kind of GPU. `speed` scales work: 2.0 does a job's work in half the time."""

    name: str
    memory_gib: float = 0.0
    speed: float = 1.0
    idle_watts: float = 0.0
    busy_watts: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise BadValue("a GPU type needs a name")
        amounts = (self.memory_gib, self.speed, self.idle_watts, self.busy_watts)
        if min(amounts) < 0 or self.speed == 0 or not all(isfinite(amount) for amount in amounts):
            raise BadValue(f"GPU type {self.name!r}: memory and power must be ≥ 0 and speed > 0")
        _refuse_busy_below_idle(f"GPU type {self.name!r}", self.idle_watts, self.busy_watts)


class Link(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A way for bytes: NVLink or PCIe inside a node, the network between nodes."""

    kind: str
    gigabytes_per_second: float
    latency_microseconds: float = 0.0

    def __post_init__(self) -> None:
        amounts = (self.gigabytes_per_second, self.latency_microseconds)
        if min(amounts) < 0 or self.gigabytes_per_second == 0 or not all(isfinite(amount) for amount in amounts):
            raise BadValue(f"link {self.kind!r}: bandwidth must be > 0 and latency ≥ 0")


PCIE = Link("pcie", 16.0)
ETHERNET = Link("ethernet", 1.25)


class Node(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One machine: `gpus` GPUs of one type, CPUs, memory, its rack and what it draws without its GPUs."""

    name: str
    gpus: int = 0
    gpu_type: str = ""
    cpu_milli: Milli = 0
    memory_mib: MiB = 0
    rack: str = ""
    inside: Link = PCIE
    idle_watts: float = 0.0
    busy_watts: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise BadValue("a node needs a name")
        if not 0 <= self.gpus <= MAX_GPUS_PER_NODE:
            raise BadValue(f"node {self.name!r} has {self.gpus} GPUs, expected 0 to {MAX_GPUS_PER_NODE}")
        if self.gpus and not self.gpu_type:
            raise BadValue(f"node {self.name!r} has GPUs but no gpu_type")
        amounts = (self.cpu_milli, self.memory_mib, self.idle_watts, self.busy_watts)
        if not all(0 <= amount <= LARGEST for amount in amounts):
            raise BadValue(f"node {self.name!r}: CPUs, memory and power must be ≥ 0, and not beyond reason")
        _refuse_busy_below_idle(f"node {self.name!r}", self.idle_watts, self.busy_watts)


class Rack(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A rack and the power it may draw; 0 watts: no limit known."""

    name: str
    limit_watts: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise BadValue("a rack needs a name")
        if not 0 <= self.limit_watts <= LARGEST:
            raise BadValue(f"rack {self.name!r}: limit_watts is {self.limit_watts:g}, expected watts ≥ 0 (0: no limit)")


class Tenant(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Who shares the cluster, how many GPUs its guaranteed jobs may count on, and how many it may use at most.

    A `limit_gpus` of 0: as many as there are.
    """

    name: str
    quota_gpus: float = 0.0
    limit_gpus: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise BadValue("a tenant needs a name")
        if not (isfinite(self.quota_gpus) and self.quota_gpus >= 0):
            raise BadValue(f"tenant {self.name!r}: a quota is GPUs ≥ 0, not {self.quota_gpus}")
        if not (isfinite(self.limit_gpus) and self.limit_gpus >= 0):
            raise BadValue(f"tenant {self.name!r}: a limit is GPUs ≥ 0 (0: none), not {self.limit_gpus}")


class Cluster(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """All nodes, in an order that never changes: a node is named by its index everywhere but in what people read.

    A node whose CPUs or memory are not known (0, while it has GPUs) is not limited by them: set
    `cpus_known` or `memory_known` to False, and demands for them are not counted. Where no tenants are named,
    nobody is limited, and nobody is promised anything; where some are, others have no quota.
    """

    nodes: tuple[Node, ...]
    gpu_types: tuple[GpuType, ...] = ()
    racks: tuple[Rack, ...] = ()
    network: Link = ETHERNET
    name: str = "cluster"
    cpus_known: bool = True
    memory_known: bool = True
    tenants: tuple[Tenant, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise BadValue("a cluster needs at least one node")
        if len(self.index_of_node) != len(self.nodes):
            raise BadValue(f"two nodes of cluster {self.name!r} have the same name")
        if len(self.type_names) > MAX_GPU_TYPES:
            raise BadValue(f"cluster {self.name!r} has more than {MAX_GPU_TYPES} GPU types")
        if len({tenant.name for tenant in self.tenants}) != len(self.tenants):
            raise BadValue(f"two tenants of cluster {self.name!r} have the same name")
        if len({rack.name for rack in self.racks}) != len(self.racks):
            raise BadValue(f"two racks of cluster {self.name!r} have the same name")

    @cached_property
    def index_of_node(self) -> Mapping[str, int]:
        """Where each node stands in `nodes`."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    @cached_property
    def type_names(self) -> tuple[str, ...]:
        """Every GPU type in use, in alphabetical order."""
        return tuple(sorted({node.gpu_type for node in self.nodes if node.gpus}))

    @cached_property
    def gpus(self) -> int:
        """How many GPUs there are."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def _type_by_name(self) -> Mapping[str, GpuType]:
        return {gpu_type.name: gpu_type for gpu_type in self.gpu_types}

    def gpu_type(self, name: str) -> GpuType:
        """What is known of a GPU type; a type that is only named gets the defaults."""
        known = self._type_by_name.get(name)
        if known is None and name not in self.type_names:
            raise UnknownName("GPU type", name, self.type_names)
        return known or GpuType(name)

    def quota_gpus(self, tenant: str) -> float:
        """How many GPUs a tenant's guaranteed jobs may count on."""
        return self._quotas.get(tenant, 0.0) if self.tenants else inf

    @cached_property
    def _quotas(self) -> Mapping[str, float]:
        return {tenant.name: tenant.quota_gpus for tenant in self.tenants}

    @cached_property
    def cpu_milli(self) -> Milli:
        """How many CPUs there are, in thousandths."""
        return sum(node.cpu_milli for node in self.nodes)

    @cached_property
    def memory_mib(self) -> MiB:
        """How much memory there is."""
        return sum(node.memory_mib for node in self.nodes)
