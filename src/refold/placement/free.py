# cython: boundscheck=True, wraparound=True
"""Free resources of a cluster, as the arrays of `layout`, and the operations that change them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import cython
import numpy as np
from msgspec.structs import replace

from refold.model import WHOLE, Cluster, Demand, Placement, Share, Shortage
from refold.placement import domains, kernels, layout
from refold.placement.allowed import empty_allowed_rows, encode_request
from refold.placement.layout import (
    CPU_FREE,
    CPU_HASH,
    CPU_TOTAL,
    DEMAND_ENTRIES,
    FIRST_GPU,
    GPU_HASH,
    GPUS,
    INSTANCES_THAT_FIT,
    MAX_FREE,
    MEMORY_FREE,
    MEMORY_HASH,
    MEMORY_TOTAL,
    MILLI_FREE,
    NODE_COLUMNS,
    SIGNATURE,
    SIGNATURE_BITS,
    TYPE_BIT,
    UNLIMITED,
    UP,
    WHOLE_FREE,
    Ints,
    Need,
    Words,
)

if not cython.compiled:
    from refold.placement.allowed import AllowedRows
    from refold.placement.kernels import EncodedDemand, FreeArrays

_REFUSAL_TEXTS = {
    layout.NODE_DOWN: "the node is down",
    layout.NO_SUCH_GPU: "the node has no such GPU",
    layout.GPU_OVER: "a GPU has too little free capacity",
    layout.CPU_OVER: "too few free CPUs",
    layout.MEMORY_OVER: "too little free memory",
}

ALLOWED = Need._fields.index("allowed")

_MASKS: dict[tuple[int, ...], int] = {(): 0}
_INDICES: dict[int, tuple[int, ...]] = {0: ()}


def mask_from_indices(gpus: tuple[int, ...]) -> int:
    mask = _MASKS.get(gpus)
    if mask is None:
        mask = 0
        for gpu in gpus:
            mask |= 1 << gpu
        _MASKS[gpus] = mask
    return mask


def indices_from_mask(mask: int) -> tuple[int, ...]:
    gpus = _INDICES.get(mask)
    if gpus is None:
        gpus = tuple([gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1])
        _INDICES[mask] = gpus
    return gpus


class FreeResources:
    """Free GPUs, CPUs and memory of every node, and which nodes and GPUs are down."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        nodes, gpus, bits = _build_arrays(cluster)
        allowed = empty_allowed_rows(cluster)
        self._set_arrays(nodes, gpus, bits, _build_room(nodes, allowed), allowed)
        self.down_nodes: frozenset[int] = frozenset()
        self.down_gpus: frozenset[tuple[int, int]] = frozenset()
        """GPUs that are down, as (node, GPU), whether or not their nodes are."""
        self._encoded: dict[Demand, EncodedDemand] = {}
        self._fits_when_empty: dict[Demand, bool] = {}

    def _set_arrays(self, nodes: Ints, gpus: Ints, bits: Words, room: Ints, allowed: AllowedRows) -> None:
        self.nodes, self.gpus, self.bits, self.room = nodes, gpus, bits, room
        self.arrays = FreeArrays(nodes, gpus, bits, room, allowed)
        """The same arrays, for kernels."""

    def copy(self, into: FreeResources | None = None) -> FreeResources:
        """Return an independent copy. `into`: a copy that is not needed any more, whose arrays are used again."""
        if into is not None and into.arrays.allowed is self.arrays.allowed:
            other = into
            other.nodes[:], other.gpus[:], other.bits[:] = self.nodes, self.gpus, self.bits
            other.room[:] = self.room
        else:
            other = FreeResources.__new__(FreeResources)
            other.cluster = self.cluster
            nodes, gpus, bits, room = self.nodes.copy(), self.gpus.copy(), self.bits.copy(), self.room.copy()
            other._set_arrays(nodes, gpus, bits, room, self.arrays.allowed)
        other.down_nodes, other.down_gpus = self.down_nodes, self.down_gpus
        other._encoded, other._fits_when_empty = self._encoded, self._fits_when_empty
        return other

    def encoded(self, demand: Demand) -> EncodedDemand:
        """Return a demand for the kernels, encoded for this cluster (cached)."""
        encoded = self._encoded.get(demand)
        if encoded is None:
            row = encode_demand(demand, self.cluster)
            request = encode_request(demand, self.cluster)
            if demand.allowed_nodes is not None or request.any():
                row[0, ALLOWED] = self.arrays.allowed.add(demand.allowed_nodes, request)
            encoded = self._encoded[demand] = EncodedDemand(row)
        return encoded

    def vector(self, demand: Demand) -> Ints:
        """Return a demand as a row for the kernels, encoded for this cluster (cached)."""
        return self.encoded(demand).demands

    def rows(self, demands: Sequence[Demand]) -> Ints:
        rows = np.zeros((len(demands), DEMAND_ENTRIES), dtype=np.int64)
        for number, demand in enumerate(demands):
            rows[number] = self.vector(demand)[0]
        return rows

    def take(self, placement: Placement) -> str | None:
        """Take a whole placement. If part of it is not free, take nothing and return the reason."""
        for position, share in enumerate(placement):
            refusal = self._take(share)
            if refusal:
                self.release(placement[:position])
                return refusal
        return None

    def _take(self, share: Share) -> str | None:
        if not 0 <= share.node < len(self.cluster.nodes):
            return f"node {share.node} does not exist"
        result = kernels.take(
            self.arrays,
            share.node,
            mask_from_indices(share.gpus),
            share.gpu_milli,
            share.cpu_milli,
            share.memory_mib,
        )
        if result == layout.TAKEN:
            return None
        down = [gpu for gpu in share.gpus if (share.node, gpu) in self.down_gpus]
        problem = f"GPU {down[0]} is down" if result == layout.GPU_OVER and down else _REFUSAL_TEXTS[result]
        return f"node {self.cluster.nodes[share.node].name!r}: {problem}"

    def take_available(self, placement: Placement) -> Placement:
        taken: list[Share] = []
        for share in placement:
            free = self.gpu_milli_of(share.node)
            parts = [Share(share.node, (gpu,), min(free[gpu], share.gpu_milli)) for gpu in share.gpus if free[gpu]]
            cpu, memory = self.nodes.item(share.node, CPU_FREE), self.nodes.item(share.node, MEMORY_FREE)
            parts.append(Share(share.node, (), WHOLE, min(cpu, share.cpu_milli), min(memory, share.memory_mib)))
            taken += [part for part in parts if self._take(part) is None]
        return tuple(taken)

    def release(self, placement: Iterable[Share]) -> None:
        for share in placement:
            kernels.release(
                self.arrays,
                share.node,
                mask_from_indices(share.gpus),
                share.gpu_milli,
                share.cpu_milli,
                share.memory_mib,
            )

    def retake(self, placement: Iterable[Share]) -> None:
        """Take a placement again that was just released, without checks: its nodes or GPUs may be down by now."""
        for share in placement:
            kernels.take_unchecked(
                self.arrays,
                share.node,
                mask_from_indices(share.gpus),
                share.gpu_milli,
                share.cpu_milli,
                share.memory_mib,
            )

    def has(self, placement: Placement) -> bool:
        if self.take(placement) is not None:
            return False
        self.release(placement)
        return True

    def set_node_up(self, node: int, up: bool) -> None:
        """Mark a node up or down. Resources in use on it stay in use."""
        kernels.set_node_up(self.arrays, node, int(up))
        self.down_nodes = self.down_nodes - {node} if up else self.down_nodes | {node}

    def set_gpu_up(self, node: int, gpu: int, up: bool) -> None:
        """Mark a GPU up or down. Parts of it in use stay in use; no part is free while it is down."""
        if up == self.is_gpu_up(node, gpu):
            return
        change = Share(node, (gpu,))
        if up:
            self.release((change,))
            self.down_gpus -= {(node, gpu)}
        else:
            self.retake((change,))
            self.down_gpus |= {(node, gpu)}

    def is_up(self, node: int) -> bool:
        return node not in self.down_nodes

    def is_gpu_up(self, node: int, gpu: int) -> bool:
        """Whether a GPU is up. Its node may be down."""
        return (node, gpu) not in self.down_gpus

    def is_placement_up(self, placement: Placement) -> bool:
        if not self.down_nodes and not self.down_gpus:
            return True
        return all(
            self.is_up(share.node) and all(self.is_gpu_up(share.node, gpu) for gpu in share.gpus) for share in placement
        )

    @property
    def gpu_milli(self) -> int:
        """Free GPU capacity, in thousandths of a GPU, on nodes that are up."""
        return int(self.nodes[-1, MILLI_FREE])

    @property
    def whole_gpus(self) -> int:
        """Number of entirely free GPUs on nodes that are up."""
        return int(self.nodes[-1, WHOLE_FREE])

    def gpu_milli_of(self, node: int) -> tuple[int, ...]:
        """Return the free capacity of each GPU of a node, in thousandths; 0 for a GPU that is down."""
        first, count = self.nodes[node, FIRST_GPU], self.nodes[node, GPUS]
        free: list[int] = self.gpus[first : first + count].tolist()
        return tuple(max(gpu, 0) for gpu in free) if self.down_gpus else tuple(free)

    def shortage(self, demand: Demand) -> Shortage:
        """Count the nodes that cannot host one instance of a demand, by the first resource they lack."""
        counts = kernels.count_shortages(self.arrays, self.vector(demand), 0)
        anywhere = int(counts[INSTANCES_THAT_FIT])
        counts[INSTANCES_THAT_FIT] = fit = domains.limit_by_domains(self.arrays, self.encoded(demand), anywhere)
        shortage = shortage_from_counts(demand, len(self.cluster.nodes), counts)
        return shortage if fit == anywhere else replace(shortage, fit_anywhere=anywhere)

    def fits_one_instance(self, demand: Demand) -> bool:
        return kernels.any_node_fits(self.arrays, self.encoded(demand))

    def fits_when_empty(self, demand: Demand) -> bool:
        """Whether all instances fit at once on the empty cluster with every node and GPU up.

        Instances are identical and nodes independent, so filling the nodes one after the other is exact. A required
        level that is waited for only for some time does not count.
        """
        result = self._fits_when_empty.get(demand)
        if result is None and demand.topology is not None and demand.topology.wait is not None:
            result = self.fits_when_empty(replace(demand, topology=demand.topology.relaxed()))
            self._fits_when_empty[demand] = result
        if result is None:
            result = _fits_in_empty_cluster(self.cluster, demand)
            if result and demand.topology is not None:
                result = FreeResources(self.cluster).shortage(demand).instances_fit == demand.instances
            self._fits_when_empty[demand] = result
        return result


