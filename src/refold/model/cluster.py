"""The hardware: nodes with GPUs, racks and links. Immutable; the `View` reports which resources are free."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from math import inf, isfinite

import msgspec
from msgspec.structs import replace

from refold.errors import BadValue, UnknownName
from refold.model.node_set import NodeSet
from refold.model.units import MiB, Milli

MAX_GPUS_PER_NODE = 62
"""The GPUs of a node are the bits of a signed 64-bit word."""

MAX_GPU_TYPES = 62
"""The GPU types of a cluster are the bits of a signed 64-bit word."""

MAX_REMEMBERED_SETS = 10_000
"""Sets of nodes of which a cluster remembers the GPU types."""

MAX_LEVELS = 8
"""Levels of a cluster: zones, blocks, racks and so on."""

SLOT = "slot"
"""The GPU type of CPU slots, which a machine without GPUs shares in place of GPUs."""

NODE_LEVEL = "node"
"""What is below the innermost level: no level may have this name."""

RACK_LEVEL = "rack"
"""The level whose domains are the racks of nodes, which may have power limits."""

MAX_AMOUNT = 2**40
"""The upper bound of CPUs, memory, power and counts: sums over nodes and jobs then fit into 64-bit integers."""


def _check_busy_watts(name: str, idle_watts: float, busy_watts: float) -> None:
    """Raise if busy power is below idle power. 0 busy watts: unknown, so the idle power is used."""
    if 0 < busy_watts < idle_watts:
        raise BadValue(f"{name}: busy_watts is {busy_watts:g}, expected at least idle_watts, {idle_watts:g}")


class GpuType(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A GPU model. `speed` is relative: a type with speed 2.0 does the work of a job in half the time."""

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
        _check_busy_watts(f"GPU type {self.name!r}", self.idle_watts, self.busy_watts)


