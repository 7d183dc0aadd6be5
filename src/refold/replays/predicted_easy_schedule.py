"""The schedule of EASY backfilling with predicted run times: `Schedule` and `Gaps` of the policy, as arrays.

Tasks hold their placement, as a run or by a reservation, in their rows of `placements`. A placement that has been found
is in `found` until it is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refold.jit import compiled, compiled_without_references, struct
from refold.model import Cluster
from refold.packing import (
    GPU_MASK,
    GPUS,
    MILLI_FREE,
    NODE,
    BookedJobs,
    Bools,
    Floats,
    FreeArrays,
    FreeIntervals,
    FreeResources,
    Ints,
    PlacementRule,
    change_interval,
    change_rows,
    drop_past_intervals,
    earliest_start,
    initial_intervals,
    longest_free_duration,
    longest_free_duration_on,
    need_at,
    no_shortest_tasks,
    place_demand,
    take_rows,
    with_doubled_capacity,
    write_free_during,
)
from refold.replays.columns import ReplayArrays, TaskColumns
from refold.replays.heaps import OrderedHeap, enlarged, is_full, pop_ordered, push_ordered

MAX_PLACEMENT_ATTEMPTS = 8
"""As in the policy."""

# Entries of `Schedule.counters`: lengths of lists, and the number of arrivals and of waiting tasks.
RESERVED, DISPLACED, RELEASED, NEWLY_FREE, ARRIVALS, QUEUED = range(6)


class Gaps(NamedTuple):
    """The waiting tasks without a reservation: by demand a binary tree of the shortest ones, as in `ShortestTasks`.

    A vertex of `best` has the task with the shortest duration, of equal ones the first in the queue; -1: none.
    `fits_until`: an upper bound of the time until which the demand fits.
    """

    tree: Ints
    leaves: Ints
    leaf: Ints
    best: Ints
    number: Ints
    fits_until: Floats

    @staticmethod
    def allocate(demand_of: Ints, demands: int) -> Gaps:
        """Return the trees of so many demands, without tasks."""
        trees = no_shortest_tasks(demand_of, demands)
        best = np.full(len(trees.shortest), -1, dtype=np.int64)
        return Gaps(trees.tree, trees.leaves, trees.leaf, best, trees.number, np.zeros(demands))


class NodeList(NamedTuple):
    """A list of different nodes; its length is in the counters of the schedule."""

    nodes: Ints
    is_in: Bools

    @staticmethod
    def allocate(nodes: int) -> NodeList:
        """Return an empty list."""
        return NodeList(np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.bool_))


@struct
class Schedule:
    """Waiting tasks, reservations and the timetable.

    By task: `rank` and `arrival` are its position in the queue; `duration` and `backfill` its assumed run time for
    reservations and for gaps; `first_start` the earliest start that was ever reserved for it. `start` and `end` are
    those of its reservation; for a task in `displaced`, those of the same placement at a later time.
    """

    rule: PlacementRule
    demands: Ints
    demand_of: Ints
    first_row: Ints
    placements: Ints
    found: Ints
    rank: Floats
    id_rank: Ints
    arrival: Ints
    duration: Floats
    backfill: Floats
    first_start: Floats
    queue: OrderedHeap
    is_queued: Bools
    gaps: Gaps
    reserved: Ints
    is_reserved: Bools
    displaced: Ints
    end: Floats
    booked: BookedJobs
    released: NodeList
    newly_free: NodeList
    candidates: NodeList
    in_order: Ints
    intervals: FreeIntervals
    empty: Ints
    up: Ints
    window: FreeArrays
    gpu_free: Ints
    checks_left: Ints
    counters: Ints

    @staticmethod
    def allocate(
        columns: TaskColumns, cluster: Cluster, arrays: ReplayArrays, placement: str, rank: Floats, id_rank: Ints
    ) -> Schedule:
        """Return the schedule of an empty cluster."""
        free, nodes, tasks = FreeResources(cluster), len(cluster.nodes), len(columns.work)
        window = free.copy()
        arrival, demand_row, node, mask, touched, reserved, displaced, in_order = np.zeros((8, tasks), dtype=np.int64)
        duration, backfill, first_start, start, end, booked_duration = np.zeros((6, tasks))
        is_queued, is_reserved = np.zeros((2, tasks), dtype=np.bool_)
        instances = max((demand.instances for demand in columns.demands), default=1)
        demand_row[:] = columns.demand_of
        return Schedule(
            PlacementRule.allocate(placement, free, columns.demands),
            arrays.demand_rows,
            columns.demand_of,
            arrays.first_row,
            arrays.placements,
            np.zeros((instances, 2), dtype=np.int64),
            rank,
            id_rank,
            arrival,
            duration,
            backfill,
            first_start,
            OrderedHeap.allocate(),
            is_queued,
            Gaps.allocate(columns.demand_of, len(columns.demands)),
            reserved,
            is_reserved,
            displaced,
            end,
            BookedJobs(arrays.demand_rows, demand_row, booked_duration, start, node, mask, touched),
            NodeList.allocate(nodes),
            NodeList.allocate(nodes),
            NodeList.allocate(nodes),
            in_order,
            initial_intervals(free),
            free.nodes,
            np.ones(nodes, dtype=np.int64),
            FreeArrays(window.nodes, window.gpus, window.bits),
            np.zeros(max(1, int(free.nodes[:-1, GPUS].max())), dtype=np.int64),
            np.zeros(1, dtype=np.int64),
            np.zeros(QUEUED + 1, dtype=np.int64),
        )


# --- resources ----------------------------------------------------------------------------------------------


@compiled_without_references
def change_free(schedule: Schedule, free: FreeArrays, task: int, sign: int) -> None:
    """Release (sign 1) or take (sign -1) the placement of a task, without checks."""
    need = need_at(schedule.demands, schedule.demand_of[task])
    change_rows(free, need, schedule.placements, schedule.first_row[task], sign)


@compiled_without_references
def take_placement(schedule: Schedule, free: FreeArrays, task: int) -> bool:
    """Take the placement of a task; False, with nothing taken, if a part is not free."""
    need = need_at(schedule.demands, schedule.demand_of[task])
    return take_rows(free, need, schedule.placements, schedule.first_row[task])


@compiled_without_references
def take_found(schedule: Schedule, free: FreeArrays, task: int) -> bool:
    """Take the placement that was found for a task; False, with nothing taken, if a part is not free."""
    return take_rows(free, need_at(schedule.demands, schedule.demand_of[task]), schedule.found, 0)


@compiled_without_references
def release_found(schedule: Schedule, free: FreeArrays, task: int) -> None:
    """Release the placement that was found for a task."""
    change_rows(free, need_at(schedule.demands, schedule.demand_of[task]), schedule.found, 0, 1)


@compiled_without_references
def place(schedule: Schedule, free: FreeArrays, task: int) -> bool:
    """Take resources for a task and write them to `found`; False, with nothing taken, if it does not fit."""
    return place_demand(free, schedule.rule, schedule.demand_of[task], schedule.found, 0)


@compiled_without_references
def use_found(schedule: Schedule, task: int) -> None:
    """Let the placement that was found be that of a task."""
    first = schedule.first_row[task]
    for row in range(first, schedule.first_row[task + 1]):
        schedule.placements[row, NODE] = schedule.found[row - first, NODE]
        schedule.placements[row, GPU_MASK] = schedule.found[row - first, GPU_MASK]


@compiled_without_references
def overlap(schedule: Schedule, task: int, other: int) -> bool:
    """Return whether two placements share a GPU of a node, or both use CPUs, or both memory, of the same node."""
    need = need_at(schedule.demands, schedule.demand_of[task])
    other_need = need_at(schedule.demands, schedule.demand_of[other])
    share_node = (need.cpu > 0 and other_need.cpu > 0) or (need.memory > 0 and other_need.memory > 0)
    rows = schedule.placements
    for row in range(schedule.first_row[task], schedule.first_row[task + 1]):
        for other_row in range(schedule.first_row[other], schedule.first_row[other + 1]):
            if rows[row, NODE] == rows[other_row, NODE] and (
                share_node or rows[row, GPU_MASK] & rows[other_row, GPU_MASK]
            ):
                return True
    return False


# --- the timetable ------------------------------------------------------------------------------------------


@compiled_without_references
def change_booking(schedule: Schedule, task: int, start: float, end: float, sign: int) -> None:
    """Book (sign -1) or release (sign 1) the placement of a task from `start` to `end`."""
    if not start < end:
        return
    need, rows = need_at(schedule.demands, schedule.demand_of[task]), schedule.placements
    milli, cpu, memory = sign * need.milli, sign * need.cpu, sign * need.memory
    for row in range(schedule.first_row[task], schedule.first_row[task + 1]):
        node, mask = rows[row, NODE], rows[row, GPU_MASK]
        if not change_interval(schedule.intervals, node, start, end, mask, milli, cpu, memory):
            _enlarge_timetable(schedule)
            change_interval(schedule.intervals, node, start, end, mask, milli, cpu, memory)


@compiled
def _enlarge_timetable(schedule: Schedule) -> None:
    schedule.intervals = with_doubled_capacity(schedule.intervals)


@compiled_without_references
def drop_past(schedule: Schedule, now: float) -> None:
    """Drop past bookings."""
    drop_past_intervals(schedule.intervals, now)


@compiled_without_references
def write_window(schedule: Schedule, start: float, end: float) -> None:
    """Write what is free all the time from `start` to `end` to `window`."""
    window = schedule.window
    write_free_during(schedule.intervals, window.nodes, window.gpus, window.bits, start, end, schedule.gpu_free)


@compiled_without_references
def find_start(schedule: Schedule, task: int, duration: float, now: float, before: float) -> float:
    """Return the earliest start before `before`, with its placement in `found`; infinity if there is none."""
    demand, after = schedule.demand_of[task], now
    row = schedule.demands[demand : demand + 1]
    for _ in range(MAX_PLACEMENT_ATTEMPTS):
        start = earliest_start(
            schedule.intervals, schedule.empty, schedule.up, row, duration, after, before, schedule.gpu_free
        )
        if start == np.inf:
            return np.inf
        write_window(schedule, start, start + duration)
        if place(schedule, schedule.window, task):
            return float(start)
        after = np.nextafter(start, np.inf)
    return np.inf


@compiled_without_references
def place_now(schedule: Schedule, task: int, now: float) -> bool:
    """Find a placement that is free from now on for as long as a task will run."""
    write_window(schedule, now, now + schedule.backfill[task])
    return place(schedule, schedule.window, task)


@compiled_without_references
def note_released(schedule: Schedule, task: int) -> None:
    """Add the nodes of a task to those with releases."""
    counters, released, newly_free = schedule.counters, schedule.released, schedule.newly_free
    for row in range(schedule.first_row[task], schedule.first_row[task + 1]):
        node = schedule.placements[row, NODE]
        if not released.is_in[node]:
            released.is_in[node] = True
            released.nodes[counters[RELEASED]] = node
            counters[RELEASED] += 1
        if not newly_free.is_in[node]:
            newly_free.is_in[node] = True
            newly_free.nodes[counters[NEWLY_FREE]] = node
            counters[NEWLY_FREE] += 1


@compiled_without_references
def end_booking(schedule: Schedule, task: int, now: float, booked_end: float) -> None:
    """Release what is booked for a run that has ended."""
    if booked_end > now:
        change_booking(schedule, task, now, booked_end, 1)
    note_released(schedule, task)


# --- the queue ----------------------------------------------------------------------------------------------


@compiled_without_references
def is_before(schedule: Schedule, task: int, other: int) -> bool:
    """Return whether a task comes before another one in the queue."""
    rank, arrival = schedule.rank, schedule.arrival
    return bool(rank[task] < rank[other] or (rank[task] == rank[other] and arrival[task] < arrival[other]))


@compiled_without_references
def add_to_queue(schedule: Schedule, task: int, duration: float, backfill: float) -> None:
    """Add a task with its assumed run times, without a reservation."""
    counters = schedule.counters
    counters[ARRIVALS] += 1
    counters[QUEUED] += 1
    schedule.arrival[task] = counters[ARRIVALS]
    schedule.duration[task], schedule.backfill[task] = duration, backfill
    schedule.first_start[task], schedule.is_queued[task] = np.inf, True
    if is_full(schedule.queue):
        _enlarge_queue(schedule)
    push_ordered(schedule.queue, schedule.rank[task], counters[ARRIVALS], task)
    add_to_gaps(schedule, task)


@compiled
def _enlarge_queue(schedule: Schedule) -> None:
    schedule.queue = enlarged(schedule.queue)


@compiled_without_references
def first_in_queue(schedule: Schedule) -> int:
    """Return the first waiting task; -1 if there is none."""
    queue = schedule.queue
    while queue.size[0] > 0:
        task = queue.values[0]
        if schedule.is_queued[task] and schedule.arrival[task] == queue.order[0]:
            return int(task)
        pop_ordered(queue)
    return -1


# --- gaps ---------------------------------------------------------------------------------------------------


@compiled_without_references
def _better(schedule: Schedule, task: int, other: int) -> int:
    """Return which of two tasks is offered a gap first; -1 is none."""
    if task < 0 or other < 0:
        return max(task, other)
    backfill, arrival = schedule.backfill, schedule.arrival
    is_first = backfill[task] < backfill[other] or (
        backfill[task] == backfill[other] and arrival[task] < arrival[other]
    )
    return task if is_first else other


@compiled_without_references
def _set_leaf(schedule: Schedule, task: int, value: int) -> None:
    gaps, demand = schedule.gaps, schedule.demand_of[task]
    tree, vertex = gaps.tree[demand], gaps.leaves[demand] + gaps.leaf[task]
    gaps.best[tree + vertex] = value
    while vertex > 1:
        vertex >>= 1
        best = _better(schedule, gaps.best[tree + 2 * vertex], gaps.best[tree + 2 * vertex + 1])
        if gaps.best[tree + vertex] == best:
            break
        gaps.best[tree + vertex] = best


@compiled_without_references
def _is_in_gaps(schedule: Schedule, task: int) -> bool:
    gaps, demand = schedule.gaps, schedule.demand_of[task]
    return bool(gaps.best[gaps.tree[demand] + gaps.leaves[demand] + gaps.leaf[task]] >= 0)


@compiled_without_references
def add_to_gaps(schedule: Schedule, task: int) -> None:
    """Let a task be offered gaps."""
    gaps, demand = schedule.gaps, schedule.demand_of[task]
    if gaps.number[demand] == 0:
        gaps.fits_until[demand] = np.inf
    gaps.number[demand] += 1
    _set_leaf(schedule, task, task)


@compiled_without_references
def remove_from_gaps(schedule: Schedule, task: int) -> None:
    """Let a task no longer be offered gaps, if it is."""
    if _is_in_gaps(schedule, task):
        schedule.gaps.number[schedule.demand_of[task]] -= 1
        _set_leaf(schedule, task, -1)


@compiled_without_references
def reopen_gaps(schedule: Schedule, free: FreeArrays, now: float) -> None:
    """Raise the bounds of demands that may fit now because resources were released."""
    gaps, demands, counters = schedule.gaps, schedule.demands, schedule.counters
    count, newly_free = counters[NEWLY_FREE], schedule.newly_free
    if count == 0:
        return
    counters[NEWLY_FREE] = 0
    for at in range(count):
        newly_free.is_in[newly_free.nodes[at]] = False
    free_milli = free.nodes[free.nodes.shape[0] - 1, MILLI_FREE]
    for demand in range(demands.shape[0]):
        need, until = need_at(demands, demand), gaps.fits_until[demand]
        if gaps.number[demand] == 0 or until == np.inf or need.instances * need.gpus * need.milli > free_milli:
            continue
        if need.instances > 1:
            gaps.fits_until[demand] = np.inf  # other nodes matter as well
            continue
        longest = longest_free_duration_on(
            schedule.intervals,
            schedule.empty,
            schedule.up,
            newly_free.nodes[:count],
            demands[demand : demand + 1],
            now,
            schedule.gpu_free,
        )
        gaps.fits_until[demand] = max(until, now + longest)


@compiled_without_references
def next_for_gap(schedule: Schedule, now: float) -> int:
    """Return the next task that fits for as long as it will run; -1 if there is none."""
    gaps, demands = schedule.gaps, schedule.demands
    task = _candidate(schedule, now)
    while task >= 0:
        demand = schedule.demand_of[task]
        row = demands[demand : demand + 1]
        fits_for = longest_free_duration(schedule.intervals, schedule.empty, schedule.up, row, now, schedule.gpu_free)
        gaps.fits_until[demand] = now + fits_for
        if schedule.backfill[task] <= fits_for:
            return task
        task = _candidate(schedule, now)
    return -1


@compiled_without_references
def _candidate(schedule: Schedule, now: float) -> int:
    """Return the first of the tasks that may fit by the bounds of their demands; -1 if there is none."""
    gaps, best = schedule.gaps, -1
    for demand in range(gaps.number.shape[0]):
        if gaps.number[demand] > 0:
            task = gaps.best[gaps.tree[demand] + 1]
            if schedule.backfill[task] <= gaps.fits_until[demand] - now:
                best = _better(schedule, task, best)
    return best
