"""The exact pairwise greedy: of all pairs of a waiting task and a machine the best, again and again. Compiled.

What the paper's genetic search looks for by chance, looked for in every pair: the largest gain in GPU utilisation.
It is the same for every machine that has room, so ties go to the machine that is left with the least free GPU, then
to the first. Gangs are tasks of one instance here.

All compiled functions of the peers that look at pairs are in this file: Numba keeps a compiled function until the
file that holds it changes, whatever else it calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refold.model import WHOLE, Demand, Placement, Share
from refold.packing import (
    FIRST_GPU,
    GPUS,
    MILLI_FREE,
    UP,
    WHOLE_FREE,
    Bools,
    Free,
    Ints,
    Need,
    Words,
    compiled,
    fits,
    indices_of,
    inlined,
    move,
    need_of,
)


def feasible(free: Free, demands: Sequence[Demand]) -> Bools:
    """Which machine (row) has room for one instance of which task (column)."""
    vectors = np.concatenate([free.vector(demand) for demand in demands])
    return _feasible(free.nodes, free.gpus, vectors)


@inlined
def has_room(nodes: Ints, gpus: Ints, node: int, need: Need) -> bool:
    """Whether one instance fits on a node, if it is up."""
    if need.milli == WHOLE and nodes[node, WHOLE_FREE] < need.gpus:
        return False
    return nodes[node, UP] == 1 and fits(nodes, gpus, node, need)


@compiled
def _feasible(nodes: Ints, gpus: Ints, demands: Ints) -> Bools:
    count = nodes.shape[0] - 1
    answer = np.zeros((count, demands.shape[0]), dtype=np.bool_)
    for task in range(demands.shape[0]):
        need = need_of(demands, task)
        for node in range(count):
            answer[node, task] = has_room(nodes, gpus, node, need)
    return answer


@compiled
def take_on(nodes: Ints, gpus: Ints, bits: Words, node: int, demand: Ints) -> int:
    """Take room for one instance on a node that has it, on the fullest GPUs with room; returns which."""
    need, first, mask = need_of(demand, 0), nodes[node, FIRST_GPU], 0
    for _ in range(need.gpus):
        best = -1
        for gpu in range(nodes[node, GPUS]):
            if gpus[first + gpu] < need.milli or mask >> gpu & 1:
                continue
            if best < 0 or gpus[first + gpu] < gpus[first + best]:
                best = gpu
        mask |= 1 << best
    move(nodes, gpus, bits, node, mask, -need.milli, -need.cpu, -need.memory)
    return mask


def placed_on(free: Free, node: int, demand: Demand) -> Share:
    """One instance on a node that has room for it."""
    mask = take_on(free.nodes, free.gpus, free.bits, node, free.vector(demand))
    return Share(node, indices_of(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)


@compiled
def all_fit(nodes: Ints, gpus: Ints, bits: Words, demands: Ints, genes: Ints) -> bool:
    """Whether each task fits on the machine in its gene, one after the other; takes the room of those that do."""
    for task in range(demands.shape[0]):
        if not has_room(nodes, gpus, genes[task], need_of(demands, task)):
            return False
        take_on(nodes, gpus, bits, genes[task], demands[task : task + 1])
    return True


@compiled
def best_pair(nodes: Ints, gpus: Ints, demands: Ints, placed: Bools) -> tuple[int, int]:
    """A machine and a task that is not placed yet; (-1, -1) if none fits."""
    best_node, best_task, most, least = -1, -1, -1, 0
    for task in range(demands.shape[0]):
        need = need_of(demands, task)
        gain = need.gpus * need.milli
        if placed[task] or gain < most:
            continue
        for node in range(nodes.shape[0] - 1):
            if not has_room(nodes, gpus, node, need):
                continue
            left = nodes[node, MILLI_FREE] - gain
            if gain > most or (gain == most and left < least):
                best_node, best_task, most, least = node, task, gain, left
    return best_node, best_task


@compiled
def every_pair(nodes: Ints, gpus: Ints, demands: Ints, placed: Bools) -> tuple[int, int]:
    """The same, but looking at every pair: what an arg-max over all of them costs."""
    best_node, best_task, most, least = -1, -1, -1, 0
    for task in range(demands.shape[0]):
        need = need_of(demands, task)
        gain = need.gpus * need.milli
        for node in range(nodes.shape[0] - 1):
            if placed[task] or not has_room(nodes, gpus, node, need):
                continue
            left = nodes[node, MILLI_FREE] - gain
            if gain > most or (gain == most and left < least):
                best_node, best_task, most, least = node, task, gain, left
    return best_node, best_task


@compiled
def _place_all(nodes: Ints, gpus: Ints, bits: Words, demands: Ints, places: Ints) -> None:
    placed = np.zeros(demands.shape[0], dtype=np.bool_)
    while True:
        node, task = best_pair(nodes, gpus, demands, placed)
        if node < 0:
            return
        placed[task] = True
        places[task, 0] = node
        places[task, 1] = take_on(nodes, gpus, bits, node, demands[task : task + 1])


def place_all(free: Free, demands: Sequence[Demand]) -> list[Placement | None]:
    """A whole window."""
    assert all(demand.instances == 1 for demand in demands), "the pairwise greedy knows no gangs"
    vectors = np.concatenate([free.vector(demand) for demand in demands])
    places = np.full((len(demands), 2), -1, dtype=np.int64)
    _place_all(free.nodes, free.gpus, free.bits, vectors, places)
    return [
        (Share(node, indices_of(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib),) if node >= 0 else None
        for demand, (node, mask) in zip(demands, places.tolist(), strict=True)
    ]
