"""The free resources of every node over time, as intervals in which they are constant. Compiled; see `timetable`."""

from __future__ import annotations

from math import inf

import cython
import numpy as np

from refold.model import WHOLE
from refold.placement.layout import FIRST_GPU_FREE, INTERVAL_CPU, INTERVAL_MEMORY, WHOLE_MASK, Floats, Ints

if not cython.compiled:
    from refold.model.arrays import view
    from refold.placement.allowed import AllowedRows, is_allowed
    from refold.placement.kernels import FreeArrays, need_at, set_free
    from refold.placement.layout import Need, count_ones


class FreeIntervals:
    """The intervals of every node: their number, start times (the last one has no end), and free resources.

    `gpus`, `types` and `up` are the GPUs of every node, their type as a bit, and whether it is up; `allowed` are the
    nodes and domains that demands are limited to. The rest is for temporary use: what a query is about, the free
    capacity of each GPU of a node, a heap of the times at which the number of instances that fit changes, and that
    number by domain.
    """

    def __init__(
        self, gpus: Ints, types: Ints, up: Ints, number: Ints, starts: Floats, free: Ints, allowed: AllowedRows
    ) -> None:
        self.arrays, self.allowed = (gpus, types, up, number, starts, free), allowed
        self.gpus, self.types, self.up = view(gpus), view(types), view(up)
        self.number, self.starts, self.free = view(number), view(starts), view(free)
        self.need = Need(0, 0, 0, 0, 0, 0, 0)
        self.gpu_free = view(np.empty(free.shape[2] - FIRST_GPU_FREE, dtype=np.int64))
        self.losses = view(np.empty(2 * starts.size, dtype=np.int64))
        self.fitting = view(np.zeros(max(1, *allowed.tables[1].shape[:2]), dtype=np.int64))
        self.times, self.changes = view(np.empty(2 * starts.size)), view(np.empty(2 * starts.size, dtype=np.int64))

    def __reduce__(self) -> tuple[object, ...]:
        return FreeIntervals, (*self.arrays, self.allowed)

    def with_doubled_capacity(self) -> FreeIntervals:
        """Return the same intervals in arrays of twice the size."""
        gpus, types, up, number, starts, free = self.arrays
        starts = np.concatenate([starts, np.full_like(starts, -inf)], axis=1)
        free = np.concatenate([free, np.zeros_like(free)], axis=1)
        return FreeIntervals(gpus, types, up, number, starts, free, self.allowed)


class BookedArrays:
    """The columns of `BookedJobs`, for kernels."""

    def __init__(
        self, demands: Ints, demand_row: Ints, duration: Floats, start: Floats, node: Ints, mask: Ints, touched: Ints
    ) -> None:
        self.demands, self.demand_row, self.duration = view(demands), view(demand_row), view(duration)
        self.start, self.node, self.mask, self.touched = view(start), view(node), view(mask), view(touched)


# --- intervals of one node ----------------------------------------------------------------------------------


def interval_at(intervals: FreeIntervals, node: int, time: float) -> int:
    low, high = 0, intervals.number[node] - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if intervals.starts[node, middle] <= time:
            low = middle
        else:
            high = middle - 1
    return low


def _copy(intervals: FreeIntervals, node: int, interval: int, to: int) -> None:
    for column in range(intervals.free.shape[2]):
        intervals.free[node, to, column] = intervals.free[node, interval, column]


def _split(intervals: FreeIntervals, node: int, time: float) -> int:
    """Split the interval that contains a time, if needed, and return the interval that starts at it."""
    at = interval_at(intervals, node, time)
    if intervals.starts[node, at] == time:
        return at
    for interval in range(intervals.number[node], at + 1, -1):
        intervals.starts[node, interval] = intervals.starts[node, interval - 1]
        _copy(intervals, node, interval - 1, interval)
    intervals.starts[node, at + 1] = time
    _copy(intervals, node, at, at + 1)
    intervals.number[node] += 1
    return at + 1


def _merge(intervals: FreeIntervals, node: int, interval: int) -> None:
    """Merge an interval with the previous one if their free resources are equal."""
    if not 0 < interval < intervals.number[node]:
        return
    for column in range(intervals.free.shape[2]):
        if intervals.free[node, interval, column] != intervals.free[node, interval - 1, column]:
            return
    for later in range(interval + 1, intervals.number[node]):
        intervals.starts[node, later - 1] = intervals.starts[node, later]
        _copy(intervals, node, later, later - 1)
    intervals.number[node] -= 1


def has_room(intervals: FreeIntervals, node: int) -> bool:
    """Whether the arrays have room for a change of a node, which may add two intervals."""
    return intervals.number[node] + 2 <= intervals.starts.shape[1]


