"""What is free now: the cluster as arrays, with the few verbs that change them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from refold.model import WHOLE, Cluster, Demand, Placement, Share, Shortage
from refold.packing import kernels
from refold.packing.layout import (
    CPU_ALL,
    CPU_FREE,
    FIRST_GPU,
    GPUS,
    MEMORY_ALL,
    MEMORY_FREE,
    MILLI_FREE,
    MOST_FREE,
    NODE_COLUMNS,
    TYPE_BIT,
    UNLIMITED,
    UP,
    WHOLE_FREE,
    Ints,
    Need,
    Words,
)

_REFUSALS = {
    kernels.NODE_DOWN: "the node is down",
    kernels.NO_SUCH_GPU: "the node has no such GPU",
    kernels.GPU_OVER: "a GPU has less free",
    kernels.CPU_OVER: "too few CPUs are free",
    kernels.MEMORY_OVER: "too little memory is free",
}

_MASKS: dict[tuple[int, ...], int] = {(): 0}
_INDICES: dict[int, tuple[int, ...]] = {0: ()}


def mask_of(gpus: tuple[int, ...]) -> int:
    """GPU indices as bits."""
    mask = _MASKS.get(gpus)
    if mask is None:
        mask = sum(1 << gpu for gpu in set(gpus))
        _MASKS[gpus] = mask
    return mask


def indices_of(mask: int) -> tuple[int, ...]:
    """Bits as GPU indices."""
    gpus = _INDICES.get(mask)
    if gpus is None:
        gpus = tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)
        _INDICES[mask] = gpus
    return gpus


class Free:
    """Free GPUs, CPUs and memory of every node; which nodes are up."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.nodes, self.gpus, self.bits = _arrays_of(cluster)
        self._vectors: dict[Demand, Ints] = {}
        self._fits_when_empty: dict[Demand, bool] = {}

    def copy(self) -> Free:
        """A second one that can be changed on its own."""
        other = object.__new__(Free)
        other.cluster = self.cluster
        other.nodes, other.gpus, other.bits = self.nodes.copy(), self.gpus.copy(), self.bits.copy()
        other._vectors, other._fits_when_empty = self._vectors, self._fits_when_empty
        return other

    def vector(self, demand: Demand) -> Ints:
        """A demand as the kernels read it, on this cluster."""
        vector = self._vectors.get(demand)
        if vector is None:
            vector = self._vectors[demand] = vector_of(demand, self.cluster)
        return vector

    def take(self, placement: Placement) -> str | None:
        """Take all of a placement; or, where part of it is not free, none of it, and say why."""
        for position, share in enumerate(placement):
            refusal = self._take(share)
            if refusal:
                self.give_back(placement[:position])
                return refusal
        return None

    def _take(self, share: Share) -> str | None:
        if not 0 <= share.node < len(self.cluster.nodes):
            return f"there is no node {share.node}"
        answer = kernels.take(
            self.nodes,
            self.gpus,
            self.bits,
            share.node,
            mask_of(share.gpus),
            share.gpu_milli,
            share.cpu_milli,
            share.memory_mib,
        )
        if answer == kernels.TAKEN:
            return None
        return f"node {self.cluster.nodes[share.node].name!r}: {_REFUSALS[answer]}"

    def take_what_is_free(self, placement: Placement) -> Placement:
        """Of a placement, take as much as is free; returns what that is."""
        taken: list[Share] = []
        for share in placement:
            free = self.gpu_milli_of(share.node)
            parts = [Share(share.node, (gpu,), min(free[gpu], share.gpu_milli)) for gpu in share.gpus if free[gpu]]
            cpu, memory = self.nodes.item(share.node, CPU_FREE), self.nodes.item(share.node, MEMORY_FREE)
            parts.append(Share(share.node, (), WHOLE, min(cpu, share.cpu_milli), min(memory, share.memory_mib)))
            taken += [part for part in parts if self._take(part) is None]
        return tuple(taken)

    def give_back(self, placement: Iterable[Share]) -> None:
        """Return what was taken."""
        nodes, gpus, bits = self.nodes, self.gpus, self.bits
        for share in placement:
            kernels.give_back(
                nodes,
                gpus,
                bits,
                share.node,
                mask_of(share.gpus),
                share.gpu_milli,
                share.cpu_milli,
                share.memory_mib,
            )

    def take_back(self, placement: Iterable[Share]) -> None:
        """Take what was given back a moment ago, even on a node that is down by now."""
        for share in placement:
            kernels.take_unchecked(
                self.nodes,
                self.gpus,
                self.bits,
                share.node,
                mask_of(share.gpus),
                share.gpu_milli,
                share.cpu_milli,
                share.memory_mib,
            )

    def has(self, placement: Placement) -> bool:
        """Whether all of a placement is free now."""
        if self.take(placement) is not None:
            return False
        self.give_back(placement)
        return True

    def set_up(self, node: int, up: bool) -> None:
        """A node was lost, or has returned; what is taken on it stays taken."""
        kernels.set_up(self.nodes, self.bits, node, int(up))

    def is_up(self, node: int) -> bool:
        """Whether a node takes new work."""
        return bool(self.nodes[node, UP])

    @property
    def gpu_milli(self) -> int:
        """Free GPU on nodes that are up, in thousandths."""
        return int(self.nodes[-1, MILLI_FREE])

    @property
    def whole_gpus(self) -> int:
        """How many GPUs are wholly free on nodes that are up."""
        return int(self.nodes[-1, WHOLE_FREE])

    def gpu_milli_of(self, node: int) -> tuple[int, ...]:
        """What is free of each GPU of a node."""
        first, count = self.nodes[node, FIRST_GPU], self.nodes[node, GPUS]
        return tuple(self.gpus[first : first + count].tolist())

    def shortage(self, demand: Demand) -> Shortage:
        """How many nodes lack what for one instance of a demand."""
        counts = kernels.count_lacks(self.nodes, self.gpus, self.vector(demand), 0).tolist()
        return Shortage(
            instances=demand.instances,
            room=counts[kernels.ROOM],
            nodes=len(self.cluster.nodes),
            fit=counts[kernels.FITS],
            down=counts[kernels.DOWN],
            wrong_type=counts[kernels.WRONG_TYPE],
            too_small=counts[kernels.TOO_SMALL],
            few_gpus=counts[kernels.FEW_GPUS],
            few_cpus=counts[kernels.FEW_CPUS],
            little_memory=counts[kernels.LITTLE_MEMORY],
        )

    def has_room_for_one(self, demand: Demand) -> bool:
        """Whether any node has room for one instance of a demand."""
        return kernels.any_fitting(self.nodes, self.gpus, self.bits, self.vector(demand))

    def fits_when_empty(self, demand: Demand) -> bool:
        """Whether the whole cluster, empty and with every node up, has room for all instances at once.

        Instances are equal and nodes do not depend on each other, so filling one node after the other is exact.
        """
        answer = self._fits_when_empty.get(demand)
        if answer is None:
            answer = self._fits_when_empty[demand] = _room_when_empty(self.cluster, demand)
        return answer


