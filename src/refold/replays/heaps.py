"""Binary heaps that grow, for compiled loops: of tasks by time, or of values by time and a second key."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled, compiled_without_references
from refold.packing import Floats, Ints, TaskHeap


@compiled
def heap_with_room(heap: TaskHeap, more: int) -> TaskHeap:
    """Return a heap with room for so many more tasks: a larger copy, if it has not."""
    times, tasks, size = heap
    needed = size[0] + more
    if needed > times.shape[0]:
        times = np.concatenate((times, np.zeros(2 * needed - times.shape[0])))
        tasks = np.concatenate((tasks, np.zeros(2 * needed - tasks.shape[0], dtype=np.int64)))
    return TaskHeap(times, tasks, size)


class OrderedHeap(NamedTuple):
    """Values by time and `order`; `size` has one entry."""

    times: Floats
    order: Ints
    values: Ints
    size: Ints

    @staticmethod
    def allocate(capacity: int = 64) -> OrderedHeap:
        """Return an empty heap."""
        order, values = np.zeros((2, capacity), dtype=np.int64)
        return OrderedHeap(np.zeros(capacity), order, values, np.zeros(1, dtype=np.int64))


@compiled_without_references
def first_ordered_time(heap: OrderedHeap) -> float:
    """Return the time of the first value; infinity if the heap is empty."""
    time: float = heap.times[0] if heap.size[0] > 0 else np.inf
    return time


@compiled_without_references
def is_full(heap: OrderedHeap) -> bool:
    """Return whether there is no room for another value."""
    return bool(heap.size[0] == heap.times.shape[0])


@compiled
def enlarged(heap: OrderedHeap) -> OrderedHeap:
    """Return the heap with room for twice as many values."""
    times, order, values, size = heap
    return OrderedHeap(
        np.concatenate((times, np.zeros_like(times))),
        np.concatenate((order, np.zeros_like(order))),
        np.concatenate((values, np.zeros_like(values))),
        size,
    )


@compiled_without_references
def push_ordered(heap: OrderedHeap, time: float, order: int, value: int) -> None:
    """Add a value; there must be room for it."""
    times, orders, values = heap.times, heap.order, heap.values
    position = heap.size[0]
    heap.size[0] += 1
    while position > 0:
        parent = (position - 1) >> 1
        if times[parent] < time or (times[parent] == time and orders[parent] <= order):
            break
        times[position], orders[position], values[position] = times[parent], orders[parent], values[parent]
        position = parent
    times[position], orders[position], values[position] = time, order, value


@compiled_without_references
def pop_ordered(heap: OrderedHeap) -> int:
    """Remove and return the first value."""
    times, orders, values = heap.times, heap.order, heap.values
    first = values[0]
    heap.size[0] -= 1
    last = heap.size[0]
    time, order, value = times[last], orders[last], values[last]
    position = 0
    while True:
        child = 2 * position + 1
        if child >= last:
            break
        other = child + 1
        if other < last and (
            times[other] < times[child] or (times[other] == times[child] and orders[other] < orders[child])
        ):
            child = other
        if times[child] > time or (times[child] == time and orders[child] >= order):
            break
        times[position], orders[position], values[position] = times[child], orders[child], values[child]
        position = child
    times[position], orders[position], values[position] = time, order, value
    return int(first)
