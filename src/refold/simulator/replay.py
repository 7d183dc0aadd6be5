"""The compiled replay of FIFO policies: simulates a whole trace in one compiled loop, a million tasks in seconds.

For jobs that run once, as requested and to completion, in the order of arrival, it does the same as the general
simulator: it uses the same placement kernels and processes simultaneous events together, and the results are
bit-identical (a property test checks this). It supports neither stops nor node failures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from refold.errors import BadInput, BadValue, UnknownName
from refold.jit import compiled, inlined
from refold.model import WHOLE, Cluster, Demand, Job, Placement, Share
from refold.packing import (
    FGD,
    GENETIC,
    GPU_MASK,
    INSTANCES_THAT_FIT,
    LEARNING_RULES,
    NODE,
    RULE_STATE_ENTRIES,
    RULES,
    SEED,
    Bools,
    DemandHistory,
    Floats,
    FreeResources,
    Ints,
    Need,
    RackDraw,
    ScoreCache,
    Words,
    adjust_free,
    count_shortages,
    empty_demand_history,
    empty_score_cache,
    indices_from_mask,
    is_update_due,
    need_at,
    no_rack_draw,
    place_instances,
    pop,
    push,
    update_demand_history,
)
from refold.simulator.costs import RecordedSpeeds

FifoOrder = Literal["fifo", "fifo-skip"]


class TaskColumns(NamedTuple):
    """Jobs as columns, sorted by submission: submission time, run time, and index into `demands`."""

    submitted: Floats
    work: Floats
    demand_of: Ints
    demands: tuple[Demand, ...]


class ReplayedRuns(NamedTuple):
    """The runs of all tasks, in the order of starts, with the same meaning as the columns of a history.

    `placements` has one row of (node, GPU mask) per instance; the rows of a run begin at `first_row`.
    """

    tasks: TaskColumns
    task: Ints
    number: Ints
    start: Floats
    computing_since: Floats
    stop_ordered: Floats
    end: Floats
    saved_before: Floats
    saved: Floats
    start_step: Ints
    end_step: Ints
    first_row: Ints
    placements: Ints

    def placement(self, run: int) -> Placement:
        """Return the placement of a run."""
        demand = self.tasks.demands[self.tasks.demand_of[self.task[run]]]
        return read_placement(demand, self.placements, int(self.first_row[run]))


class ReplayResult(NamedTuple):
    """The start, end and placement of each task; NaN if it never started.

    `placements` has one row of (node, GPU mask) per instance; the rows of a task begin at `first_row`. `start_number`:
    which start it was of all tasks, from 0. `start_step` and `end_step`: the steps of the loop in which it started and
    ended, from 1. They are -1 if it never started.
    """

    tasks: TaskColumns
    started: Floats
    ended: Floats
    first_row: Ints
    placements: Ints
    start_number: Ints
    start_step: Ints
    end_step: Ints

    def runs(self) -> ReplayedRuns:
        """Return the runs, one per task that was started."""
        ran = np.flatnonzero(self.start_number >= 0)
        task = ran[np.argsort(self.start_number[ran])]
        start, not_stopped, no_work = self.started[task], np.full(len(task), np.nan), np.zeros(len(task))
        return ReplayedRuns(
            self.tasks,
            task,
            np.ones(len(task), dtype=np.int64),
            start,
            start,
            not_stopped,
            self.ended[task],
            no_work,
            not_stopped,
            self.start_step[task],
            self.end_step[task],
            self.first_row[task],
            self.placements,
        )

    def placement(self, task: int) -> Placement:
        """Return the placement of a task; empty if it never started."""
        if np.isnan(self.started[task]):
            return ()
        demand = self.tasks.demands[self.tasks.demand_of[task]]
        return read_placement(demand, self.placements, int(self.first_row[task]))


def read_placement(demand: Demand, placements: Ints, first: int) -> Placement:
    """Return the placement of a demand, from its rows of (node, GPU mask)."""
    return tuple(
        Share(node, indices_from_mask(mask), demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
        for node, mask in placements[first : first + demand.instances].tolist()
    )


def task_columns(jobs: Iterable[Job]) -> TaskColumns:
    """Convert jobs to columns. Demands are numbered in the order of their first occurrence."""
    ordered = sorted(jobs, key=lambda job: job.submitted)
    demand_numbers: dict[Demand, int] = {}
    without_work = next((job for job in ordered if job.work is None), None)
    if without_work is not None:
        raise BadInput(f"job {without_work.id!r} has no duration, so it cannot be replayed")
    return TaskColumns(
        np.array([job.submitted for job in ordered], dtype=np.float64),
        np.array([job.work for job in ordered], dtype=np.float64),
        np.array([demand_numbers.setdefault(job.demand, len(demand_numbers)) for job in ordered], dtype=np.int64),
        tuple(demand_numbers),
    )


class ReplayNotes(NamedTuple):
    """What a journal needs besides: the steps in which tasks arrive and are first found not to fit.

    `blocked_number` counts tasks that do not fit, and is -1 for the others; `shortages` has what the nodes lacked then.
    Empty arrays: nothing is noted.
    """

    arrival_step: Ints
    blocked_step: Ints
    blocked_number: Ints
    shortages: Ints

    @staticmethod
    def allocate(tasks: int) -> ReplayNotes:
        """Return the arrays for so many tasks."""
        arrival_step, blocked_step, blocked_number = np.full((3, tasks), -1, dtype=np.int64)
        shortages = np.zeros((tasks, INSTANCES_THAT_FIT + 1), dtype=np.int64)
        return ReplayNotes(arrival_step, blocked_step, blocked_number, shortages)


class ReplayArrays(NamedTuple):
    """The arrays that a compiled replay reads and writes."""

    submitted: Floats
    work: Floats
    demand_of: Ints
    demand_rows: Ints
    fits_empty: Ints
    first_row: Ints
    placements: Ints
    started: Floats
    ended: Floats
    start_number: Ints
    start_step: Ints
    end_step: Ints

    @staticmethod
    def allocate(tasks: TaskColumns, free: FreeResources) -> ReplayArrays:
        """Return the arrays for an empty cluster, without results."""
        demand_rows = free.rows(tasks.demands)
        fits_empty = np.array([free.fits_when_empty(demand) for demand in tasks.demands], dtype=np.int64)
        instances = (
            demand_rows[tasks.demand_of, 0] * fits_empty[tasks.demand_of] if len(tasks.demand_of) else tasks.demand_of
        )
        first_row = np.zeros(len(instances) + 1, dtype=np.int64)
        np.cumsum(instances, out=first_row[1:])
        placements = np.zeros((int(first_row[-1]), 2), dtype=np.int64)
        started, ended = (np.full(len(instances), np.nan) for _ in range(2))
        steps = (np.full(len(instances), -1, dtype=np.int64) for _ in range(3))
        return ReplayArrays(*tasks[:3], demand_rows, fits_empty, first_row, placements, started, ended, *steps)

    def result(self, tasks: TaskColumns) -> ReplayResult:
        """Return what the replay has written."""
        steps = self.start_number, self.start_step, self.end_step
        return ReplayResult(tasks, self.started, self.ended, self.first_row, self.placements, *steps)


def replay_compiled(
    tasks: TaskColumns,
    cluster: Cluster,
    placement: str = "best-fit",
    order: FifoOrder = "fifo",
    seed: int = 0,
    notes: ReplayNotes | None = None,
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
    rule_state = np.zeros(RULE_STATE_ENTRIES, dtype=np.int64)
    rule_state[SEED] = seed
    learns = RULES[placement][0] in LEARNING_RULES
    score_cache = empty_score_cache(len(tasks.demands) if learns else 0, len(cluster.nodes))
    _replay(
        RULES[placement][0],
        order == "fifo",
        free.nodes,
        free.gpus,
        free.bits,
        RecordedSpeeds(cluster).speed_of_node,
        arrays,
        notes or ReplayNotes.allocate(0),
        rule_state,
        learns,
        empty_demand_history(),
        score_cache,
        no_rack_draw(),
    )
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
def release_task(nodes: Ints, gpus: Ints, bits: Words, need: Need, placements: Ints, row: int, end: int) -> None:
    """Release the placement of a task."""
    change_task(nodes, gpus, bits, need, placements, row, end, 1)


@inlined
def change_task(
    nodes: Ints, gpus: Ints, bits: Words, need: Need, placements: Ints, row: int, end: int, sign: int
) -> None:
    """Release the placement of a task (sign 1), or take it without checks (-1).

    Instances with whole GPUs on the same node are changed together.
    """
    while row < end:
        node, mask, instances_here = placements[row, NODE], placements[row, GPU_MASK], 1
        row += 1
        while need.milli == WHOLE and row < end and placements[row, NODE] == node:
            mask |= placements[row, GPU_MASK]
            instances_here += 1
            row += 1
        count = sign * instances_here
        adjust_free(nodes, gpus, bits, node, mask, sign * need.milli, count * need.cpu, count * need.memory)


@inlined
def _first_candidate(head_of: Ints, fits_empty: Ints, blocked: Bools, no_task: int) -> int:
    """Return the earliest task at the head of a demand's queue, of the demands that may fit now."""
    first = no_task
    for demand in range(head_of.shape[0]):
        if fits_empty[demand] and not blocked[demand] and head_of[demand] < first:
            first = head_of[demand]
    return first