def _room_when_empty(cluster: Cluster, demand: Demand) -> bool:
    wanted = demand.instances
    for node in cluster.nodes:
        wanted -= _instances_on_empty(cluster, node.gpus, node.gpu_type, node.cpu_milli, node.memory_mib, demand)
        if wanted <= 0:
            return True
    return False


def _instances_on_empty(cluster: Cluster, gpus: int, gpu_type: str, cpu: int, memory: int, demand: Demand) -> int:
    room = [demand.instances]
    if demand.gpus:
        if gpus < demand.gpus or (demand.gpu_types and gpu_type not in demand.gpu_types):
            return 0
        # Every GPU holds `per_gpu` parts, and an instance takes one part of `demand.gpus` different GPUs.
        per_gpu = WHOLE // demand.gpu_milli
        room.append(gpus * per_gpu // demand.gpus)
    if demand.cpu_milli and cluster.cpus_known:
        room.append(cpu // demand.cpu_milli)
    if demand.memory_mib and cluster.memory_known:
        room.append(memory // demand.memory_mib)
    return min(room)


def vector_of(demand: Demand, cluster: Cluster) -> Ints:
    """A demand as the kernels read it, one row: types become bits of this cluster."""
    types = -1
    if demand.gpu_types:
        types = sum(1 << bit for bit, name in enumerate(cluster.type_names) if name in demand.gpu_types)
    need = Need(demand.instances, demand.gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib, types)
    return np.array([need], dtype=np.int64)


def _arrays_of(cluster: Cluster) -> tuple[Ints, Ints, Words]:
    count = len(cluster.nodes)
    nodes = np.zeros((count + 1, NODE_COLUMNS), dtype=np.int64)
    most_gpus = max(node.gpus for node in cluster.nodes)
    bits = np.zeros((2 * most_gpus + 3, (count + 63) // 64 + most_gpus + 2), dtype=np.uint64)
    first = 0
    for index, node in enumerate(cluster.nodes):
        row = nodes[index]
        row[FIRST_GPU], row[GPUS] = first, node.gpus
        row[WHOLE_FREE], row[MILLI_FREE] = node.gpus, node.gpus * WHOLE
        row[MOST_FREE] = WHOLE if node.gpus else 0
        row[CPU_ALL] = row[CPU_FREE] = node.cpu_milli if cluster.cpus_known else UNLIMITED
        row[MEMORY_ALL] = row[MEMORY_FREE] = node.memory_mib if cluster.memory_known else UNLIMITED
        row[TYPE_BIT] = 1 << cluster.type_names.index(node.gpu_type) if node.gpus else 0
        first += node.gpus
        bits[most_gpus + 2 + node.gpus, index >> 6] |= np.uint64(1 << (index & 63))
    gpus = np.full(first, WHOLE, dtype=np.int64)
    kernels.sign(nodes, gpus)
    for index in range(count):
        kernels.set_up(nodes, bits, index, 1)
    return nodes, gpus, bits
