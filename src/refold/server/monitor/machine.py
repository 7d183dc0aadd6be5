"""The machine of the daemon: its GPUs, or slots in place of GPUs, and the cluster built from them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from refold.errors import BadInput, BadValue, UnknownName
from refold.model import PCIE, SLOT, Cluster, GpuType, MiB, Node, Rack, format_count, mib_from_gib, milli_from_number
from refold.placement import Power
from refold.planning.catalogue import find_gpu
from refold.server.config import (
    POWER_PLACEMENT,
    POWER_POLICIES,
    ClusterConfig,
    Config,
    PolicyConfig,
    PowerConfig,
    PowerRange,
    Topology,
)
from refold.server.monitor.nvidia import DetectedGpu, GpuProblem, GpuReading, NvidiaDriver, open_driver
from refold.simulator import default_settings

log = logging.getLogger("refold")

MAX_DEFAULT_SLOTS = 8
"""Maximum default number of slots of a machine without GPUs."""

LOCAL_NODE_NAME = "localhost"
"""Node name of a machine that is one node."""

GpuPosition = tuple[int, int]
"""Node index and GPU index on the node."""


class Machine(Protocol):
    def gpus(self) -> Sequence[DetectedGpu]:
        """Return the usable GPUs; `index` counts from 0 in this list."""

    def read(self) -> Sequence[GpuReading]:
        """Return the current readings."""

    def problems(self) -> Sequence[GpuProblem]:
        """Return the problems since the last call."""

    def close(self) -> None:
        """Release the driver."""


class NvidiaMachine:
    def __init__(self, driver: NvidiaDriver) -> None:
        self._driver = driver

    def gpus(self) -> Sequence[DetectedGpu]:
        """Return the GPUs that CUDA_VISIBLE_DEVICES allows."""
        return self._driver.gpus

    def read(self) -> Sequence[GpuReading]:
        """Return the driver's readings."""
        return self._driver.read()

    def problems(self) -> Sequence[GpuProblem]:
        """Return errors that the driver reported or counted."""
        return self._driver.problems()

    def close(self) -> None:
        self._driver.close()


class SlotsMachine:
    def __init__(self, slots: int) -> None:
        self._slots = slots

    def gpus(self) -> Sequence[DetectedGpu]:
        """Return one GPU without UUID per slot."""
        return [DetectedGpu(index, "", SLOT, SLOT) for index in range(self._slots)]

    def read(self) -> Sequence[GpuReading]:
        return [GpuReading(index) for index in range(self._slots)]

    def problems(self) -> Sequence[GpuProblem]:
        return []

    def close(self) -> None:
        """Do nothing."""


def default_slots() -> int:
    """Return the default number of slots of a machine without GPUs: one per CPU, up to a limit."""
    return min(os.cpu_count() or 1, MAX_DEFAULT_SLOTS)


def open_machine(cluster_config: ClusterConfig) -> Machine:
    """Open this machine as configured. Without configured slots and without GPUs, the machine has no slots."""
    if cluster_config.slots_by_node:
        return SlotsMachine(sum(cluster_config.slots_by_node.values()))
    driver = open_driver()
    return SlotsMachine(0) if driver is None else NvidiaMachine(driver)


class Layout(msgspec.Struct, frozen=True):
    """A cluster, and how it maps to the GPUs of the machine.

    `positions`: for each GPU of the machine its position in the cluster, None if it is not used. `devices`: for each
    node the UUIDs of its GPUs for CUDA, None for slots. `device_memory_mib`: for each node the memory of its smallest
    GPU, 0 if unknown.
    """

    cluster: Cluster
    positions: tuple[GpuPosition | None, ...]
    devices: tuple[tuple[str, ...], ...] | None = None
    device_memory_mib: tuple[MiB, ...] = ()


