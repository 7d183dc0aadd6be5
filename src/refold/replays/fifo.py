"""The compiled replay of FIFO policies: simulates a whole trace in one compiled loop, a million tasks in seconds.

For jobs that run once, as requested and to completion, in the order of arrival, it does the same as the general
simulator: it uses the same placement kernels and processes simultaneous events together, and the results are
bit-identical (a property test checks this). It supports neither stops nor node failures.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from refold.errors import BadInput, BadValue, UnknownName
from refold.jit import compiled, inlined
from refold.model import Cluster
from refold.packing import (
    FGD,
    GENETIC,
    INSTANCES_THAT_FIT,
    LEARNING_RULES,
    RULES,
    Bools,
    Floats,
    FreeArrays,
    FreeResources,
    Ints,
    PlacementRule,
    change_rows,
    count_shortages,
    is_update_due,
    need_at,
    place_demand,
    pop,
    push,
    update_demand_history,
)
from refold.replays.columns import ReplayArrays, ReplayResult, TaskColumns, gang_speed
from refold.simulator import RecordedSpeeds

FifoOrder = Literal["fifo", "fifo-skip"]


class FifoNotes(NamedTuple):
    """What a journal needs besides: the steps in which tasks arrive and are first found not to fit.

    `blocked_number` counts tasks that do not fit, and is -1 for the others; `shortages` has what the nodes lacked then.
    Empty arrays: nothing is noted.
    """

    arrival_step: Ints
    blocked_step: Ints
    blocked_number: Ints
    shortages: Ints

    @staticmethod
    def allocate(tasks: int) -> FifoNotes:
        """Return the arrays for so many tasks."""
        arrival_step, blocked_step, blocked_number = np.full((3, tasks), -1, dtype=np.int64)
        shortages = np.zeros((tasks, INSTANCES_THAT_FIT + 1), dtype=np.int64)
        return FifoNotes(arrival_step, blocked_step, blocked_number, shortages)


def replay_fifo(
    tasks: TaskColumns,
    cluster: Cluster,
    placement: str = "best-fit",
    order: FifoOrder = "fifo",
    seed: int = 0,
    notes: FifoNotes | None = None,
) -> ReplayResult:
    """Simulate all tasks to completion. `order`: `fifo` is strict; `fifo-skip` skips tasks that do not fit.

    `notes` are written for a journal.
    """
    if placement not in RULES:
        raise UnknownName("placement", placement, RULES)
    if placement in GENETIC:
        raise BadInput(f"the compiled replay does not support placement {placement}, which places jobs in batches")
    if order not in ("fifo", "fifo-skip"):
        raise UnknownName("order of the compiled replay", order, ("fifo", "fifo-skip"))
    if np.any(np.diff(tasks.submitted) < 0):
        raise BadValue("the tasks of a replay are not in order, expected them sorted by submission")
    free = FreeResources(cluster)
    arrays = ReplayArrays.allocate(tasks, free)
    rule = PlacementRule.allocate(placement, free, tasks.demands, seed)
    learns = rule.number in LEARNING_RULES
    speed_of_node = RecordedSpeeds(cluster).speed_of_node
    _replay(arrays, free.arrays, speed_of_node, rule, learns, order == "fifo", notes or FifoNotes.allocate(0))
    return arrays.result(tasks)


@compiled
def _link_equal_demands(demand_of: Ints, first_task: Ints) -> Ints:
    """Return for each task the next one with the same demand; write the first task of each demand to `first_task`."""
    count = demand_of.shape[0]
    next_task = np.empty(count, dtype=np.int64)
    first_task[:] = count
    for task in range(count - 1, -1, -1):
        next_task[task] = first_task[demand_of[task]]
        first_task[demand_of[task]] = task
    return next_task


@inlined
def _first_candidate(head_of: Ints, fits_empty: Ints, blocked: Bools, no_task: int) -> int:
    """Return the earliest task at the head of a demand's queue, of the demands that may fit now."""
    first = no_task
    for demand in range(head_of.shape[0]):
        if fits_empty[demand] and not blocked[demand] and head_of[demand] < first:
            first = head_of[demand]
    return first


@compiled
def _replay(
    arrays: ReplayArrays,
    free: FreeArrays,
    speed_of_node: Floats,
    rule: PlacementRule,
    learns: bool,
    strict: bool,
    notes: FifoNotes,
) -> None:
    submitted, work, demand_of, rows, fits_empty, first_row, placements, started, ended = arrays[:9]
    start_number, start_step, end_step = arrays[9:]
    count, demand_count = submitted.shape[0], rows.shape[0]
    times, running = np.empty(count), np.empty(count, dtype=np.int64)
    head_of = np.empty(demand_count, dtype=np.int64)
    next_task = _link_equal_demands(demand_of, head_of)
    blocked = np.zeros(demand_count, dtype=np.bool_)
    demand_counts = np.zeros(demand_count, dtype=np.int64)
    arrived = size = waiting = tasks_seen = demands_seen = steps = starts = noted = 0
    head, head_blocked, records = 0, False, len(notes.arrival_step) > 0
    while arrived < count or size > 0:
        steps += 1
        now = np.inf
        if arrived < count:
            now = submitted[arrived]
        if size > 0 and times[0] < now:
            now = times[0]

        # 1. Process the tasks that end or arrive now.
        while size > 0 and times[0] == now:
            task = pop(times, running, size)
            size -= 1
            end_step[task] = steps
            need = need_at(rows, demand_of[task])
            change_rows(free, need, placements, first_row[task], 1)
            blocked[:] = False
            head_blocked = False
        while arrived < count and submitted[arrived] == now:
            demand = demand_of[arrived]
            if fits_empty[demand]:
                waiting += 1
                demand_counts[demand] += 1
                demands_seen = max(demands_seen, demand + 1)
                tasks_seen += 1
                if learns and is_update_due(tasks_seen):
                    update_demand_history(
                        rule.number == FGD, rows, demand_counts, demands_seen, rule.history, rule.scores
                    )
            if records:
                notes.arrival_step[arrived] = steps
            arrived += 1

        # 2. Start tasks in the order of arrival.
        while waiting > 0 and not head_blocked:
            if strict:
                while not fits_empty[demand_of[head]]:
                    head += 1
                task = head
            else:
                task = _first_candidate(head_of, fits_empty, blocked, count)
                if task >= arrived:
                    break
            demand = demand_of[task]
            first = first_row[task]
            if not place_demand(free, rule, demand, placements, first):
                blocked[demand] = True
                head_blocked = strict
                if records and notes.blocked_number[task] < 0:
                    notes.blocked_number[task], notes.blocked_step[task] = noted, steps
                    notes.shortages[task] = count_shortages(free.nodes, free.gpus, rows, demand)
                    noted += 1
                continue
            need = need_at(rows, demand)
            started[task] = now
            start_step[task], start_number[task] = steps, starts
            starts += 1
            speed = gang_speed(need.gpus > 0, speed_of_node, placements, first, first_row[task + 1])
            ended[task] = now + work[task] / speed
            push(times, running, size, ended[task], task)
            size += 1
            waiting -= 1
            head += 1
            head_of[demand] = next_task[task]
