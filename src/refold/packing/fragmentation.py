"""Fragmentation: free GPU capacity that typical jobs cannot use (FGD, ATC'23). Compiled.

For a node n and a typical demand m: if n cannot host one instance of m, all free GPU capacity of n is a fragment;
otherwise, the fragment is the free capacity of those GPUs that have less free than m needs per GPU. The expected
fragment of n is the mean over the typical demands, weighted by how often they were submitted.
"""

from __future__ import annotations

import numpy as np

from refold.jit import compiled, inlined
from refold.packing.kernels import need_at
from refold.packing.layout import (
    CPU_FREE,
    DEMAND_ENTRIES,
    FIRST_GPU,
    GPUS,
    MILLI_FREE,
    TYPE_BIT,
    UP,
    Floats,
    Ints,
    Need,
)

MAX_TYPICAL_DEMANDS = 48
"""How many of the most frequent demands are taken as typical."""


@inlined
def _fragment(nodes: Ints, gpus: Ints, node: int, cpu_free: int, total: int, need: Need) -> int:
    if need.gpus == 0 or cpu_free < need.cpu or not nodes[node, TYPE_BIT] & need.types:
        return total
    unusable = usable = 0
    first = nodes[node, FIRST_GPU]
    for gpu in range(first, first + nodes[node, GPUS]):
        free = max(gpus[gpu], 0)
        if free < need.milli:
            unusable += free
        else:
            usable += 1
    return unusable if usable >= need.gpus else total


@compiled
def _expected_fragment(
    nodes: Ints, gpus: Ints, node: int, cpu_free: int, total: int, typical: Ints, weights: Floats
) -> float:
    expected = 0.0
    for index in range(weights.shape[0]):
        if weights[index] == 0.0:
            break  # weights are sorted in descending order; zeros mark unused entries
        need = need_at(typical, index)
        expected += weights[index] * _fragment(nodes, gpus, node, cpu_free, total, need)
    return expected


@compiled
def node_fragmentation(nodes: Ints, gpus: Ints, node: int, typical: Ints, weights: Floats) -> float:
    """Return the expected fragment of a node, in thousandths of a GPU."""
    return _expected_fragment(nodes, gpus, node, nodes[node, CPU_FREE], nodes[node, MILLI_FREE], typical, weights)


@compiled
def fragmentation_after(
    nodes: Ints, gpus: Ints, node: int, mask: int, need: Need, typical: Ints, weights: Floats
) -> float:
    """Return the expected fragment of a node after placing an instance on the GPUs of `mask`."""
    first, taken = nodes[node, FIRST_GPU], 0
    for gpu in range(nodes[node, GPUS]):
        if mask >> gpu & 1:
            gpus[first + gpu] -= need.milli
            taken += need.milli
    cpu_free, total = nodes[node, CPU_FREE] - need.cpu, nodes[node, MILLI_FREE] - taken
    expected = _expected_fragment(nodes, gpus, node, cpu_free, total, typical, weights)
    for gpu in range(nodes[node, GPUS]):
        if mask >> gpu & 1:
            gpus[first + gpu] += need.milli
    return expected


@compiled
def cluster_fragmentation(nodes: Ints, gpus: Ints, typical: Ints, weights: Floats) -> float:
    """Return the sum of the expected fragments of all nodes that are up, in thousandths of a GPU."""
    expected = 0.0
    for node in range(nodes.shape[0] - 1):
        if nodes[node, UP] and nodes[node, MILLI_FREE]:
            expected += node_fragmentation(nodes, gpus, node, typical, weights)
    return expected


@compiled
def update_typical_demands(shapes: Ints, counts: Ints, count: int, typical: Ints, weights: Floats) -> None:
    """Select the most frequent of the first `count` shapes; ties go to the shape submitted first.

    Shapes that leave the same fragments are merged: instances are placed one by one, and memory is ignored.
    """
    weights[:] = 0.0
    distinct, total = 0, 0.0
    for shape in np.argsort(-counts[:count], kind="mergesort"):
        if counts[shape] == 0:
            break
        rank = 0
        while rank < distinct and not _same_fragments(shapes, shape, typical, rank):
            rank += 1
        if rank == weights.shape[0]:
            continue
        if rank == distinct:
            typical[rank, :] = shapes[shape, :]
            distinct += 1
        weights[rank] += counts[shape]
        total += counts[shape]
    if total > 0.0:
        weights /= total


@inlined
def _same_fragments(shapes: Ints, shape: int, typical: Ints, rank: int) -> bool:
    one, other = need_at(shapes, shape), need_at(typical, rank)
    return one.gpus == other.gpus and one.milli == other.milli and one.cpu == other.cpu and one.types == other.types


def empty_typical_demands() -> tuple[Ints, Floats]:
    """Return the arrays `typical` and `weights` with no demands."""
    return np.zeros((MAX_TYPICAL_DEMANDS, DEMAND_ENTRIES), dtype=np.int64), np.zeros(
        MAX_TYPICAL_DEMANDS, dtype=np.float64
    )