def change_interval(
    intervals: FreeIntervals, node: int, start: float, end: float, mask: int, milli: int, cpu: int, memory: int
) -> None:
    """Add amounts (negative: take) from `start` to `end`; there must be room."""
    start = max(start, intervals.starts[node, 0])  # earlier intervals were dropped
    if start >= end:
        return
    first = _split(intervals, node, start)
    last = _split(intervals, node, end) if end < inf else intervals.number[node]
    for interval in range(first, last):
        intervals.free[node, interval, INTERVAL_CPU] += cpu
        intervals.free[node, interval, INTERVAL_MEMORY] += memory
        left, gpu, whole = mask, 0, intervals.free[node, interval, WHOLE_MASK]
        while left:
            if left & 1:
                intervals.free[node, interval, FIRST_GPU_FREE + gpu] += milli
                if intervals.free[node, interval, FIRST_GPU_FREE + gpu] == WHOLE:
                    whole |= 1 << gpu
                else:
                    whole &= ~(1 << gpu)
            left >>= 1
            gpu += 1
        intervals.free[node, interval, WHOLE_MASK] = whole
    _merge(intervals, node, last)
    _merge(intervals, node, first)


def is_overbooked(
    intervals: FreeIntervals, node: int, start: float, end: float, mask: int, cpu: bool, memory: bool
) -> bool:
    """Whether the GPUs of `mask`, the CPUs or the memory of a node are overbooked at any time from start to end."""
    first = interval = interval_at(intervals, node, start)
    while interval < intervals.number[node] and (interval == first or intervals.starts[node, interval] < end):
        if cpu and intervals.free[node, interval, INTERVAL_CPU] < 0:
            return True
        if memory and intervals.free[node, interval, INTERVAL_MEMORY] < 0:
            return True
        for gpu in range(intervals.free.shape[2] - FIRST_GPU_FREE):
            if mask >> gpu & 1 and intervals.free[node, interval, FIRST_GPU_FREE + gpu] < 0:
                return True
        interval += 1
    return False


def drop_past_intervals(intervals: FreeIntervals, now: float) -> None:
    for node in range(intervals.number.shape[0]):
        past = interval_at(intervals, node, now)
        if past > 0:
            for interval in range(past, intervals.number[node]):
                intervals.starts[node, interval - past] = intervals.starts[node, interval]
                _copy(intervals, node, interval, interval - past)
            intervals.number[node] -= past


# --- windows ------------------------------------------------------------------------------------------------


