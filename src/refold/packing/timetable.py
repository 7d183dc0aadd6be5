"""Timetable: the free resources of every node over time. Bookings name nodes and GPUs.

The future of a node is divided into intervals in which its free resources are constant. A booking takes resources from
all intervals between its start and its end, splitting intervals as needed. Queries about a time window then visit only
the few intervals in it: how many instances fit throughout, when they fit first, and for how long.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from refold.jit import compiled, compiled_without_references, count_ones, inlined
from refold.model import WHOLE, Cluster, Demand, Placement, Seconds, Share
from refold.packing.free import FreeResources, mask_from_indices
from refold.packing.kernels import need_at, set_free
from refold.packing.layout import (
    CPU_FREE,
    GPUS,
    MEMORY_FREE,
    TYPE_BIT,
    Floats,
    Ints,
    Need,
    Words,
)

# Columns of an interval.
WHOLE_MASK = 0  # entirely free GPUs, as bits
CPU = 1
MEMORY = 2
FIRST_GPU_FREE = 3  # this and the following columns: free capacity of each GPU, in thousandths

INITIAL_INTERVALS = 8
"""Allocated intervals per node at first; the arrays are doubled when they are full."""


class FreeIntervals(NamedTuple):
    """The intervals of every node: their number, start times (the last one has no end), and free resources."""

    number: Ints
    starts: Floats
    free: Ints


class BookedJobs(NamedTuple):
    """Jobs booked for a later start, one row each: row in `demands`, duration, start time, placement.

    `node` and `mask` are the placement of a single-instance job. For gangs `node` is -1, and `touched` marks those
    booked on one of the candidate nodes.
    """

    demands: Ints
    demand_row: Ints
    duration: Floats
    start: Floats
    node: Ints
    mask: Ints
    touched: Ints


class Timetable:
    """Free resources of one cluster over time; nothing fits on nodes and GPUs that are down."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._empty = FreeResources(cluster)
        self._window = FreeResources(cluster)
        self._up = np.ones(len(cluster.nodes), dtype=np.int64)
        self._down_gpus: set[tuple[int, int]] = set()
        self._intervals = initial_intervals(self._empty)
        self._scratch = np.zeros(max(1, int(self._empty.nodes[:-1, GPUS].max())), dtype=np.int64)

    def set_node_up(self, node: int, up: bool) -> None:
        """Mark a node up or down. Its bookings stay."""
        self._up[node] = up
        self._window.set_node_up(node, up)

    def set_gpu_up(self, node: int, gpu: int, up: bool) -> None:
        """Mark a GPU up or down. Its bookings stay; while it is down, it is also booked as a whole, without end."""
        if up == ((node, gpu) in self._down_gpus):
            self._down_gpus ^= {(node, gpu)}
            self._change((Share(node, (gpu,)),), -inf, inf, 1 if up else -1)

    def is_up(self, node: int) -> bool:
        """Whether a node is up."""
        return bool(self._up[node])

    def is_gpu_up(self, node: int, gpu: int) -> bool:
        """Whether a GPU is up."""
        return (node, gpu) not in self._down_gpus

    def book(self, placement: Placement, start: Seconds, end: Seconds) -> None:
        """Book a placement from `start` to `end`, without checking that it is free."""
        self._change(placement, start, end, -1)

    def release(self, placement: Placement, start: Seconds, end: Seconds) -> None:
        """Release a booked placement from `start` to `end`."""
        self._change(placement, start, end, 1)

    def _change(self, placement: Placement, start: Seconds, end: Seconds, sign: int) -> None:
        if not start < end:
            return
        for share in placement:
            amounts = (
                mask_from_indices(share.gpus),
                sign * share.gpu_milli,
                sign * share.cpu_milli,
                sign * share.memory_mib,
            )
            while not change_interval(self._intervals, share.node, start, end, *amounts):
                self._intervals = with_doubled_capacity(self._intervals)

    def drop_before(self, now: Seconds) -> None:
        """Discard intervals that ended before `now`."""
        drop_past_intervals(self._intervals, now)

    def earliest_start(self, demand: Demand, duration: Seconds, after: Seconds, before: Seconds = inf) -> Seconds:
        """Return the first time in [after, before) from which all instances fit at once for `duration`; inf: none."""
        vector = self._empty.vector(demand)
        return earliest_start(
            self._intervals, self._empty.nodes, self._up, vector, duration, after, before, self._scratch
        )

    def longest_free_duration(self, demand: Demand, now: Seconds) -> Seconds:
        """Return for how long all instances fit, from now on."""
        vector = self._empty.vector(demand)
        return longest_free_duration(self._intervals, self._empty.nodes, self._up, vector, now, self._scratch)

    def longest_free_duration_on(self, candidates: Ints, demand: Demand, now: Seconds) -> Seconds:
        """Return for how long one instance fits on one of the candidate nodes, from now on."""
        vector = self._empty.vector(demand)
        return longest_free_duration_on(
            self._intervals, self._empty.nodes, self._up, candidates, vector, now, self._scratch
        )

    def first_that_can_start_earlier(
        self, booked: BookedJobs, order: Ints, position: int, candidates: Ints, now: Seconds, checks_left: Ints
    ) -> int:
        """Return the position of the first job, from `position` on, that may start earlier on the candidate nodes.

        -1: none. `checks_left` is decremented for every node that is checked.
        """
        return first_that_can_start_earlier(
            self._intervals,
            self._empty.nodes,
            self._up,
            booked,
            order,
            position,
            candidates,
            now,
            checks_left,
            self._scratch,
        )

    def is_overbooked(self, placement: Placement, start: Seconds, end: Seconds) -> bool:
        """Whether a resource of a placement is overbooked at any time from `start` to `end`."""
        return any(
            is_overbooked(
                self._intervals,
                share.node,
                start,
                end,
                mask_from_indices(share.gpus),
                share.cpu_milli > 0,
                share.memory_mib > 0,
            )
            for share in placement
        )

    def vector(self, demand: Demand) -> Ints:
        """Return a demand as a row for the kernels."""
        return self._empty.vector(demand)

    def free_during(self, start: Seconds, end: Seconds) -> FreeResources:
        """Return the resources that are free throughout a window. The next call reuses the same arrays."""
        free = self._window
        write_free_during(self._intervals, free.nodes, free.gpus, free.bits, start, end, self._scratch)
        return free


