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
from refold.model import Cluster, Demand, Placement, Seconds
from refold.packing import (
    DEMAND_ENTRIES,
    MILLI_FREE,
    RULE_STATE_ENTRIES,
    RULES,
    Bools,
    DemandHistory,
    Floats,
    FreeResources,
    Ints,
    RackDraw,
    ScoreCache,
    Words,
    adjust_free,
    empty_demand_history,
    empty_score_cache,
    mask_from_indices,
    need_at,
    no_rack_draw,
    place_instances,
    pop,
    push,
)
from refold.policies import QueueOrder
from refold.simulator.replay import release_task

BACKFILL_DEPTH = 100
"""Number of jobs behind the first one that are considered when jobs may overtake it."""

_PLACEMENT = RULES["best-fit"][0]
_FIFO, _SKIP, _EASY = range(3)
_ORDERS: dict[QueueOrder, int] = {"fifo": _FIFO, "fifo-skip": _SKIP, "easy": _EASY, "least-work": _SKIP}
_NODE, _MASK, _MILLI, _CPU, _MEMORY, _SHARE_COLUMNS = range(6)


class _Resources(NamedTuple):
    """The arrays of `FreeResources`."""

    nodes: Ints
    gpus: Ints
    bits: Words


class _Runs(NamedTuple):
    """Present runs: the shares that each holds, from row `first_share` on, and its end."""

    shares: Ints
    first_share: Ints
    ends: Floats


class _Queue(NamedTuple):
    """Waiting jobs in order: demand, run time, and the rows of their placements."""

    demand_of: Ints
    durations: Floats
    rows: Ints
    fits_empty: Bools
    first_row: Ints
    placements: Ints


class _Rule(NamedTuple):
    """The arguments of the placement kernel that do not change."""

    state: Ints
    history: DemandHistory
    scores: ScoreCache
    racks: RackDraw


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
        self._rows = np.zeros((len(numbers), DEMAND_ENTRIES), dtype=np.int64)
        for demand, number in numbers.items():
            self._rows[number] = free.vector(demand)[0]
        self._fits_empty = np.array([free.fits_when_empty(demand) for demand in numbers], dtype=np.bool_)
        self._first_row = _offsets([demand.instances for demand in demands])

    def starts(self, order: QueueOrder, now: Seconds, ends: Floats, durations: Floats) -> Floats:
        """Return the start of each job (columns) in each future (rows); infinite where it is not known.

        `ends` are the ends of the runs and `durations` the run times of the jobs in each future, infinite if unknown.
        """
        ends, durations = np.ascontiguousarray(ends), np.ascontiguousarray(durations)  # one signature to compile
        starts = np.full(durations.shape, inf)
        free = self._free
        placements = np.zeros((int(self._first_row[-1]), 2), dtype=np.int64)
        for future, started in enumerate(starts):
            _forecast(
                _ORDERS[order],
                now,
                _Resources(free.nodes.copy(), free.gpus.copy(), free.bits.copy()),
                _Runs(self._shares, self._first_share, ends[future]),
                _Queue(self._demand_of, durations[future], self._rows, self._fits_empty, self._first_row, placements),
                _rule(free.cluster),
                started,
            )
        return starts


def _offsets(sizes: Sequence[int]) -> Ints:
    return np.cumsum([0, *sizes], dtype=np.int64)


def _rule(cluster: Cluster) -> _Rule:
    state = np.zeros(RULE_STATE_ENTRIES, dtype=np.int64)
    return _Rule(state, empty_demand_history(), empty_score_cache(0, len(cluster.nodes)), no_rack_draw())


