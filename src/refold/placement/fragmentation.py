"""Fragmentation: free GPU capacity that typical jobs cannot use (FGD, ATC'23). Compiled.

For a node n and a typical demand m: if n cannot host one instance of m, all free GPU capacity of n is a fragment;
otherwise, the fragment is the free capacity of those GPUs that have less free than m needs per GPU. The expected
fragment of n is the mean over the typical demands, weighted by how often they were submitted.
"""

from __future__ import annotations

import cython
import numpy as np

from refold.placement.layout import CPU_FREE, FIRST_GPU, GPUS, MAX_FREE, MILLI_FREE, TYPE_BIT, UP, Ints

if not cython.compiled:
    from refold.placement.demand_history import DemandHistory
    from refold.placement.kernels import FreeArrays, need_at
    from refold.placement.layout import Need


def _fragment(free: FreeArrays, node: int, cpu_free: int, total: int, history: DemandHistory, rank: int) -> int:
    """Return the fragment of a node for a typical demand, given its free CPUs and free GPU capacity."""
    need = need_at(history.typical, rank)
    if need.gpus == 0 or cpu_free < need.cpu or not free.nodes[node, TYPE_BIT] & need.types:
        return total
    if free.nodes[node, MAX_FREE] < need.milli:
        return total
    # `capped` is the free capacity with at most `need.milli` of each GPU: no branch depends on the GPUs.
    usable, capped, first = 0, 0, free.nodes[node, FIRST_GPU]
    for gpu in range(first, first + free.nodes[node, GPUS]):
        left = max(free.gpus[gpu], 0)
        capped += min(left, need.milli)
        if left >= need.milli:
            usable += 1
    return capped - usable * need.milli if usable >= need.gpus else total


def _expected_fragment(free: FreeArrays, node: int, cpu_free: int, total: int, history: DemandHistory) -> float:
    expected = 0.0
    for index in range(history.weights.shape[0]):
        if history.weights[index] == 0.0:
            break  # weights are sorted in descending order; zeros mark unused entries
        expected += history.weights[index] * _fragment(free, node, cpu_free, total, history, index)
    return expected


def node_fragmentation(free: FreeArrays, node: int, history: DemandHistory) -> float:
    """Return the expected fragment of a node, in thousandths of a GPU."""
    return _expected_fragment(free, node, free.nodes[node, CPU_FREE], free.nodes[node, MILLI_FREE], history)


def fragmentation_after(free: FreeArrays, node: int, mask: int, milli: int, cpu: int, history: DemandHistory) -> float:
    """Return the expected fragment of a node after taking CPUs, and a part of each GPU of `mask`."""
    first, taken = free.nodes[node, FIRST_GPU], 0
    for gpu in range(free.nodes[node, GPUS]):
        if mask >> gpu & 1:
            free.gpus[first + gpu] -= milli
            taken += milli
    cpu_free, total = free.nodes[node, CPU_FREE] - cpu, free.nodes[node, MILLI_FREE] - taken
    expected = _expected_fragment(free, node, cpu_free, total, history)
    for gpu in range(free.nodes[node, GPUS]):
        if mask >> gpu & 1:
            free.gpus[first + gpu] += milli
    return expected


def cluster_fragmentation(free: FreeArrays, history: DemandHistory) -> float:
    """Return the sum of the expected fragments of all nodes that are up, in thousandths of a GPU."""
    expected = 0.0
    for node in range(free.nodes.shape[0] - 1):
        if free.nodes[node, UP] and free.nodes[node, MILLI_FREE]:
            expected += node_fragmentation(free, node, history)
    return expected


def update_typical_demands(shapes: Ints, counts: Ints, count: int, history: DemandHistory) -> None:
    """Select the most frequent of the first `count` shapes; ties go to the shape submitted first.

    Shapes that leave the same fragments are merged: instances are placed one by one, and memory is ignored.
    """
    for rank in range(history.weights.shape[0]):
        history.weights[rank] = 0.0
    distinct, total = 0, 0.0
    order = np.argsort(-np.asarray(counts)[:count], kind="mergesort")
    for position in range(count):
        shape = order[position]
        if counts[shape] == 0:
            break
        rank, need = 0, need_at(shapes, shape)
        while rank < distinct and not _same_fragments(need, need_at(history.typical, rank)):
            rank += 1
        if rank == history.weights.shape[0]:
            continue
        if rank == distinct:
            for entry in range(shapes.shape[1]):
                history.typical[rank, entry] = shapes[shape, entry]
            distinct += 1
        history.weights[rank] += counts[shape]
        total += counts[shape]
    for rank in range(distinct):
        history.weights[rank] /= total


def _same_fragments(one: Need, other: Need) -> bool:
    return one.gpus == other.gpus and one.milli == other.milli and one.cpu == other.cpu and one.types == other.types
