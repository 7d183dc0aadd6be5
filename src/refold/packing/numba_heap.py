"""A binary heap of tasks by time, for compiled loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled_without_references, inlined
from refold.packing.layout import Floats, Ints


@compiled_without_references
def push(times: Floats, tasks: Ints, size: int, at: float, task: int) -> None:
    """Push a task onto the heap of running tasks, which has `size` elements before."""
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if times[parent] <= at:
            break
        times[position], tasks[position] = times[parent], tasks[parent]
        position = parent
    times[position], tasks[position] = at, task


@compiled_without_references
def pop(times: Floats, tasks: Ints, size: int) -> int:
    """Pop the task that ends first from the heap, which has `size` elements before."""
    first = tasks[0]
    last = size - 1
    at, task = times[last], tasks[last]
    position = 0
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


class TaskHeap(NamedTuple):
    """A heap of tasks by time, with its size in an array of one entry."""

    times: Floats
    tasks: Ints
    size: Ints

    @staticmethod
    def allocate(capacity: int) -> TaskHeap:
        """Return an empty heap."""
        return TaskHeap(np.empty(capacity), np.empty(capacity, dtype=np.int64), np.zeros(1, dtype=np.int64))


@inlined
def push_task(heap: TaskHeap, at: float, task: int) -> None:
    """Push a task."""
    push(heap.times, heap.tasks, heap.size[0], at, task)
    heap.size[0] += 1


@inlined
def pop_task(heap: TaskHeap) -> int:
    """Pop the first task."""
    task = pop(heap.times, heap.tasks, heap.size[0])
    heap.size[0] -= 1
    return task


@inlined
def first_time(heap: TaskHeap) -> float:
    """Return the time of the first task; infinity if there is none."""
    time: float = heap.times[0] if heap.size[0] > 0 else np.inf
    return time
