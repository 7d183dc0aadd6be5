"""The compiled forecast: when the jobs of a queue start, from the present state of a cluster, in several futures.

For policies that start jobs in the order of a queue it does the same as the general simulator (property tests check
this), in milliseconds instead of seconds: no policy is called and nothing is copied. Run times that are not known are
infinite; a job that can start only after such a run has no start time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from refold.jit import compiled
from refold.model import Demand, Placement, Seconds
from refold.packing import (
    MILLI_FREE,
    Bools,
    Floats,
    FreeArrays,
    FreeResources,
    Ints,
    PlacementRule,
    TaskHeap,
    adjust_free,
    change_rows,
    mask_from_indices,
    need_at,
    place_demand,
    pop_task,
    push_task,
)
from refold.policies import QueueOrder

BACKFILL_DEPTH = 100
"""Number of jobs behind the first one that are considered when jobs may overtake it."""

_FIFO, _SKIP, _EASY = range(3)
_ORDERS: dict[QueueOrder, int] = {"fifo": _FIFO, "fifo-skip": _SKIP, "easy": _EASY, "least-work": _SKIP}
_NODE, _MASK, _MILLI, _CPU, _MEMORY, _SHARE_COLUMNS = range(6)


class _Runs(NamedTuple):
    """Present runs: the shares that each holds, from row `first_share` on, and its end."""

    shares: Ints
    first_share: Ints
    ends: Floats


class _Queue(NamedTuple):
    """Waiting jobs in order: demand, run time, and the rows of their placements."""

    demand_of: Ints
    durations: Floats
    fits_empty: Bools
    first_row: Ints
    placements: Ints


class QueueForecast:
    """The present state of a cluster, and a queue of jobs in the order in which a policy starts them."""

    def __init__(self, free: FreeResources, runs: Sequence[Placement], demands: Sequence[Demand]) -> None:
        """`free`: what the runs leave. `runs`: what each of them holds. `demands`: of the waiting jobs, in order."""
        self._free = free
        shares = [
            (share.node, mask_from_indices(share.gpus), share.gpu_milli, share.cpu_milli, share.memory_mib)
            for placement in runs
            for share in placement
        ]
        self._shares = np.array(shares, dtype=np.int64).reshape(-1, _SHARE_COLUMNS)
        self._first_share = _offsets([len(placement) for placement in runs])
        numbers: dict[Demand, int] = {}
        self._demand_of = np.array([numbers.setdefault(demand, len(numbers)) for demand in demands], dtype=np.int64)
        self._rule = PlacementRule.allocate("best-fit", free, list(numbers))
        self._fits_empty = np.array([free.fits_when_empty(demand) for demand in numbers], dtype=np.bool_)
        self._first_row = _offsets([demand.instances for demand in demands])

    def starts(self, order: QueueOrder, now: Seconds, ends: Floats, durations: Floats) -> Floats:
        """Return the start of each job (columns) in each future (rows); infinite where it is not known.

        `ends` are the ends of the runs and `durations` the run times of the jobs in each future, infinite if unknown.
        """
        ends, durations = np.ascontiguousarray(ends), np.ascontiguousarray(durations)  # one signature to compile
        starts = np.full(durations.shape, inf)
        placements = np.zeros((int(self._first_row[-1]), 2), dtype=np.int64)
        for future, started in enumerate(starts):
            _forecast(
                _ORDERS[order],
                now,
                self._free.copy().arrays,
                _Runs(self._shares, self._first_share, ends[future]),
                _Queue(self._demand_of, durations[future], self._fits_empty, self._first_row, placements),
                self._rule,
                started,
            )
        return starts


def _offsets(sizes: Sequence[int]) -> Ints:
    return np.cumsum([0, *sizes], dtype=np.int64)


@compiled
def _forecast(
    order: int, now: float, free: FreeArrays, runs: _Runs, queue: _Queue, rule: PlacementRule, started: Floats
) -> None:
    """Write the start of each job to `started`. Tasks are the runs, then the jobs of the queue."""
    run_count, count = runs.ends.shape[0], queue.demand_of.shape[0]
    times, tasks = np.empty(run_count + count), np.empty(run_count + count, dtype=np.int64)
    ends = TaskHeap(times, tasks, np.zeros(1, dtype=np.int64))
    for run in range(run_count):
        if runs.ends[run] < np.inf:
            push_task(ends, runs.ends[run], run)
    blocked = np.zeros(rule.demands.shape[0], dtype=np.bool_)
    head = queue.first_row[0]  # 0; functions are compiled once more for a literal
    reserved_head, reserved = -1, np.inf
    while True:
        # 1. Start jobs in order. Those that do not fit the empty cluster are skipped.
        while head < count:
            demand = queue.demand_of[head]
            if started[head] < np.inf or not queue.fits_empty[demand]:
                head += 1
                continue
            if not place_demand(free, rule, demand, queue.placements, queue.first_row[head]):
                blocked[demand] = True
                break
            _start(ends, now, run_count + head, queue.durations[head])
            started[head] = now
        if head == count:
            return

        # 2. Let others overtake the first job: any, or those that end before it can start.
        if order != _FIFO:
            for job in range(head + 1, min(count, head + 1 + BACKFILL_DEPTH)):
                demand = queue.demand_of[job]
                if started[job] < np.inf or blocked[demand] or not queue.fits_empty[demand]:
                    continue
                need = need_at(rule.demands, demand)
                if need.instances * need.gpus * need.milli > free.nodes[-1, MILLI_FREE]:
                    blocked[demand] = True
                    continue
                if order == _EASY and reserved_head != head:
                    reserved = _earliest_start(free, runs, queue, rule, head, ends)
                    reserved_head = head
                if order == _EASY and not now + queue.durations[job] <= reserved < np.inf:
                    continue
                if place_demand(free, rule, demand, queue.placements, queue.first_row[job]):
                    _start(ends, now, run_count + job, queue.durations[job])
                    started[job] = now
                else:
                    blocked[demand] = True

        # 3. Continue at the next end.
        if ends.size[0] == 0:
            return
        now = max(now, ends.times[0])
        _end_tasks(ends, now, free, runs, queue, rule)
        blocked[:] = False


@compiled
def _start(ends: TaskHeap, now: float, task: int, duration: float) -> None:
    """Push the end of a task, if it is known."""
    if duration < np.inf:
        push_task(ends, now + duration, task)


@compiled
def _end_tasks(ends: TaskHeap, now: float, free: FreeArrays, runs: _Runs, queue: _Queue, rule: PlacementRule) -> None:
    """Release the resources of the tasks that have ended by now."""
    nodes, gpus, bits = free
    while ends.size[0] > 0 and ends.times[0] <= now:
        task = pop_task(ends)
        if task < runs.ends.shape[0]:
            for row in range(runs.first_share[task], runs.first_share[task + 1]):
                share = runs.shares[row]
                adjust_free(nodes, gpus, bits, share[_NODE], share[_MASK], share[_MILLI], share[_CPU], share[_MEMORY])
        else:
            job = task - runs.ends.shape[0]
            need = need_at(rule.demands, queue.demand_of[job])
            change_rows(free, need, queue.placements, queue.first_row[job], 1)


@compiled
def _earliest_start(
    free: FreeArrays, runs: _Runs, queue: _Queue, rule: PlacementRule, job: int, ends: TaskHeap
) -> float:
    """Return when a job fits if nothing else starts; infinite if that is not known."""
    later = FreeArrays(free.nodes.copy(), free.gpus.copy(), free.bits.copy())
    ends = TaskHeap(ends.times.copy(), ends.tasks.copy(), ends.size.copy())
    demand, row = queue.demand_of[job], queue.first_row[0]
    scratch = np.zeros((queue.first_row[job + 1] - queue.first_row[job], 2), dtype=np.int64)
    while ends.size[0] > 0:
        now = ends.times[0]
        _end_tasks(ends, now, later, runs, queue, rule)
        if place_demand(later, rule, demand, scratch, row):
            return float(now)
    return np.inf
