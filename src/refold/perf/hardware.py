"""The hardware as far as time and memory depend on it: a type of GPU, and the machines a job would run on."""

from __future__ import annotations

from math import isfinite

import msgspec

from refold.errors import BadValue
from refold.model import Link


class Efficiency(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How much of what the data sheet says a type of GPU reaches: fitted once per type, never per table.

    `matmul`: share of the peak that large products of matrices reach; half of it is reached with
    `half_tokens` rows of 1,024 columns (fewer where there are more columns), or with `half_width` columns.
    `attention`: share of the peak inside fused attention. `memory`, `link`, `network`, `pcie`: shares of those
    bandwidths.
    """

    matmul: float = 0.7
    half_tokens: float = 700.0
    half_width: float = 100.0
    attention: float = 0.45
    memory: float = 0.8
    link: float = 0.75
    network: float = 0.6
    pcie: float = 0.7

    def __post_init__(self) -> None:
        shares = (self.matmul, self.attention, self.memory, self.link, self.network, self.pcie)
        if not all(0 < share <= 1 for share in shares) or not (self.half_tokens >= 0 and self.half_width >= 0):
            raise BadValue(f"efficiencies are shares of 0 to 1, and halves are ≥ 0, not {self}")


class GpuSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A type of GPU as its data sheet has it, and the nodes it usually stands in.

    Rates are dense (no sparsity); links count one direction. `network_cards` are those of a node: GPUs use the
    nearest, so a job with few GPUs on a node has few of them.
    """

    name: str
    memory_gib: float
    half_tflops: float
    single_tflops: float
    memory_gigabytes_per_second: float
    link: Link
    pcie_gigabytes_per_second: float
    node_network_gigabytes_per_second: float
    watts: float
    gpus_per_node: int = 8
    network_cards: int = 8
    aliases: tuple[str, ...] = ()
    source: str = ""
    efficiency: Efficiency = Efficiency()

    def __post_init__(self) -> None:
        rates = (
            self.memory_gib,
            self.half_tflops,
            self.single_tflops,
            self.memory_gigabytes_per_second,
            self.pcie_gigabytes_per_second,
            self.node_network_gigabytes_per_second,
            self.watts,
        )
        if not all(isfinite(rate) and rate > 0 for rate in rates) or min(self.gpus_per_node, self.network_cards) < 1:
            raise BadValue(f"GPU {self.name!r}: memory, rates, bandwidths, power and counts must be > 0")


class Machines(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The machines a job would run on: how many GPUs of one type on each node, the links, CPUs and host memory.

    `network` is what one node can send (all its network cards together). CPUs and memory are those of a whole
    job, evenly spread; 0 cpus: as many as are usual, 0 memory: not limited.
    """

    gpu: GpuSpec
    gpus_on_node: tuple[int, ...]
    inside: Link
    network: Link
    cpus: float = 0.0
    memory_gib: float = 0.0

    def __post_init__(self) -> None:
        if not self.gpus_on_node or min(self.gpus_on_node) < 1:
            raise BadValue(f"machines need at least one GPU on each node, not {self.gpus_on_node}")
        if not all(isfinite(amount) and amount >= 0 for amount in (self.cpus, self.memory_gib)):
            raise BadValue("CPUs and memory of machines must be ≥ 0")

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return sum(self.gpus_on_node)

    @property
    def nodes(self) -> int:
        """How many nodes."""
        return len(self.gpus_on_node)


def machines_of(gpu: GpuSpec, gpus: int, *, nodes: int = 0, cpus: float = 0.0, memory_gib: float = 0.0) -> Machines:
    """`gpus` GPUs with the links usual for their type, on `nodes` nodes evenly; 0 nodes: on as few as hold them."""
    if gpus < 1:
        raise BadValue(f"a job needs at least one GPU, not {gpus}")
    if not 0 <= nodes <= gpus:
        raise BadValue(f"{gpus} GPUs cannot be spread over {nodes} nodes")
    layout = _filled(gpus, gpu.gpus_per_node) if not nodes else _even(gpus, nodes)
    network = Link("network", gpu.node_network_gigabytes_per_second)
    return Machines(gpu, layout, gpu.link, network, cpus, memory_gib)


def _filled(gpus: int, per_node: int) -> tuple[int, ...]:
    """Full nodes, and one with the rest."""
    full, rest = divmod(gpus, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


def _even(gpus: int, nodes: int) -> tuple[int, ...]:
    """So many nodes, as even as can be."""
    fewer, more = divmod(gpus, nodes)
    return (fewer + 1,) * more + (fewer,) * (nodes - more)
