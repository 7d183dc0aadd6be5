"""The compiled replay of `sjf`, `srtf` and `las`: the same runs as in the general simulator.

It processes the same events in the same steps, with the same placement kernels, and starts and preempts the same jobs;
the results are bit-identical (property tests check this). Run times are the recorded ones. Starting, stopping and
restarting may cost time; jobs may have priorities, and may not be preemptible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from refold.errors import UnknownName
from refold.jit import compiled, compiled_part, compiled_without_references
from refold.model import WHOLE, Cluster, Job
from refold.packing import (
    GENETIC,
    LEARNING_RULES,
    RULES,
    Floats,
    FreeResources,
    Ints,
    PlacementRule,
    TaskHeap,
    pop_task,
    push_task,
)
from refold.policies.queueing import ROUNDING_GPU_SECONDS, THRESHOLD_GPU_SECONDS
from refold.replays.columns import ReplayArrays, ReplayedRuns, gang_speed, id_positions, task_columns
from refold.replays.heaps import heap_with_room
from refold.replays.queue_preemption import (
    change_free,
    claim,
    end_claims,
    major_key,
    minor_key,
    place_task,
    rank_run,
    unrank_run,
)
from refold.replays.queue_state import (
    ARRIVED,
    CLAIMS,
    FREED,
    LAS,
    REPORTED,
    REQUEUED,
    RUNNING,
    SJF,
    SRTF,
    STARTED,
    STEPS,
    STOPS,
    WAITING,
    WAITING_ROWS,
    Claims,
    QueueRules,
    QueueState,
    QueueTasks,
    RankedRuns,
    TaskRuns,
)
from refold.replays.run_log import (
    END,
    END_STEP,
    SAVED,
    START_STEP,
    TASK,
    RunLog,
    log_start,
    log_stop,
    with_room,
)
from refold.replays.waiting_tasks import (
    WaitingTasks,
    add_task,
    close_demand,
    first_task,
    remove_first,
    reopen_all,
    reopen_demand,
)
from refold.simulator import NO_COSTS, Costs, RecordedSpeeds

QueueOrder = Literal["sjf", "srtf", "las"]
ORDERS: dict[str, int] = {"sjf": SJF, "srtf": SRTF, "las": LAS}

PLACEMENTS = tuple(name for name, (rule, _) in RULES.items() if rule not in LEARNING_RULES and name not in GENETIC)
"""The placement rules that do not learn from submitted jobs."""

# What the heap of events holds: the end of run n is 2n, its start report 2n + 1.
WAKE = -1

# Entries of `EventQueue.stops`.
FIRST_STOP, STOPPING = range(2)


class EventQueue(NamedTuple):
    """Future events. The two heaps contain outdated entries: of runs that were stopped since.

    `stop_times` and `stop_tasks` are a ring: all stops take the same time, so they end in the order in which they were
    ordered.
    """

    events: TaskHeap
    demotions: TaskHeap
    stop_times: Floats
    stop_tasks: Ints
    stops: Ints

    @staticmethod
    def allocate(tasks: int) -> EventQueue:
        """Return a queue without events."""
        events, demotions = TaskHeap.allocate(tasks), TaskHeap.allocate(tasks)
        stop_times, stop_tasks = np.zeros(tasks), np.zeros(tasks, dtype=np.int64)
        return EventQueue(events, demotions, stop_times, stop_tasks, np.zeros(STOPPING + 1, dtype=np.int64))


def replay_queue(
    jobs: Sequence[Job],
    cluster: Cluster,
    order: QueueOrder,
    placement: str = "best-fit",
    seed: int = 0,
    costs: Costs = NO_COSTS,
    threshold_gpu_seconds: float = THRESHOLD_GPU_SECONDS,
) -> ReplayedRuns:
    """Simulate all jobs, sorted by submission, to completion. `threshold_gpu_seconds` is that of `las`."""
    if placement not in PLACEMENTS:
        raise UnknownName("placement of the compiled replay of queues", placement, PLACEMENTS)
    columns, free = task_columns(jobs), FreeResources(cluster)
    arrays = ReplayArrays.allocate(columns, free)
    count = len(jobs)
    state = QueueState(
        rules=QueueRules(
            ORDERS[order],
            threshold_gpu_seconds,
            threshold_gpu_seconds - ROUNDING_GPU_SECONDS,
            costs.start,
            costs.stop,
            costs.restart,
        ),
        placement=PlacementRule.allocate(placement, free, columns.demands, seed),
        fits_empty=arrays.fits_empty,
        speed_of_node=RecordedSpeeds(cluster).speed_of_node,
        tasks=_queue_tasks(jobs, arrays),
        waiting=WaitingTasks.allocate(columns.demand_of, len(columns.demands)),
        runs=TaskRuns.allocate(count),
        ranking=RankedRuns.allocate(id_positions(jobs)),
        claims=Claims.allocate(count, len(cluster.nodes), len(free.gpus)),
        free=free.arrays,
        future=free.copy().arrays,
        counts=np.zeros(FREED + 1, dtype=np.int64),
        started=np.zeros(count, dtype=np.int64),
        reported=np.zeros(count, dtype=np.int64),
        requeued=np.zeros(count, dtype=np.int64),
    )
    log = _replay(state, EventQueue.allocate(count), RunLog.allocate(count, len(arrays.placements)))
    return log.result(columns)


def _queue_tasks(jobs: Sequence[Job], arrays: ReplayArrays) -> QueueTasks:
    return QueueTasks(
        arrays.submitted,
        arrays.work,
        np.array([-job.priority for job in jobs], dtype=np.int64),
        arrays.demand_of,
        np.array([job.demand.total_gpu_milli for job in jobs], dtype=np.int64),
        np.array([job.preemptible for job in jobs], dtype=np.bool_),
        arrays.first_row,
        arrays.placements,
    )


@compiled
def _replay(state: QueueState, queue: EventQueue, log: RunLog) -> RunLog:
    counts, claims, last_wake = state.counts, state.claims, -np.inf
    is_las = state.rules.order == LAS
    while counts[ARRIVED] < state.tasks.submitted.shape[0] or counts[RUNNING] > 0 or counts[WAITING] > 0:
        now = _next_time(state, queue, log)
        if now == np.inf:
            break
        counts[STEPS] += 1

        # 1. Process the events of this time: runs that start, end or have stopped, and arrivals.
        _process_run_events(state, queue, log, now)
        _process_stopped_runs(state, queue, log, now)
        first = counts[ARRIVED]
        _count_arrivals(state, now)

        # 2. Update the queue and the ranking of runs.
        if is_las:
            _demote(state, queue, log, now)
        _rank_runs(state, now)
        _add_to_queue(state, first, now)

        # 3. Start tasks in order; preempt runs for those that do not fit.
        log = with_room(log, counts[WAITING], counts[WAITING_ROWS])
        queue = _with_room_for_events(queue, counts[WAITING])
        _start_tasks(state, queue, log, now)
        if claims.counts[CLAIMS] > 0:
            end_claims(state.free, state.future, claims, state.placement.demands, state.tasks)
            _stop_runs(state, queue, log, now)
        if is_las and counts[WAITING] > 0:
            wake = _next_demotion(state, queue, log)
            if now < wake < np.inf and wake != last_wake:
                last_wake = wake
                push_task(queue.events, wake, WAKE)
    return log


@compiled_without_references
def _is_outdated(runs: TaskRuns, log: RunLog, event: int) -> bool:
    """Whether an event is about a run that was stopped, or has stopped, before it."""
    if event == WAKE:
        return False
    task = log.numbers[event >> 1, TASK]
    return bool(runs.run[task] != event >> 1 or runs.is_stopping[task])


@compiled_part
def _next_time(state: QueueState, queue: EventQueue, log: RunLog) -> float:
    """Return the time of the next event; infinity if there is none."""
    events, submitted, arrived = queue.events, state.tasks.submitted, state.counts[ARRIVED]
    while events.size[0] > 0 and _is_outdated(state.runs, log, events.tasks[0]):
        pop_task(events)
    now = np.inf
    if arrived < submitted.shape[0]:
        now = submitted[arrived]
    if events.size[0] > 0:
        now = min(now, events.times[0])
    if queue.stops[STOPPING] > 0:
        now = min(now, queue.stop_times[queue.stops[FIRST_STOP]])
    return now


@compiled_part
def _process_run_events(state: QueueState, queue: EventQueue, log: RunLog, now: float) -> None:
    counts, runs, tasks, events = state.counts, state.runs, state.tasks, queue.events
    while events.size[0] > 0 and events.times[0] == now:
        event = pop_task(events)
        if event == WAKE or _is_outdated(runs, log, event):
            continue
        run = event >> 1
        task = log.numbers[run, TASK]
        if event & 1:
            runs.counted_from[task] = now
            state.reported[counts[REPORTED]] = task
            counts[REPORTED] += 1
            continue
        change_free(state.free, state.placement.demands, tasks, task, 1)
        change_free(state.future, state.placement.demands, tasks, task, 1)
        log.times[run, END], log.numbers[run, END_STEP] = now, counts[STEPS]
        unrank_run(state.ranking, runs, task)
        runs.run[task] = -1
        counts[RUNNING] -= 1
        counts[FREED] = 1


@compiled_part
def _process_stopped_runs(state: QueueState, queue: EventQueue, log: RunLog, now: float) -> None:
    counts, runs, tasks, stops = state.counts, state.runs, state.tasks, queue.stops
    while stops[STOPPING] > 0 and queue.stop_times[stops[FIRST_STOP]] == now:
        task = queue.stop_tasks[stops[FIRST_STOP]]
        stops[FIRST_STOP] = (stops[FIRST_STOP] + 1) % queue.stop_tasks.shape[0]
        stops[STOPPING] -= 1
        run = runs.run[task]
        change_free(state.free, state.placement.demands, tasks, task, 1)
        log.times[run, END], log.numbers[run, END_STEP] = now, counts[STEPS]
        runs.attained[task] += (now - runs.start[task]) * (tasks.milli[task] / WHOLE)
        runs.done[task] = log.times[run, SAVED]
        runs.run[task], runs.is_stopping[task] = -1, False
        state.requeued[counts[REQUEUED]] = task
        counts[REQUEUED] += 1
        counts[RUNNING] -= 1
        _count_waiting(state, task)
        counts[FREED] = 1


@compiled_part
def _count_arrivals(state: QueueState, now: float) -> None:
    counts, tasks = state.counts, state.tasks
    while counts[ARRIVED] < tasks.submitted.shape[0] and tasks.submitted[counts[ARRIVED]] == now:
        task = counts[ARRIVED]
        counts[ARRIVED] += 1
        if state.fits_empty[tasks.demand_of[task]]:
            _count_waiting(state, task)


@compiled_part
def _count_waiting(state: QueueState, task: int) -> None:
    state.counts[WAITING] += 1
    state.counts[WAITING_ROWS] += state.tasks.first_row[task + 1] - state.tasks.first_row[task]


@compiled_part
def _demote(state: QueueState, queue: EventQueue, log: RunLog, now: float) -> None:
    """Rank runs again whose service has reached the threshold; waiting tasks may preempt them now."""
    ranking, runs, demotions = state.ranking, state.runs, queue.demotions
    while demotions.size[0] > 0 and demotions.times[0] <= now:
        run = pop_task(demotions)
        task = log.numbers[run, TASK]
        if runs.run[task] == run:
            if unrank_run(ranking, runs, task):
                rank_run(ranking, state.rules, state.tasks, runs, task, now)
            reopen_all(state.waiting)


@compiled_part
def _rank_runs(state: QueueState, now: float) -> None:
    """Rank the runs that started in the step before, and again those that have reported that they work."""
    counts, ranking, runs = state.counts, state.ranking, state.runs
    if state.rules.order != SJF:
        for at in range(counts[STARTED]):
            if runs.run[state.started[at]] >= 0:
                rank_run(ranking, state.rules, state.tasks, runs, state.started[at], now)
        for at in range(counts[REPORTED]):
            if unrank_run(ranking, runs, state.reported[at]):
                rank_run(ranking, state.rules, state.tasks, runs, state.reported[at], now)
    counts[STARTED] = counts[REPORTED] = 0


@compiled_part
def _add_to_queue(state: QueueState, first: int, now: float) -> None:
    """Add the tasks that claimed resources in the step before, those that were stopped, and the new ones."""
    counts, claims = state.counts, state.claims
    if counts[FREED]:
        reopen_all(state.waiting)
    for at in range(claims.counts[CLAIMS]):
        _add(state, claims.tasks[at], True, now)
    for at in range(counts[REQUEUED]):
        _add(state, state.requeued[at], True, now)
    for task in range(first, counts[ARRIVED]):
        if state.fits_empty[state.tasks.demand_of[task]]:
            _add(state, task, False, now)
    claims.counts[CLAIMS] = counts[REQUEUED] = counts[FREED] = 0


@compiled_part
def _add(state: QueueState, task: int, requeued: bool, now: float) -> None:
    """Add a task to the queue. If it is the first of its demand, it may preempt runs that the next one may not."""
    rules, tasks, runs = state.rules, state.tasks, state.runs
    major, minor = major_key(rules, tasks, runs, task, now), minor_key(rules, tasks, runs, task, now)
    if add_task(state.waiting, task, major, minor, requeued) and rules.order != SJF:
        reopen_demand(state.waiting, tasks.demand_of[task])


@compiled
def _with_room_for_events(queue: EventQueue, starts: int) -> EventQueue:
    """Return the queue with room for the events of so many starts."""
    events, demotions, stop_times, stop_tasks, stops = queue
    return EventQueue(
        heap_with_room(events, 2 * starts + 1), heap_with_room(demotions, starts), stop_times, stop_tasks, stops
    )


@compiled_part
def _start_tasks(state: QueueState, queue: EventQueue, log: RunLog, now: float) -> None:
    counts, tasks, waiting, placement = state.counts, state.tasks, state.waiting, state.placement
    while True:
        task = first_task(waiting)
        if task < 0:
            break
        demand = tasks.demand_of[task]
        if place_task(state.free, placement, tasks, task):
            remove_first(waiting, demand)
            change_free(state.future, placement.demands, tasks, task, -1)
            _start_run(state, queue, log, task, now)
            state.started[counts[STARTED]] = task
            counts[STARTED] += 1
            counts[WAITING] -= 1
            counts[WAITING_ROWS] -= placement.demands[demand, 0]
            counts[RUNNING] += 1
        elif state.rules.order != SJF and claim(state, task, now):
            remove_first(waiting, demand)
        else:
            close_demand(waiting, demand)


@compiled_part
def _start_run(state: QueueState, queue: EventQueue, log: RunLog, task: int, now: float) -> None:
    """Start a task on its placement: add the events of its run, and for `las` its demotion."""
    rules, tasks, runs = state.rules, state.tasks, state.runs
    first, end = tasks.first_row[task], tasks.first_row[task + 1]
    delay = rules.restart if runs.number[task] else rules.start
    runs.number[task] += 1
    rows = tasks.placements[first:end]
    run = log_start(log, task, runs.number[task], state.counts[STEPS], now, now + delay, runs.done[task], rows)
    speed = gang_speed(tasks.milli[task] > 0, state.speed_of_node, tasks.placements, first, end)
    runs.run[task], runs.start[task], runs.speed[task] = run, now, speed
    runs.counted_from[task], runs.computing_from[task] = now, now + delay
    if delay > 0.0:
        push_task(queue.events, now + delay, 2 * run + 1)
    remaining = max(0.0, tasks.work[task] - runs.done[task])
    push_task(queue.events, now + delay + remaining / speed, 2 * run)
    service = rules.threshold - runs.attained[task]
    if rules.order == LAS and tasks.milli[task] > 0 and 0.0 < service < np.inf:
        push_task(queue.demotions, now + service * WHOLE / tasks.milli[task], run)


@compiled_part
def _stop_runs(state: QueueState, queue: EventQueue, log: RunLog, now: float) -> None:
    """Stop the preempted runs. Each holds its resources until it has stopped."""
    rules, runs, claims, stops = state.rules, state.runs, state.claims, queue.stops
    for at in range(claims.counts[STOPS]):
        task = claims.stops[at]
        run = runs.run[task]
        saved = runs.done[task] + max(0.0, now - runs.computing_from[task]) * runs.speed[task]
        log_stop(log, run, now, saved, rules.restart if runs.number[task] > 1 else rules.start)
        runs.is_stopping[task] = True
        slot = (stops[FIRST_STOP] + stops[STOPPING]) % queue.stop_tasks.shape[0]
        queue.stop_times[slot], queue.stop_tasks[slot] = now + rules.stop, task
        stops[STOPPING] += 1
    claims.counts[STOPS] = 0


@compiled_part
def _next_demotion(state: QueueState, queue: EventQueue, log: RunLog) -> float:
    """Return the time of the next demotion of a current run; infinity if there is none."""
    demotions = queue.demotions
    while demotions.size[0] > 0:
        run = demotions.tasks[0]
        current = state.runs.run[log.numbers[run, TASK]]
        if current >= 0 and (current == run or log.numbers[current, START_STEP] == state.counts[STEPS]):
            return float(demotions.times[0])
        pop_task(demotions)
    return np.inf
