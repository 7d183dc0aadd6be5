"""Fragmentation: free GPU capacity that typical jobs cannot use (FGD, ATC'23). Compiled.

For a node n and a typical demand m: if n cannot host one instance of m, all free GPU capacity of n is a fragment;
otherwise, the fragment is the free capacity of those GPUs that have less free than m needs per GPU. The expected
fragment of n is the mean over the typical demands, weighted by how often they were submitted.
"""

from __future__ import annotations

import cython
import numpy as np

from refold.packing.layout import CPU_FREE, FIRST_GPU, GPUS, MILLI_FREE, TYPE_BIT, UP, Ints

if not cython.compiled:
    from refold.packing.demand_history import DemandHistory
    from refold.packing.kernels import FreeArrays, need_at
    from refold.packing.layout import Need


def _fragment(free: FreeArrays, node: int, cpu_free: int, total: int, need: Need) -> int:
    if need.gpus == 0 or cpu_free < need.cpu or not free.nodes[node, TYPE_BIT] & need.types:
        return total
    unusable = usable = 0
    first = free.nodes[node, FIRST_GPU]
    for gpu in range(first, first + free.nodes[node, GPUS]):
        left = max(free.gpus[gpu], 0)
        if left < need.milli:
            unusable += left
        else:
            usable += 1
    return unusable if usable >= need.gpus else total


def _expected_fragment(free: FreeArrays, node: int, cpu_free: int, total: int, history: DemandHistory) -> float:
    expected = 0.0
    for index in range(history.weights.shape[0]):
        if history.weights[index] == 0.0:
            break  # weights are sorted in descending order; zeros mark unused entries
        need = need_at(history.typical, index)
        expected += history.weights[index] * _fragment(free, node, cpu_free, total, need)
    return expected


def node_fragmentation(free: FreeArrays, node: int, history: DemandHistory) -> float:
    """Return the expected fragment of a node, in thousandths of a GPU."""
    return _expected_fragment(free, node, free.nodes[node, CPU_FREE], free.nodes[node, MILLI_FREE], history)


def fragmentation_after(free: FreeArrays, node: int, mask: int, need: Need, history: DemandHistory) -> float:
    """Return the expected fragment of a node after placing an instance on the GPUs of `mask`."""
    first, taken = free.nodes[node, FIRST_GPU], 0
    for gpu in range(free.nodes[node, GPUS]):
        if mask >> gpu & 1:
            free.gpus[first + gpu] -= need.milli
            taken += need.milli
    cpu_free, total = free.nodes[node, CPU_FREE] - need.cpu, free.nodes[node, MILLI_FREE] - taken
    expected = _expected_fragment(free, node, cpu_free, total, history)
    for gpu in range(free.nodes[node, GPUS]):
        if mask >> gpu & 1:
            free.gpus[first + gpu] += need.milli
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
        rank = 0
        while rank < distinct and not _same_fragments(shapes, shape, history.typical, rank):
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


def _same_fragments(shapes: Ints, shape: int, typical: Ints, rank: int) -> bool:
    one, other = need_at(shapes, shape), need_at(typical, rank)
    return one.gpus == other.gpus and one.milli == other.milli and one.cpu == other.cpu and one.types == other.types