def initial_intervals(free: FreeResources) -> FreeIntervals:
    """Return one unbounded interval per node, with all resources free."""
    nodes = len(free.nodes) - 1
    max_gpus = int(free.nodes[:-1, GPUS].max())
    intervals = FreeIntervals(
        np.ones(nodes, dtype=np.int64),
        np.full((nodes, INITIAL_INTERVALS), -inf),
        np.zeros((nodes, INITIAL_INTERVALS, FIRST_GPU_FREE + max_gpus), dtype=np.int64),
    )
    for node in range(nodes):
        row = free.nodes[node]
        intervals.free[node, 0, WHOLE_MASK] = (1 << int(row[GPUS])) - 1
        intervals.free[node, 0, CPU], intervals.free[node, 0, MEMORY] = row[CPU_FREE], row[MEMORY_FREE]
        intervals.free[node, 0, FIRST_GPU_FREE : FIRST_GPU_FREE + int(row[GPUS])] = WHOLE
    return intervals


@compiled
def with_doubled_capacity(intervals: FreeIntervals) -> FreeIntervals:
    """Return the same intervals in arrays of twice the size."""
    nodes, capacity, columns = intervals.free.shape
    starts, free = np.full((nodes, 2 * capacity), -np.inf), np.zeros((nodes, 2 * capacity, columns), np.int64)
    starts[:, :capacity] = intervals.starts
    free[:, :capacity] = intervals.free
    return FreeIntervals(intervals.number, starts, free)


# --- intervals of one node ----------------------------------------------------------------------------------


