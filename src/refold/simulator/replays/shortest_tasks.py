"""The waiting tasks of each demand: the shortest one, and the first one that is short enough, in logarithmic time.

Each demand has a binary tree over all its tasks in order of arrival. A vertex stores the shortest duration of the
waiting tasks below it. As in a heap, the root is vertex 1 and the children of vertex v are 2v and 2v + 1.
"""

from __future__ import annotations

import numpy as np

from refold.model.arrays import view
from refold.placement import Ints

INFINITE = np.inf
LONGEST = float(np.finfo(np.float64).max)
"""The longest duration that is finite: tasks that do not wait have an infinite one."""


class ShortestTasks:
    """The trees of all demands, one after the other in `shortest_below`, and the number of waiting tasks of each.

    `tree`: where the tree of a demand begins. `leaves`: how many leaves it has, a power of two. `leaf`: which of them
    is a task. `tasks`: all tasks, sorted by demand and arrival; those of a demand begin at `first_task`.
    """

    def __init__(self, demand_of: Ints, demands: int) -> None:
        """No task waits, of these demands by number."""
        counts = np.bincount(demand_of, minlength=demands)
        first_task = np.cumsum(counts) - counts
        tasks = np.argsort(demand_of, kind="stable")
        leaf = np.empty(len(demand_of), dtype=np.int64)
        leaf[tasks] = np.arange(len(tasks)) - first_task[demand_of[tasks]]
        leaves = np.array([1 << (max(count, 1) - 1).bit_length() for count in counts.tolist()], dtype=np.int64)
        tree = np.cumsum(2 * leaves) - 2 * leaves
        self.demand_of, self.tree, self.leaves, self.leaf = view(demand_of), view(tree), view(leaves), view(leaf)
        self.first_task, self.tasks = view(first_task), view(tasks)
        self.shortest_below = view(np.full(2 * int(leaves.sum()), np.inf))
        self.number = view(np.zeros(demands, dtype=np.int64))

    def add(self, task: int, duration: float) -> None:
        """Let a task wait."""
        self.number[self.demand_of[task]] += 1
        self._set_duration(task, duration)

    def remove(self, task: int) -> None:
        """Remove a task that waits."""
        self.number[self.demand_of[task]] -= 1
        self._set_duration(task, INFINITE)

    def _set_duration(self, task: int, duration: float) -> None:
        demand = self.demand_of[task]
        tree, vertex = self.tree[demand], self.leaves[demand] + self.leaf[task]
        self.shortest_below[tree + vertex] = duration
        while vertex > 1:
            vertex >>= 1
            below = min(self.shortest_below[tree + 2 * vertex], self.shortest_below[tree + 2 * vertex + 1])
            if self.shortest_below[tree + vertex] == below:
                break
            self.shortest_below[tree + vertex] = below

    def shortest(self, demand: int) -> float:
        """Return the shortest duration of the waiting tasks of a demand; infinity if there are none."""
        return self.shortest_below[self.tree[demand] + 1]

    def first(self, demand: int, longest: float) -> int:
        """Return the first of the waiting tasks of a demand that take at most so long; there must be one."""
        tree, leaves, vertex = self.tree[demand], self.leaves[demand], 1
        longest = min(longest, LONGEST)
        while vertex < leaves:
            vertex *= 2
            if self.shortest_below[tree + vertex] > longest:
                vertex += 1
        return self.tasks[self.first_task[demand] + vertex - leaves]
