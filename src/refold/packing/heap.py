"""A binary heap of tasks by time. Compiled."""

from __future__ import annotations

from refold.packing.layout import Floats, Ints


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