def _instances_on_gpus(intervals: FreeIntervals, gpus: int) -> int:
    """Return how many instances fit; each takes one part of each of `need.gpus` different GPUs."""
    need, fitting = intervals.need, intervals.need.instances
    while fitting > 0:
        parts = 0
        for gpu in range(gpus):
            parts += min(fitting, max(intervals.gpu_free[gpu], 0) // need.milli)
        if parts >= fitting * need.gpus:
            break
        fitting = parts // need.gpus
    return fitting


def instances_in(intervals: FreeIntervals, node: int, first: int, until: float) -> int:
    """Return how many instances fit on a node throughout all intervals from `first` on that start before `until`."""
    need, gpus, whole = intervals.need, intervals.gpus[node], -1
    cpu, memory = intervals.free[node, first, INTERVAL_CPU], intervals.free[node, first, INTERVAL_MEMORY]
    shared = need.gpus > 0 and need.milli < WHOLE
    if shared:
        for gpu in range(gpus):
            intervals.gpu_free[gpu] = WHOLE
    interval = first
    while interval < intervals.number[node] and (interval == first or intervals.starts[node, interval] < until):
        remaining = whole & intervals.free[node, interval, WHOLE_MASK]
        cpu = min(cpu, intervals.free[node, interval, INTERVAL_CPU])
        memory = min(memory, intervals.free[node, interval, INTERVAL_MEMORY])
        if shared:
            for gpu in range(gpus):
                free = intervals.free[node, interval, FIRST_GPU_FREE + gpu]
                intervals.gpu_free[gpu] = min(intervals.gpu_free[gpu], free)
        elif need.gpus > 0 and remaining != whole and count_ones(remaining) < need.gpus:
            return 0
        whole = remaining
        interval += 1
    fitting = need.instances
    if shared:
        fitting = _instances_on_gpus(intervals, gpus)
    elif need.gpus > 0:
        fitting = min(fitting, count_ones(whole) // need.gpus)
    if need.cpu > 0:
        fitting = min(fitting, cpu // need.cpu)
    if need.memory > 0:
        fitting = min(fitting, memory // need.memory)
    return max(fitting, 0)


def has_suitable_gpus(intervals: FreeIntervals, node: int) -> bool:
    if not intervals.up[node] or intervals.gpus[node] < intervals.need.gpus:
        return False
    if not is_allowed(intervals.allowed, node, intervals.need):
        return False
    return intervals.need.gpus == 0 or intervals.types[node] & intervals.need.types != 0


def _gpus_suffice(intervals: FreeIntervals, node: int, interval: int) -> bool:
    """Whether the free GPUs of one interval suffice for one instance: a quick check before `_instances_in`."""
    if intervals.need.milli == WHOLE:
        return count_ones(intervals.free[node, interval, WHOLE_MASK]) >= intervals.need.gpus
    suitable = 0
    for gpu in range(intervals.gpus[node]):
        if intervals.free[node, interval, FIRST_GPU_FREE + gpu] >= intervals.need.milli:
            suitable += 1
    return suitable >= intervals.need.gpus


def first_that_can_start_earlier(
    intervals: FreeIntervals,
    booked: BookedArrays,
    order: Ints,
    position: int,
    candidates: Ints,
    now: float,
    checks_left: Ints,
) -> int:
    """Return the first position at which an instance fits on a candidate node before its booked start; or -1."""
    while position < order.shape[0]:
        row = order[position]
        start, duration, need = booked.start[row], booked.duration[row], need_at(booked.demands, booked.demand_row[row])
        intervals.need = Need(1, need.gpus, need.milli, need.cpu, need.memory, need.types, need.allowed)
        if now < start < inf:
            if need.instances > 1 and booked.touched[row]:
                return position
            for index in range(candidates.shape[0]):
                node, mask, end = candidates[index], booked.mask[row], start + duration
                checks_left[0] -= 1
                on_this_node = booked.node[row] == node
                if on_this_node:  # its own booking must not block it: release it for the check
                    if not has_room(intervals, node):
                        return position  # the caller checks it completely
                    change_interval(intervals, node, start, end, mask, need.milli, need.cpu, need.memory)
                found = earliest_start_on_node(intervals, node, duration, now, start)
                if on_this_node:
                    change_interval(intervals, node, start, end, mask, -need.milli, -need.cpu, -need.memory)
                if found < start:
                    return position
        position += 1
    return -1


def earliest_start_on_node(intervals: FreeIntervals, node: int, duration: float, after: float, before: float) -> float:
    """Return the first time in [after, before) from which one instance fits on a node for `duration`; inf: none."""
    if not has_suitable_gpus(intervals, node):
        return inf
    interval, time = interval_at(intervals, node, after), after
    while time < before:
        if _gpus_suffice(intervals, node, interval) and instances_in(intervals, node, interval, time + duration) > 0:
            return time
        interval += 1
        if interval >= intervals.number[node]:
            return inf
        time = intervals.starts[node, interval]
    return inf


def free_duration_on_node(intervals: FreeIntervals, node: int, now: float) -> float:
    """Return for how long one instance fits on a node, from now on."""
    first = interval = interval_at(intervals, node, now)
    while interval < intervals.number[node]:
        until = intervals.starts[node, interval + 1] if interval + 1 < intervals.number[node] else inf
        if instances_in(intervals, node, first, until) == 0:
            return intervals.starts[node, interval] - now if interval > first else 0.0
        interval += 1
    return inf


def longest_free_duration_on(intervals: FreeIntervals, candidates: Ints, demands: Ints, now: float) -> float:
    """Return for how long one instance fits on one of the candidate nodes, from now on."""
    need, best = need_at(demands, 0), 0.0
    intervals.need = Need(1, need.gpus, need.milli, need.cpu, need.memory, need.types, need.allowed)
    for index in range(candidates.shape[0]):
        if has_suitable_gpus(intervals, candidates[index]):
            best = max(best, free_duration_on_node(intervals, candidates[index], now))
    return best


def _write_free_on_node(intervals: FreeIntervals, free: FreeArrays, node: int, start: float, end: float) -> None:
    """Write the resources of one node that are free throughout a window; if it has no length, those at its start."""
    first, gpus, column = interval_at(intervals, node, start), intervals.gpus[node], FIRST_GPU_FREE
    cpu, memory = intervals.free[node, first, INTERVAL_CPU], intervals.free[node, first, INTERVAL_MEMORY]
    for gpu in range(gpus):
        intervals.gpu_free[gpu] = max(intervals.free[node, first, column + gpu], 0)
    interval = first + 1
    while interval < intervals.number[node] and intervals.starts[node, interval] < end:
        cpu = min(cpu, intervals.free[node, interval, INTERVAL_CPU])
        memory = min(memory, intervals.free[node, interval, INTERVAL_MEMORY])
        for gpu in range(gpus):
            left = max(intervals.free[node, interval, column + gpu], 0)
            intervals.gpu_free[gpu] = min(intervals.gpu_free[gpu], left)
        interval += 1
    set_free(free, node, intervals.gpu_free, max(cpu, 0), max(memory, 0))


def write_free_during(intervals: FreeIntervals, free: FreeArrays, start: float, end: float) -> None:
    """Write the resources that are free throughout a window into the arrays of the placement rules."""
    for node in range(intervals.number.shape[0]):
        _write_free_on_node(intervals, free, node, start, end)
