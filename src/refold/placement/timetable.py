"""Timetable: the free resources of every node over time. Bookings name nodes and GPUs.

The future of a node is divided into intervals in which its free resources are constant. A booking takes resources from
all intervals between its start and its end, splitting intervals as needed. Queries about a time window then visit only
the few intervals in it: how many instances fit throughout, when they fit first, and for how long.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from refold.model import WHOLE, Cluster, Demand, Placement, Seconds, Share
from refold.placement import intervals, windows
from refold.placement.free import FreeResources, mask_from_indices
from refold.placement.intervals import BookedArrays, FreeIntervals
from refold.placement.layout import (
    CPU_FREE,
    FIRST_GPU_FREE,
    GPUS,
    INTERVAL_CPU,
    INTERVAL_MEMORY,
    MEMORY_FREE,
    TYPE_BIT,
    WHOLE_MASK,
    Floats,
    Ints,
)

INITIAL_INTERVALS = 8
"""Allocated intervals per node at first; the arrays are doubled when they are full."""


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
        self._intervals = _initial_intervals(self._empty, self._up)

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
        return bool(self._up[node])

    def is_gpu_up(self, node: int, gpu: int) -> bool:
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
            if not intervals.has_room(self._intervals, share.node):
                self._intervals = self._intervals.with_doubled_capacity()
            intervals.change_interval(
                self._intervals,
                share.node,
                start,
                end,
                mask_from_indices(share.gpus),
                sign * share.gpu_milli,
                sign * share.cpu_milli,
                sign * share.memory_mib,
            )

    def drop_before(self, now: Seconds) -> None:
        """Discard intervals that ended before `now`."""
        intervals.drop_past_intervals(self._intervals, now)

    def earliest_start(self, demand: Demand, duration: Seconds, after: Seconds, before: Seconds = inf) -> Seconds:
        """Return the first time in [after, before) from which all instances fit at once for `duration`; inf: none."""
        return windows.earliest_start(self._intervals, self.vector(demand), duration, after, before)

    def longest_free_duration(self, demand: Demand, now: Seconds) -> Seconds:
        """Return for how long all instances fit, from now on."""
        return windows.longest_free_duration(self._intervals, self.vector(demand), now)

    def longest_free_duration_on(self, candidates: Ints, demand: Demand, now: Seconds) -> Seconds:
        """Return for how long one instance fits on one of the candidate nodes, from now on."""
        return intervals.longest_free_duration_on(self._intervals, candidates, self.vector(demand), now)

    def first_that_can_start_earlier(
        self, booked: BookedJobs, order: Ints, position: int, candidates: Ints, now: Seconds, checks_left: Ints
    ) -> int:
        """Return the position of the first job, from `position` on, that may start earlier on the candidate nodes.

        -1: none. `checks_left` is decremented for every node that is checked.
        """
        return intervals.first_that_can_start_earlier(
            self._intervals, BookedArrays(*booked), order, position, candidates, now, checks_left
        )

    def is_overbooked(self, placement: Placement, start: Seconds, end: Seconds) -> bool:
        """Whether a resource of a placement is overbooked at any time from `start` to `end`."""
        return any(
            intervals.is_overbooked(
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
        return self._empty.vector(demand)

    def free_during(self, start: Seconds, end: Seconds) -> FreeResources:
        """Return the resources that are free throughout a window. The next call reuses the same arrays."""
        intervals.write_free_during(self._intervals, self._window.arrays, start, end)
        return self._window


def _initial_intervals(empty: FreeResources, up: Ints) -> FreeIntervals:
    """Return one unbounded interval per node, with all resources free."""
    gpus, types = empty.nodes[:-1, GPUS].copy(), empty.nodes[:-1, TYPE_BIT].copy()
    free = np.zeros((len(up), INITIAL_INTERVALS, FIRST_GPU_FREE + int(gpus.max())), dtype=np.int64)
    for node, row in enumerate(empty.nodes[:-1]):
        free[node, 0, WHOLE_MASK] = (1 << int(row[GPUS])) - 1
        free[node, 0, INTERVAL_CPU], free[node, 0, INTERVAL_MEMORY] = row[CPU_FREE], row[MEMORY_FREE]
        free[node, 0, FIRST_GPU_FREE : FIRST_GPU_FREE + int(row[GPUS])] = WHOLE
    return FreeIntervals(gpus, types, up, np.ones_like(up), np.full(free.shape[:2], -inf), free, empty.arrays.allowed)
