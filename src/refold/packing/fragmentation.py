"""Fragments: free GPU that the jobs to be expected could not use (FGD, ATC'23). Compiled.

For a node n and a typical demand m: if n cannot host one instance of m, all that is free of n's GPUs is a
fragment; else what is free on GPUs with less room than m needs of one. The expected fragment of n is the mean
over the typical demands, weighted by how often they were seen.
"""

from __future__ import annotations

import numpy as np

from refold.packing.jit import compiled, inlined
from refold.packing.kernels import need_of
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

TYPICAL = 48
"""How many of the most frequent demands stand for all of them."""


@inlined
def _fragment(nodes: Ints, gpus: Ints, node: int, cpu_free: int, total: int, need: Need) -> int:
    if need.gpus == 0 or cpu_free < need.cpu or not nodes[node, TYPE_BIT] & need.types:
        return total
    scraps = room = 0
    first = nodes[node, FIRST_GPU]
    for gpu in range(first, first + nodes[node, GPUS]):
        free = gpus[gpu]
        if free < need.milli:
            scraps += free
        else:
            room += 1
    return scraps if room >= need.gpus else total


@compiled
def _expected(nodes: Ints, gpus: Ints, node: int, cpu_free: int, total: int, typical: Ints, weights: Floats) -> float:
    expected = 0.0
    for index in range(weights.shape[0]):
        if weights[index] == 0.0:
            break  # they are sorted
        need = need_of(typical, index)
        expected += weights[index] * _fragment(nodes, gpus, node, cpu_free, total, need)
    return expected


@compiled
def node_fragments(nodes: Ints, gpus: Ints, node: int, typical: Ints, weights: Floats) -> float:
    """The expected fragment of a node, in thousandths of a GPU."""
    return _expected(nodes, gpus, node, nodes[node, CPU_FREE], nodes[node, MILLI_FREE], typical, weights)


@compiled
def fragments_after(nodes: Ints, gpus: Ints, node: int, mask: int, need: Need, typical: Ints, weights: Floats) -> float:
    """The same, if an instance took the GPUs of `mask`."""
    first, taken = nodes[node, FIRST_GPU], 0
    for gpu in range(nodes[node, GPUS]):
        if mask >> gpu & 1:
            gpus[first + gpu] -= need.milli
            taken += need.milli
    cpu_free, total = nodes[node, CPU_FREE] - need.cpu, nodes[node, MILLI_FREE] - taken
    expected = _expected(nodes, gpus, node, cpu_free, total, typical, weights)
    for gpu in range(nodes[node, GPUS]):
        if mask >> gpu & 1:
            gpus[first + gpu] += need.milli
    return expected


@compiled
def cluster_fragments(nodes: Ints, gpus: Ints, typical: Ints, weights: Floats) -> float:
    """The expected fragments of all nodes that are up."""
    expected = 0.0
    for node in range(nodes.shape[0] - 1):
        if nodes[node, UP] and nodes[node, MILLI_FREE]:
            expected += node_fragments(nodes, gpus, node, typical, weights)
    return expected


@compiled
def renew_typical(shapes: Ints, seen: Ints, count: int, typical: Ints, weights: Floats) -> None:
    """The most frequent of the first `count` shapes; of equals, the one seen first.

    Shapes that leave the same fragments are one: instances are placed one by one, and memory does not count.
    """
    weights[:] = 0.0
    known, total = 0, 0.0
    for shape in np.argsort(-seen[:count], kind="mergesort"):
        if seen[shape] == 0:
            break
        rank = 0
        while rank < known and not _leaves_the_same(shapes, shape, typical, rank):
            rank += 1
        if rank == weights.shape[0]:
            continue
        if rank == known:
            typical[rank, :] = shapes[shape, :]
            known += 1
        weights[rank] += seen[shape]
        total += seen[shape]
    if total > 0.0:
        weights /= total


@inlined
def _leaves_the_same(shapes: Ints, shape: int, typical: Ints, rank: int) -> bool:
    one, other = need_of(shapes, shape), need_of(typical, rank)
    return one.gpus == other.gpus and one.milli == other.milli and one.cpu == other.cpu and one.types == other.types


def no_typical() -> tuple[Ints, Floats]:
    """Before anything was seen."""
    return np.zeros((TYPICAL, DEMAND_ENTRIES), dtype=np.int64), np.zeros(TYPICAL, dtype=np.float64)
