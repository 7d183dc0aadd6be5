"""Exact pairwise greedy placement: repeatedly place the best of all pairs of waiting task and machine. Compiled.

It maximises over all pairs what the paper's genetic search samples at random: the gain in GPU utilisation. The gain is
the same on every machine with enough free resources, so ties go to the machine with the least free GPU capacity
afterwards, then to the first. Gangs are not supported.

All compiled functions of the peers that work on pairs are in this file, because Numba's cache invalidates a compiled
function only when the file that defines it changes, not when a function that it calls does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refold.jit import compiled, inlined
from refold.model import WHOLE, Demand, Placement, Share
from refold.packing import (
    FIRST_GPU,
    GPUS,
    MILLI_FREE,
    UP,
    WHOLE_FREE,
    Bools,
    FreeResources,
    Ints,
    Need,
    Words,
    adjust_free,
    fits,
    indices_from_mask,
    need_at,
)


def feasible(free: FreeResources, demands: Sequence[Demand]) -> Bools:
    """Return on which machines (rows) one instance of each task (columns) fits."""
    vectors = np.concatenate([free.vector(demand) for demand in demands])
    return _feasible(free.nodes, free.gpus, vectors)


@inlined
def instance_fits(nodes: Ints, gpus: Ints, node: int, need: Need) -> bool:
    """Return whether a node is up and one instance fits."""
    if need.milli == WHOLE and nodes[node, WHOLE_FREE] < need.gpus:
        return False
    return nodes[node, UP] == 1 and fits(nodes, gpus, node, need)


@compiled
def _feasible(nodes: Ints, gpus: Ints, demands: Ints) -> Bools:
    count = nodes.shape[0] - 1
    result = np.zeros((count, demands.shape[0]), dtype=np.bool_)
    for task in range(demands.shape[0]):
        need = need_at(demands, task)
        for node in range(count):
            result[node, task] = instance_fits(nodes, gpus, node, need)
    return result


@compiled
def allocate_on(nodes: Ints, gpus: Ints, bits: Words, node: int, demand: Ints) -> int:
    """Allocate one instance on a node where it fits, on the fullest GPUs that fit; return their mask."""
    need, first, mask = need_at(demand, 0), nodes[node, FIRST_GPU], 0
    for _ in range(need.gpus):
        best = -1
        for gpu in range(nodes[node, GPUS]):
            if gpus[first + gpu] < need.milli or mask >> gpu & 1:
                continue
            if best < 0 or gpus[first + gpu] < gpus[first + best]:
                best = gpu
        mask |= 1 << best
    adjust_free(nodes, gpus, bits, node, mask, -need.milli, -need.cpu, -need.memory)
    return mask


def place_on(free: FreeResources, node: int, demand: Demand) -> Share:
    """Allocate one instance on a node where it fits."""
    mask = allocate_on(free.nodes, free.gpus, free.bits, node, free.vector(demand))
    return Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)


@compiled
def all_fit(nodes: Ints, gpus: Ints, bits: Words, demands: Ints, genes: Ints) -> bool:
    """Return whether all tasks fit on the machines in their genes, allocating one after the other."""
    for task in range(demands.shape[0]):
        if not instance_fits(nodes, gpus, genes[task], need_at(demands, task)):
            return False
        allocate_on(nodes, gpus, bits, genes[task], demands[task : task + 1])
    return True


@compiled
def best_pair(nodes: Ints, gpus: Ints, demands: Ints, placed: Bools) -> tuple[int, int]:
    """Return the best pair of a machine and an unplaced task; (-1, -1) if none fits. Skips tasks with a lower gain."""
    best_node, best_task, max_gain, min_left = -1, -1, -1, 0
    for task in range(demands.shape[0]):
        need = need_at(demands, task)
        gain = need.gpus * need.milli
        if placed[task] or gain < max_gain:
            continue
        for node in range(nodes.shape[0] - 1):
            if not instance_fits(nodes, gpus, node, need):
                continue
            left = nodes[node, MILLI_FREE] - gain
            if gain > max_gain or (gain == max_gain and left < min_left):
                best_node, best_task, max_gain, min_left = node, task, gain, left
    return best_node, best_task


@compiled
def every_pair(nodes: Ints, gpus: Ints, demands: Ints, placed: Bools) -> tuple[int, int]:
    """Return the same pair as `best_pair`, but evaluate every pair: the cost of an arg-max over all of them."""
    best_node, best_task, max_gain, min_left = -1, -1, -1, 0
    for task in range(demands.shape[0]):
        need = need_at(demands, task)
        gain = need.gpus * need.milli
        for node in range(nodes.shape[0] - 1):
            if placed[task] or not instance_fits(nodes, gpus, node, need):
                continue
            left = nodes[node, MILLI_FREE] - gain
            if gain > max_gain or (gain == max_gain and left < min_left):
                best_node, best_task, max_gain, min_left = node, task, gain, left
    return best_node, best_task


@compiled
def _place_all(nodes: Ints, gpus: Ints, bits: Words, demands: Ints, placements: Ints) -> None:
    placed = np.zeros(demands.shape[0], dtype=np.bool_)
    while True:
        node, task = best_pair(nodes, gpus, demands, placed)
        if node < 0:
            return
        placed[task] = True
        placements[task, 0] = node
        placements[task, 1] = allocate_on(nodes, gpus, bits, node, demands[task : task + 1])


def place_all(free: FreeResources, demands: Sequence[Demand]) -> list[Placement | None]:
    """Place a window of tasks."""
    assert all(demand.instances == 1 for demand in demands), "the pairwise greedy placement does not support gangs"
    vectors = np.concatenate([free.vector(demand) for demand in demands])
    placements = np.full((len(demands), 2), -1, dtype=np.int64)
    _place_all(free.nodes, free.gpus, free.bits, vectors, placements)
    return [
        (Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib),)
        if node >= 0
        else None
        for demand, (node, mask) in zip(demands, placements.tolist(), strict=True)
    ]
