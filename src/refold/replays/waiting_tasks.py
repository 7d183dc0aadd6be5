"""The waiting tasks of a compiled replay: `QueueByDemand` of the policies, with the same order and the same ties.

Each demand has a binary heap of its tasks. If the first task of a demand does not fit, no other one of it does, and the
demand is closed until resources are released. A tournament over the demands knows the first task of all open ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled_without_references
from refold.packing import Bools, Floats, Ints

NO_TASK = -1

_BEFORE_NEW_TASKS = -(2**60)
"""Added to the numbers of tasks that wait again, so that among equal keys they come first."""

_CLOSED, _ADDED = range(2)


class WaitingTasks(NamedTuple):
    """Sorted by (`major`, `minor`, `number`) of each task.

    `heaps`: one heap per demand, at `first_slot`, with so many tasks as in `sizes`. `winners`: the tournament; entry 1
    is the first task of all, entries 2n and 2n + 1 compete for entry n, and the last half are the demands.
    """

    major: Ints
    minor: Floats
    number: Ints
    demand_of: Ints
    heaps: Ints
    first_slot: Ints
    sizes: Ints
    is_closed: Bools
    closed: Ints
    winners: Ints
    counts: Ints

    @staticmethod
    def allocate(demand_of: Ints, demands: int) -> WaitingTasks:
        """Return an empty queue for these tasks."""
        tasks = len(demand_of)
        first_slot = np.zeros(demands + 1, dtype=np.int64)
        np.cumsum(np.bincount(demand_of, minlength=demands), out=first_slot[1:])
        leaves = 1 << max(demands - 1, 1).bit_length()
        return WaitingTasks(
            np.zeros(tasks, dtype=np.int64),
            np.zeros(tasks),
            np.zeros(tasks, dtype=np.int64),
            demand_of,
            np.zeros(tasks, dtype=np.int64),
            first_slot,
            np.zeros(demands, dtype=np.int64),
            np.zeros(demands, dtype=np.bool_),
            np.zeros(demands, dtype=np.int64),
            np.full(2 * leaves, NO_TASK, dtype=np.int64),
            np.zeros(2, dtype=np.int64),
        )


@compiled_without_references
def first_task(waiting: WaitingTasks) -> int:
    """Return the first task of all open demands, or NO_TASK."""
    return int(waiting.winners[1])


@compiled_without_references
def _is_before(waiting: WaitingTasks, task: int, other: int) -> bool:
    if waiting.major[task] != waiting.major[other]:
        return bool(waiting.major[task] < waiting.major[other])
    if waiting.minor[task] != waiting.minor[other]:
        return bool(waiting.minor[task] < waiting.minor[other])
    return bool(waiting.number[task] < waiting.number[other])


@compiled_without_references
def _update_winners(waiting: WaitingTasks, demand: int) -> None:
    """Let the first task of a demand, or none if it is closed or empty, compete with those of the others."""
    winners = waiting.winners
    position = (winners.shape[0] >> 1) + demand
    takes_part = waiting.sizes[demand] > 0 and not waiting.is_closed[demand]
    winners[position] = waiting.heaps[waiting.first_slot[demand]] if takes_part else NO_TASK
    while position > 1:
        position >>= 1
        left, right = winners[2 * position], winners[2 * position + 1]
        if left < 0 or (right >= 0 and _is_before(waiting, right, left)):
            left = right
        winners[position] = left


@compiled_without_references
def add_task(waiting: WaitingTasks, task: int, major: int, minor: float, requeued: bool) -> bool:
    """Add a task; return whether it is now the first of its demand."""
    waiting.counts[_ADDED] += 1
    waiting.major[task], waiting.minor[task] = major, minor
    waiting.number[task] = waiting.counts[_ADDED] + (_BEFORE_NEW_TASKS if requeued else 0)
    demand = waiting.demand_of[task]
    first, position = waiting.first_slot[demand], waiting.sizes[demand]
    waiting.sizes[demand] += 1
    while position > 0:
        parent = (position - 1) >> 1
        if not _is_before(waiting, task, waiting.heaps[first + parent]):
            break
        waiting.heaps[first + position] = waiting.heaps[first + parent]
        position = parent
    waiting.heaps[first + position] = task
    if position == 0:
        _update_winners(waiting, demand)
    return bool(position == 0)


@compiled_without_references
def remove_first(waiting: WaitingTasks, demand: int) -> None:
    """Remove the first task of a demand."""
    heaps, first = waiting.heaps, waiting.first_slot[demand]
    waiting.sizes[demand] -= 1
    size = waiting.sizes[demand]
    task, position = heaps[first + size], 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and _is_before(waiting, heaps[first + child + 1], heaps[first + child]):
            child += 1
        if not _is_before(waiting, heaps[first + child], task):
            break
        heaps[first + position] = heaps[first + child]
        position = child
    heaps[first + position] = task
    _update_winners(waiting, demand)


@compiled_without_references
def close_demand(waiting: WaitingTasks, demand: int) -> None:
    """Close a demand whose first task does not fit."""
    waiting.is_closed[demand] = True
    waiting.closed[waiting.counts[_CLOSED]] = demand
    waiting.counts[_CLOSED] += 1
    _update_winners(waiting, demand)


@compiled_without_references
def reopen_demand(waiting: WaitingTasks, demand: int) -> None:
    """Reopen a demand, if it is closed."""
    if not waiting.is_closed[demand]:
        return
    waiting.is_closed[demand] = False
    at = 0
    while waiting.closed[at] != demand:
        at += 1
    waiting.counts[_CLOSED] -= 1
    waiting.closed[at] = waiting.closed[waiting.counts[_CLOSED]]
    _update_winners(waiting, demand)


@compiled_without_references
def reopen_all(waiting: WaitingTasks) -> None:
    """Reopen all demands: each may fit again."""
    for at in range(waiting.counts[_CLOSED]):
        waiting.is_closed[waiting.closed[at]] = False
        _update_winners(waiting, waiting.closed[at])
    waiting.counts[_CLOSED] = 0
