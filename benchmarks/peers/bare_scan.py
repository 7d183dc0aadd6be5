"""A replay whose only index is the array of free GPUs, scanned once for every placed instance.

It has no GPU masks, GPU types, CPUs or memory: only the scan of the compiled replay, in strict order of arrival. It
tracks the total number of free GPUs and does not try a task that needs more, so it makes as many placement attempts as
the compiled replay. Compiled (`build.py`).
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FIRST_FIT, BEST_FIT, TETRIS = range(3)
RULES = {"first-fit": FIRST_FIT, "best-fit": BEST_FIT, "tetris": TETRIS}
FOREVER, MANY = inf, 1 << 40


def _scan(rule: int, free: Ints, squares: Floats, gpus: int) -> int:
    """Return the first fitting node, the one with the fewest free GPUs, or the best aligned (max. free / capacity²)."""
    best, min_free, max_alignment = -1, MANY, -1.0
    if rule == FIRST_FIT:
        for node in range(free.shape[0]):
            if free[node] >= gpus:
                return node
    elif rule == BEST_FIT:
        for node in range(free.shape[0]):
            usable = free[node] if free[node] >= gpus else MANY
            if usable < min_free:
                best, min_free = node, usable
    else:
        for node in range(free.shape[0]):
            if free[node] >= gpus and free[node] > max_alignment * squares[node]:  # saves most of the divisions
                alignment = free[node] / squares[node]
                if alignment > max_alignment:
                    best, max_alignment = node, alignment
    return best


def _push(times: Floats, tasks: Ints, size: int, at: float, task: int) -> None:
    position = size
    while position > 0 and times[(position - 1) >> 1] > at:
        parent = (position - 1) >> 1
        times[position], tasks[position] = times[parent], tasks[parent]
        position = parent
    times[position], tasks[position] = at, task


def _pop(times: Floats, tasks: Ints, size: int) -> int:
    # A heap of its own, as in the compiled replay: the comparison shares no code with what it measures.
    # pylint: disable=duplicate-code
    first: int = tasks[0]
    last = size - 1
    at, task = times[last], tasks[last]
    position = 0
    while 2 * position + 1 < last:
        child = 2 * position + 1
        if child + 1 < last and times[child + 1] < times[child]:
            child += 1
        if times[child] >= at:
            break
        times[position], tasks[position] = times[child], tasks[child]
        position = child
    times[position], tasks[position] = at, task
    return first


def _replay(
    rule: int,
    capacity: Ints,
    submitted: Floats,
    work: Floats,
    gpus_of: Ints,
    first_instance: Ints,
    nodes_of: Ints,
    started: Floats,
) -> None:
    count, free = submitted.shape[0], capacity.copy()
    squares = np.square(capacity, dtype=np.float64)
    times, running = np.empty(count), np.empty(count, dtype=np.int64)
    arrived = head = size = total_free = 0
    for node in range(free.shape[0]):
        total_free += free[node]
    blocked = False
    while arrived < count or size > 0:
        now = submitted[arrived] if arrived < count else FOREVER
        if size > 0 and times[0] < now:
            now = times[0]
        while size > 0 and times[0] == now:
            task = _pop(times, running, size)
            size -= 1
            for row in range(first_instance[task], first_instance[task + 1]):
                free[nodes_of[row]] += gpus_of[task]
                total_free += gpus_of[task]
            blocked = False
        while arrived < count and submitted[arrived] == now:
            arrived += 1
        while head < arrived and not blocked:
            gpus, taken, last = gpus_of[head], first_instance[head], first_instance[head + 1]
            blocked = total_free < gpus * (last - taken)
            while taken < last and not blocked:
                node = _scan(rule, free, squares, gpus)
                if node < 0:
                    blocked = True
                    break
                free[node] -= gpus
                nodes_of[taken] = node
                taken += 1
            if blocked:  # gang: undo the partial placement
                for row in range(first_instance[head], taken):
                    free[nodes_of[row]] += gpus
                break
            total_free -= gpus * (last - first_instance[head])
            started[head] = now
            _push(times, running, size, now + work[head], head)
            size += 1
            head += 1


def replay(placement: str, capacity: Ints, submitted: Floats, work: Floats, instances: Ints, gpus_of: Ints) -> Floats:
    """Return the start time of each task. Every task must fit the empty cluster."""
    first_instance = np.concatenate([[0], np.cumsum(instances)])
    nodes_of = np.zeros(instances.sum(), dtype=np.int64)
    started = np.full(len(instances), np.nan)
    _replay(RULES[placement], capacity, submitted, work, gpus_of, first_instance, nodes_of, started)
    return started
