"""The waiting tasks of each demand: the shortest one, and the first one that is short enough, in logarithmic time.

Each demand has a binary tree over all its tasks in order of arrival. A vertex stores the shortest duration of the
waiting tasks below it. As in a heap, the root is vertex 1 and the children of vertex v are 2v and 2v + 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled
from refold.packing.layout import Floats, Ints

LONGEST = float(np.finfo(np.float64).max)
"""The longest duration that is finite: tasks that do not wait have an infinite one."""


class ShortestTasks(NamedTuple):
    """The trees of all demands, one after the other in `shortest`, and the number of waiting tasks of each.

    `tree`: where the tree of a demand begins. `leaves`: how many leaves it has, a power of two. `leaf`: which of them
    is a task. `tasks`: all tasks, sorted by demand and arrival; those of a demand begin at `first`.
    """

    demand_of: Ints
    tree: Ints
    leaves: Ints
    leaf: Ints
    first: Ints
    tasks: Ints
    shortest: Floats
    number: Ints


def no_shortest_tasks(demand_of: Ints, demands: int) -> ShortestTasks:
    """Return the trees of so many demands; no task waits."""
    counts = np.bincount(demand_of, minlength=demands)
    first = np.cumsum(counts) - counts
    tasks = np.argsort(demand_of, kind="stable")
    leaf = np.empty(len(demand_of), dtype=np.int64)
    leaf[tasks] = np.arange(len(tasks)) - first[demand_of[tasks]]
    leaves = np.array([1 << (max(count, 1) - 1).bit_length() for count in counts.tolist()], dtype=np.int64)
    tree = np.cumsum(2 * leaves) - 2 * leaves
    shortest = np.full(2 * int(leaves.sum()), np.inf)
    return ShortestTasks(demand_of, tree, leaves, leaf, first, tasks, shortest, np.zeros(demands, dtype=np.int64))


@compiled
def add_waiting(waiting: ShortestTasks, task: int, duration: float) -> None:
    """Let a task wait."""
    waiting.number[waiting.demand_of[task]] += 1
    _set_duration(waiting, task, duration)


@compiled
def remove_waiting(waiting: ShortestTasks, task: int) -> None:
    """Remove a task that waits."""
    waiting.number[waiting.demand_of[task]] -= 1
    _set_duration(waiting, task, np.inf)


@compiled
def _set_duration(waiting: ShortestTasks, task: int, duration: float) -> None:
    demand, shortest = waiting.demand_of[task], waiting.shortest
    tree, vertex = waiting.tree[demand], waiting.leaves[demand] + waiting.leaf[task]
    shortest[tree + vertex] = duration
    while vertex > 1:
        vertex >>= 1
        below = min(shortest[tree + 2 * vertex], shortest[tree + 2 * vertex + 1])
        if shortest[tree + vertex] == below:
            break
        shortest[tree + vertex] = below


@compiled
def shortest_waiting(waiting: ShortestTasks, demand: int) -> float:
    """Return the shortest duration of the waiting tasks of a demand; infinity if there are none."""
    return waiting.shortest[waiting.tree[demand] + 1]


@compiled
def first_waiting(waiting: ShortestTasks, demand: int, longest: float) -> int:
    """Return the first of the waiting tasks of a demand that take at most so long; there must be one."""
    tree, leaves, vertex = waiting.tree[demand], waiting.leaves[demand], 1
    longest = min(longest, LONGEST)
    while vertex < leaves:
        vertex *= 2
        if waiting.shortest[tree + vertex] > longest:
            vertex += 1
    return waiting.tasks[waiting.first[demand] + vertex - leaves]
