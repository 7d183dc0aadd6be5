"""Exact pairwise greedy placement: repeatedly place the best of all pairs of waiting task and machine.

It maximises over all pairs what the paper's genetic search samples at random: the gain in GPU utilisation. The gain is
the same on every machine with enough free resources, so ties go to the machine with the least free GPU capacity
afterwards, then to the first. Gangs are not supported.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refold.model import Demand, Placement, Share
from refold.placement import (
    CPU_FREE,
    FIRST_GPU,
    GPUS,
    MEMORY_FREE,
    MILLI_FREE,
    TYPE_BIT,
    UNLIMITED,
    UP,
    Bools,
    FreeResources,
    Need,
)


def feasible(free: FreeResources, demands: Sequence[Demand]) -> Bools:
    """Return on which machines (rows) one instance of each task (columns) fits."""
    return np.stack([fitting_nodes(free, demand) for demand in demands], axis=1)


def fitting_nodes(free: FreeResources, demand: Demand) -> Bools:
    """Return on which machines one instance of a task fits."""
    nodes, need = free.nodes[:-1], Need(*free.vector(demand)[0].tolist())
    fits: Bools = (nodes[:, UP] == 1) & (nodes[:, CPU_FREE] >= need.cpu) & (nodes[:, MEMORY_FREE] >= need.memory)
    if need.gpus:
        usable = np.concatenate([[0], np.cumsum(free.gpus >= need.milli)])
        first, end = nodes[:, FIRST_GPU], nodes[:, FIRST_GPU] + nodes[:, GPUS]
        fits &= (usable[end] - usable[first] >= need.gpus) & (nodes[:, TYPE_BIT] & need.types != 0)
    return fits


def place_on(free: FreeResources, node: int, demand: Demand) -> Share | None:
    """Allocate one instance on a node, on the fullest GPUs that fit; None if it does not fit."""
    if demand.gpus and demand.gpu_types and free.cluster.nodes[node].gpu_type not in demand.gpu_types:
        return None
    left = free.gpu_milli_of(node)
    usable = sorted((gpu for gpu, milli in enumerate(left) if milli >= demand.gpu_milli), key=left.__getitem__)
    gpus = tuple(sorted(usable[: demand.gpus]))
    share = Share(node, gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
    return share if len(gpus) == demand.gpus and free.take((share,)) is None else None


def best_pair(free: FreeResources, demands: Sequence[Demand], unplaced: Sequence[int]) -> tuple[int, int]:
    """Return the best pair of a machine and an unplaced task; (-1, -1) if none fits."""
    gains = {task: demands[task].gpus * demands[task].gpu_milli for task in unplaced}
    for gain in sorted(set(gains.values()), reverse=True):
        tasks = [task for task in unplaced if gains[task] == gain]
        fits = feasible(free, [demands[task] for task in tasks])
        if fits.any():
            left = np.where(fits.T, free.nodes[:-1, MILLI_FREE], UNLIMITED)
            row, node = divmod(int(left.argmin()), len(fits))
            return node, tasks[row]
    return -1, -1


def place_all(free: FreeResources, demands: Sequence[Demand]) -> list[Placement | None]:
    """Place a window of tasks."""
    assert all(demand.instances == 1 for demand in demands), "the pairwise greedy placement does not support gangs"
    placements: list[Placement | None] = [None] * len(demands)
    unplaced = list(range(len(demands)))
    while True:
        node, task = best_pair(free, demands, unplaced)
        if node < 0:
            return placements
        share = place_on(free, node, demands[task])
        assert share is not None, "the task fits"
        placements[task] = (share,)
        unplaced.remove(task)