@inlined
def _interval_at(intervals: FreeIntervals, node: int, time: float) -> int:
    """Return the interval that contains a time."""
    starts, low, high = intervals.starts, 0, intervals.number[node] - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if starts[node, middle] <= time:
            low = middle
        else:
            high = middle - 1
    return low


@inlined
def _copy(intervals: FreeIntervals, node: int, interval: int, to: int) -> None:
    """Copy the free resources of an interval to another one."""
    for column in range(intervals.free.shape[2]):
        intervals.free[node, to, column] = intervals.free[node, interval, column]


@inlined
def _split(intervals: FreeIntervals, node: int, time: float) -> int:
    """Split the interval that contains a time, if needed, and return the interval that starts at it."""
    at = _interval_at(intervals, node, time)
    if intervals.starts[node, at] == time:
        return at
    for interval in range(intervals.number[node], at + 1, -1):
        intervals.starts[node, interval] = intervals.starts[node, interval - 1]
        _copy(intervals, node, interval - 1, interval)
    intervals.starts[node, at + 1] = time
    _copy(intervals, node, at, at + 1)
    intervals.number[node] += 1
    return at + 1


@inlined
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


@compiled_without_references
def change_interval(
    intervals: FreeIntervals, node: int, start: float, end: float, mask: int, milli: int, cpu: int, memory: int
) -> bool:
    """Add amounts (negative: take) from `start` to `end`; False, unchanged, if the arrays must grow first."""
    if intervals.number[node] + 2 > intervals.starts.shape[1]:
        return False
    start = max(start, intervals.starts[node, 0])  # earlier intervals were dropped
    if start >= end:
        return True
    first = _split(intervals, node, start)
    last = _split(intervals, node, end) if end < np.inf else intervals.number[node]
    for interval in range(first, last):
        intervals.free[node, interval, CPU] += cpu
        intervals.free[node, interval, MEMORY] += memory
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
    return True


@compiled_without_references
def is_overbooked(
    intervals: FreeIntervals, node: int, start: float, end: float, mask: int, cpu: bool, memory: bool
) -> bool:
    """Whether the GPUs of `mask`, the CPUs or the memory of a node are overbooked at any time from start to end."""
    first = interval = _interval_at(intervals, node, start)
    while interval < intervals.number[node] and (interval == first or intervals.starts[node, interval] < end):
        if (cpu and intervals.free[node, interval, CPU] < 0) or (memory and intervals.free[node, interval, MEMORY] < 0):
            return True
        for gpu in range(intervals.free.shape[2] - FIRST_GPU_FREE):
            if mask >> gpu & 1 and intervals.free[node, interval, FIRST_GPU_FREE + gpu] < 0:
                return True
        interval += 1
    return False


@compiled_without_references
def drop_past_intervals(intervals: FreeIntervals, now: float) -> None:
    """Discard the intervals that have ended."""
    for node in range(len(intervals.number)):
        past = _interval_at(intervals, node, now)
        if past > 0:
            for interval in range(past, intervals.number[node]):
                intervals.starts[node, interval - past] = intervals.starts[node, interval]
                _copy(intervals, node, interval, interval - past)
            intervals.number[node] -= past


# --- windows ------------------------------------------------------------------------------------------------