def shortage_from_counts(demand: Demand, nodes: int, counts: Ints) -> Shortage:
    """Return the shortage of a demand on a cluster with so many nodes, as counted by `kernels.count_shortages`."""
    fits, down, wrong_type, not_allowed, too_small, few_gpus, few_cpus, little_memory, instances_fit = counts.tolist()
    return Shortage(
        instances=demand.instances,
        instances_fit=instances_fit,
        nodes=nodes,
        nodes_fit=fits,
        down=down,
        wrong_type=wrong_type,
        too_small=too_small,
        too_few_gpus=few_gpus,
        too_few_cpus=few_cpus,
        too_little_memory=little_memory,
        not_allowed=not_allowed,
    )


def _fits_in_empty_cluster(cluster: Cluster, demand: Demand) -> bool:
    remaining = demand.instances
    allowed = demand.allowed_nodes
    for index, node in enumerate(cluster.nodes):
        if allowed is not None and index not in allowed:
            continue
        remaining -= _instances_on_empty_node(
            cluster, node.gpus, node.gpu_type, node.cpu_milli, node.memory_mib, demand
        )
        if remaining <= 0:
            return True
    return False


def _instances_on_empty_node(cluster: Cluster, gpus: int, gpu_type: str, cpu: int, memory: int, demand: Demand) -> int:
    limits = [demand.instances]
    if demand.gpus:
        if gpus < demand.gpus or (demand.gpu_types and gpu_type not in demand.gpu_types):
            return 0
        # A GPU is divided into `per_gpu` parts; an instance takes one part of each of `demand.gpus` different GPUs.
        per_gpu = WHOLE // demand.gpu_milli
        limits.append(gpus * per_gpu // demand.gpus)
    if demand.cpu_milli and cluster.cpus_known:
        limits.append(cpu // demand.cpu_milli)
    if demand.memory_mib and cluster.memory_known:
        limits.append(memory // demand.memory_mib)
    return min(limits)


def encode_demand(demand: Demand, cluster: Cluster) -> Ints:
    """Return a demand as a one-row array for the kernels, with GPU types as bits of this cluster.

    Its allowed nodes are left out: their row is one of a `FreeResources`.
    """
    types, usable = -1, demand.usable_types(cluster)
    if usable:
        types = sum(1 << bit for bit, name in enumerate(cluster.type_names) if name in usable)
    need = Need(demand.instances, demand.gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib, types, 0)
    return np.array([need], dtype=np.int64)


def _build_arrays(cluster: Cluster) -> tuple[Ints, Ints, Words]:
    """Return the arrays of a cluster with all nodes up and free."""
    count = len(cluster.nodes)
    nodes = np.zeros((count + 1, NODE_COLUMNS), dtype=np.int64)
    max_gpus = max(node.gpus for node in cluster.nodes)
    words = (count + 63) // 64
    bits = np.zeros((2 * max_gpus + 3, words + max_gpus + 2), dtype=np.uint64)
    first = 0
    for index, node in enumerate(cluster.nodes):
        row = nodes[index]
        row[UP], row[FIRST_GPU], row[GPUS] = 1, first, node.gpus
        row[WHOLE_FREE], row[MILLI_FREE] = node.gpus, node.gpus * WHOLE
        row[MAX_FREE] = WHOLE if node.gpus else 0
        row[CPU_TOTAL] = row[CPU_FREE] = cpu = node.cpu_milli if cluster.cpus_known else UNLIMITED
        row[MEMORY_TOTAL] = row[MEMORY_FREE] = memory = node.memory_mib if cluster.memory_known else UNLIMITED
        row[TYPE_BIT] = 1 << cluster.type_names.index(node.gpu_type) if node.gpus else 0
        row[SIGNATURE] = signature_when_free(cpu, memory, node.gpus)
        first += node.gpus
        word, bit = index >> 6, np.uint64(1 << (index & 63))
        bits[max_gpus + 2 + node.gpus, word] |= bit
        bits[: node.gpus + 1, word] |= bit
        bits[: node.gpus + 1, (words + node.gpus, -1)] += np.uint64(1)
    nodes[count, (WHOLE_FREE, MILLI_FREE)] = nodes[:count, (WHOLE_FREE, MILLI_FREE)].sum(axis=0)
    return nodes, np.full(first, WHOLE, dtype=np.int64), bits


def _build_room(nodes: Ints, allowed: AllowedRows) -> Ints:
    """Return how many nodes of each innermost domain have how many free GPUs, with all nodes up and free."""
    domain_of, _, number = allowed.tables
    count = int(number[-1]) if len(number) else 0
    room = np.zeros((int(nodes[:-1, WHOLE_FREE].max()) + 1, count), dtype=np.int64)
    if count:
        np.add.at(room, (nodes[:-1, WHOLE_FREE], domain_of[-1]), 1)
    return room


@cache
def signature_when_free(cpu: int, memory: int, gpus: int) -> int:
    """Return the signature of a node that is entirely free; `kernels.adjust_free` keeps it up to date."""
    signature = 1 + cpu * CPU_HASH + memory * MEMORY_HASH  # 0 marks an unused cache entry
    signature += WHOLE * sum(GPU_HASH ** (gpu + 1) for gpu in range(gpus))
    return signature & SIGNATURE_BITS
