"""The compiled replay of EASY backfilling with predicted run times: the same as policy `easy` in the general simulator.

It gives the same runs on the same GPUs, to the bit (property tests check this): the predictor learns in the loop from
the same jobs in the same order, and runs that exceed their predictions are extended, displace reservations, and are
preempted for the first waiting task, at the same times. Jobs are ordered by priority and arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from refold.errors import UnknownName
from refold.jit import compiled, compiled_without_references, struct, values_of
from refold.model import Cluster, Job
from refold.packing import Bools, Floats, FreeArrays, FreeResources, Ints, need_at
from refold.predict import (
    NumberedPredictor,
    expected_survival,
    finish_numbered,
    quantile_beyond,
    submit_numbered,
)
from refold.simulator.backfill_kernels import (
    ARRIVALS,
    DISPLACED,
    QUEUED,
    RESERVED,
    Schedule,
    add_to_queue,
    advance_reservations,
    cancel,
    cancel_behind_first,
    change_booking,
    change_free,
    change_rows,
    displace,
    drop_past,
    end_booking,
    find_reservation,
    first_in_queue,
    is_before,
    next_conflicting,
    next_for_gap,
    place,
    place_now,
    postpone,
    remove_from_queue,
    reopen_gaps,
    reserve,
    sort_by_position,
    take_placement,
    take_rows,
    turn_into_run,
    use_found,
)
from refold.simulator.costs import NO_COSTS, Costs, RecordedSpeeds
from refold.simulator.easy_replay import PLACEMENTS
from refold.simulator.ordered_heap import OrderedHeap, enlarged, first_time, is_full, pop_ordered, push_ordered
from refold.simulator.replay import ReplayArrays, ReplayedRuns, TaskColumns, gang_speed, task_columns
from refold.simulator.run_log import (
    COMPUTING_SINCE,
    END,
    END_STEP,
    SAVED,
    SAVED_BEFORE,
    STOP_ORDERED,
    TASK,
    RunLog,
    log_start,
    with_room,
)

PREEMPT: dict[str, int] = {"never": 0, "whole-node": 1, "always": 2}
NEVER, WHOLE_NODE = 0, 1

MIN_RUN_TIME, MIN_OVERRUN, MIN_OVERRUN_SHARE, STOP_SECONDS = 1.0, 60.0, 0.05, 60.0
MAX_RECORDED, DROP_PAST_EVERY = 128, 64
"""As in the policy."""

# What happens to a run, in a heap of events: event 3n is the end of run n, 3n + 1 its start report, 3n + 2 its stop.
ENDS, STARTS, STOPS = range(3)

# Entries of `State.counters`. `RECORDED`: the tasks before it have been passed to the predictor. `FIRST_RUN`,
# `LAST_RUN`: the ends of the list of runs in the order of starts. `STARTED`, `STOPPED`, `REQUEUED`: lengths of lists.
(
    STEP,
    ARRIVED,
    WAITING,
    WAITING_ROWS,
    RUNNING,
    RECORDED,
    FIRST_RUN,
    LAST_RUN,
    STARTED,
    STOPPED,
    REQUEUED,
    ORDERED,
    STOPPING,
) = range(13)


class Rules(NamedTuple):
    """The settings of the policy, the GPUs of the largest node, and the costs of runs in seconds."""

    duration_quantile: float
    confidence: float
    preempt: int
    whole_node_gpus: int
    start: float
    stop: float
    restart: float


@struct
class Runs:
    """The state of each task: its current run in the log (-1: none), and how many runs it has had.

    `elapsed` and `done`: run time and work of its earlier runs. `overtook`: how many tasks had arrived when it started
    ahead of others; -1: it did not. `following` and `preceding`: the list of runs in the order of starts.
    """

    run: Ints
    number: Ints
    is_stopping: Bools
    is_finished: Bools
    start: Floats
    computing_from: Floats
    speed: Floats
    done: Floats
    elapsed: Floats
    booked_end: Floats
    overtook: Ints
    following: Ints
    preceding: Ints

    @staticmethod
    def allocate(tasks: int) -> Runs:
        """Return the state of tasks that have not been started."""
        run, overtook, following, preceding = np.full((4, tasks), -1, dtype=np.int64)
        is_stopping, is_finished = np.zeros((2, tasks), dtype=np.bool_)
        start, computing_from, speed, done, elapsed, booked_end = np.zeros((6, tasks))
        return Runs(
            run,
            np.zeros(tasks, dtype=np.int64),
            is_stopping,
            is_finished,
            start,
            computing_from,
            speed,
            done,
            elapsed,
            booked_end,
            overtook,
            following,
            preceding,
        )


@struct
class Lists:
    """Lists of tasks: those that start, stop and are queued again in a step, and two for intermediate results."""

    starts: Ints
    stops: Ints
    requeued: Ints
    overdue: Ints
    considered: Ints

    @staticmethod
    def allocate(tasks: int) -> Lists:
        """Return empty lists."""
        return Lists(*(np.zeros(2 * tasks + 1, dtype=np.int64) for _ in range(5)))


@struct
class State:
    """The state of a replay. `ends`: runs by booked end, `wakes`: times at which the policy wants to be called."""

    schedule: Schedule
    predictor: NumberedPredictor
    runs: Runs
    lists: Lists
    rules: Rules
    submitted: Floats
    work: Floats
    is_preemptible: Bools
    fits_empty: Ints
    speed_of_node: Floats
    free: FreeArrays
    events: OrderedHeap
    ends: OrderedHeap
    wakes: OrderedHeap
    last_wake: Floats
    log: RunLog
    counters: Ints


def replay_predicted_easy(
    jobs: Sequence[Job],
    cluster: Cluster,
    placement: str = "best-fit",
    costs: Costs = NO_COSTS,
    duration_quantile: float = 0.5,
    confidence: float = 0.8,
    preempt: str = "always",
) -> ReplayedRuns:
    """Simulate all jobs, sorted by submission, to completion. The settings are those of `easy`."""
    if placement not in PLACEMENTS:
        raise UnknownName("placement of the compiled EASY replay", placement, PLACEMENTS)
    if preempt not in PREEMPT:
        raise UnknownName("preempt", preempt, PREEMPT)
    rules = Rules(
        duration_quantile,
        confidence,
        PREEMPT[preempt],
        cluster.max_node_gpus,
        costs.start,
        costs.stop,
        costs.restart,
    )
    columns = task_columns(jobs)
    log = _replay(*_initial_state(jobs, columns, cluster, rules, placement))
    return log.result(columns)


def _initial_state(
    jobs: Sequence[Job], columns: TaskColumns, cluster: Cluster, rules: Rules, placement: str
) -> tuple[tuple[Any, ...], ...]:
    """Return the values of the structs of the state: an empty cluster."""
    free, count = FreeResources(cluster), len(jobs)
    arrays = ReplayArrays.allocate(columns, free)
    keys = sorted({(-job.priority, job.submitted) for job in jobs})
    rank_of = {key: float(rank) for rank, key in enumerate(keys)}
    rank = np.array([rank_of[-job.priority, job.submitted] for job in jobs], dtype=np.float64)
    id_rank = np.empty(count, dtype=np.int64)
    id_rank[sorted(range(count), key=lambda number: jobs[number].id)] = np.arange(count)
    counters = np.zeros(STOPPING + 1, dtype=np.int64)
    counters[FIRST_RUN] = counters[LAST_RUN] = -1
    others = (
        rules,
        columns.submitted,
        columns.work,
        np.array([job.preemptible for job in jobs], dtype=np.bool_),
        arrays.fits_empty,
        RecordedSpeeds(cluster).speed_of_node,
        FreeArrays(free.nodes, free.gpus, free.bits),
        OrderedHeap.allocate(),
        OrderedHeap.allocate(),
        OrderedHeap.allocate(),
        np.full(1, -np.inf),
        RunLog.allocate(count, len(arrays.placements)),
        counters,
    )
    structs = (
        Schedule.allocate(columns, cluster, arrays, placement, rank, id_rank),
        NumberedPredictor.allocate(jobs),
        Runs.allocate(count),
        Lists.allocate(count),
    )
    return *(values_of(one) for one in structs), others


@compiled
def _replay(
    schedule: tuple[Any, ...],
    predictor: tuple[Any, ...],
    runs: tuple[Any, ...],
    lists: tuple[Any, ...],
    others: tuple[Any, ...],
) -> RunLog:
    """Repeat until all tasks have ended: advance to the next event, decide, and carry out what was decided."""
    state = State(Schedule(*schedule), NumberedPredictor(*predictor), Runs(*runs), Lists(*lists), *others)
    counters = state.counters
    while counters[ARRIVED] < state.work.shape[0] or counters[RUNNING] > 0 or counters[WAITING] > 0:
        now = _next_time(state)
        if now == np.inf:
            break
        counters[STEP] += 1

        # 1. Process the events of this time, and let the predictor learn.
        _process_events(state, now)
        first_arrival = counters[ARRIVED]
        _count_arrivals(state, now)
        _record_arrivals(state, now)
        if counters[STEP] % DROP_PAST_EVERY == 0:
            drop_past(state.schedule, now)
        if counters[WAITING] == 0:
            continue
        _make_room(state)

        # 2. Update reservations and runs; start tasks that have a reservation, and those that fit into gaps.
        _start_due(state, now)
        _preempt_for_first(state, now)
        _extend_overdue_runs(state, now)
        _add_arrivals(state, first_arrival, now)
        _make_reservations(state, now)
        while _advance_reservations(state, now):
            _make_reservations(state, now)
        _start_due(state, now)
        _fill_gaps(state, now)

        # 3. Carry out what was decided.
        _stop_runs(state, now)
        _start_runs(state, now)
        _set_wake(state, now)
    return state.log


@compiled
def _make_room(state: State) -> None:
    """Enlarge the arrays that may be too small for what is started, stopped and extended in this step."""
    waiting, running = state.counters[WAITING], state.counters[RUNNING]
    while state.events.size[0] + 2 * waiting + running > state.events.times.shape[0]:
        state.events = enlarged(state.events)
    while state.ends.size[0] + waiting > state.ends.times.shape[0]:
        state.ends = enlarged(state.ends)
    if is_full(state.wakes):
        state.wakes = enlarged(state.wakes)
    state.log = with_room(state.log, waiting, state.counters[WAITING_ROWS])


# --- events -------------------------------------------------------------------------------------------------


@compiled_without_references
def _is_outdated(state: State, event: int) -> bool:
    """Whether an event is about a run that was stopped, or has stopped, before it."""
    run, runs = event // 3, state.runs
    task = state.log.numbers[run, TASK]
    return bool(runs.run[task] != run or (runs.is_stopping[task] and event % 3 != STOPS))


@compiled_without_references
def _next_time(state: State) -> float:
    """Return the time of the next event; infinity if there is none."""
    events, arrived = state.events, state.counters[ARRIVED]
    while events.size[0] > 0 and _is_outdated(state, events.values[0]):
        pop_ordered(events)
    now = min(first_time(events), first_time(state.wakes))
    return min(now, state.submitted[arrived]) if arrived < state.submitted.shape[0] else now


@compiled_without_references
def _process_events(state: State, now: float) -> None:
    """Process the ends, stops and start reports of runs, and wake-ups."""
    events, wakes = state.events, state.wakes
    while first_time(wakes) == now:
        pop_ordered(wakes)
    while first_time(events) == now:
        event = pop_ordered(events)
        if event % 3 != STARTS and not _is_outdated(state, event):
            _end_run(state, event // 3, event % 3 == STOPS, now)


@compiled_without_references
def _end_run(state: State, run: int, is_stopped: bool, now: float) -> None:
    """End a run; its task is finished, or is queued again."""
    log, runs, counters, schedule = state.log, state.runs, state.counters, state.schedule
    task = log.numbers[run, TASK]
    log.times[run, END], log.numbers[run, END_STEP] = now, counters[STEP]
    change_free(schedule, state.free, task, 1)
    end_booking(schedule, task, now, runs.booked_end[task])
    runs.run[task], runs.overtook[task] = -1, -1
    counters[RUNNING] -= 1
    _remove_from_runs(state, task)
    elapsed = runs.elapsed[task] + (now - runs.start[task])
    if is_stopped:
        runs.elapsed[task], runs.done[task], runs.is_stopping[task] = elapsed, log.times[run, SAVED], False
        state.lists.requeued[counters[REQUEUED]] = task
        counters[REQUEUED] += 1
        counters[STOPPING] -= 1
        counters[WAITING] += 1
        counters[WAITING_ROWS] += schedule.first_row[task + 1] - schedule.first_row[task]
    else:
        runs.is_finished[task] = True
        finish_numbered(state.predictor, task, elapsed, now)


@compiled_without_references
def _remove_from_runs(state: State, task: int) -> None:
    runs, counters = state.runs, state.counters
    before, after = runs.preceding[task], runs.following[task]
    if before >= 0:
        runs.following[before] = after
    else:
        counters[FIRST_RUN] = after
    if after >= 0:
        runs.preceding[after] = before
    else:
        counters[LAST_RUN] = before


@compiled_without_references
def _count_arrivals(state: State, now: float) -> None:
    counters, schedule = state.counters, state.schedule
    while counters[ARRIVED] < state.submitted.shape[0] and state.submitted[counters[ARRIVED]] == now:
        task = counters[ARRIVED]
        counters[ARRIVED] += 1
        if state.fits_empty[schedule.demand_of[task]]:
            counters[WAITING] += 1
            counters[WAITING_ROWS] += schedule.first_row[task + 1] - schedule.first_row[task]


@compiled_without_references
def _record_arrivals(state: State, now: float) -> None:
    """Pass new tasks to the predictor: a limited number in each step."""
    counters, recorded = state.counters, 0
    while counters[RECORDED] < counters[ARRIVED] and recorded < MAX_RECORDED:
        task = counters[RECORDED]
        counters[RECORDED] += 1
        if state.fits_empty[state.schedule.demand_of[task]]:
            recorded += 1
            if not state.runs.is_finished[task]:
                submit_numbered(state.predictor, task, now)


@compiled_without_references
def _set_wake(state: State, now: float) -> None:
    """Set a wake-up at the next reserved start, unless it was the last one that was set."""
    schedule, start = state.schedule, np.inf
    for at in range(schedule.counters[RESERVED]):
        reserved = schedule.booked.start[schedule.reserved[at]]
        if now < reserved < start:
            start = reserved
    if start < np.inf and start != state.last_wake[0]:
        state.last_wake[0] = start
        push_ordered(state.wakes, start, 0, 0)


# --- run times ----------------------------------------------------------------------------------------------


@compiled
def _add_to_queue(state: State, task: int, now: float) -> None:
    """Add a waiting task with the predicted rest of its run time."""
    predictor, rules, elapsed = state.predictor, state.rules, state.runs.elapsed[task]
    survival, limit = expected_survival(predictor, task, now), predictor.limit[task]
    duration = quantile_beyond(survival, elapsed, limit, rules.duration_quantile) - elapsed
    backfill = quantile_beyond(survival, elapsed, limit, rules.confidence) - elapsed
    duration, backfill = max(duration, MIN_RUN_TIME), max(backfill, MIN_RUN_TIME)
    add_to_queue(state.schedule, task, duration, max(backfill, duration))


@compiled
def _remaining_run_time(state: State, task: int, now: float) -> float:
    """Return how much longer a run will take that has exceeded its assumed end."""
    age = now - state.runs.start[task]
    elapsed = state.runs.elapsed[task] + age
    survival = expected_survival(state.predictor, task, now)
    limit = state.predictor.limit[task]
    total = quantile_beyond(survival, elapsed, limit, state.rules.duration_quantile)
    return float(max(total - elapsed, MIN_OVERRUN, MIN_OVERRUN_SHARE * age))


# --- starts -------------------------------------------------------------------------------------------------


@compiled_without_references
def _start(state: State, task: int, now: float) -> None:
    """Start a waiting task on its placement, which is taken."""
    schedule, runs, counters = state.schedule, state.runs, state.counters
    end = now + schedule.duration[task]
    if schedule.is_reserved[task]:
        turn_into_run(schedule, task, end)
    remove_from_queue(schedule, task)
    _book_run(state, task, now, end)
    state.lists.starts[counters[STARTED]] = task
    counters[STARTED] += 1
    if schedule.counters[QUEUED] > 0:
        runs.overtook[task] = schedule.counters[ARRIVALS]


@compiled_without_references
def _book_run(state: State, task: int, now: float, end: float) -> None:
    """Book a run from now until its assumed end."""
    change_booking(state.schedule, task, now, end, -1)
    state.runs.booked_end[task] = end
    if end < np.inf:
        push_ordered(state.ends, end, state.schedule.id_rank[task], task)


@compiled_without_references
def _start_due(state: State, now: float) -> None:
    """Start tasks whose reserved time has come, if their GPUs are free; postpone the others."""
    schedule, due, count = state.schedule, state.lists.considered, 0
    for at in range(schedule.counters[RESERVED]):
        if schedule.booked.start[schedule.reserved[at]] <= now:
            due[count] = schedule.reserved[at]
            count += 1
    sort_by_position(schedule, due, count)
    for at in range(count):
        task = due[at]
        if not schedule.is_reserved[task]:
            continue
        if take_placement(schedule, state.free, task):
            _start(state, task, now)
        else:
            postpone(schedule, task, now)
            _displace_later_tasks(schedule, task, now)


@compiled_without_references
def _displace_later_tasks(schedule: Schedule, task: int, now: float) -> None:
    """Cancel reservations of tasks behind a task that conflict with its placement from now on."""
    end = now + schedule.duration[task]
    other = next_conflicting(schedule, task, now, end, -1)
    while other >= 0:
        if is_before(schedule, task, other):
            displace(schedule, other, end)
        other = next_conflicting(schedule, task, now, end, schedule.id_rank[other])


@compiled_without_references
def _add_arrivals(state: State, first_arrival: int, now: float) -> None:
    """Add the tasks that were stopped, and the new ones, to the queue."""
    counters = state.counters
    for at in range(counters[REQUEUED]):
        _add_to_queue(state, state.lists.requeued[at], now)
    counters[REQUEUED] = 0
    for task in range(first_arrival, counters[ARRIVED]):
        if state.fits_empty[state.schedule.demand_of[task]]:
            _add_to_queue(state, task, now)


@compiled_without_references
def _make_reservations(state: State, now: float) -> None:
    """Give the first task, and tasks that lost their reservation, the earliest possible one."""
    schedule, unreserved = state.schedule, state.lists.considered
    cancel_behind_first(schedule, now)
    again = True
    while again:
        again = False
        count = _without_reservation(schedule, unreserved)
        for at in range(count):
            task = unreserved[at]
            start = find_reservation(schedule, task, now)
            if start == np.inf:
                continue
            if start <= now and take_placement(schedule, state.free, task):
                _start(state, task, now)
                again = True
            else:
                reserve(schedule, task, start, schedule.end[task])


@compiled_without_references
def _without_reservation(schedule: Schedule, unreserved: Ints) -> int:
    """Write the tasks that should have a reservation and have none, in queue order; return their number."""
    first, count = first_in_queue(schedule), schedule.counters[DISPLACED]
    is_displaced = False
    for at in range(count):
        unreserved[at] = schedule.displaced[at]
        is_displaced = is_displaced or schedule.displaced[at] == first
    if first >= 0 and not is_displaced and not schedule.is_reserved[first]:
        unreserved[count] = first
        count += 1
    sort_by_position(schedule, unreserved, count)
    return int(count)


@compiled_without_references
def _advance_reservations(state: State, now: float) -> bool:
    """Move reservations forward after releases; return whether a task has started."""
    schedule, moved, has_started = state.schedule, state.lists.considered, False
    count = advance_reservations(schedule, now, moved)
    for at in range(count):
        task = moved[at]
        if schedule.booked.start[task] <= now and take_placement(schedule, state.free, task):
            _start(state, task, now)
            has_started = True
    return has_started


@compiled_without_references
def _fill_gaps(state: State, now: float) -> None:
    """Start tasks without a reservation that fit for as long as they will run."""
    schedule, free = state.schedule, state.free
    reopen_gaps(schedule, free, now)
    task = next_for_gap(schedule, now)
    while task >= 0:
        if place_now(schedule, task, now) and take_rows(schedule, free, task, schedule.found, 0):
            use_found(schedule, task)
            _start(state, task, now)
        else:
            schedule.gaps.fits_until[schedule.demand_of[task]] = 0.0
        task = next_for_gap(schedule, now)


# --- runs that exceed their predictions -----------------------------------------------------------------------


@compiled_without_references
def _may_preempt(state: State, task: int) -> bool:
    """Return whether a waiting task may preempt runs that overtook it when its reserved start has come."""
    rules, schedule = state.rules, state.schedule
    if rules.preempt == NEVER:
        return False
    need = need_at(schedule.demands, schedule.demand_of[task])
    if rules.preempt == WHOLE_NODE and need.gpus < rules.whole_node_gpus:
        return False
    return first_in_queue(schedule) == task


@compiled_without_references
def _may_be_stopped(state: State, run: int, task: int) -> bool:
    """Return whether the run of one task overtook another one, which waits, and is preemptible."""
    schedule = state.schedule
    was_waiting = schedule.arrival[task] <= state.runs.overtook[run]
    return bool(was_waiting and is_before(schedule, task, run) and state.is_preemptible[run])


@compiled_without_references
def _change_runs(state: State, first: int, sign: int) -> None:
    """Release (sign 1) or take (-1) what is held by stopping runs, and by those that may be stopped for `first`."""
    runs, task = state.runs, state.counters[FIRST_RUN]
    while task >= 0:
        if runs.is_stopping[task] or (first >= 0 and _may_be_stopped(state, task, first)):
            change_free(state.schedule, state.free, task, sign)
        task = runs.following[task]


@compiled_without_references
def _is_being_released(state: State, task: int, now: float) -> bool:
    """Return whether the reserved start of a task has come, and its placement is free when stopping runs have ended."""
    schedule, free = state.schedule, state.free
    if not schedule.is_reserved[task] or schedule.booked.start[task] > now:
        return False
    _change_runs(state, -1, 1)
    is_free = take_placement(schedule, free, task)
    if is_free:
        change_free(schedule, free, task, 1)
    _change_runs(state, -1, -1)
    return is_free


@compiled_without_references
def _preempt_for_first(state: State, now: float) -> None:
    """Start the first task if it is overdue, or preempt the runs that overtook it and reserve their GPUs."""
    schedule, free = state.schedule, state.free
    first = first_in_queue(schedule)
    if first < 0 or now < schedule.first_start[first] or not _may_preempt(state, first):
        return
    if _is_being_released(state, first, now):
        return
    _change_runs(state, first, 1)
    is_placed = place(schedule, free, first)
    if is_placed:
        change_rows(schedule, free, first, schedule.found, 0, 1)
    _change_runs(state, first, -1)
    if not is_placed:
        return
    is_free = take_rows(schedule, free, first, schedule.found, 0)
    if schedule.is_reserved[first]:
        cancel(schedule, first)
    use_found(schedule, first)
    if is_free:
        _start(state, first, now)
    else:
        reserve(schedule, first, now, now + schedule.duration[first])
        _choose_stops(state, first)
    _displace_later_tasks(schedule, first, now)


@compiled_without_references
def _choose_stops(state: State, first: int) -> None:
    """Stop those runs that overtook the first task whose resources it needs; spare the others, in order of starts."""
    schedule, free, runs, counters = state.schedule, state.free, state.runs, state.counters
    _change_runs(state, first, 1)
    task = counters[FIRST_RUN]
    while task >= 0:
        if not runs.is_stopping[task] and _may_be_stopped(state, task, first):
            change_free(schedule, free, task, -1)
            if take_placement(schedule, free, first):
                change_free(schedule, free, first, 1)
            else:
                change_free(schedule, free, task, 1)
                state.lists.stops[counters[STOPPED]] = task
                counters[STOPPED] += 1
        task = runs.following[task]
    for at in range(counters[STOPPED]):
        change_free(schedule, free, state.lists.stops[at], -1)
    _change_runs(state, -1, -1)
    for at in range(counters[STOPPED]):
        runs.is_stopping[state.lists.stops[at]] = True


@compiled_without_references
def _extend_overdue_runs(state: State, now: float) -> None:
    """Extend runs that have exceeded their assumed end, and displace the reservations that conflict with them."""
    ends, runs, schedule, overdue, count = state.ends, state.runs, state.schedule, state.lists.overdue, 0
    while first_time(ends) <= now:
        end = ends.times[0]
        task = pop_ordered(ends)
        if runs.booked_end[task] == end and _is_booked(state, task):
            overdue[count] = task
            count += 1
    for at in range(count):
        task = overdue[at]
        if runs.is_stopping[task]:
            _book_run(state, task, now, now + STOP_SECONDS)
            continue
        end = now + _remaining_run_time(state, task, now)
        _book_run(state, task, now, end)
        other = next_conflicting(schedule, task, now, end, -1)
        while other >= 0:
            if not (_may_preempt(state, other) and _may_be_stopped(state, task, other)):
                displace(schedule, other, end)
            other = next_conflicting(schedule, task, now, end, schedule.id_rank[other])


@compiled_without_references
def _is_booked(state: State, task: int) -> bool:
    """Return whether a task runs. One that starts in this step does not end before it."""
    return bool(state.runs.run[task] >= 0)


# --- orders -------------------------------------------------------------------------------------------------


@compiled_without_references
def _add_event(state: State, time: float, event: int) -> None:
    state.counters[ORDERED] += 1
    push_ordered(state.events, time, state.counters[ORDERED], event)


@compiled_without_references
def _stop_runs(state: State, now: float) -> None:
    """Stop the preempted runs. Each holds its resources until it has stopped."""
    rules, runs, log, counters = state.rules, state.runs, state.log, state.counters
    for at in range(counters[STOPPED]):
        task = state.lists.stops[at]
        run = runs.run[task]
        saved = runs.done[task] + max(0.0, now - runs.computing_from[task]) * runs.speed[task]
        log.times[run, STOP_ORDERED], log.times[run, SAVED] = now, saved
        delay = rules.restart if runs.number[task] > 1 else rules.start
        is_starting = runs.computing_from[task] > now
        if is_starting or (delay == 0.0 and not saved > log.times[run, SAVED_BEFORE]):
            log.times[run, COMPUTING_SINCE] = np.nan
        counters[STOPPING] += 1
        _add_event(state, now + rules.stop, 3 * run + STOPS)
    counters[STOPPED] = 0


@compiled_without_references
def _start_runs(state: State, now: float) -> None:
    """Start the runs that were decided."""
    rules, runs, counters, schedule = state.rules, state.runs, state.counters, state.schedule
    for at in range(counters[STARTED]):
        task = state.lists.starts[at]
        first, end = schedule.first_row[task], schedule.first_row[task + 1]
        delay = rules.restart if runs.number[task] else rules.start
        runs.number[task] += 1
        rows = schedule.placements[first:end]
        run = log_start(state.log, task, runs.number[task], counters[STEP], now, now + delay, runs.done[task], rows)
        need = need_at(schedule.demands, schedule.demand_of[task])
        speed = gang_speed(need, state.speed_of_node, schedule.placements, first)
        runs.run[task], runs.start[task], runs.computing_from[task], runs.speed[task] = run, now, now + delay, speed
        if delay > 0.0:
            _add_event(state, now + delay, 3 * run + STARTS)
        remaining = max(0.0, state.work[task] - runs.done[task])
        _add_event(state, now + delay + remaining / speed, 3 * run + ENDS)
        last = counters[LAST_RUN]
        runs.preceding[task], runs.following[task] = last, -1
        if last >= 0:
            runs.following[last] = task
        else:
            counters[FIRST_RUN] = task
        counters[LAST_RUN] = task
        counters[RUNNING] += 1
        counters[WAITING] -= 1
        counters[WAITING_ROWS] -= end - first
    counters[STARTED] = 0
