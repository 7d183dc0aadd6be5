"""What EASY backfilling with predicted run times decides in a step of its compiled replay."""

from __future__ import annotations

import numpy as np

from refold.jit import compiled, compiled_without_references
from refold.packing import Ints, need_at
from refold.predict import expected_survival, quantile_beyond
from refold.replays.heaps import first_ordered_time, pop_ordered, push_ordered
from refold.replays.predicted_easy_reservations import (
    advance_reservations,
    cancel,
    cancel_behind_first,
    displace,
    find_reservation,
    next_conflicting,
    postpone,
    remove_from_queue,
    reserve,
    sort_by_position,
    turn_into_run,
)
from refold.replays.predicted_easy_schedule import (
    ARRIVALS,
    DISPLACED,
    QUEUED,
    RESERVED,
    Schedule,
    add_to_queue,
    change_booking,
    change_free,
    first_in_queue,
    is_before,
    next_for_gap,
    place,
    place_now,
    release_found,
    reopen_gaps,
    take_found,
    take_placement,
    use_found,
)
from refold.replays.predicted_easy_state import (
    ARRIVED,
    FIRST_RUN,
    NEVER,
    REQUEUED,
    STARTED,
    STOPPED,
    WHOLE_NODE,
    State,
)

MIN_RUN_TIME, MIN_OVERRUN, MIN_OVERRUN_SHARE, STOP_SECONDS = 1.0, 60.0, 0.05, 60.0
MAX_RECORDED, DROP_PAST_EVERY = 128, 64
"""As in the policy."""

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
def start_due(state: State, now: float) -> None:
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
def add_arrivals(state: State, first_arrival: int, now: float) -> None:
    """Add the tasks that were stopped, and the new ones, to the queue."""
    counters = state.counters
    for at in range(counters[REQUEUED]):
        _add_to_queue(state, state.lists.requeued[at], now)
    counters[REQUEUED] = 0
    for task in range(first_arrival, counters[ARRIVED]):
        if state.fits_empty[state.schedule.demand_of[task]]:
            _add_to_queue(state, task, now)


@compiled_without_references
def make_reservations(state: State, now: float) -> None:
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
def start_advanced(state: State, now: float) -> bool:
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
def fill_gaps(state: State, now: float) -> None:
    """Start tasks without a reservation that fit for as long as they will run."""
    schedule, free = state.schedule, state.free
    reopen_gaps(schedule, free, now)
    task = next_for_gap(schedule, now)
    while task >= 0:
        if place_now(schedule, task, now) and take_found(schedule, free, task):
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
def preempt_for_first(state: State, now: float) -> None:
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
        release_found(schedule, free, first)
    _change_runs(state, first, -1)
    if not is_placed:
        return
    is_free = take_found(schedule, free, first)
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
def extend_overdue_runs(state: State, now: float) -> None:
    """Extend runs that have exceeded their assumed end, and displace the reservations that conflict with them."""
    ends, runs, schedule, overdue, count = state.ends, state.runs, state.schedule, state.lists.overdue, 0
    while first_ordered_time(ends) <= now:
        end = ends.times[0]
        task = pop_ordered(ends)
        is_repeated = count > 0 and overdue[count - 1] == task  # an earlier run of the task had the same assumed end
        if runs.booked_end[task] == end and _is_booked(state, task) and not is_repeated:
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