@compiled
def _forecast(
    order: int, now: float, free: _Resources, runs: _Runs, queue: _Queue, rule: _Rule, started: Floats
) -> None:
    """Write the start of each job to `started`. Tasks are the runs, then the jobs of the queue."""
    run_count, count = runs.ends.shape[0], queue.demand_of.shape[0]
    times, tasks = np.empty(run_count + count), np.empty(run_count + count, dtype=np.int64)
    size = 0
    for run in range(run_count):
        if runs.ends[run] < np.inf:
            push(times, tasks, size, runs.ends[run], run)
            size += 1
    blocked = np.zeros(queue.rows.shape[0], dtype=np.bool_)
    head = queue.first_row[0]  # 0; functions are compiled once more for a literal
    reserved_head, reserved = -1, np.inf
    while True:
        # 1. Start jobs in order. Those that do not fit the empty cluster are skipped.
        while head < count:
            demand = queue.demand_of[head]
            if started[head] < np.inf or not queue.fits_empty[demand]:
                head += 1
                continue
            if not _place(free, queue, rule, head, queue.placements, queue.first_row[head]):
                blocked[demand] = True
                break
            size = _start(times, tasks, size, now, run_count + head, queue.durations[head])
            started[head] = now
        if head == count:
            return

        # 2. Let others overtake the first job: any, or those that end before it can start.
        if order != _FIFO:
            for job in range(head + 1, min(count, head + 1 + BACKFILL_DEPTH)):
                demand = queue.demand_of[job]
                if started[job] < np.inf or blocked[demand] or not queue.fits_empty[demand]:
                    continue
                need = need_at(queue.rows, demand)
                if need.instances * need.gpus * need.milli > free.nodes[-1, MILLI_FREE]:
                    blocked[demand] = True
                    continue
                if order == _EASY and reserved_head != head:
                    reserved = _earliest_start(free, runs, queue, rule, head, times[:size], tasks[:size])
                    reserved_head = head
                if order == _EASY and not now + queue.durations[job] <= reserved < np.inf:
                    continue
                if _place(free, queue, rule, job, queue.placements, queue.first_row[job]):
                    size = _start(times, tasks, size, now, run_count + job, queue.durations[job])
                    started[job] = now
                else:
                    blocked[demand] = True

        # 3. Continue at the next end.
        if size == 0:
            return
        now = max(now, times[0])
        size = _end_tasks(times, tasks, size, now, free, runs, queue)
        blocked[:] = False


@compiled
def _place(free: _Resources, queue: _Queue, rule: _Rule, job: int, placements: Ints, row: int) -> bool:
    demand = queue.demand_of[job]
    return place_instances(
        _PLACEMENT,
        free.nodes,
        free.gpus,
        free.bits,
        queue.rows,
        demand,
        demand,
        rule.state,
        rule.history,
        rule.scores,
        rule.racks,
        placements,
        row,
    )


@compiled
def _start(times: Floats, tasks: Ints, size: int, now: float, task: int, duration: float) -> int:
    """Push the end of a task, if it is known; return the new size of the heap."""
    if duration == np.inf:
        return size
    push(times, tasks, size, now + duration, task)
    return size + 1


@compiled
def _end_tasks(times: Floats, tasks: Ints, size: int, now: float, free: _Resources, runs: _Runs, queue: _Queue) -> int:
    """Release the resources of the tasks that have ended by now; return the new size of the heap."""
    nodes, gpus, bits = free
    while size > 0 and times[0] <= now:
        task = pop(times, tasks, size)
        size -= 1
        if task < runs.ends.shape[0]:
            for row in range(runs.first_share[task], runs.first_share[task + 1]):
                share = runs.shares[row]
                adjust_free(nodes, gpus, bits, share[_NODE], share[_MASK], share[_MILLI], share[_CPU], share[_MEMORY])
        else:
            job = task - runs.ends.shape[0]
            need = need_at(queue.rows, queue.demand_of[job])
            release_task(nodes, gpus, bits, need, queue.placements, queue.first_row[job], queue.first_row[job + 1])
    return size


@compiled
def _earliest_start(
    free: _Resources, runs: _Runs, queue: _Queue, rule: _Rule, job: int, times: Floats, tasks: Ints
) -> float:
    """Return when a job fits if nothing else starts; infinite if that is not known."""
    later = _Resources(free.nodes.copy(), free.gpus.copy(), free.bits.copy())
    times, tasks, size = times.copy(), tasks.copy(), times.shape[0]
    scratch = np.zeros((queue.first_row[job + 1] - queue.first_row[job], 2), dtype=np.int64)
    while size > 0:
        now = times[0]
        size = _end_tasks(times, tasks, size, now, later, runs, queue)
        if _place(later, queue, rule, job, scratch, queue.first_row[0]):
            return float(now)
    return np.inf