def build_layout(machine: Machine, config: Config) -> Layout:
    """Return the layout: one node per GPU type (usually one), or the configured nodes of slots."""
    cluster_config = config.cluster
    groups = (
        _slot_groups(machine.gpus(), cluster_config)
        if cluster_config.slots_by_node
        else _group_by_type(_select(machine.gpus(), cluster_config))
    )
    position_of = {
        gpu.index: (node, position) for node, (_, gpus) in enumerate(groups) for position, gpu in enumerate(gpus)
    }
    cluster = Cluster(
        tuple(_node(cluster_config, name, gpus) for name, gpus in groups),
        () if cluster_config.slots_by_node else _gpu_types(groups),
        name=cluster_config.name,
        cpus_known=cluster_config.cpus > 0,
        memory_known=cluster_config.memory_gib > 0,
        tenants=config.tenants,
    )
    cluster = with_power(with_topology(cluster, config.topology), config.power, config.policy)
    positions = tuple(position_of.get(gpu.index) for gpu in machine.gpus())
    if cluster_config.slots_by_node:
        return Layout(cluster, positions)
    devices = tuple(tuple(gpu.uuid for gpu in gpus) for _, gpus in groups)
    memory = tuple(min(gpu.memory_mib or 0 for gpu in gpus) for _, gpus in groups)
    return Layout(cluster, positions, devices, memory)


def _slot_groups(
    slots: Sequence[DetectedGpu], cluster_config: ClusterConfig
) -> list[tuple[str, Sequence[DetectedGpu]]]:
    groups: list[tuple[str, Sequence[DetectedGpu]]] = []
    start = 0
    for name, count in cluster_config.slots_by_node.items():
        groups.append((name, slots[start : start + count]))
        start += count
    return groups


def _select(gpus: Sequence[DetectedGpu], cluster_config: ClusterConfig) -> Sequence[DetectedGpu]:
    if not gpus:
        raise BadInput(
            "no GPUs found (NVIDIA driver); use CPU slots instead: "
            "`refold serve --slots 4`, or 'slots: 4' under 'cluster' in refold.yaml"
        )
    if cluster_config.gpus == "auto":
        return gpus
    for number in cluster_config.gpus:
        if number >= len(gpus):
            raise BadInput(f"cluster.gpus lists GPU {number}, but this machine has GPUs 0 to {len(gpus) - 1}")
    return [gpus[number] for number in cluster_config.gpus]


def _group_by_type(gpus: Sequence[DetectedGpu]) -> list[tuple[str, Sequence[DetectedGpu]]]:
    """Group GPUs by type: a node has GPUs of one type only. A MIG instance is a node of its own.

    Of several MIG instances, a process can use only the first; on nodes with one, it gets no more.
    """
    whole = [gpu for gpu in gpus if not gpu.mig_parent]
    types = list(dict.fromkeys(gpu.gpu_type for gpu in whole))
    names = {name: f"{LOCAL_NODE_NAME}-{name}" if len(types) > 1 else LOCAL_NODE_NAME for name in types}
    groups: list[tuple[str, Sequence[DetectedGpu]]] = [
        (names[name], [gpu for gpu in whole if gpu.gpu_type == name]) for name in types
    ]
    instances = [gpu for gpu in gpus if gpu.mig_parent]
    return [*groups, *((f"{LOCAL_NODE_NAME}-mig{number}", [gpu]) for number, gpu in enumerate(instances))]


def _node(cluster_config: ClusterConfig, name: str, gpus: Sequence[DetectedGpu]) -> Node:
    gpu_type = gpus[0].gpu_type
    try:
        link = find_gpu(gpu_type).link
    except UnknownName:
        link = PCIE
    cpus, memory = milli_from_number(cluster_config.cpus), mib_from_gib(cluster_config.memory_gib)
    return Node(name, len(gpus), gpu_type, cpus, memory, inside=link)


