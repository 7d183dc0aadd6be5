"""The compiled replay of EASY backfilling with known run times: the same as policy `easy` in the general simulator.

It uses the same kernels for the timetable and the placement, so that start times and placements are bit-identical (a
property test checks this). Jobs are ordered by arrival, and run once, as requested and to completion.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from refold.errors import BadInput, UnknownName
from refold.jit import compiled
from refold.model import Cluster
from refold.packing import (
    GPU_MASK,
    GPUS,
    NODE,
    RULE_STATE_ENTRIES,
    RULES,
    DemandHistory,
    Floats,
    FreeIntervals,
    FreeResources,
    Ints,
    RackDraw,
    ScoreCache,
    Words,
    adjust_free,
    change_interval,
    drop_past_intervals,
    earliest_start,
    empty_demand_history,
    empty_score_cache,
    initial_intervals,
    longest_free_duration,
    longest_free_duration_on,
    need_at,
    no_rack_draw,
    place_instances,
    pop,
    push,
    write_free_during,
    write_free_on_node,
)
from refold.simulator.costs import RecordedSpeeds
from refold.simulator.replay import ReplayArrays, ReplayResult, TaskColumns, release_task

BackfillOrder = Literal["shortest", "queue"]

PLACEMENTS = ("first-fit", "best-fit", "worst-fit", "tetris")
"""The placement rules without state."""

MIN_WORK_SECONDS = 1.0
"""The minimum of the run time that is planned for a job."""

CLEANUP_INTERVAL = 64
"""The number of steps between two removals of past intervals from the timetable."""


def replay_easy(
    tasks: TaskColumns, cluster: Cluster, placement: str = "best-fit", backfill_order: BackfillOrder = "shortest"
) -> ReplayResult:
    """Simulate all tasks to completion."""
    if placement not in PLACEMENTS:
        raise UnknownName("placement of the compiled EASY replay", placement, PLACEMENTS)
    if set(RecordedSpeeds(cluster).speed_of_node.tolist()) != {1.0}:
        raise BadInput("the compiled EASY replay does not support GPUs of different speed: use the simulator")
    if backfill_order not in get_args(BackfillOrder):
        raise UnknownName("backfill_order", backfill_order, get_args(BackfillOrder))
    free = FreeResources(cluster)
    arrays = ReplayArrays.allocate(tasks, free)
    _replay(
        RULES[placement][0],
        backfill_order == "shortest",
        initial_intervals(free),
        free.nodes,
        free.gpus,
        free.bits,
        arrays,
        np.zeros(RULE_STATE_ENTRIES, dtype=np.int64),
        empty_demand_history(),
        empty_score_cache(0, len(cluster.nodes)),
        no_rack_draw(),
    )
    return arrays.result(tasks)


@compiled
def _change_booking(
    intervals: FreeIntervals,
    demand_rows: Ints,
    demand: int,
    placements: Ints,
    first: int,
    start: float,
    end: float,
    sign: int,
) -> FreeIntervals:
    """Book a placement from `start` to `end` (sign -1), or undo that (sign 1). Returns the (enlarged) intervals."""
    need = need_at(demand_rows, demand)
    if not start < end:
        return intervals
    for row in range(first, first + need.instances):
        node, mask = placements[row, NODE], placements[row, GPU_MASK]
        while not change_interval(
            intervals, node, start, end, mask, sign * need.milli, sign * need.cpu, sign * need.memory
        ):
            starts = np.full((intervals.starts.shape[0], 2 * intervals.starts.shape[1]), -np.inf)
            free = np.zeros(
                (intervals.free.shape[0], 2 * intervals.free.shape[1], intervals.free.shape[2]), dtype=np.int64
            )
            starts[:, : intervals.starts.shape[1]] = intervals.starts
            free[:, : intervals.free.shape[1]] = intervals.free
            intervals = FreeIntervals(intervals.number, starts, free)
    return intervals


@compiled
def _best_in_queue(queue: Ints, work: Floats, free_seconds: float, shortest_first: bool) -> int:
    """Return the task to backfill from a queue sorted by run time; -1 if none ends within `free_seconds`.

    Of the tasks that do, it is the shortest, or the one that arrived first.
    """
    best = -1
    for task in queue:
        if max(work[task], MIN_WORK_SECONDS) > free_seconds:
            break
        if best < 0 or task < best:
            best = task
        if shortest_first:
            break
    return best


@compiled
def _insert(queue: Ints, size: int, task: int, work: Floats) -> None:
    """Insert a task into a queue of `size` tasks sorted by run time, behind tasks of equal run time."""
    duration = max(work[task], MIN_WORK_SECONDS)
    position = size
    while position > 0 and max(work[queue[position - 1]], MIN_WORK_SECONDS) > duration:
        queue[position] = queue[position - 1]
        position -= 1
    queue[position] = task


@compiled
def _remove(queue: Ints, size: int, task: int) -> None:
    position = 0
    while queue[position] != task:
        position += 1
    for later in range(position + 1, size):
        queue[later - 1] = queue[later]


@compiled
def _replay(
    rule: int,
    shortest_first: bool,
    intervals: FreeIntervals,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    arrays: ReplayArrays,
    state: Ints,
    history: DemandHistory,
    scores: ScoreCache,
    racks: RackDraw,
) -> None:
    submitted, work, demand_of, rows, fits_empty, first_row, placements, started, ended = arrays[:9]
    start_number, start_step, end_step = arrays[9:]
    count, demand_count = len(submitted), len(rows)
    # What is free now is kept up to date; what is free in a later window is written when a reservation is made.
    later_nodes, later_gpus, later_bits = nodes.copy(), gpus.copy(), bits.copy()
    up = np.ones(nodes.shape[0] - 1, dtype=np.int64)
    scratch = np.zeros(max(1, int(nodes[:-1, GPUS].max())), dtype=np.int64)
    times, running = np.empty(count), np.empty(count, dtype=np.int64)
    queue_start = np.zeros(demand_count + 1, dtype=np.int64)
    for task in range(count):
        queue_start[demand_of[task] + 1] += 1
    queue_start = np.cumsum(queue_start)
    queues, queue_size = np.empty(count, dtype=np.int64), np.zeros(demand_count, dtype=np.int64)
    free_until = np.zeros(demand_count)
    freed_nodes, is_freed = np.empty(nodes.shape[0], dtype=np.int64), np.zeros(nodes.shape[0], dtype=np.bool_)
    arrived = size = waiting = head = steps = starts = 0
    reserved, reserved_start = -1, np.inf
    while arrived < count or size > 0:
        now = submitted[arrived] if arrived < count else np.inf
        if size > 0:
            now = min(now, times[0])
        now = min(now, reserved_start)
        steps += 1
        if steps % CLEANUP_INTERVAL == 0:
            drop_past_intervals(intervals, now)

        # 1. Process the tasks that end or arrive now.
        freed_count = 0
        while size > 0 and times[0] == now:
            task = pop(times, running, size)
            size -= 1
            end_step[task] = steps
            demand, first = demand_of[task], first_row[task]
            booked_until = started[task] + max(work[task], MIN_WORK_SECONDS)
            intervals = _change_booking(intervals, rows, demand, placements, first, now, booked_until, 1)
            release_task(nodes, gpus, bits, need_at(rows, demand), placements, first, first_row[task + 1])
            for row in range(first, first_row[task + 1]):
                if not is_freed[placements[row, NODE]]:
                    is_freed[placements[row, NODE]] = True
                    freed_nodes[freed_count] = placements[row, NODE]
                    freed_count += 1
        is_freed[:] = False
        while arrived < count and submitted[arrived] == now:
            demand = demand_of[arrived]
            if fits_empty[demand]:
                waiting += 1
                if queue_size[demand] == 0:
                    free_until[demand] = np.inf
                _insert(queues[queue_start[demand] : queue_start[demand + 1]], queue_size[demand], arrived, work)
                queue_size[demand] += 1
            arrived += 1

        # 2. The first task of the queue: start it, or reserve its earliest possible start.
        improved = freed_count > 0
        while waiting > 0:
            while not np.isnan(started[head]) or not fits_empty[demand_of[head]]:
                head += 1
            demand, first, duration = demand_of[head], first_row[head], max(work[head], MIN_WORK_SECONDS)
            one_demand, need, is_placed = rows[demand : demand + 1], need_at(rows, demand), False
            if reserved == head and reserved_start > now:
                if not improved:
                    break
                improved = False
                intervals = _change_booking(
                    intervals, rows, demand, placements, first, reserved_start, reserved_start + duration, 1
                )
                start = earliest_start(intervals, nodes, up, one_demand, duration, now, reserved_start, scratch)
                if start == np.inf:
                    intervals = _change_booking(
                        intervals, rows, demand, placements, first, reserved_start, reserved_start + duration, -1
                    )
                    break
                freed_count = _add_freed_nodes(placements, first, need.instances, freed_nodes, freed_count)
            elif reserved == head:
                start = reserved_start
                intervals = _change_booking(intervals, rows, demand, placements, first, start, start + duration, 1)
                for row in range(first, first + need.instances):
                    node, mask = placements[row, NODE], placements[row, GPU_MASK]
                    adjust_free(nodes, gpus, bits, node, mask, -need.milli, -need.cpu, -need.memory)
                is_placed = True
            else:  # nothing is reserved, so what is free now stays free
                is_placed = place_instances(
                    rule, nodes, gpus, bits, rows, demand, demand, state, history, scores, racks, placements, first
                )
                start = now
                if not is_placed:
                    start = earliest_start(intervals, nodes, up, one_demand, duration, now, np.inf, scratch)
                improved = False
            if not is_placed and start > now:
                write_free_during(intervals, later_nodes, later_gpus, later_bits, start, start + duration, scratch)
                place_instances(
                    rule,
                    later_nodes,
                    later_gpus,
                    later_bits,
                    rows,
                    demand,
                    demand,
                    state,
                    history,
                    scores,
                    racks,
                    placements,
                    first,
                )
            elif not is_placed:
                place_instances(
                    rule, nodes, gpus, bits, rows, demand, demand, state, history, scores, racks, placements, first
                )
            intervals = _change_booking(intervals, rows, demand, placements, first, start, start + duration, -1)
            if reserved != head:
                _remove(queues[queue_start[demand] : queue_start[demand + 1]], queue_size[demand], head)
                queue_size[demand] -= 1
            reserved, reserved_start = head, start
            if start > now:
                break
            started[head], ended[head] = now, now + work[head]
            start_step[head], start_number[head] = steps, starts
            starts += 1
            push(times, running, size, ended[head], head)
            size += 1
            waiting -= 1
            reserved, reserved_start = -1, np.inf

        # 3. Backfill: start other tasks that fit without delaying the reservation.
        if freed_count > 0:
            for demand in range(demand_count):
                if queue_size[demand] > 0 and free_until[demand] < np.inf:
                    if rows[demand, 0] > 1:
                        free_until[demand] = np.inf
                    else:
                        one_demand = rows[demand : demand + 1]
                        longest = longest_free_duration_on(
                            intervals, nodes, up, freed_nodes[:freed_count], one_demand, now, scratch
                        )
                        free_until[demand] = max(free_until[demand], now + longest)
        is_freed[:] = False
        while True:
            best, best_duration = -1, np.inf
            for demand in range(demand_count):
                if queue_size[demand] == 0 or free_until[demand] <= now:
                    continue
                queue = queues[queue_start[demand] : queue_start[demand] + queue_size[demand]]
                task = _best_in_queue(queue, work, free_until[demand] - now, shortest_first)
                if task < 0:
                    continue
                duration = max(work[task], MIN_WORK_SECONDS)
                shorter = duration < best_duration or (duration == best_duration and task < best)
                if best < 0 or (shorter if shortest_first else task < best):
                    best, best_duration = task, duration
            if best < 0:
                break
            demand, first = demand_of[best], first_row[best]
            one_demand = rows[demand : demand + 1]
            longest = longest_free_duration(intervals, nodes, up, one_demand, now, scratch)
            free_until[demand] = now + longest
            if best_duration > longest:
                continue
            overlaps = reserved >= 0 and now + best_duration > reserved_start
            if overlaps:
                for row in range(first_row[reserved], first_row[reserved + 1]):
                    node, until = placements[row, NODE], now + best_duration
                    write_free_on_node(intervals, nodes, gpus, bits, node, now, until, scratch)
            place_instances(
                rule, nodes, gpus, bits, rows, demand, demand, state, history, scores, racks, placements, first
            )
            intervals = _change_booking(intervals, rows, demand, placements, first, now, now + best_duration, -1)
            if overlaps:
                for row in range(first_row[reserved], first_row[reserved + 1]):
                    write_free_on_node(intervals, nodes, gpus, bits, placements[row, NODE], now, now, scratch)
            _remove(queues[queue_start[demand] : queue_start[demand + 1]], queue_size[demand], best)
            queue_size[demand] -= 1
            started[best], ended[best] = now, now + work[best]
            start_step[best], start_number[best] = steps, starts
            starts += 1
            push(times, running, size, ended[best], best)
            size += 1
            waiting -= 1


@compiled
def _add_freed_nodes(placements: Ints, first: int, rows: int, freed_nodes: Ints, count: int) -> int:
    """Add the nodes of a released placement to the list of freed nodes; returns its new length."""
    for row in range(first, first + rows):
        listed = False
        for position in range(count):
            listed = listed or freed_nodes[position] == placements[row, NODE]
        if not listed:
            freed_nodes[count] = placements[row, NODE]
            count += 1
    return count
