"""Jobs on free resources, compiled: take and release what they hold."""

from __future__ import annotations

import numpy as np

from refold.jit import compiled_without_references, inlined
from refold.model import WHOLE
from refold.packing import (
    CPU_FREE,
    FIRST_GPU,
    GPU_MASK,
    MEMORY_FREE,
    MILLI_FREE,
    NODE,
    UP,
    WHOLE_FREE,
    FreeArrays,
    Need,
    PlacementRule,
    adjust_free,
    place_demand,
)
from refold.policies.learned.arrays import JobColumns, Shares


@compiled_without_references
def add_rows(free: FreeArrays, shares: Shares, job: int, sign: int) -> None:
    """Release what a job holds (sign 1), or take it again (-1)."""
    for row in range(shares.first_row[job], shares.first_row[job + 1]):
        adjust_free(
            free.nodes,
            free.gpus,
            free.bits,
            shares.placements[row, NODE],
            shares.placements[row, GPU_MASK],
            sign * shares.amounts[row, 0],
            sign * shares.amounts[row, 1],
            sign * shares.amounts[row, 2],
        )


@inlined
def _is_row_free(free: FreeArrays, shares: Shares, row: int) -> bool:
    node, mask = shares.placements[row, NODE], shares.placements[row, GPU_MASK]
    gpu = free.nodes[node, FIRST_GPU]
    while mask:
        if mask & 1 and free.gpus[gpu] < shares.amounts[row, 0]:
            return False
        mask >>= 1
        gpu += 1
    return bool(
        free.nodes[node, UP]
        and free.nodes[node, CPU_FREE] >= shares.amounts[row, 1]
        and free.nodes[node, MEMORY_FREE] >= shares.amounts[row, 2]
    )


@compiled_without_references
def take_if_free(free: FreeArrays, shares: Shares, job: int) -> bool:
    """Take what a job holds, if all of it is free; otherwise take nothing."""
    first, end = shares.first_row[job], shares.first_row[job + 1]
    for row in range(first, end):
        fits = _is_row_free(free, shares, row)
        sign, until = (-1, row + 1) if fits else (1, row)
        for other in range(row if fits else first, until):
            adjust_free(
                free.nodes,
                free.gpus,
                free.bits,
                shares.placements[other, NODE],
                shares.placements[other, GPU_MASK],
                sign * shares.amounts[other, 0],
                sign * shares.amounts[other, 1],
                sign * shares.amounts[other, 2],
            )
        if not fits:
            return False
    return True


@compiled_without_references
def take_available(free: FreeArrays, shares: Shares, job: int) -> None:
    """Take the free part of what a job will hold."""
    nodes, gpus = free.nodes, free.gpus
    for row in range(shares.first_row[job], shares.first_row[job + 1]):
        node, mask = shares.placements[row, NODE], shares.placements[row, GPU_MASK]
        first, gpu = nodes[node, FIRST_GPU], 0
        while mask >> gpu:
            available = min(max(gpus[first + gpu], 0), shares.amounts[row, 0])
            if mask >> gpu & 1 and available > 0:
                adjust_free(nodes, gpus, free.bits, node, 1 << gpu, -available, 0, 0)
            gpu += 1
        cpu = min(max(nodes[node, CPU_FREE], 0), shares.amounts[row, 1])
        memory = min(max(nodes[node, MEMORY_FREE], 0), shares.amounts[row, 2])
        adjust_free(nodes, gpus, free.bits, node, 0, 0, -cpu, -memory)


@compiled_without_references
def place(free: FreeArrays, rule: PlacementRule, jobs: JobColumns, shares: Shares, job: int) -> bool:
    """Take resources for all instances of a job and write them to its rows; otherwise take nothing."""
    return place_demand(free, rule, jobs.demand[job], shares.placements, shares.first_row[job])


@inlined
def may_fit(free: FreeArrays, need: Need) -> bool:
    """Return whether a demand may fit, by counts that are at hand: a call of `place` costs more."""
    totals = free.nodes.shape[0] - 1
    if need.milli < WHOLE or need.gpus == 0:
        return bool(free.nodes[totals, MILLI_FREE] >= need.instances * need.gpus * need.milli)
    if free.nodes[totals, WHOLE_FREE] < need.instances * need.gpus:
        return False
    return bool(free.bits[need.gpus, free.bits.shape[1] - 1] > np.uint64(0))


@inlined
def copy_free(free: FreeArrays) -> FreeArrays:
    """Return a copy of free resources."""
    return FreeArrays(free.nodes.copy(), free.gpus.copy(), free.bits.copy())
