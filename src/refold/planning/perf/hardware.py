"""Hardware of the performance model: GPU types, and the machines that a job runs on."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import ceil, isfinite

import msgspec

from refold.errors import BadValue
from refold.model import Link


class Efficiency(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Shares of the data-sheet rates that a GPU type reaches; fitted once per type, never per table.

    `matmul`: share of the peak for large matrix products; half of it is reached with `half_tokens` rows of 1,024
    columns (fewer rows with more columns), or with `half_width` columns. `attention`: share of the peak inside fused
    attention; half of it is reached with `half_keys` keys (447, 523 and 546 TFLOP/s were measured on an H200 with
    2,048, 8,192 and 32,768 tokens). `fp8`, `fp4`: shares of those peaks for large matrix products, quantisation apart.
    `memory`, `link`, `network`, `pcie`: shares of those bandwidths.
    """

    matmul: float = 0.7
    fp8: float = 0.6
    fp4: float = 0.5
    half_tokens: float = 700.0
    half_width: float = 100.0
    attention: float = 0.45
    half_keys: float = 0.0
    memory: float = 0.8
    link: float = 0.75
    network: float = 0.6
    pcie: float = 0.7

    def __post_init__(self) -> None:
        shares = (
            self.matmul,
            self.fp8,
            self.fp4,
            self.attention,
            self.memory,
            self.link,
            self.network,
            self.pcie,
        )
        if not all(0 < share <= 1 for share in shares) or min(self.half_tokens, self.half_width, self.half_keys) < 0:
            raise BadValue(f"efficiency is {self}, expected shares > 0 and ≤ 1, and the others ≥ 0")


class GpuSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A GPU type by its data sheet, and the nodes that it commonly comes in.

    Rates are dense (no sparsity), links are counted in one direction. `network_cards` is the number per node: GPUs use
    the nearest card, so a job with few GPUs on a node uses only some of them. `fp8_tflops`, `fp4_tflops`: 0 if the type
    has no such arithmetic. `peer_to_peer`: whether GPUs of a node reach each other's memory; where transfers go through
    the host, they do not overlap with computation. `link_domain`: GPUs that `link` connects, where these are more than
    those of a node. `released`: year and month in which it could be had, '2022-09'; empty: not stated. `bfloat16`:
    whether half precision may be bfloat16; otherwise it is float16.
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
    fp8_tflops: float = 0.0
    fp4_tflops: float = 0.0
    gpus_per_node: int = 8
    peer_to_peer: bool = True
    link_domain: int = 0
    network_cards: int = 8
    aliases: tuple[str, ...] = ()
    source: str = ""
    released: str = ""
    bfloat16: bool = True
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
        optional = (self.fp8_tflops, self.fp4_tflops, self.link_domain)
        if not all(isfinite(value) and value >= 0 for value in optional):
            raise BadValue(f"GPU {self.name!r}: fp8_tflops, fp4_tflops and link_domain must be ≥ 0")


DEFAULT_MARGIN = 0.06
"""Share of GPU memory that plans leave free: the allocator loses it to fragmentation."""


class Crossing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A level of the cluster, such as racks, of which a job uses several domains.

    `gpus_in_domain`: its GPUs in each of them. `network`: the bandwidth of each node to nodes of other domains.
    """

    gpus_in_domain: tuple[int, ...]
    network: Link


class Machines(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The machines of a job: GPUs of one type on each node, links, CPUs and host memory.

    `network` is the bandwidth out of one node (all its network cards together). CPUs and memory are totals of the job,
    evenly spread; 0 CPUs: the default per GPU, 0 memory: unlimited. `margin`: share of GPU memory to be left free.
    `link_domains`: GPUs in each domain that `inside` connects; empty: as few domains as possible, by the GPU type.
    `crossings`: the levels that the job crosses, innermost first; `network` connects the nodes below them.
    """

    gpu: GpuSpec
    gpus_on_node: tuple[int, ...]
    inside: Link
    network: Link
    cpus: float = 0.0
    memory_gib: float = 0.0
    margin: float = DEFAULT_MARGIN
    link_domains: tuple[int, ...] = ()
    crossings: tuple[Crossing, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise BadValue(f"margin is {self.margin}, expected a share ≥ 0 and < 1")
        if not self.gpus_on_node or min(self.gpus_on_node) < 1:
            raise BadValue(f"gpus_on_node is {self.gpus_on_node}, expected at least one GPU on each node")
        if not all(isfinite(amount) and amount >= 0 for amount in (self.cpus, self.memory_gib)):
            raise BadValue(f"cpus is {self.cpus} and memory_gib is {self.memory_gib}, expected numbers ≥ 0")

    @property
    def gpus(self) -> int:
        return sum(self.gpus_on_node)

    @property
    def usable_gib(self) -> float:
        """Memory of a GPU without the margin."""
        return self.gpu.memory_gib * (1 - self.margin)

    @property
    def nodes(self) -> int:
        return len(self.gpus_on_node)

    @property
    def domains(self) -> tuple[int, ...]:
        """GPUs in each domain that `inside` connects: those of a node, or of several nodes (NVL72).

        Nodes are spread evenly over as few domains as possible, unless `link_domains` says otherwise.
        """
        if self.link_domains:
            return self.link_domains
        nodes_each = max(1, self.gpu.link_domain // max(self.gpus_on_node))
        if nodes_each == 1:
            return self.gpus_on_node
        ends = list(accumulate(spread_evenly(self.nodes, ceil(self.nodes / nodes_each))))
        return tuple(sum(self.gpus_on_node[start:end]) for start, end in pairwise([0, *ends]))


def build_machines(gpu: GpuSpec, gpus: int, *, nodes: int = 0, cpus: float = 0.0, memory_gib: float = 0.0) -> Machines:
    """Return machines with the default links of a GPU type, spread over `nodes`; 0: as few nodes as possible."""
    if gpus < 1:
        raise BadValue(f"{gpus} GPUs, expected at least 1")
    if not 0 <= nodes <= gpus:
        raise BadValue(f"{gpus} GPUs cannot be spread over {nodes} nodes")
    layout = _fill_nodes(gpus, gpu.gpus_per_node) if not nodes else spread_evenly(gpus, nodes)
    network = Link("network", gpu.node_network_gigabytes_per_second)
    return Machines(gpu, layout, gpu.link, network, cpus, memory_gib)


def _fill_nodes(gpus: int, per_node: int) -> tuple[int, ...]:
    """Return full nodes, and one with the rest."""
    full, rest = divmod(gpus, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


def spread_evenly(gpus: int, nodes: int) -> tuple[int, ...]:
    """Return the GPUs of each node (or the nodes of each domain), as even as possible."""
    fewer, more = divmod(gpus, nodes)
    return (fewer + 1,) * more + (fewer,) * (nodes - more)
