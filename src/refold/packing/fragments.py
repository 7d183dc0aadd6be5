"""Fragments: free GPU that the jobs to be expected could not use (FGD, ATC'23). Compiled.

For a node n and a typical demand m: if n cannot host one instance of m, all that is free of n's GPUs is a
fragment; else what is free on GPUs with less room than m needs of one. The expected fragment of n is the mean
over the typical demands, weighted by how often they were seen.
"""

from __future__ import annotations

import numpy as np

from refold.packing.compiled import compiled
from refold.packing.kernels import gpus_with_room
from refold.packing.layout import (
    CPU_FREE,
    DEMAND_ENTRIES,
    FIRST_GPU,
    GPUS,
    INSTANCES,
    MILLI_FREE,
    NEED_CPU,
    NEED_GPUS,
    NEED_MILLI,
    NEED_TYPES,
    TYPE_BIT,
    UP,
    Floats,
    Ints,
)

TYPICAL = 48
"""How many of the most frequent demands stand for all of them."""


@compiled
def _fragment(nodes: Ints, gpus: Ints, node: int, cpu_free: int, total: int, demand: Ints) -> int:
    need, milli = demand[NEED_GPUS], demand[NEED_MILLI]
    if need == 0 or cpu_free < demand[NEED_CPU] or not nodes[node, TYPE_BIT] & demand[NEED_TYPES]:
        return total
    if gpus_with_room(nodes, gpus, node, milli) < need:
        return total
    scraps, first = 0, nodes[node, FIRST_GPU]
    for gpu in range(first, first + nodes[node, GPUS]):
        if gpus[gpu] < milli:
            scraps += gpus[gpu]
    return scraps


@compiled
def _expected(nodes: Ints, gpus: Ints, node: int, cpu_free: int, total: int, typical: Ints, weights: Floats) -> float:
    expected = 0.0
    for index in range(weights.shape[0]):
        if weights[index] > 0.0:
            expected += weights[index] * _fragment(nodes, gpus, node, cpu_free, total, typical[index])
    return expected


@compiled
def node_fragments(nodes: Ints, gpus: Ints, node: int, typical: Ints, weights: Floats) -> float:
    """The expected fragment of a node, in thousandths of a GPU."""
    return _expected(nodes, gpus, node, nodes[node, CPU_FREE], nodes[node, MILLI_FREE], typical, weights)


@compiled
def fragments_after(
    nodes: Ints, gpus: Ints, node: int, mask: int, demand: Ints, typical: Ints, weights: Floats
) -> float:
    """The same, if an instance took the GPUs of `mask`."""
    first, milli, taken = nodes[node, FIRST_GPU], demand[NEED_MILLI], 0
    for gpu in range(nodes[node, GPUS]):
        if mask >> gpu & 1:
            gpus[first + gpu] -= milli
            taken += milli
    cpu_free, total = nodes[node, CPU_FREE] - demand[NEED_CPU], nodes[node, MILLI_FREE] - taken
    expected = _expected(nodes, gpus, node, cpu_free, total, typical, weights)
    for gpu in range(nodes[node, GPUS]):
        if mask >> gpu & 1:
            gpus[first + gpu] += milli
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
    """The most frequent of the first `count` shapes; of equals, the one seen first."""
    order = np.argsort(-seen[:count], kind="mergesort")
    weights[:] = 0.0
    total = 0.0
    for rank in range(min(count, weights.shape[0])):
        shape = order[rank]
        typical[rank, :] = shapes[shape, :]
        typical[rank, INSTANCES] = 1
        weights[rank] = float(seen[shape])
        total += weights[rank]
    if total > 0.0:
        weights /= total


@compiled
def time_to_renew(seen_in_all: int) -> bool:
    """When the typical demands are counted anew: at 1, 2, 4, … jobs, and from 1,024 on every 1,024."""
    return seen_in_all % 1024 == 0 or (seen_in_all < 1024 and seen_in_all & (seen_in_all - 1) == 0)


def no_typical() -> tuple[Ints, Floats]:
    """Before anything was seen."""
    return np.zeros((TYPICAL, DEMAND_ENTRIES), dtype=np.int64), np.zeros(TYPICAL, dtype=np.float64)
