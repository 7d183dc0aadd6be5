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
from refold.jit import compiled, compiled_without_references
from refold.model import WHOLE, Cluster, Job
from refold.packing import (
    GENETIC,
    LEARNING_RULES,
    RULES,
    Floats,
    FreeArrays,
    FreeResources,
    Ints,
    PlacementRule,
    need_at,
    pop,
    push,
)
from refold.policies.queueing import ROUNDING_GPU_SECONDS, THRESHOLD_GPU_SECONDS
from refold.simulator.costs import NO_COSTS, Costs, RecordedSpeeds
from refold.simulator.preemption_kernels import (
    CLAIMS,
    LAS,
    SJF,
    SRTF,
    STOPS,
    Claims,
    QueueRules,
    QueueTasks,
    RankedRuns,
    TaskRuns,
    change_free,
    claim,
    end_claims,
    major_key,
    minor_key,
    place_task,
    rank_run,
    unrank_run,
)
from refold.simulator.replay import ReplayArrays, ReplayedRuns, gang_speed, task_columns
from refold.simulator.run_log import (
    COMPUTING_SINCE,
    END,
    END_STEP,
    SAVED,
    SAVED_BEFORE,
    START_STEP,
    STOP_ORDERED,
    TASK,
    RunLog,
    log_start,
    with_room,
)
from refold.simulator.waiting_tasks import (
    WaitingTasks,
    add_task,
    close_demand,
    first_task,
    remove_first,
    reopen_all,
    reopen_demand,
)

QueueOrder = Literal["sjf", "srtf", "las"]
ORDERS: dict[str, int] = {"sjf": SJF, "srtf": SRTF, "las": LAS}

PLACEMENTS = tuple(name for name, (rule, _) in RULES.items() if rule not in LEARNING_RULES and name not in GENETIC)
"""The placement rules that do not learn from submitted jobs."""

# What a heap of events holds: the end of run n is 2n, its start report 2n + 1.
WAKE = -1

# Entries of `Progress.counts`.
STEPS, ARRIVED, WAITING, WAITING_ROWS, RUNNING, STARTED, REPORTED, REQUEUED, FREED = range(9)

# Entries of `EventQueue.counts`.
EVENTS, DEMOTIONS, FIRST_STOP, STOPPING = range(4)


class EventQueue(NamedTuple):
    """Future events. The two heaps contain outdated entries: of runs that were stopped since.

    `stop_times` and `stop_tasks` are a ring: all stops take the same time, so they end in the order in which they were
    ordered.
    """

    times: Floats
    events: Ints
    demotion_times: Floats
    demoted_runs: Ints
    stop_times: Floats
    stop_tasks: Ints
    counts: Ints

    @staticmethod
    def allocate(tasks: int) -> EventQueue:
        """Return a queue without events."""
        times, demotion_times, stop_times = np.zeros((3, tasks))
        events, demoted_runs, stop_tasks = np.zeros((3, tasks), dtype=np.int64)
        counts = np.zeros(STOPPING + 1, dtype=np.int64)
        return EventQueue(times, events, demotion_times, demoted_runs, stop_times, stop_tasks, counts)


class Progress(NamedTuple):
    """Counters, and the tasks of the current step: started in the step before, reported as started, requeued."""

    counts: Ints
    started: Ints
    reported: Ints
    requeued: Ints

    @staticmethod
    def allocate(tasks: int) -> Progress:
        """Return the state before the first step."""
        return Progress(np.zeros(FREED + 1, dtype=np.int64), *(np.zeros(tasks, dtype=np.int64) for _ in range(3)))


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
    count, demands = len(jobs), len(columns.demands)
    milli = np.array([demand.total_gpu_milli for demand in columns.demands], dtype=np.int64)
    tasks = QueueTasks(
        columns.submitted,
        columns.work,
        np.array([-job.priority for job in jobs], dtype=np.int64),
        columns.demand_of,
        milli[columns.demand_of] if count else np.zeros(0, dtype=np.int64),
        np.array([job.preemptible for job in jobs], dtype=np.bool_),
        arrays.first_row,
        arrays.placements,
    )
    log = _replay(
        QueueRules(
            ORDERS[order],
            threshold_gpu_seconds,
            threshold_gpu_seconds - ROUNDING_GPU_SECONDS,
            costs.start,
            costs.stop,
            costs.restart,
        ),
        tasks,
        arrays.fits_empty,
        RecordedSpeeds(cluster).speed_of_node,
        WaitingTasks.allocate(columns.demand_of, demands),
        TaskRuns.allocate(count),
        RankedRuns.allocate(_positions([job.id for job in jobs])),
        Claims.allocate(count, len(cluster.nodes), len(free.gpus)),
        free.arrays,
        free.copy().arrays,
        PlacementRule.allocate(placement, free, columns.demands, seed),
        EventQueue.allocate(count),
        Progress.allocate(count),
        RunLog.allocate(count, len(arrays.placements)),
    )
    return log.result(columns)


