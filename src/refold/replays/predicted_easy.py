"""The compiled replay of EASY backfilling with predicted run times: the same as policy `easy` in the general simulator.

It gives the same runs on the same GPUs, to the bit (property tests check this): the predictor learns in the loop from
the same jobs in the same order, and runs that exceed their predictions are extended, displace reservations, and are
preempted for the first waiting task, at the same times. Jobs are ordered by priority and arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from refold.errors import UnknownName
from refold.jit import compiled, compiled_without_references, values_of
from refold.model import Cluster, Job
from refold.packing import FreeArrays, FreeResources, need_at
from refold.predict import NumberedPredictor, finish_numbered, submit_numbered
from refold.replays.columns import (
    ReplayArrays,
    ReplayedRuns,
    TaskColumns,
    gang_speed,
    id_positions,
    task_columns,
)
from refold.replays.easy import PLACEMENTS
from refold.replays.heaps import OrderedHeap, enlarged, first_ordered_time, is_full, pop_ordered, push_ordered
from refold.replays.predicted_easy_rounds import (
    DROP_PAST_EVERY,
    MAX_RECORDED,
    add_arrivals,
    extend_overdue_runs,
    fill_gaps,
    make_reservations,
    preempt_for_first,
    start_advanced,
    start_due,
)
from refold.replays.predicted_easy_schedule import RESERVED, Schedule, change_free, drop_past, end_booking
from refold.replays.predicted_easy_state import (
    ARRIVED,
    FIRST_RUN,
    LAST_RUN,
    ORDERED,
    PREEMPT,
    RECORDED,
    REQUEUED,
    RUNNING,
    STARTED,
    STEP,
    STOPPED,
    STOPPING,
    WAITING,
    WAITING_ROWS,
    Lists,
    Rules,
    Runs,
    State,
)
from refold.replays.run_log import END, END_STEP, SAVED, TASK, RunLog, log_start, log_stop, with_room
from refold.simulator import NO_COSTS, Costs, RecordedSpeeds

# What happens to a run, in a heap of events: event 3n is the end of run n, 3n + 1 its start report, 3n + 2 its stop.
ENDS, STARTS, STOPS = range(3)


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
        Schedule.allocate(columns, cluster, arrays, placement, rank, id_positions(jobs)),
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
        start_due(state, now)
        preempt_for_first(state, now)
        extend_overdue_runs(state, now)
        add_arrivals(state, first_arrival, now)
        make_reservations(state, now)
        while start_advanced(state, now):
            make_reservations(state, now)
        start_due(state, now)
        fill_gaps(state, now)

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
    now = min(first_ordered_time(events), first_ordered_time(state.wakes))
    return min(now, state.submitted[arrived]) if arrived < state.submitted.shape[0] else now


@compiled_without_references
def _process_events(state: State, now: float) -> None:
    """Process the ends, stops and start reports of runs, and wake-ups."""
    events, wakes = state.events, state.wakes
    while first_ordered_time(wakes) == now:
        pop_ordered(wakes)
    while first_ordered_time(events) == now:
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
        log_stop(log, run, now, saved, rules.restart if runs.number[task] > 1 else rules.start)
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
        speed = gang_speed(need.gpus > 0, state.speed_of_node, schedule.placements, first, end)
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