@inlined
def _instances_on_gpus(gpu_free: Ints, gpus: int, need: Need) -> int:
    """Return how many instances fit; each takes one part of each of `need.gpus` different GPUs."""
    fitting, parts = need.instances, need.gpus * need.instances
    while fitting > 0:
        parts = 0
        for gpu in range(gpus):
            parts += min(fitting, max(gpu_free[gpu], 0) // need.milli)
        if parts >= fitting * need.gpus:
            break
        fitting = parts // need.gpus
    return fitting


@inlined
def _instances_in(
    intervals: FreeIntervals, nodes: Ints, node: int, first: int, until: float, need: Need, gpu_free: Ints
) -> int:
    """Return how many instances fit on a node throughout all intervals from `first` on that start before `until`."""
    gpus, whole, cpu, memory = (
        nodes[node, GPUS],
        -1,
        intervals.free[node, first, CPU],
        intervals.free[node, first, MEMORY],
    )
    shared = need.gpus > 0 and need.milli < WHOLE
    if shared:
        for gpu in range(gpus):
            gpu_free[gpu] = WHOLE
    interval = first
    while interval < intervals.number[node] and (interval == first or intervals.starts[node, interval] < until):
        whole &= intervals.free[node, interval, WHOLE_MASK]
        cpu = min(cpu, intervals.free[node, interval, CPU])
        memory = min(memory, intervals.free[node, interval, MEMORY])
        if shared:
            for gpu in range(gpus):
                gpu_free[gpu] = min(gpu_free[gpu], intervals.free[node, interval, FIRST_GPU_FREE + gpu])
        elif need.gpus > 0 and count_ones(np.uint64(whole)) < need.gpus:
            return 0
        interval += 1
    fitting = need.instances
    if shared:
        fitting = _instances_on_gpus(gpu_free, gpus, need)
    elif need.gpus > 0:
        fitting = min(fitting, count_ones(np.uint64(whole)) // need.gpus)
    if need.cpu > 0:
        fitting = min(fitting, cpu // need.cpu)
    if need.memory > 0:
        fitting = min(fitting, memory // need.memory)
    return max(fitting, 0)


@inlined
def _has_suitable_gpus(nodes: Ints, up: Ints, node: int, need: Need) -> bool:
    suitable = up[node] != 0 and nodes[node, GPUS] >= need.gpus
    return suitable and (need.gpus == 0 or nodes[node, TYPE_BIT] & need.types != 0)


@compiled_without_references
def first_that_can_start_earlier(
    intervals: FreeIntervals,
    nodes: Ints,
    up: Ints,
    booked: BookedJobs,
    order: Ints,
    position: int,
    candidates: Ints,
    now: float,
    checks_left: Ints,
    gpu_free: Ints,
) -> int:
    """Return the first position at which an instance fits on a candidate node before its booked start; or -1."""
    while position < len(order):
        row = order[position]
        start, need = booked.start[row], need_at(booked.demands, booked.demand_row[row])
        single = Need(1, need.gpus, need.milli, need.cpu, need.memory, need.types)
        if now < start < np.inf:
            if need.instances > 1 and booked.touched[row]:
                return position
            for node in candidates:
                checks_left[0] -= 1
                on_this_node = booked.node[row] == node
                if on_this_node:  # its own booking must not block it: release it for the check
                    mask, end = booked.mask[row], start + booked.duration[row]
                    if not change_interval(intervals, node, start, end, mask, need.milli, need.cpu, need.memory):
                        return position  # the arrays are full: report it, and the caller checks it completely
                before = start
                found = _earliest_start_on_node(
                    intervals, nodes, up, node, single, booked.duration[row], now, before, gpu_free
                )
                if on_this_node:
                    change_interval(intervals, node, start, end, mask, -need.milli, -need.cpu, -need.memory)
                if found < start:
                    return position
        position += 1
    return -1


@inlined
def _earliest_start_on_node(
    intervals: FreeIntervals,
    nodes: Ints,
    up: Ints,
    node: int,
    need: Need,
    duration: float,
    after: float,
    before: float,
    gpu_free: Ints,
) -> float:
    """Return the first time in [after, before) from which one instance fits on a node for `duration`; inf: none."""
    if not _has_suitable_gpus(nodes, up, node, need):
        return np.inf
    interval, time = _interval_at(intervals, node, after), after
    while time < before:
        if _instances_in(intervals, nodes, node, interval, time + duration, need, gpu_free) > 0:
            return time
        interval += 1
        if interval >= intervals.number[node]:
            return np.inf
        time = intervals.starts[node, interval]
    return np.inf


@compiled_without_references
def earliest_start(
    intervals: FreeIntervals,
    nodes: Ints,
    up: Ints,
    demands: Ints,
    duration: float,
    after: float,
    before: float,
    gpu_free: Ints,
) -> float:
    """Return the first time in [after, before) from which all instances fit at once for `duration`; inf: none."""
    need = need_at(demands, 0)
    if not after < before:
        return np.inf
    if need.instances > 1:
        return _earliest_start_of_gang(intervals, nodes, up, need, duration, after, before, gpu_free)
    best = before
    for node in range(nodes.shape[0] - 1):
        best = min(best, _earliest_start_on_node(intervals, nodes, up, node, need, duration, after, best, gpu_free))
        if best <= after:
            return best
    return best if best < before else np.inf


@compiled
def _earliest_start_of_gang(
    intervals: FreeIntervals,
    nodes: Ints,
    up: Ints,
    need: Need,
    duration: float,
    after: float,
    before: float,
    gpu_free: Ints,
) -> float:
    """Slide the window forward and track how many instances fit on all nodes together.

    The count of a node rises when the window starts at one of its intervals, and falls as soon as the end of the
    window has passed the start of another. So gains count at their time, and losses after it.
    """
    fitting, changes = 0, 0
    for node in range(nodes.shape[0] - 1):
        changes += 2 * intervals.number[node]
    times, deltas = np.empty(changes), np.empty(changes, dtype=np.int64)
    changes = 0
    for node in range(nodes.shape[0] - 1):
        if not _has_suitable_gpus(nodes, up, node, need):
            continue
        interval, count = _interval_at(intervals, node, after), intervals.number[node]
        fitting_before = _instances_in(intervals, nodes, node, interval, after + duration, need, gpu_free)
        fitting += fitting_before
        next_conflict = interval + 1
        while next_conflict < count and intervals.starts[node, next_conflict] < after + duration:
            next_conflict += 1
        while interval + 1 < count or next_conflict < count:
            starts = intervals.starts[node, interval + 1] if interval + 1 < count else np.inf
            conflict = intervals.starts[node, next_conflict] - duration if next_conflict < count else np.inf
            time = min(starts, conflict)
            if time >= before:
                break
            if starts <= conflict:
                interval += 1
                fitting_now = _instances_in(intervals, nodes, node, interval, time + duration, need, gpu_free)
            else:
                until = np.nextafter(intervals.starts[node, next_conflict], np.inf)
                fitting_now = _instances_in(intervals, nodes, node, interval, until, need, gpu_free)
                next_conflict += 1
            if fitting_now != fitting_before:
                times[changes], deltas[changes] = time, fitting_now - fitting_before
                changes += 1
                fitting_before = fitting_now
    if fitting >= need.instances:
        return after
    return _first_time_with(times[:changes], deltas[:changes], fitting, need.instances)


@compiled
def _first_time_with(times: Floats, deltas: Ints, fitting: int, needed: int) -> float:
    """Return the first time at which `fitting`, which changes by `deltas` at `times`, reaches `needed`."""
    order = np.argsort(times)
    position = 0
    while position < len(order):
        time, losses = times[order[position]], 0
        while position < len(order) and times[order[position]] == time:
            delta = deltas[order[position]]
            fitting += max(delta, 0)
            losses += min(delta, 0)
            position += 1
        if fitting >= needed:
            return time
        fitting += losses
    return np.inf


@inlined
def _free_duration_on_node(
    intervals: FreeIntervals, nodes: Ints, node: int, need: Need, now: float, gpu_free: Ints
) -> float:
    """Return for how long one instance fits on a node, from now on."""
    first = interval = _interval_at(intervals, node, now)
    while interval < intervals.number[node]:
        until = intervals.starts[node, interval + 1] if interval + 1 < intervals.number[node] else np.inf
        if _instances_in(intervals, nodes, node, first, until, need, gpu_free) == 0:
            return intervals.starts[node, interval] - now if interval > first else 0.0
        interval += 1
    return np.inf


@compiled_without_references
def longest_free_duration(
    intervals: FreeIntervals, nodes: Ints, up: Ints, demands: Ints, now: float, gpu_free: Ints
) -> float:
    """Return for how long all instances fit, from now on."""
    need = need_at(demands, 0)
    if need.instances == 1:
        best = 0.0
        for node in range(nodes.shape[0] - 1):
            if _has_suitable_gpus(nodes, up, node, need):
                best = max(best, _free_duration_on_node(intervals, nodes, node, need, now, gpu_free))
                if best == np.inf:
                    return best
        return best
    return _longest_free_duration_of_gang(intervals, nodes, up, need, now, gpu_free)


@compiled_without_references
def longest_free_duration_on(
    intervals: FreeIntervals, nodes: Ints, up: Ints, candidates: Ints, demands: Ints, now: float, gpu_free: Ints
) -> float:
    """Return for how long one instance fits on one of the candidate nodes, from now on."""
    need = need_at(demands, 0)
    single = Need(1, need.gpus, need.milli, need.cpu, need.memory, need.types)
    best = 0.0
    for node in candidates:
        if _has_suitable_gpus(nodes, up, node, single):
            best = max(best, _free_duration_on_node(intervals, nodes, node, single, now, gpu_free))
    return best


@compiled
def _longest_free_duration_of_gang(
    intervals: FreeIntervals, nodes: Ints, up: Ints, need: Need, now: float, gpu_free: Ints
) -> float:
    """Extend the window, which starts now, and track how many instances fit; the count can only fall."""
    fitting, changes = 0, 0
    for node in range(nodes.shape[0] - 1):
        changes += intervals.number[node]
    times, deltas = np.empty(changes), np.empty(changes, dtype=np.int64)
    changes = 0
    for node in range(nodes.shape[0] - 1):
        if not _has_suitable_gpus(nodes, up, node, need):
            continue
        first = _interval_at(intervals, node, now)
        interval, fitting_before = first, need.instances
        while interval < intervals.number[node] and fitting_before > 0:
            until = intervals.starts[node, interval + 1] if interval + 1 < intervals.number[node] else np.inf
            fitting_now = _instances_in(intervals, nodes, node, first, until, need, gpu_free)
            if interval == first:
                fitting += fitting_now
            elif fitting_now < fitting_before:
                times[changes], deltas[changes] = intervals.starts[node, interval], fitting_now - fitting_before
                changes += 1
            fitting_before = fitting_now
            interval += 1
    if fitting < need.instances:
        return 0.0
    order = np.argsort(times[:changes])
    for position in order:
        fitting += deltas[position]
        if fitting < need.instances:
            return times[position] - now
    return np.inf


@inlined
def write_free_on_node(
    intervals: FreeIntervals, nodes: Ints, gpus: Ints, bits: Words, node: int, start: float, end: float, gpu_free: Ints
) -> None:
    """Write the resources of one node that are free throughout a window; if it has no length, those at its start."""
    first = _interval_at(intervals, node, start)
    cpu, memory = intervals.free[node, first, CPU], intervals.free[node, first, MEMORY]
    for gpu in range(nodes[node, GPUS]):
        gpu_free[gpu] = intervals.free[node, first, FIRST_GPU_FREE + gpu]
    interval = first + 1
    while interval < intervals.number[node] and intervals.starts[node, interval] < end:
        cpu = min(cpu, intervals.free[node, interval, CPU])
        memory = min(memory, intervals.free[node, interval, MEMORY])
        for gpu in range(nodes[node, GPUS]):
            gpu_free[gpu] = min(gpu_free[gpu], intervals.free[node, interval, FIRST_GPU_FREE + gpu])
        interval += 1
    for gpu in range(nodes[node, GPUS]):
        gpu_free[gpu] = max(gpu_free[gpu], 0)
    set_free(nodes, gpus, bits, node, gpu_free, max(cpu, 0), max(memory, 0))


@compiled_without_references
def write_free_during(
    intervals: FreeIntervals, nodes: Ints, gpus: Ints, bits: Words, start: float, end: float, gpu_free: Ints
) -> None:
    """Write the resources that are free throughout a window into the arrays of the placement rules."""
    for node in range(nodes.shape[0] - 1):
        write_free_on_node(intervals, nodes, gpus, bits, node, start, end, gpu_free)