def _positions(ids: Sequence[str]) -> Ints:
    """Return the position of each id in sorted order."""
    positions = np.empty(len(ids), dtype=np.int64)
    positions[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return positions


@compiled
def _replay(
    rules: QueueRules,
    tasks: QueueTasks,
    fits_empty: Ints,
    speed_of_node: Floats,
    waiting: WaitingTasks,
    runs: TaskRuns,
    ranking: RankedRuns,
    claims: Claims,
    free: FreeArrays,
    future: FreeArrays,
    rule: PlacementRule,
    queue: EventQueue,
    progress: Progress,
    log: RunLog,
) -> RunLog:
    counts, last_wake = progress.counts, -np.inf
    while counts[ARRIVED] < tasks.submitted.shape[0] or counts[RUNNING] > 0 or counts[WAITING] > 0:
        now = _next_time(tasks, runs, queue, progress, log)
        if now == np.inf:
            break
        counts[STEPS] += 1

        # 1. Process the events of this time: runs that start, end or have stopped, and arrivals.
        _process_run_events(tasks, runs, ranking, free, future, rule.demands, queue, progress, log, now)
        _process_stopped_runs(tasks, runs, free, rule.demands, queue, progress, log, now)
        first = counts[ARRIVED]
        _count_arrivals(tasks, fits_empty, progress, now)

        # 2. Update the queue and the ranking of runs.
        if rules.order == LAS:
            _demote(rules, tasks, runs, ranking, waiting, queue, log, now)
        _rank_runs(rules, tasks, runs, ranking, progress, now)
        _add_to_queue(rules, tasks, fits_empty, runs, waiting, claims, progress, first, now)

        # 3. Start tasks in order; preempt runs for those that do not fit.
        log = with_room(log, counts[WAITING], counts[WAITING_ROWS])
        queue = _with_room_for_events(queue, counts[WAITING])
        _start_tasks(
            rules, tasks, speed_of_node, waiting, runs, ranking, claims, free, future, rule, queue, progress, log, now
        )
        if claims.counts[CLAIMS] > 0:
            end_claims(free, future, claims, rule.demands, tasks)
            _stop_runs(rules, runs, claims, queue, log, now)
        if rules.order == LAS and counts[WAITING] > 0:
            wake = _next_demotion(runs, queue, progress, log)
            if now < wake < np.inf and wake != last_wake:
                last_wake = wake
                push(queue.times, queue.events, queue.counts[EVENTS], wake, WAKE)
                queue.counts[EVENTS] += 1
    return log


@compiled_without_references
def _is_outdated(runs: TaskRuns, log: RunLog, event: int) -> bool:
    """Whether an event is about a run that was stopped, or has stopped, before it."""
    if event == WAKE:
        return False
    task = log.numbers[event >> 1, TASK]
    return bool(runs.run[task] != event >> 1 or runs.is_stopping[task])


@compiled_without_references
def _next_time(tasks: QueueTasks, runs: TaskRuns, queue: EventQueue, progress: Progress, log: RunLog) -> float:
    """Return the time of the next event; infinity if there is none."""
    counts, arrived = queue.counts, progress.counts[ARRIVED]
    while counts[EVENTS] > 0 and _is_outdated(runs, log, queue.events[0]):
        pop(queue.times, queue.events, counts[EVENTS])
        counts[EVENTS] -= 1
    now = np.inf
    if arrived < tasks.submitted.shape[0]:
        now = tasks.submitted[arrived]
    if counts[EVENTS] > 0:
        now = min(now, queue.times[0])
    if counts[STOPPING] > 0:
        now = min(now, queue.stop_times[counts[FIRST_STOP]])
    return now


@compiled_without_references
def _process_run_events(
    tasks: QueueTasks,
    runs: TaskRuns,
    ranking: RankedRuns,
    free: FreeArrays,
    future: FreeArrays,
    demands: Ints,
    queue: EventQueue,
    progress: Progress,
    log: RunLog,
    now: float,
) -> None:
    counts = progress.counts
    while queue.counts[EVENTS] > 0 and queue.times[0] == now:
        event = pop(queue.times, queue.events, queue.counts[EVENTS])
        queue.counts[EVENTS] -= 1
        if event == WAKE or _is_outdated(runs, log, event):
            continue
        run = event >> 1
        task = log.numbers[run, TASK]
        if event & 1:
            runs.counted_from[task] = now
            progress.reported[counts[REPORTED]] = task
            counts[REPORTED] += 1
            continue
        change_free(free, demands, tasks, task, 1)
        change_free(future, demands, tasks, task, 1)
        log.times[run, END], log.numbers[run, END_STEP] = now, counts[STEPS]
        unrank_run(ranking, runs, task)
        runs.run[task] = -1
        counts[RUNNING] -= 1
        counts[FREED] = 1


@compiled_without_references
def _process_stopped_runs(
    tasks: QueueTasks,
    runs: TaskRuns,
    free: FreeArrays,
    demands: Ints,
    queue: EventQueue,
    progress: Progress,
    log: RunLog,
    now: float,
) -> None:
    counts, pending = progress.counts, queue.counts
    while pending[STOPPING] > 0 and queue.stop_times[pending[FIRST_STOP]] == now:
        task = queue.stop_tasks[pending[FIRST_STOP]]
        pending[FIRST_STOP] = (pending[FIRST_STOP] + 1) % queue.stop_tasks.shape[0]
        pending[STOPPING] -= 1
        run = runs.run[task]
        change_free(free, demands, tasks, task, 1)
        log.times[run, END], log.numbers[run, END_STEP] = now, counts[STEPS]
        runs.attained[task] += (now - runs.start[task]) * (tasks.milli[task] / WHOLE)
        runs.done[task] = log.times[run, SAVED]
        runs.run[task], runs.is_stopping[task] = -1, False
        progress.requeued[counts[REQUEUED]] = task
        counts[REQUEUED] += 1
        counts[RUNNING] -= 1
        counts[WAITING] += 1
        counts[WAITING_ROWS] += tasks.first_row[task + 1] - tasks.first_row[task]
        counts[FREED] = 1


@compiled_without_references
def _count_arrivals(tasks: QueueTasks, fits_empty: Ints, progress: Progress, now: float) -> None:
    counts = progress.counts
    while counts[ARRIVED] < tasks.submitted.shape[0] and tasks.submitted[counts[ARRIVED]] == now:
        task = counts[ARRIVED]
        counts[ARRIVED] += 1
        if fits_empty[tasks.demand_of[task]]:
            counts[WAITING] += 1
            counts[WAITING_ROWS] += tasks.first_row[task + 1] - tasks.first_row[task]


@compiled_without_references
def _demote(
    rules: QueueRules,
    tasks: QueueTasks,
    runs: TaskRuns,
    ranking: RankedRuns,
    waiting: WaitingTasks,
    queue: EventQueue,
    log: RunLog,
    now: float,
) -> None:
    """Rank runs again whose service has reached the threshold; waiting tasks may preempt them now."""
    while queue.counts[DEMOTIONS] > 0 and queue.demotion_times[0] <= now:
        run = pop(queue.demotion_times, queue.demoted_runs, queue.counts[DEMOTIONS])
        queue.counts[DEMOTIONS] -= 1
        task = log.numbers[run, TASK]
        if runs.run[task] == run:
            if unrank_run(ranking, runs, task):
                rank_run(ranking, rules, tasks, runs, task, now)
            reopen_all(waiting)


@compiled_without_references
def _rank_runs(
    rules: QueueRules, tasks: QueueTasks, runs: TaskRuns, ranking: RankedRuns, progress: Progress, now: float
) -> None:
    """Rank the runs that started in the step before, and again those that have reported that they work."""
    counts = progress.counts
    if rules.order != SJF:
        for at in range(counts[STARTED]):
            if runs.run[progress.started[at]] >= 0:
                rank_run(ranking, rules, tasks, runs, progress.started[at], now)
        for at in range(counts[REPORTED]):
            if unrank_run(ranking, runs, progress.reported[at]):
                rank_run(ranking, rules, tasks, runs, progress.reported[at], now)
    counts[STARTED] = counts[REPORTED] = 0


@compiled_without_references
def _add_to_queue(
    rules: QueueRules,
    tasks: QueueTasks,
    fits_empty: Ints,
    runs: TaskRuns,
    waiting: WaitingTasks,
    claims: Claims,
    progress: Progress,
    first: int,
    now: float,
) -> None:
    """Add the tasks that claimed resources in the step before, those that were stopped, and the new ones."""
    counts = progress.counts
    if counts[FREED]:
        reopen_all(waiting)
    for at in range(claims.counts[CLAIMS]):
        _add(rules, tasks, runs, waiting, claims.tasks[at], True, now)
    for at in range(counts[REQUEUED]):
        _add(rules, tasks, runs, waiting, progress.requeued[at], True, now)
    for task in range(first, counts[ARRIVED]):
        if fits_empty[tasks.demand_of[task]]:
            _add(rules, tasks, runs, waiting, task, False, now)
    claims.counts[CLAIMS] = counts[REQUEUED] = counts[FREED] = 0


@compiled_without_references
def _add(
    rules: QueueRules, tasks: QueueTasks, runs: TaskRuns, waiting: WaitingTasks, task: int, requeued: bool, now: float
) -> None:
    """Add a task to the queue. If it is the first of its demand, it may preempt runs that the next one may not."""
    major, minor = major_key(rules, tasks, runs, task, now), minor_key(rules, tasks, runs, task, now)
    if add_task(waiting, task, major, minor, requeued) and rules.order != SJF:
        reopen_demand(waiting, tasks.demand_of[task])


@compiled
def _with_room_for_events(queue: EventQueue, starts: int) -> EventQueue:
    """Return the queue with room for the events of so many starts."""
    times, events, demotion_times, demoted_runs, stop_times, stop_tasks, counts = queue
    needed = counts[EVENTS] + 2 * starts + 1
    if needed > times.shape[0]:
        times = np.concatenate((times, np.zeros(2 * needed - times.shape[0])))
        events = np.concatenate((events, np.zeros(2 * needed - events.shape[0], dtype=np.int64)))
    needed = counts[DEMOTIONS] + starts
    if needed > demotion_times.shape[0]:
        demotion_times = np.concatenate((demotion_times, np.zeros(2 * needed - demotion_times.shape[0])))
        demoted_runs = np.concatenate((demoted_runs, np.zeros(2 * needed - demoted_runs.shape[0], dtype=np.int64)))
    return EventQueue(times, events, demotion_times, demoted_runs, stop_times, stop_tasks, counts)


@compiled_without_references
def _start_tasks(
    rules: QueueRules,
    tasks: QueueTasks,
    speed_of_node: Floats,
    waiting: WaitingTasks,
    runs: TaskRuns,
    ranking: RankedRuns,
    claims: Claims,
    free: FreeArrays,
    future: FreeArrays,
    rule: PlacementRule,
    queue: EventQueue,
    progress: Progress,
    log: RunLog,
    now: float,
) -> None:
    counts = progress.counts
    while True:
        task = first_task(waiting)
        if task < 0:
            break
        demand = tasks.demand_of[task]
        if place_task(free, rule, tasks, task):
            remove_first(waiting, demand)
            change_free(future, rule.demands, tasks, task, -1)
            _start_run(rules, tasks, speed_of_node, runs, rule.demands, queue, log, counts[STEPS], task, now)
            progress.started[counts[STARTED]] = task
            counts[STARTED] += 1
            counts[WAITING] -= 1
            counts[WAITING_ROWS] -= rule.demands[demand, 0]
            counts[RUNNING] += 1
        elif rules.order != SJF and claim(rules, tasks, runs, ranking, claims, free, future, rule, task, now):
            remove_first(waiting, demand)
        else:
            close_demand(waiting, demand)


@compiled_without_references
def _start_run(
    rules: QueueRules,
    tasks: QueueTasks,
    speed_of_node: Floats,
    runs: TaskRuns,
    demands: Ints,
    queue: EventQueue,
    log: RunLog,
    step: int,
    task: int,
    now: float,
) -> None:
    """Start a task on its placement: add the events of its run, and for `las` its demotion."""
    first, end = tasks.first_row[task], tasks.first_row[task + 1]
    delay = rules.restart if runs.number[task] else rules.start
    runs.number[task] += 1
    rows = tasks.placements[first:end]
    run = log_start(log, task, runs.number[task], step, now, now + delay, runs.done[task], rows)
    need = need_at(demands, tasks.demand_of[task])
    speed = gang_speed(need, speed_of_node, tasks.placements, first)
    runs.run[task], runs.start[task], runs.speed[task] = run, now, speed
    runs.counted_from[task], runs.computing_from[task] = now, now + delay
    if delay > 0.0:
        push(queue.times, queue.events, queue.counts[EVENTS], now + delay, 2 * run + 1)
        queue.counts[EVENTS] += 1
    remaining = max(0.0, tasks.work[task] - runs.done[task])
    push(queue.times, queue.events, queue.counts[EVENTS], now + delay + remaining / speed, 2 * run)
    queue.counts[EVENTS] += 1
    service = rules.threshold - runs.attained[task]
    if rules.order == LAS and tasks.milli[task] > 0 and 0.0 < service < np.inf:
        at = now + service * WHOLE / tasks.milli[task]
        push(queue.demotion_times, queue.demoted_runs, queue.counts[DEMOTIONS], at, run)
        queue.counts[DEMOTIONS] += 1


@compiled_without_references
def _stop_runs(rules: QueueRules, runs: TaskRuns, claims: Claims, queue: EventQueue, log: RunLog, now: float) -> None:
    """Stop the preempted runs. Each holds its resources until it has stopped."""
    for at in range(claims.counts[STOPS]):
        task = claims.stops[at]
        run = runs.run[task]
        saved = runs.done[task] + max(0.0, now - runs.computing_from[task]) * runs.speed[task]
        log.times[run, STOP_ORDERED], log.times[run, SAVED] = now, saved
        delay = rules.restart if runs.number[task] > 1 else rules.start
        is_starting = runs.computing_from[task] > now
        if is_starting or (delay == 0.0 and not saved > log.times[run, SAVED_BEFORE]):
            log.times[run, COMPUTING_SINCE] = np.nan
        runs.is_stopping[task] = True
        slot = (queue.counts[FIRST_STOP] + queue.counts[STOPPING]) % queue.stop_tasks.shape[0]
        queue.stop_times[slot], queue.stop_tasks[slot] = now + rules.stop, task
        queue.counts[STOPPING] += 1
    claims.counts[STOPS] = 0


@compiled_without_references
def _next_demotion(runs: TaskRuns, queue: EventQueue, progress: Progress, log: RunLog) -> float:
    """Return the time of the next demotion of a current run; infinity if there is none."""
    while queue.counts[DEMOTIONS] > 0:
        run = queue.demoted_runs[0]
        current = runs.run[log.numbers[run, TASK]]
        if current >= 0 and (current == run or log.numbers[current, START_STEP] == progress.counts[STEPS]):
            return float(queue.demotion_times[0])
        pop(queue.demotion_times, queue.demoted_runs, queue.counts[DEMOTIONS])
        queue.counts[DEMOTIONS] -= 1
    return np.inf
