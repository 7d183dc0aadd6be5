"""A replay whose only index is the array of free GPUs: one compiled scan of it per decision.

A decision is an instance that is placed. No masks of GPUs, no types, CPUs or memory: what is left of the compiled
replay when everything but the scan is taken away, in strict order of arrival. It knows how many GPUs are free in all
and does not try a task that is waiting for more, so that it decides as often as the compiled replay does.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RULES = {"first-fit": 0, "best-fit": 1, "tetris": 2}


def _scan(rule: int, free: Ints, capacity: Ints, gpus: int) -> int:
    """The first node with room, the tightest, or the one best aligned (the largest free / capacity²)."""
    best = -1
    tightest, aligned = 1 << 62, -1.0
    for node in range(free.shape[0]):
        room = free[node]
        if room < gpus:
            continue
        if rule == 0:
            return node
        if rule == 1:
            if room < tightest:
                best, tightest = node, room
        else:
            alignment = room / (capacity[node] * capacity[node])
            if alignment > aligned:
                best, aligned = node, alignment
    return best


def _push(times: Floats, tasks: Ints, size: int, at: float, task: int) -> None:
    position = size
    while position > 0 and times[(position - 1) >> 1] > at:
        parent = (position - 1) >> 1
        times[position], tasks[position] = times[parent], tasks[parent]
        position = parent
    times[position], tasks[position] = at, task


def _pop(times: Floats, tasks: Ints, size: int) -> int:
    first, last = tasks[0], size - 1
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
    return int(first)


def _compiled(function: Any) -> Any:
    return numba.njit(error_model="numpy")(function)


_scan_compiled, _push_compiled, _pop_compiled = _compiled(_scan), _compiled(_push), _compiled(_pop)


@_compiled
def _replay(
    rule: int,
    capacity: Ints,
    submitted: Floats,
    work: Floats,
    gpus_of: Ints,
    first_place: Ints,
    places: Ints,
    started: Floats,
) -> None:
    count, free = submitted.shape[0], capacity.copy()
    times, running = np.empty(count), np.empty(count, dtype=np.int64)
    arrived = head = size = 0
    in_all, stuck = free.sum(), False
    while arrived < count or size > 0:
        now = submitted[arrived] if arrived < count else np.inf
        if size > 0 and times[0] < now:
            now = times[0]
        while size > 0 and times[0] == now:
            task = _pop_compiled(times, running, size)
            size -= 1
            for row in range(first_place[task], first_place[task + 1]):
                free[places[row]] += gpus_of[task]
                in_all += gpus_of[task]
            stuck = False
        while arrived < count and submitted[arrived] == now:
            arrived += 1
        while head < arrived and not stuck:
            gpus, taken, last = gpus_of[head], first_place[head], first_place[head + 1]
            stuck = in_all < gpus * (last - taken)
            while taken < last and not stuck:
                node = _scan_compiled(rule, free, capacity, gpus)
                if node < 0:
                    stuck = True
                    break
                free[node] -= gpus
                places[taken] = node
                taken += 1
            if stuck:  # all or nothing
                for row in range(first_place[head], taken):
                    free[places[row]] += gpus
                break
            in_all -= gpus * (last - first_place[head])
            started[head] = now
            _push_compiled(times, running, size, now + work[head], head)
            size += 1
            head += 1


def replay(placement: str, capacity: Ints, submitted: Floats, work: Floats, instances: Ints, gpus_of: Ints) -> Floats:
    """When each task starts. Every task must fit the empty cluster."""
    first_place = np.zeros(len(instances) + 1, dtype=np.int64)
    np.cumsum(instances, out=first_place[1:])
    places = np.zeros(int(first_place[-1]), dtype=np.int64)
    started = np.full(len(instances), np.nan)
    _replay(RULES[placement], capacity, submitted, work, gpus_of, first_place, places, started)
    return started
