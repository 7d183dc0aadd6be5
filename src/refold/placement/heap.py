"""Binary heaps of tasks by time. Compiled."""

from __future__ import annotations

import numpy as np

from refold.model.arrays import view
from refold.placement.layout import Floats, Ints

INFINITE = np.inf


class TaskHeap:
    """Tasks by time, at most `capacity`."""

    def __init__(self, capacity: int) -> None:
        self.times, self.tasks = view(np.empty(capacity)), view(np.empty(capacity, dtype=np.int64))
        self.size = 0

    def copy(self) -> TaskHeap:
        other = TaskHeap(self.times.shape[0])
        other.size = self.size
        for position in range(self.size):
            other.times[position], other.tasks[position] = self.times[position], self.tasks[position]
        return other

    def push(self, at: float, task: int) -> None:
        push(self.times, self.tasks, self.size, at, task)
        self.size += 1

    def pop(self) -> int:
        self.size -= 1
        return pop(self.times, self.tasks, self.size + 1)

    def first_time(self) -> float:
        """Return the time of the first task; infinity if there is none."""
        return self.times[0] if self.size > 0 else INFINITE


def push(times: Floats, tasks: Ints, size: int, at: float, task: int) -> None:
    """Push a task onto the heap, which has `size` elements before."""
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if times[parent] <= at:
            break
        times[position], tasks[position] = times[parent], tasks[parent]
        position = parent
    times[position], tasks[position] = at, task


def pop(times: Floats, tasks: Ints, size: int) -> int:
    """Pop the first task from the heap, which has `size` elements before."""
    first, last = tasks[0], size - 1
    at, task, position = times[last], tasks[last], 0
    while True:
        child = 2 * position + 1
        if child >= last:
            break
        if child + 1 < last and times[child + 1] < times[child]:
            child += 1
        if times[child] >= at:
            break
        times[position], tasks[position] = times[child], tasks[child]
        position = child
    times[position], tasks[position] = at, task
    return int(first)
