"""The machine that the daemon runs on: its GPUs or the slots that stand in for them, and the cluster they make up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import msgspec

from refold.backends.local import SLOT, DetectedGpu, GpuProblem, GpuReading, NvidiaDriver, open_driver
from refold.catalogue import find_gpu
from refold.errors import BadInput, UnknownName
from refold.model import PCIE, Cluster, GpuType, MiB, Node, mib_from_gib, milli_from_number
from refold.server.config import ClusterChoice, Config

MOST_SLOTS = 8
HERE = "localhost"
"""The name of a machine that is one node."""

Place = tuple[int, int]
"""Which node of the cluster, and which GPU of it."""


class Machine(Protocol):
    """What has GPUs and can tell how they do."""

    def gpus(self) -> Sequence[DetectedGpu]:
        """Those that may be used; their `index` is where they stand here."""
        ...

    def read(self) -> Sequence[GpuReading]:
        """How each of them does now."""
        ...

    def problems(self) -> Sequence[GpuProblem]:
        """What has gone wrong with them since this was last asked."""
        ...

    def close(self) -> None:
        """Nobody will ask again."""
        ...


class NvidiaMachine:
    """The GPUs of NVIDIA's driver."""

    def __init__(self, driver: NvidiaDriver) -> None:
        self._driver = driver

    def gpus(self) -> Sequence[DetectedGpu]:
        """Those that CUDA_VISIBLE_DEVICES leaves us."""
        return self._driver.gpus

    def read(self) -> Sequence[GpuReading]:
        """As the driver measures it."""
        return self._driver.read()

    def problems(self) -> Sequence[GpuProblem]:
        """Errors that the driver has reported or counted."""
        return self._driver.problems()

    def close(self) -> None:
        """Let go of the driver."""
        self._driver.close()


class SlotsMachine:
    """Slots that stand in for GPUs. Nothing is measured of them, and nothing goes wrong with them."""

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def gpus(self) -> Sequence[DetectedGpu]:
        """One for each slot, which no driver knows."""
        return [DetectedGpu(index, "", SLOT, SLOT) for index in range(self._slots)]

    def read(self) -> Sequence[GpuReading]:
        """What is not known."""
        return [GpuReading(index) for index in range(self._slots)]

    def problems(self) -> Sequence[GpuProblem]:
        """None."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""


def usual_slots() -> int:
    """As how many slots a machine without GPUs is offered: not many, since jobs need CPUs themselves."""
    return min(os.cpu_count() or 1, MOST_SLOTS)


def machine_of(choice: ClusterChoice) -> Machine:
    """This machine as the owner wants it used; one without GPUs and without a word of slots has neither."""
    if choice.placeholders:
        return SlotsMachine(sum(choice.placeholders.values()))
    driver = open_driver()
    return SlotsMachine(0) if driver is None else NvidiaMachine(driver)


class Layout(msgspec.Struct, frozen=True):
    """A cluster, and the GPUs that it is made of.

    `places`: for each GPU of the machine, which one of the cluster it is; None: it is left alone. `devices`: for each
    node the ids of its GPUs, as CUDA takes them; None where slots stand in. `device_memory_mib`: for each node how much
    memory each of its GPUs has; 0: nobody knows.
    """

    cluster: Cluster
    places: tuple[Place | None, ...]
    devices: tuple[tuple[str, ...], ...] | None = None
    device_memory_mib: tuple[MiB, ...] = ()


def cluster_of(machine: Machine, config: Config) -> Cluster:
    """The cluster that a machine is."""
    return layout_of(machine, config).cluster


def layout_of(machine: Machine, config: Config) -> Layout:
    """A node for each type of GPU, of which there is mostly one; or the nodes that slots stand in for."""
    choice = config.cluster
    groups = _placeholders(machine.gpus(), choice) if choice.placeholders else _by_type(_chosen(machine.gpus(), choice))
    place_of = {
        gpu.index: (node, position) for node, (_, gpus) in enumerate(groups) for position, gpu in enumerate(gpus)
    }
    cluster = Cluster(
        tuple(_node(choice, name, gpus) for name, gpus in groups),
        () if choice.placeholders else tuple(_gpu_type(gpus[0]) for _, gpus in groups),
        name=choice.name,
        cpus_known=choice.cpus > 0,
        memory_known=choice.memory_gib > 0,
        tenants=config.tenants,
    )
    places = tuple(place_of.get(gpu.index) for gpu in machine.gpus())
    if choice.placeholders:
        return Layout(cluster, places)
    devices = tuple(tuple(gpu.uuid for gpu in gpus) for _, gpus in groups)
    memory = tuple(min(gpu.memory_mib or 0 for gpu in gpus) for _, gpus in groups)
    return Layout(cluster, places, devices, memory)


def _placeholders(slots: Sequence[DetectedGpu], choice: ClusterChoice) -> list[tuple[str, Sequence[DetectedGpu]]]:
    groups: list[tuple[str, Sequence[DetectedGpu]]] = []
    taken = 0
    for name, count in choice.placeholders.items():
        groups.append((name, slots[taken : taken + count]))
        taken += count
    return groups


def _chosen(found: Sequence[DetectedGpu], choice: ClusterChoice) -> Sequence[DetectedGpu]:
    if not found:
        raise BadInput(
            "no GPUs were found here (by NVIDIA's driver); say how many slots stand in for them: "
            "`refold serve --slots 4`, or 'slots: 4' under 'cluster' in refold.yaml"
        )
    if choice.gpus == "auto":
        return found
    for number in choice.gpus:
        if number >= len(found):
            raise BadInput(f"cluster.gpus names GPU {number}, and there are GPUs 0 to {len(found) - 1}")
    return [found[number] for number in choice.gpus]


def _by_type(gpus: Sequence[DetectedGpu]) -> list[tuple[str, Sequence[DetectedGpu]]]:
    """A node has GPUs of one type: a machine with several is as many nodes."""
    types = list(dict.fromkeys(gpu.gpu_type for gpu in gpus))
    return [
        (HERE if len(types) == 1 else f"{HERE}-{name}", [gpu for gpu in gpus if gpu.gpu_type == name]) for name in types
    ]


def _node(choice: ClusterChoice, name: str, gpus: Sequence[DetectedGpu]) -> Node:
    gpu_type = gpus[0].gpu_type
    try:
        inside = find_gpu(gpu_type).link
    except UnknownName:
        inside = PCIE
    cpus, memory = milli_from_number(choice.cpus), mib_from_gib(choice.memory_gib)
    return Node(name, len(gpus), gpu_type, cpus, memory, inside=inside)


def _gpu_type(gpu: DetectedGpu) -> GpuType:
    return GpuType(gpu.gpu_type, memory_gib=round((gpu.memory_mib or 0) / 1024, 1))
