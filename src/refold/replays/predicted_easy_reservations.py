"""The reservations of EASY backfilling with predicted run times: `Reservations` of the policy, as functions."""

from __future__ import annotations

import numpy as np

from refold.jit import compiled_without_references
from refold.packing import GPU_MASK, NODE, Ints, first_that_can_start_earlier, is_overbooked, need_at
from refold.replays.predicted_easy_schedule import (
    DISPLACED,
    QUEUED,
    RELEASED,
    RESERVED,
    Schedule,
    add_to_gaps,
    change_booking,
    find_start,
    first_in_queue,
    is_before,
    note_released,
    overlap,
    remove_from_gaps,
    take_placement,
    use_found,
    write_window,
)

MAX_NODE_CHECKS = 150_000
CHECKS_PER_SEARCH = 5
SWITCH_FACTOR = 0.5
"""As in the policy."""


@compiled_without_references
def _remove_from_list(tasks: Ints, count: int, task: int) -> bool:
    """Remove a task from a list of so many tasks; return whether it was in it."""
    for at in range(count):
        if tasks[at] == task:
            for later in range(at, count - 1):
                tasks[later] = tasks[later + 1]
            return True
    return False


@compiled_without_references
def _remove_displaced(schedule: Schedule, task: int) -> bool:
    is_removed = _remove_from_list(schedule.displaced, schedule.counters[DISPLACED], task)
    schedule.counters[DISPLACED] -= is_removed
    return is_removed


@compiled_without_references
def _book_reservation(schedule: Schedule, task: int, start: float, end: float) -> None:
    """Book the placement of a task as its reservation."""
    change_booking(schedule, task, start, end, -1)
    booked, first = schedule.booked, schedule.first_row[task]
    is_single = schedule.first_row[task + 1] - first == 1
    booked.start[task], booked.duration[task], schedule.end[task] = start, end - start, end
    booked.node[task] = schedule.placements[first, NODE] if is_single else -1
    booked.mask[task] = schedule.placements[first, GPU_MASK] if is_single else 0
    schedule.is_reserved[task] = True
    schedule.reserved[schedule.counters[RESERVED]] = task
    schedule.counters[RESERVED] += 1


@compiled_without_references
def remove_from_queue(schedule: Schedule, task: int) -> None:
    """Remove a task that starts, and its reservation."""
    schedule.is_queued[task] = False
    schedule.counters[QUEUED] -= 1
    remove_from_gaps(schedule, task)
    if schedule.is_reserved[task]:
        cancel(schedule, task)
    _remove_displaced(schedule, task)


@compiled_without_references
def _drop(schedule: Schedule, task: int) -> None:
    """Remove the reservation of a task without recording its nodes as released."""
    change_booking(schedule, task, schedule.booked.start[task], schedule.end[task], 1)
    schedule.is_reserved[task] = False
    _remove_from_list(schedule.reserved, schedule.counters[RESERVED], task)
    schedule.counters[RESERVED] -= 1


@compiled_without_references
def cancel(schedule: Schedule, task: int) -> None:
    """Cancel the reservation of a task."""
    _drop(schedule, task)
    note_released(schedule, task)


@compiled_without_references
def reserve(schedule: Schedule, task: int, start: float, end: float) -> None:
    """Make a reservation for a task, on its placement."""
    _book_reservation(schedule, task, start, end)
    _remove_displaced(schedule, task)
    schedule.first_start[task] = min(schedule.first_start[task], start)
    remove_from_gaps(schedule, task)


@compiled_without_references
def turn_into_run(schedule: Schedule, task: int, end: float) -> None:
    """Drop the reservation of a task whose run takes its place until `end`."""
    _drop(schedule, task)
    if end < schedule.end[task]:
        note_released(schedule, task)


@compiled_without_references
def postpone(schedule: Schedule, task: int, now: float) -> None:
    """Let a reservation whose resources are not free yet start now."""
    start, end = schedule.booked.start[task], schedule.end[task]
    if start < now:
        _drop(schedule, task)
        _book_reservation(schedule, task, now, now + end - start)


@compiled_without_references
def find_reservation(schedule: Schedule, task: int, now: float) -> float:
    """Return the start of the earliest reservation, infinity if there is none; its end is then in `end`.

    A displaced task keeps its former placement, unless another one is much earlier.
    """
    duration, former = schedule.duration[task], schedule.booked.start[task]
    start = find_start(schedule, task, duration, now, np.inf)
    if _remove_displaced(schedule, task) and start < np.inf and not start < now + SWITCH_FACTOR * (former - now):
        write_window(schedule, former, schedule.end[task])
        if take_placement(schedule, schedule.window, task):
            return float(former)
    if start < np.inf:
        use_found(schedule, task)
        schedule.end[task] = start + duration
    return start


@compiled_without_references
def cancel_behind_first(schedule: Schedule, now: float) -> None:
    """Cancel future reservations of tasks that are no longer first in the queue."""
    if schedule.counters[RESERVED] <= 1:
        return
    first, at = first_in_queue(schedule), 0
    while at < schedule.counters[RESERVED]:
        task = schedule.reserved[at]
        if task != first and schedule.booked.start[task] > now:
            cancel(schedule, task)
            add_to_gaps(schedule, task)
        else:
            at += 1