class Link(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A communication link: NVLink or PCIe within a node, or the network between nodes."""

    kind: str
    gigabytes_per_second: float
    latency_microseconds: float = 0.0

    def __post_init__(self) -> None:
        amounts = (self.gigabytes_per_second, self.latency_microseconds)
        if min(amounts) < 0 or self.gigabytes_per_second == 0 or not all(isfinite(amount) for amount in amounts):
            raise BadValue(f"link {self.kind!r}: bandwidth must be > 0 and latency ≥ 0")


PCIE = Link("pcie", 16.0)
ETHERNET = Link("ethernet", 1.25)


class Level(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A level of a cluster, such as racks: it divides the nodes into domains.

    `link` connects the nodes of a domain; None: it is the link of the next outer level.
    """

    name: str
    link: Link | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name == NODE_LEVEL:
            raise BadValue(f"a level is named {self.name!r}, expected a name such as rack or block")


class Node(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One machine: `gpus` GPUs of one type, CPUs, memory and rack.

    `domains` are the names of its domains, one for each level of the cluster, outermost first. `inside` is the link
    between its GPUs. `idle_watts` and `busy_watts` are its power without GPUs.
    """

    name: str
    gpus: int = 0
    gpu_type: str = ""
    cpu_milli: Milli = 0
    memory_mib: MiB = 0
    rack: str = ""
    inside: Link = PCIE
    idle_watts: float = 0.0
    busy_watts: float = 0.0
    domains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise BadValue("a node needs a name")
        if not 0 <= self.gpus <= MAX_GPUS_PER_NODE:
            raise BadValue(f"node {self.name!r} has {self.gpus} GPUs, expected 0 to {MAX_GPUS_PER_NODE}")
        if self.gpus and not self.gpu_type:
            raise BadValue(f"node {self.name!r} has GPUs but no gpu_type")
        amounts = (self.cpu_milli, self.memory_mib, self.idle_watts, self.busy_watts)
        if not all(0 <= amount <= MAX_AMOUNT for amount in amounts):
            raise BadValue(f"node {self.name!r}: CPUs, memory and power must be 0 to {MAX_AMOUNT}")
        _check_busy_watts(f"node {self.name!r}", self.idle_watts, self.busy_watts)


class Rack(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A rack and its power limit; 0 watts: no known limit."""

    name: str
    limit_watts: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise BadValue("a rack needs a name")
        if not 0 <= self.limit_watts <= MAX_AMOUNT:
            raise BadValue(f"rack {self.name!r}: limit_watts is {self.limit_watts:g}, expected watts ≥ 0 (0: no limit)")


class Tenant(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A team that shares the cluster.

    `quota_gpus` is the number of GPUs that its guaranteed jobs are entitled to; `limit_gpus` is the most it may use
    (0: no limit).
    """

    name: str
    quota_gpus: float = 0.0
    limit_gpus: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise BadValue("a tenant needs a name")
        if not (isfinite(self.quota_gpus) and self.quota_gpus >= 0):
            raise BadValue(f"tenant {self.name!r}: quota_gpus is {self.quota_gpus}, expected GPUs ≥ 0")
        if not (isfinite(self.limit_gpus) and self.limit_gpus >= 0):
            raise BadValue(f"tenant {self.name!r}: limit_gpus is {self.limit_gpus}, expected GPUs ≥ 0 (0: no limit)")


class Cluster(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """All nodes, in a fixed order: code refers to a node by its index, user output by its name.

    If the CPUs or the memory of the nodes are unknown, set `cpus_known` or `memory_known` to False: requests for them
    are then ignored. If the cluster lists no tenants, quotas and limits do not apply; if it lists some, all other
    tenants have a quota of 0.

    `levels` divide the nodes into domains, outermost first. `network` is the link between the domains of the outermost
    level; without levels, between all nodes.
    """

    nodes: tuple[Node, ...]
    gpu_types: tuple[GpuType, ...] = ()
    racks: tuple[Rack, ...] = ()
    network: Link = ETHERNET
    name: str = "cluster"
    cpus_known: bool = True
    memory_known: bool = True
    tenants: tuple[Tenant, ...] = ()
    levels: tuple[Level, ...] = ()

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
        self._check_levels()

    def _check_levels(self) -> None:
        names = self.level_names
        if len(set(names)) != len(names) or len(names) > MAX_LEVELS:
            raise BadValue(f"cluster {self.name!r}: levels are {names}, expected at most {MAX_LEVELS} different names")
        for node in self.nodes:
            if len(node.domains) != len(names) or not all(node.domains):
                problem = f"domains are {node.domains}, expected one for each of the levels {names}"
                raise BadValue(f"node {node.name!r}: {problem}")
            if RACK_LEVEL in names and node.rack != node.domains[names.index(RACK_LEVEL)]:
                raise BadValue(f"node {node.name!r}: rack is {node.rack!r}, but its domains are {node.domains}")

    def with_levels(self, levels: Sequence[Level], domains: Iterable[Sequence[str]]) -> Cluster:
        """Return the cluster with levels and the domains of each node; that of the level `rack` is its rack.

        A domain may be '': the node is a domain by itself, since what is on one node is in one domain.
        """
        racks = [index for index, level in enumerate(levels) if level.name == RACK_LEVEL]
        nodes: list[Node] = []
        for node, given in zip(self.nodes, domains, strict=True):
            path = tuple(name or f"node/{node.name}" for name in given)
            nodes.append(replace(node, domains=path, rack=path[racks[0]] if racks else node.rack))
        return replace(self, nodes=tuple(nodes), levels=tuple(levels))

    def with_levels_of_labels(self, labels: Sequence[str], of_nodes: Sequence[Mapping[str, str]]) -> Cluster:
        """Return the cluster with the levels that these labels of its nodes name.

        A label that no node with GPUs has is left out. A node without a label is a domain by itself.
        """
        with_gpus = [own for node, own in zip(self.nodes, of_nodes, strict=True) if node.gpus]
        known = [label for label in labels if any(own.get(label) for own in with_gpus)]
        return self.with_levels(
            [Level(label) for label in known], [[own.get(label, "") for label in known] for own in of_nodes]
        )

    @cached_property
    def level_names(self) -> tuple[str, ...]:
        """The names of the levels, outermost first."""
        return tuple(level.name for level in self.levels)

    def level(self, name: str) -> int:
        """Return the index of a level by name; '' is the innermost level."""
        if name not in self.level_names and (name or not self.levels):
            raise UnknownName("level", name, self.level_names)
        return self.level_names.index(name) if name else len(self.levels) - 1

    def domain(self, node: int, level: int) -> tuple[str, ...]:
        """Return the domain of a node at a level, with the domains that contain it, outermost first."""
        return self.nodes[node].domains[: level + 1]

    def link_between(self, nodes: Collection[int]) -> Link:
        """Return the slowest link between some nodes: that of the innermost domain that contains all of them."""
        paths = {self.nodes[node].domains for node in nodes}
        shared = [
            level.link for depth, level in enumerate(self.levels) if len({path[: depth + 1] for path in paths}) <= 1
        ]
        return next((link for link in reversed(shared) if link is not None), self.network)

    @cached_property
    def index_of_node(self) -> Mapping[str, int]:
        """The index of each node by name."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    @cached_property
    def type_names(self) -> tuple[str, ...]:
        """Every GPU type in use, in alphabetical order."""
        return tuple(sorted({node.gpu_type for node in self.nodes if node.gpus}))

    def types_of(self, nodes: NodeSet) -> tuple[str, ...]:
        """Return the GPU types of some nodes, in alphabetical order."""
        found = self._types_of_sets.get(nodes)
        if found is None:
            if len(self._types_of_sets) >= MAX_REMEMBERED_SETS:
                self._types_of_sets.clear()
            members = (self.nodes[node] for node in nodes if node < len(self.nodes))
            found = self._types_of_sets[nodes] = tuple(sorted({node.gpu_type for node in members if node.gpus}))
        return found

    @cached_property
    def _types_of_sets(self) -> dict[NodeSet, tuple[str, ...]]:
        return {}

    @cached_property
    def gpus(self) -> int:
        """The number of GPUs."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def has_slots(self) -> bool:
        """Whether it shares CPU slots in place of GPUs."""
        return all(node.gpu_type == SLOT for node in self.nodes)

    @cached_property
    def max_node_gpus(self) -> int:
        """GPUs of the largest node."""
        return max(node.gpus for node in self.nodes)

    @cached_property
    def _type_by_name(self) -> Mapping[str, GpuType]:
        return {gpu_type.name: gpu_type for gpu_type in self.gpu_types}

    def gpu_type(self, name: str) -> GpuType:
        """Return a GPU type by name, with default properties if the cluster does not describe it."""
        known = self._type_by_name.get(name)
        if known is None and name not in self.type_names:
            raise UnknownName("GPU type", name, self.type_names)
        return known or GpuType(name)

    def quota_gpus(self, tenant: str) -> float:
        """Return the quota of a tenant: infinite if the cluster lists no tenants, 0 for a tenant not listed."""
        return self._quotas.get(tenant, 0.0) if self.tenants else inf

    @cached_property
    def _quotas(self) -> Mapping[str, float]:
        return {tenant.name: tenant.quota_gpus for tenant in self.tenants}

    @cached_property
    def cpu_milli(self) -> Milli:
        """The number of CPUs, in thousandths."""
        return sum(node.cpu_milli for node in self.nodes)

    @cached_property
    def memory_mib(self) -> MiB:
        """The memory of all nodes."""
        return sum(node.memory_mib for node in self.nodes)
