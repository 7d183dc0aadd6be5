"""Improve a solution node by node. Compiled.

All jobs of the window with one instance leave a node, and each of its GPUs is filled anew with these and the jobs that
were left out, by a knapsack.
"""

from __future__ import annotations

import cython
import numpy as np
from numpy.typing import NDArray

from refold.model import WHOLE
from refold.model.arrays import view
from refold.placement.layout import CPU_FREE, FIRST_GPU, GPU_MASK, GPUS, MILLI_FREE, NODE, Floats, Ints

if not cython.compiled:
    from refold.placement.genetic_decoding import (
        JOB_WEIGHT,
        PlacementState,
        Solution,
        Window,
        can_host,
        change_usage,
        cost_on,
        job_value,
    )
    from refold.placement.genetic_operators import Random, next_random, random_fraction
    from refold.placement.kernels import need_at
    from refold.placement.layout import Need
    from refold.placement.lookahead import power_cost

MAX_REFILLS = 8
"""How often the nodes of a solution are filled anew."""
MAX_PIECES = 96
"""How many jobs at most are candidates for a GPU that is filled anew."""

TOLERANCE, INFINITE = 1e-9, np.inf


class Pool:
    """The jobs of a window that are not placed, and may be: a stack for each row of `demands`.

    `jobs` has the stacks one after the other, row r from `first[r]` on, with `size[r]` jobs now. `head` is the first
    movable job on each node, or -1, and `following` the next one on the same node.

    For the knapsack of a GPU: the demands of its pieces (`piece_rows`), the value of the `best` filling of each
    capacity, and whether it has the piece (`take`).
    """

    def __init__(self, jobs: int, rows: int, nodes: int) -> None:
        self.jobs, self.following = view(np.empty(jobs, dtype=np.int64)), view(np.full(jobs, -1))
        self.size, self.head = view(np.zeros(rows, dtype=np.int64)), view(np.full(nodes, -1))
        self.first = view(np.zeros(rows + 1, dtype=np.int64))
        self.piece_rows, self.best = view(np.empty(MAX_PIECES, dtype=np.int64)), view(np.empty(WHOLE + 1))
        self.take = view(np.empty((MAX_PIECES, WHOLE + 1), dtype=np.uint8))


def _is_movable(window: Window, job: int) -> bool:
    need = need_at(window.demands, window.jobs[job])
    return job >= window.urgent and need.instances == 1 and need.gpus > 0


def _fill_pool(window: Window, pool: Pool, solution: Solution) -> None:
    for job in range(window.jobs.shape[0]):
        pool.first[window.jobs[job] + 1] += 1
    for row in range(pool.size.shape[0]):
        pool.first[row + 1] += pool.first[row]
    for job in range(window.jobs.shape[0]):
        if not _is_movable(window, job):
            continue
        if solution.placed[job]:
            node = solution.placements[window.first[job], NODE]
            pool.following[job], pool.head[node] = pool.head[node], job
        else:
            _push(pool, window.jobs[job], job)


def _push(pool: Pool, row: int, job: int) -> None:
    pool.jobs[pool.first[row] + pool.size[row]] = job
    pool.size[row] += 1


def _put(state: PlacementState, window: Window, pool: Pool, row: int, node: int, mask: int, solution: Solution) -> None:
    """Place a job of a row of the pool on the GPUs of a mask."""
    pool.size[row] -= 1
    job = pool.jobs[pool.first[row] + pool.size[row]]
    first = window.first[job]
    change_usage(state, node, mask, need_at(window.demands, row), 1)
    solution.placements[first, NODE], solution.placements[first, GPU_MASK] = node, mask
    solution.placed[job] = True
    pool.following[job], pool.head[node] = pool.head[node], job


def _value_on(window: Window, pool: Pool, node: int) -> float:
    value, job = 0.0, pool.head[node]
    while job >= 0:
        value += job_value(need_at(window.demands, window.jobs[job]))
        job = pool.following[job]
    return value


def _clear_node(state: PlacementState, window: Window, pool: Pool, node: int, solution: Solution, cleared: Ints) -> int:
    """Return all movable jobs of a node to the pool; write their rows and masks to `cleared`, return how many."""
    count, job = 0, pool.head[node]
    while job >= 0:
        row, mask = window.jobs[job], solution.placements[window.first[job], GPU_MASK]
        change_usage(state, node, mask, need_at(window.demands, row), -1)
        solution.placed[job] = False
        _push(pool, row, job)
        cleared[count, 0], cleared[count, 1] = row, mask
        count, job = count + 1, pool.following[job]
    pool.head[node] = -1
    return count