def _gpu_types(groups: Sequence[tuple[str, Sequence[DetectedGpu]]]) -> tuple[GpuType, ...]:
    first_of = {gpus[0].gpu_type: gpus[0] for _, gpus in reversed(groups)}
    return tuple(_gpu_type(first_of[name]) for name in dict.fromkeys(gpus[0].gpu_type for _, gpus in groups))


def _gpu_type(gpu: DetectedGpu) -> GpuType:
    return GpuType(gpu.gpu_type, memory_gib=round((gpu.memory_mib or 0) / 1024, 1))


def with_topology(cluster: Cluster, config: Topology) -> Cluster:
    """Return the cluster with the levels of `refold.yaml`; unchanged without any."""
    if not config.levels:
        return cluster
    if missing := [node.name for node in cluster.nodes if node.name not in config.domains]:
        log.warning("topology.domains: %s not listed, such as %s", format_count(len(missing), "node"), missing[0])
    unknown = ("",) * len(config.levels)
    return cluster.with_levels(config.levels, [config.domains.get(node.name, unknown) for node in cluster.nodes])


# Racks and watts of the machine's cluster, from `refold.yaml` and the data sheets of GPUs.


def with_power(cluster: Cluster, config: PowerConfig, policy: PolicyConfig) -> Cluster:
    """Return the cluster with racks, power limits and watts, which the policy must keep; unchanged without racks."""
    if not config.racks:
        return cluster
    _check_policy(policy)
    rack_of = _rack_of_node(cluster, config)
    watts = config.node_watts
    try:
        powered = replace(
            cluster,
            nodes=tuple(
                replace(node, rack=rack_of.get(node.name, node.rack), idle_watts=watts.idle, busy_watts=watts.busy)
                for node in cluster.nodes
            ),
            gpu_types=tuple(_with_watts(cluster, name, config.gpu_watts) for name in cluster.type_names),
            racks=(
                *(rack for rack in cluster.racks if rack.name not in config.racks),
                *(Rack(name, rack.limit_watts) for name, rack in config.racks.items()),
            ),
        )
        Power(powered).reject_limits_below_idle()
    except BadValue as error:
        raise BadInput(f"power.racks: {error}") from None
    return powered


def _check_policy(policy: PolicyConfig) -> None:
    able = [name for name in POWER_POLICIES if "placement" in default_settings(name)]
    if policy.name not in able:
        raise BadInput(
            f"power.racks: policy {policy.name!r} does not keep power limits; policies that do: {', '.join(able)}"
        )
    placement = policy.settings.get("placement", POWER_PLACEMENT)
    if placement != POWER_PLACEMENT:
        raise BadInput(f"power.racks: placement {placement!r} does not keep power limits; only {POWER_PLACEMENT} does")


def _rack_of_node(cluster: Cluster, config: PowerConfig) -> dict[str, str]:
    """Return the rack of each node: as configured, else as the engine reports it; a single rack can have all nodes."""
    names = [node.name for node in cluster.nodes]
    found: dict[str, str] = {}
    for rack_name, rack in config.racks.items():
        nodes = rack.nodes or [node.name for node in cluster.nodes if node.rack == rack_name]
        if not nodes and len(config.racks) > 1:
            raise BadInput(f"power.racks.{rack_name}: nodes is missing: with several racks, each lists its nodes")
        for node in nodes or names:
            if node not in names:
                raise BadInput(f"power.racks.{rack_name}.nodes: {UnknownName('node', node, names)}")
            found[node] = rack_name
    return found


def _with_watts(cluster: Cluster, name: str, configured: PowerRange | None) -> GpuType:
    gpu_type = cluster.gpu_type(name)
    if configured is not None:
        return replace(gpu_type, idle_watts=configured.idle, busy_watts=configured.busy)
    try:
        return replace(gpu_type, busy_watts=find_gpu(name).watts)
    except UnknownName:
        raise BadInput(
            f"power.gpu_watts is missing, and no data sheet of {name!r} is known; expected watts such as "
            "{idle: 60, busy: 400}"
        ) from None