@inlined
def gang_speed(need: Need, speed_of_node: Floats, placements: Ints, first: int) -> float:
    """Return the speed of the slowest node of a gang; 1 for tasks without GPUs."""
    slowest = np.inf if need.gpus > 0 else 1.0
    if need.gpus > 0:
        for row in range(first, first + need.instances):
            slowest = min(slowest, speed_of_node[placements[row, NODE]])
    return slowest


@compiled
def _replay(
    rule: int,
    strict: bool,
    nodes: Ints,
    gpus: Ints,
    bits: Words,
    speed_of_node: Floats,
    arrays: ReplayArrays,
    notes: ReplayNotes,
    state: Ints,
    learns: bool,
    history: DemandHistory,
    scores: ScoreCache,
    racks: RackDraw,
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
            release_task(nodes, gpus, bits, need, placements, first_row[task], first_row[task + 1])
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
                    update_demand_history(rule == FGD, rows, demand_counts, demands_seen, history, scores)
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
            if not place_instances(
                rule, nodes, gpus, bits, rows, demand, demand, state, history, scores, racks, placements, first
            ):
                blocked[demand] = True
                head_blocked = strict
                if records and notes.blocked_number[task] < 0:
                    notes.blocked_number[task], notes.blocked_step[task] = noted, steps
                    notes.shortages[task] = count_shortages(nodes, gpus, rows, demand)
                    noted += 1
                continue
            need = need_at(rows, demand)
            started[task] = now
            start_step[task], start_number[task] = steps, starts
            starts += 1
            ended[task] = now + work[task] / gang_speed(need, speed_of_node, placements, first)
            push(times, running, size, ended[task], task)
            size += 1
            waiting -= 1
            head += 1
            head_of[demand] = next_task[task]