@compiled_without_references
def displace(schedule: Schedule, task: int, start: float) -> None:
    """Cancel the reservation of a task, which gets another one: perhaps the same placement from `start` on."""
    cancel(schedule, task)
    schedule.end[task] = start + schedule.end[task] - schedule.booked.start[task]
    schedule.booked.start[task] = start
    schedule.displaced[schedule.counters[DISPLACED]] = task
    schedule.counters[DISPLACED] += 1
    add_to_gaps(schedule, task)


@compiled_without_references
def next_conflicting(schedule: Schedule, task: int, now: float, end: float, last_id: int) -> int:
    """Return the next task by id whose reservation overlaps a placement booked until `end`, while overbooked; or -1."""
    found = -1
    for at in range(schedule.counters[RESERVED]):
        other = schedule.reserved[at]
        is_next = schedule.id_rank[other] > last_id and (found < 0 or schedule.id_rank[other] < schedule.id_rank[found])
        is_next = is_next and schedule.booked.start[other] < end and overlap(schedule, other, task)
        if is_next and _is_overbooked(schedule, other, now, end):
            found = other
    return found


@compiled_without_references
def _is_overbooked(schedule: Schedule, task: int, now: float, end: float) -> bool:
    start, end = max(now, schedule.booked.start[task]), min(end, schedule.end[task])
    need, rows = need_at(schedule.demands, schedule.demand_of[task]), schedule.placements
    for row in range(schedule.first_row[task], schedule.first_row[task + 1]):
        node, mask = rows[row, NODE], rows[row, GPU_MASK]
        if is_overbooked(schedule.intervals, node, start, end, mask, need.cpu > 0, need.memory > 0):
            return True
    return False


@compiled_without_references
def sort_by_position(schedule: Schedule, tasks: Ints, count: int) -> None:
    """Sort so many tasks by their positions in the queue."""
    for at in range(1, count):
        task, place_at = tasks[at], at
        while place_at > 0 and is_before(schedule, task, tasks[place_at - 1]):
            tasks[place_at] = tasks[place_at - 1]
            place_at -= 1
        tasks[place_at] = task


@compiled_without_references
def advance_reservations(schedule: Schedule, now: float, moved: Ints) -> int:
    """Move reservations forward after releases; write the tasks that start earlier to `moved`; return their number."""
    counters, order, candidates, released = schedule.counters, schedule.in_order, schedule.candidates, schedule.released
    reserved, count = counters[RESERVED], counters[RELEASED]
    if reserved == 0 or count == 0:
        return 0
    for at in range(reserved):
        order[at] = schedule.reserved[at]
    sort_by_position(schedule, order, reserved)
    for at in range(count):
        candidates.nodes[at], candidates.is_in[released.nodes[at]] = released.nodes[at], True
    _clear_released(schedule)
    number, position, total = 0, 0, count
    schedule.checks_left[0] = MAX_NODE_CHECKS
    while True:
        position = _first_to_advance(schedule, order[:reserved], position, total, now)
        if position < 0:
            break
        if _advance(schedule, order[position], now):
            moved[number] = order[position]
            number += 1
        schedule.checks_left[0] -= CHECKS_PER_SEARCH * schedule.up.shape[0]
        total = count
        if schedule.checks_left[0] > 0:
            for at in range(counters[RELEASED]):
                if not candidates.is_in[released.nodes[at]]:
                    candidates.nodes[total] = released.nodes[at]
                    total += 1
        position += 1
    for at in range(count):
        candidates.is_in[candidates.nodes[at]] = False
    _clear_released(schedule)
    return number


@compiled_without_references
def _clear_released(schedule: Schedule) -> None:
    for at in range(schedule.counters[RELEASED]):
        schedule.released.is_in[schedule.released.nodes[at]] = False
    schedule.counters[RELEASED] = 0


@compiled_without_references
def _first_to_advance(schedule: Schedule, order: Ints, position: int, candidates: int, now: float) -> int:
    """Return the first position from `position` on whose reservation may start earlier on the candidates; -1: none."""
    nodes, placements, touched = schedule.candidates.nodes[:candidates], schedule.placements, schedule.booked.touched
    for task in order:
        touched[task] = 0
        first, end = schedule.first_row[task], schedule.first_row[task + 1]
        for row in range(first, end if end - first > 1 else first):
            for node in nodes:
                touched[task] |= placements[row, NODE] == node
    return first_that_can_start_earlier(
        schedule.intervals,
        schedule.empty,
        schedule.up,
        schedule.booked,
        order,
        position,
        nodes,
        now,
        schedule.checks_left,
        schedule.gpu_free,
    )


@compiled_without_references
def _advance(schedule: Schedule, task: int, now: float) -> bool:
    """Replace a reservation by an earlier one; return whether there is one."""
    start, end = schedule.booked.start[task], schedule.end[task]
    change_booking(schedule, task, start, end, 1)
    earlier = find_start(schedule, task, end - start, now, start)
    change_booking(schedule, task, start, end, -1)
    if earlier == np.inf:
        return False
    cancel(schedule, task)
    use_found(schedule, task)
    _book_reservation(schedule, task, earlier, earlier + (end - start))
    return True
