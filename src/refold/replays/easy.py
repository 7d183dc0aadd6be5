"""The compiled replay of EASY backfilling with known run times: the same as policy `easy` in the general simulator.

It starts tasks at the same times on the same GPUs, to the bit, and writes what a journal needs (property tests check
both). Jobs are ordered by arrival, and run once, as requested and to completion.

Only the first waiting task has a reservation, and runs end when they are booked to end, or before. So a timetable is
not needed: what is free now stays free until the reserved start, and what is free then, beside the reservation, stays
free after it. Both are kept up to date, and so is what is free at both times: a task that would run beyond the reserved
start takes that. The runs in order of their booked ends are read once: those that end by the reserved start have ended
when the next reservation is made.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from refold.errors import BadInput, UnknownName
from refold.jit import compiled, compiled_without_references
from refold.model import WHOLE, Cluster
from refold.packing import (
    CPU_FREE,
    FIRST_GPU,
    GPU_MASK,
    GPUS,
    INSTANCES_THAT_FIT,
    MEMORY_FREE,
    MILLI_FREE,
    NODE,
    WHOLE_FREE,
    Bools,
    Floats,
    FreeArrays,
    FreeResources,
    Ints,
    PlacementRule,
    ShortestTasks,
    TaskHeap,
    add_waiting,
    adjust_free,
    change_rows,
    count_instances,
    count_shortages,
    first_time,
    first_waiting,
    instances_on_node,
    need_at,
    no_shortest_tasks,
    place_demand,
    pop_task,
    push_task,
    remove_waiting,
    set_free,
    shortest_waiting,
)
from refold.replays.columns import ReplayArrays, ReplayResult, TaskColumns
from refold.simulator import RecordedSpeeds

BackfillOrder = Literal["shortest", "queue"]

PLACEMENTS = ("first-fit", "best-fit", "worst-fit", "tetris")
"""The placement rules without state."""

MIN_WORK_SECONDS = 1.0
"""The minimum of the run time that is planned for a job."""

# Entries of `EasyState.counters`. `RESERVED` is the task that has a reservation, or -1; `FIRST`: no task before it
# waits; `ENDING`, `FREED` and `NOTED`: the lengths of lists.
ARRIVED, WAITING, FIRST, RESERVED, STEP, STARTED, ENDING, FREED, NOTED = range(9)


class EasyNotes(NamedTuple):
    """What a journal needs besides. Empty arrays: nothing is noted.

    By task: the step in which it arrives; the step in which it first is the first task and does not fit, what the nodes
    lack then, and which of these notes it is (-1: none); whether its demand may have fitted when it arrived. By step,
    from 1: its time; the reserved start after it (NaN: there is none); the step in which the wake-up was set that
    happens in this step (0: there is none).
    """

    arrival_step: Ints
    blocked_step: Ints
    blocked_number: Ints
    shortages: Ints
    may_fit: Bools
    times: Floats
    wake_at: Floats
    wake_set: Ints

    @staticmethod
    def allocate(tasks: int) -> EasyNotes:
        """Return the arrays for so many tasks."""
        steps = 4 * tasks + 1  # every task arrives, ends, and may have a reservation that moves when another one ends
        arrival_step, blocked_step, blocked_number = np.full((3, tasks), -1, dtype=np.int64)
        shortages, may_fit = np.zeros((tasks, INSTANCES_THAT_FIT + 1), dtype=np.int64), np.zeros(tasks, dtype=np.bool_)
        times, wake_at = np.full((2, steps), np.nan)
        wake_set = np.zeros(steps, dtype=np.int64)
        return EasyNotes(arrival_step, blocked_step, blocked_number, shortages, may_fit, times, wake_at, wake_set)


class EasyState(NamedTuple):
    """The state of a replay.

    `now`: what is free now. `later`: what is free from the reserved start on, beside the reservation; the same as `now`
    without a reservation. `both`: what is free now and later. `ends`: running tasks. `booked`: those that are booked
    beyond the reserved start, by that time; tasks that have ended may be left. `ending`: the other ones, which have
    released their resources in `later`. `wakes`: the steps in which wake-ups were set. `free_until`: for each demand
    of `waiting`, the time until which it fits at most. `freed`: nodes on which resources were released in this step.
    """

    shortest_first: bool
    rule: PlacementRule
    tasks: ReplayArrays
    notes: EasyNotes
    now: FreeArrays
    later: FreeArrays
    both: FreeArrays
    ends: TaskHeap
    booked: TaskHeap
    wakes: TaskHeap
    ending: Ints
    waiting: ShortestTasks
    free_until: Floats
    freed: Ints
    freed_step: Ints
    gpu_free: Ints
    counters: Ints
    reserved_start: Floats


def replay_easy(
    tasks: TaskColumns,
    cluster: Cluster,
    placement: str = "best-fit",
    backfill_order: BackfillOrder = "shortest",
    notes: EasyNotes | None = None,
) -> ReplayResult:
    """Simulate all tasks to completion. `notes` are written for a journal."""
    if placement not in PLACEMENTS:
        raise UnknownName("placement of the compiled EASY replay", placement, PLACEMENTS)
    if set(RecordedSpeeds(cluster).speed_of_node.tolist()) != {1.0}:
        raise BadInput("the compiled EASY replay does not support GPUs of different speed: use the simulator")
    if backfill_order not in get_args(BackfillOrder):
        raise UnknownName("backfill_order", backfill_order, get_args(BackfillOrder))
    free = FreeResources(cluster)
    arrays = ReplayArrays.allocate(tasks, free)
    rule = PlacementRule.allocate(placement, free, tasks.demands)
    state = _initial_state(free, rule, arrays, notes or EasyNotes.allocate(0))
    _replay(state._replace(shortest_first=backfill_order == "shortest"))
    return arrays.result(tasks)


def _initial_state(free: FreeResources, rule: PlacementRule, tasks: ReplayArrays, notes: EasyNotes) -> EasyState:
    """Return the state of an empty cluster."""
    count, demands, nodes = len(tasks.work), len(rule.demands), len(free.cluster.nodes)
    counters = np.zeros(NOTED + 1, dtype=np.int64)
    counters[RESERVED] = -1
    return EasyState(
        shortest_first=True,
        rule=rule,
        tasks=tasks,
        notes=notes,
        now=free.copy().arrays,
        later=free.copy().arrays,
        both=free.copy().arrays,
        ends=TaskHeap.allocate(count),
        booked=TaskHeap.allocate(count),
        wakes=TaskHeap.allocate(2 * count),
        ending=np.empty(count, dtype=np.int64),
        waiting=no_shortest_tasks(tasks.demand_of, demands),
        free_until=np.zeros(demands),
        freed=np.empty(nodes, dtype=np.int64),
        freed_step=np.zeros(nodes, dtype=np.int64),
        gpu_free=np.empty(max(1, int(free.nodes[:-1, GPUS].max())), dtype=np.int64),
        counters=counters,
        reserved_start=np.full(1, np.inf),
    )


@compiled_without_references
def _replay(state: EasyState) -> None:
    """Repeat until all tasks have ended: advance to the next event, and schedule."""
    counters, count = state.counters, state.tasks.work.shape[0]
    while counters[ARRIVED] < count or state.ends.size[0] > 0:
        now = _next_time(state)
        counters[STEP] += 1
        _note_time(state, now)
        is_early = _end_tasks(state, now)
        first_arrival = counters[ARRIVED]
        _add_arrivals(state, now)
        if counters[WAITING] > 0:
            if is_early:
                _advance_reservation(state, now)
            _start_first_tasks(state, now)
            _raise_bounds(state, now)
            _backfill(state, now)
        _note_fitting(state, now, first_arrival)
        _set_wake(state)


# --- events -------------------------------------------------------------------------------------------------


@compiled_without_references
def _next_time(state: EasyState) -> float:
    arrived, submitted = state.counters[ARRIVED], state.tasks.submitted
    arrival: float = submitted[arrived] if arrived < submitted.shape[0] else np.inf
    return min(arrival, first_time(state.ends), first_time(state.wakes))


@compiled_without_references
def _duration(state: EasyState, task: int) -> float:
    duration: float = max(state.tasks.work[task], MIN_WORK_SECONDS)
    return duration


@compiled_without_references
def _end_tasks(state: EasyState, now: float) -> bool:
    """End the tasks that end now; return whether one of them was booked for longer."""
    tasks, ends, is_early = state.tasks, state.ends, False
    state.counters[FREED] = 0
    while ends.size[0] > 0 and ends.times[0] == now:
        task = pop_task(ends)
        tasks.end_step[task] = state.counters[STEP]
        booked_end = tasks.started[task] + _duration(state, task)
        is_early = is_early or booked_end > now
        _change(state.now, tasks, task, 1)
        if state.counters[RESERVED] < 0 or booked_end > state.reserved_start[0]:
            _change(state.later, tasks, task, 1)
        _update_both(state, task)
        _note_freed(state, task)
    return is_early


@compiled_without_references
def _add_arrivals(state: EasyState, now: float) -> None:
    tasks, counters, waiting = state.tasks, state.counters, state.waiting
    while counters[ARRIVED] < tasks.work.shape[0] and tasks.submitted[counters[ARRIVED]] == now:
        task = counters[ARRIVED]
        demand = tasks.demand_of[task]
        if tasks.fits_empty[demand]:
            if waiting.number[demand] == 0:
                state.free_until[demand] = np.inf
            add_waiting(waiting, task, _duration(state, task))
            counters[WAITING] += 1
        counters[ARRIVED] += 1


# --- resources ----------------------------------------------------------------------------------------------


@compiled_without_references
def _change(free: FreeArrays, tasks: ReplayArrays, task: int, sign: int) -> None:
    """Release (sign 1) or take (sign -1) the resources of a task."""
    need = need_at(tasks.demand_rows, tasks.demand_of[task])
    change_rows(free, need, tasks.placements, tasks.first_row[task], sign)


@compiled_without_references
def _place(state: EasyState, free: FreeArrays, task: int) -> bool:
    """Take resources for a task; False, with nothing taken, if it does not fit."""
    tasks = state.tasks
    return place_demand(free, state.rule, tasks.demand_of[task], tasks.placements, tasks.first_row[task])


@compiled_without_references
def _update_both(state: EasyState, task: int) -> None:
    """Update what is free both now and later on the nodes of a task."""
    now, later, both, gpu_free = state.now, state.later, state.both, state.gpu_free
    for row in range(state.tasks.first_row[task], state.tasks.first_row[task + 1]):
        node = state.tasks.placements[row, NODE]
        first = now.nodes[node, FIRST_GPU]
        for gpu in range(now.nodes[node, GPUS]):
            gpu_free[gpu] = min(now.gpus[first + gpu], later.gpus[first + gpu])
        cpu = min(now.nodes[node, CPU_FREE], later.nodes[node, CPU_FREE])
        memory = min(now.nodes[node, MEMORY_FREE], later.nodes[node, MEMORY_FREE])
        set_free(both.nodes, both.gpus, both.bits, node, gpu_free, cpu, memory)


@compiled_without_references
def _note_freed(state: EasyState, task: int) -> None:
    """Add the nodes of a task to the nodes on which resources were released in this step."""
    counters = state.counters
    for row in range(state.tasks.first_row[task], state.tasks.first_row[task + 1]):
        node = state.tasks.placements[row, NODE]
        if state.freed_step[node] != counters[STEP]:
            state.freed_step[node] = counters[STEP]
            state.freed[counters[FREED]] = node
            counters[FREED] += 1


@compiled_without_references
def _fits(state: EasyState, free: FreeArrays, demand: int) -> bool:
    """Return whether all instances of a demand fit."""
    rows, totals = state.tasks.demand_rows, free.nodes.shape[0] - 1
    need = need_at(rows, demand)
    if free.nodes[totals, MILLI_FREE] < need.instances * need.gpus * need.milli:
        return False
    if need.milli == WHOLE and free.nodes[totals, WHOLE_FREE] < need.instances * need.gpus:
        return False
    return count_instances(free.nodes, free.gpus, free.bits, rows, demand) == need.instances


# --- starts and the reservation -------------------------------------------------------------------------------


@compiled_without_references
def _start(state: EasyState, task: int, now: float) -> None:
    """Start a task whose resources are taken."""
    tasks, counters = state.tasks, state.counters
    tasks.started[task], tasks.ended[task] = now, now + tasks.work[task]
    tasks.start_step[task], tasks.start_number[task] = counters[STEP], counters[STARTED]
    counters[STARTED] += 1
    counters[WAITING] -= 1
    push_task(state.ends, tasks.ended[task], task)
    booked_end = now + _duration(state, task)
    if counters[RESERVED] >= 0 and booked_end <= state.reserved_start[0]:
        state.ending[counters[ENDING]] = task
        counters[ENDING] += 1
    else:
        push_task(state.booked, booked_end, task)
    _update_both(state, task)


@compiled_without_references
def _start_first_tasks(state: EasyState, now: float) -> None:
    """Start the first waiting tasks while they fit; make a reservation for the next one."""
    tasks, counters = state.tasks, state.counters
    if counters[RESERVED] >= 0:
        if state.reserved_start[0] > now:
            return
        _start_reserved(state, now)
    while counters[WAITING] > 0:
        task = counters[FIRST]
        while tasks.start_step[task] >= 0 or not tasks.fits_empty[tasks.demand_of[task]]:
            task += 1
        counters[FIRST] = task
        remove_waiting(state.waiting, task)
        if not _place(state, state.now, task):
            _note_blocked(state, task)
            _reserve(state, task, _earliest_start(state, task))
            return
        _change(state.later, tasks, task, -1)
        _start(state, task, now)


@compiled_without_references
def _start_reserved(state: EasyState, now: float) -> None:
    """Start the task that has a reservation: all runs that it was waiting for have ended."""
    task = state.counters[RESERVED]
    state.counters[RESERVED], state.counters[ENDING] = -1, 0
    _change(state.now, state.tasks, task, -1)
    _start(state, task, now)


@compiled_without_references
def _earliest_start(state: EasyState, task: int) -> float:
    """Return when a task that does not fit now can start; what runs release by then is released in `later`."""
    tasks, counters, booked, later = state.tasks, state.counters, state.booked, state.later
    demand, start = tasks.demand_of[task], np.inf
    need = need_at(tasks.demand_rows, demand)
    missing = need.instances - count_instances(later.nodes, later.gpus, later.bits, tasks.demand_rows, demand)
    while missing > 0 or first_time(booked) == start:
        start = booked.times[0]
        run = pop_task(booked)
        if tasks.end_step[run] >= 0:
            continue
        released = need_at(tasks.demand_rows, tasks.demand_of[run])
        for row in range(tasks.first_row[run], tasks.first_row[run + 1]):
            node, mask = tasks.placements[row, NODE], tasks.placements[row, GPU_MASK]
            missing += instances_on_node(later.nodes, later.gpus, node, need)
            adjust_free(later.nodes, later.gpus, later.bits, node, mask, released.milli, released.cpu, released.memory)
            missing -= instances_on_node(later.nodes, later.gpus, node, need)
        state.ending[counters[ENDING]] = run
        counters[ENDING] += 1
    return start


@compiled_without_references
def _reserve(state: EasyState, task: int, start: float) -> None:
    """Reserve resources from `start` on, in `later`."""
    _place(state, state.later, task)
    state.counters[RESERVED], state.reserved_start[0] = task, start
    _update_both(state, task)


@compiled_without_references
def _advance_reservation(state: EasyState, now: float) -> None:
    """Let the reserved task start earlier, if it can, because a run has ended before its booked end."""
    tasks, counters = state.tasks, state.counters
    task, start = counters[RESERVED], state.reserved_start[0]
    if task < 0 or start <= now:
        return
    _undo_releases(state)
    _change(state.later, tasks, task, 1)
    earlier = now if _fits(state, state.now, tasks.demand_of[task]) else _earliest_start(state, task)
    if earlier == start:
        _change(state.later, tasks, task, -1)
        return
    counters[RESERVED] = -1
    _update_both(state, task)
    _note_freed(state, task)
    _reserve(state, task, earlier)


@compiled_without_references
def _undo_releases(state: EasyState) -> None:
    """Take from `later` what running tasks will have released by the reserved start."""
    tasks, counters = state.tasks, state.counters
    for place in range(counters[ENDING]):
        task = state.ending[place]
        if tasks.end_step[task] < 0:
            _change(state.later, tasks, task, -1)
            push_task(state.booked, tasks.started[task] + _duration(state, task), task)
    counters[ENDING] = 0


# --- backfill -------------------------------------------------------------------------------------------------


@compiled_without_references
def _raise_bounds(state: EasyState, now: float) -> None:
    """Raise `free_until` of demands that may fit because resources were released in this step."""
    rows, counters = state.tasks.demand_rows, state.counters
    if counters[FREED] == 0:
        return
    free_milli = state.now.nodes[state.now.nodes.shape[0] - 1, MILLI_FREE]
    for demand in range(rows.shape[0]):
        if state.waiting.number[demand] == 0 or state.free_until[demand] == np.inf:
            continue
        need = need_at(rows, demand)
        if need.instances * need.gpus * need.milli > free_milli:
            continue
        if need.instances > 1:
            state.free_until[demand] = np.inf  # other nodes matter as well
        else:
            state.free_until[demand] = max(state.free_until[demand], now + _longest_on_freed(state, demand, now))


@compiled_without_references
def _longest_on_freed(state: EasyState, demand: int, now: float) -> float:
    """Return for how long one instance of a demand fits on a node with released resources."""
    free, both, longest = state.now, state.both, 0.0
    need = need_at(state.tasks.demand_rows, demand)
    for place in range(state.counters[FREED]):
        node = state.freed[place]
        if instances_on_node(both.nodes, both.gpus, node, need) > 0:
            return np.inf
        if instances_on_node(free.nodes, free.gpus, node, need) > 0:
            longest = state.reserved_start[0] - now
    return longest


@compiled_without_references
def _longest(state: EasyState, demand: int, now: float) -> float:
    """Return for how long all instances of a demand fit."""
    if _fits(state, state.both, demand):
        return np.inf
    return state.reserved_start[0] - now if _fits(state, state.now, demand) else 0.0


@compiled_without_references
def _backfill(state: EasyState, now: float) -> None:
    """Start tasks that fit for as long as they run, without delaying the reserved one."""
    demand_of, free_until = state.tasks.demand_of, state.free_until
    task = _candidate(state, now)
    while task >= 0:
        demand, duration = demand_of[task], _duration(state, task)
        longest = _longest(state, demand, now)
        free_until[demand] = now + longest
        if duration <= longest and not _start_in_gap(state, task, now):
            free_until[demand] = 0.0
        task = _candidate(state, now)


@compiled_without_references
def _candidate(state: EasyState, now: float) -> int:
    """Return the next task to backfill, of those that end while their demand may fit: the shortest or the first one."""
    waiting, free_until, best, best_duration = state.waiting, state.free_until, -1, np.inf
    for demand in range(free_until.shape[0]):
        longest, shortest = free_until[demand] - now, shortest_waiting(waiting, demand)
        if waiting.number[demand] == 0 or shortest > longest:
            continue
        if not state.shortest_first:
            task = first_waiting(waiting, demand, longest)
            if best < 0 or task < best:
                best = task
        elif best < 0 or shortest <= best_duration:
            task = first_waiting(waiting, demand, shortest)
            if best < 0 or shortest < best_duration or task < best:
                best, best_duration = task, shortest
    return best


@compiled_without_references
def _start_in_gap(state: EasyState, task: int, now: float) -> bool:
    """Start a task beside the reservation; False if it does not fit, which rounding may cause."""
    tasks = state.tasks
    is_longer = now + _duration(state, task) > state.reserved_start[0]
    if not _place(state, state.both if is_longer else state.now, task):
        return False
    if is_longer:
        _change(state.now, tasks, task, -1)
        _change(state.later, tasks, task, -1)
    remove_waiting(state.waiting, task)
    _start(state, task, now)
    return True


# --- notes ----------------------------------------------------------------------------------------------------


@compiled_without_references
def _note_time(state: EasyState, now: float) -> None:
    """Note the time of a step, and its wake-up."""
    notes, wakes, step = state.notes, state.wakes, state.counters[STEP]
    woken = pop_task(wakes) if first_time(wakes) == now else 0
    if notes.times.shape[0] > 1:
        notes.times[step], notes.wake_set[step] = now, woken


@compiled_without_references
def _set_wake(state: EasyState) -> None:
    """Set a wake-up at the reserved start, unless there is one."""
    notes, wakes, step, start = state.notes, state.wakes, state.counters[STEP], state.reserved_start[0]
    if state.counters[RESERVED] < 0:
        return
    if notes.times.shape[0] > 1:
        notes.wake_at[step] = start
    for place in range(wakes.size[0]):
        if wakes.times[place] == start:
            return
    push_task(wakes, start, step)


@compiled
def _note_blocked(state: EasyState, task: int) -> None:
    """Note that the first task does not fit, and what the nodes lack."""
    notes, counters, tasks = state.notes, state.counters, state.tasks
    if notes.arrival_step.shape[0] > 0:
        notes.blocked_step[task], notes.blocked_number[task] = counters[STEP], counters[NOTED]
        demand = tasks.demand_of[task]
        notes.shortages[task] = count_shortages(state.now.nodes, state.now.gpus, tasks.demand_rows, demand)
        counters[NOTED] += 1


@compiled_without_references
def _note_fitting(state: EasyState, now: float, first_arrival: int) -> None:
    """Note which of the tasks that arrived in this step may have fitted for a shorter time."""
    notes, tasks = state.notes, state.tasks
    if notes.arrival_step.shape[0] == 0:
        return
    for task in range(first_arrival, state.counters[ARRIVED]):
        demand = tasks.demand_of[task]
        notes.arrival_step[task] = state.counters[STEP]
        is_open = state.waiting.number[demand] > 0 and state.free_until[demand] > now
        notes.may_fit[task] = is_open and tasks.start_step[task] < 0