def refill_nodes(state: PlacementState, window: Window, rng: Random, solution: Solution) -> None:
    """Improve a solution node by node: fill each GPU anew with the jobs of the node and those not placed (knapsack).

    A node keeps its jobs if the new ones are not worth more. Ends after a round without improvement.
    """
    count = window.jobs.shape[0]
    pool = Pool(count, window.demands.shape[0], state.free.nodes.shape[0] - 1)
    _fill_pool(window, pool, solution)
    used = view(np.flatnonzero(np.asarray(pool.head) >= 0))
    before, after = view(np.empty((count, 2), dtype=np.int64)), view(np.empty((count, 2), dtype=np.int64))
    for _ in range(MAX_REFILLS):
        improved = False
        for position in range(used.shape[0] - 1, 0, -1):
            other = next_random(rng) % (position + 1)
            used[position], used[other] = used[other], used[position]
        for index in range(used.shape[0]):
            node = used[index]
            value = _value_on(window, pool, node)
            kept = _clear_node(state, window, pool, node, solution, before)
            _fill_gpus(state, window, pool, node, rng, solution)
            if _value_on(window, pool, node) > value + TOLERANCE:
                improved = True
                continue
            _clear_node(state, window, pool, node, solution, after)
            for old in range(kept - 1, -1, -1):
                _put(state, window, pool, before[old, 0], node, before[old, 1], solution)
        if not improved:
            break


def _fill_gpus(state: PlacementState, window: Window, pool: Pool, node: int, rng: Random, solution: Solution) -> None:
    """Place jobs of the pool on a node: of several GPUs first, then the best filling of each GPU."""
    rows = window.demands.shape[0]
    start = next_random(rng) % rows
    for offset in range(rows):
        row = (start + offset) % rows
        need = need_at(window.demands, row)
        while need.gpus > 1 and pool.size[row] > 0 and can_host(state.free, node, need):
            cost, mask = cost_on(state, node, need)
            if cost == INFINITE:
                break
            _put(state, window, pool, row, node, mask, solution)
    cpu_weight = random_fraction(rng)
    for gpu in range(state.free.nodes[node, GPUS]):
        if state.free.gpus[state.free.nodes[node, FIRST_GPU] + gpu] > 0:
            _fill_gpu(state, window, pool, node, gpu, cpu_weight, start, solution)


def _fill_gpu(
    state: PlacementState,
    window: Window,
    pool: Pool,
    node: int,
    gpu: int,
    cpu_weight: float,
    start: int,
    solution: Solution,
) -> None:
    """Fill one GPU with jobs of the pool: a knapsack problem with the GPU capacity as the limit."""
    left = state.free.gpus[state.free.nodes[node, FIRST_GPU] + gpu]
    for piece in range(_solve_knapsack(state, window, pool, node, left, cpu_weight, start) - 1, -1, -1):
        if pool.take[piece, left]:
            row = pool.piece_rows[piece]
            need = need_at(window.demands, row)
            left -= need.milli
            if pool.size[row] > 0 and can_host(state.free, node, need) and _allows(state, node, need):
                _put(state, window, pool, row, node, 1 << gpu, solution)


def _solve_knapsack(
    state: PlacementState, window: Window, pool: Pool, node: int, capacity: int, cpu_weight: float, start: int
) -> int:
    """Find the best filling of each capacity of a GPU with jobs of the pool; return how many pieces were considered."""
    rows, pieces = window.demands.shape[0], 0
    cpu_price = cpu_weight * state.free.nodes[node, MILLI_FREE] / max(state.free.nodes[node, CPU_FREE], 1)
    for part in range(capacity + 1):
        pool.best[part] = 0.0
    for offset in range(rows):
        row = (start + offset) % rows
        need = need_at(window.demands, row)
        if need.gpus != 1 or need.milli > capacity or not can_host(state.free, node, need):
            continue
        value = need.milli + JOB_WEIGHT * WHOLE - min(cpu_price * need.cpu, 0.5 * need.milli)
        for _ in range(min(pool.size[row], capacity // need.milli)):
            if pieces == MAX_PIECES:
                break
            _add_piece(pool.best, pool.take, pieces, capacity, need.milli, value)
            pool.piece_rows[pieces] = row
            pieces += 1
    return pieces


def _add_piece(best: Floats, take: NDArray[np.uint8], piece: int, capacity: int, milli: int, value: float) -> None:
    for part in range(capacity, milli - 1, -1):
        take[piece, part] = best[part - milli] + value > best[part] + TOLERANCE
        if take[piece, part]:
            best[part] = best[part - milli] + value
    for part in range(milli):
        take[piece, part] = False


def _allows(state: PlacementState, node: int, need: Need) -> bool:
    return state.power.rack_of.shape[0] == 0 or power_cost(state.power, node, need) < INFINITE
