"""The compiled simulator with which the learned policy is trained: rigid jobs, preemption, and a restart cost.

Without costs it starts every job when the general simulator with policy `learned` does, given the same predictions:
both call `plan_round` at the same times (a test compares them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refold.jit import compiled, compiled_without_references
from refold.model import WHOLE, Cluster, Job, Seconds
from refold.packing import (
    Bools,
    Floats,
    FreeArrays,
    FreeResources,
    Ints,
    PlacementRule,
    TaskHeap,
    first_time,
    pop_task,
    push_task,
)
from refold.policies.learned import (
    REVIEW_SECONDS,
    STARTS,
    STOPS,
    Expectations,
    JobColumns,
    RoundLimits,
    RoundResult,
    RunColumns,
    Shares,
    Weights,
    add_rows,
    job_columns,
    plan_round,
    share_rows,
)
from refold.replays.columns import gang_speed
from refold.simulator import RecordedSpeeds

# Entries of `TrainingState.counts`.
ARRIVED, WAITING, RUNNING = range(3)


class TrainingTasks(NamedTuple):
    """Jobs on a cluster, as the compiled simulator takes them; sorted by submission."""

    work: Floats
    fixed: Bools
    jobs: JobColumns
    shares: Shares
    rule: PlacementRule
    available: FreeArrays
    speed_of_node: Floats
    cluster_gpus: float


class TrainingResult(NamedTuple):
    """First start and end of each task in seconds, and how often it was started."""

    started: Floats
    ended: Floats
    starts: Ints


class TrainingState(NamedTuple):
    """The state of a simulation. `ends_at`: when the run of each job ends; other times in the heap are outdated."""

    runs: RunColumns
    decided: RoundResult
    result: TrainingResult
    ends_at: Floats
    speeds: Floats
    waiting: Ints
    running: Ints
    counts: Ints


def training_tasks(jobs: Sequence[Job], cluster: Cluster, expected: Expectations) -> TrainingTasks:
    """Convert jobs that fit the empty cluster, with what is expected of their run times at submission."""
    free = FreeResources(cluster)
    numbers = {demand: number for number, demand in enumerate(dict.fromkeys(job.demand for job in jobs))}
    return TrainingTasks(
        np.array([job.work for job in jobs], dtype=np.float64),
        np.array([not job.preemptible for job in jobs], dtype=np.bool_),
        job_columns(jobs, [numbers[job.demand] for job in jobs], expected),
        share_rows([job.demand for job in jobs]),
        PlacementRule.allocate("best-fit", free, list(numbers)),
        free.arrays,
        RecordedSpeeds(cluster).speed_of_node,
        float(max(cluster.gpus, 1)),
    )


def replay_learned(
    tasks: TrainingTasks, weights: Weights, restart_seconds: Seconds, max_restarts: int
) -> TrainingResult:
    """Simulate all tasks to completion under the learned policy."""
    count = len(tasks.work)
    result = TrainingResult(np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, dtype=np.int64))
    nodes, gpus, bits = tasks.available
    free = FreeArrays(nodes.copy(), gpus.copy(), bits.copy())
    limits = RoundLimits(restart_seconds, max_restarts, tasks.cluster_gpus)
    _replay(tasks, free, weights, limits, result)
    return result


@compiled
def _replay(
    tasks: TrainingTasks, free: FreeArrays, weights: Weights, limits: RoundLimits, result: TrainingResult
) -> None:
    state, ends = _initial_state(tasks, result), TaskHeap(np.empty(64), np.empty(64, np.int64), np.zeros(1, np.int64))
    counts, jobs, shares, decided = state.counts, tasks.jobs, tasks.shares, state.decided
    count, review = tasks.work.shape[0], np.inf
    while counts[ARRIVED] < count or counts[RUNNING] > 0:
        while ends.size[0] > 0 and state.ends_at[ends.tasks[0]] != ends.times[0]:
            pop_task(ends)
        arrival = jobs.submitted[counts[ARRIVED]] if counts[ARRIVED] < count else np.inf
        now = min(review, arrival, first_time(ends))

        # 1. Process the runs that end and the jobs that arrive now.
        _end_runs(state, ends, free, shares, now)
        while counts[ARRIVED] < count and jobs.submitted[counts[ARRIVED]] == now:
            state.waiting[counts[WAITING]] = counts[ARRIVED]
            counts[WAITING] += 1
            counts[ARRIVED] += 1

        # 2. Run scheduling rounds until no more runs are stopped.
        stopped = 1
        while stopped > 0 and counts[WAITING] > 0:
            ends, before = _heap_with_room(ends, counts[WAITING]), counts[RUNNING]
            waiting, running = state.waiting[: counts[WAITING]], state.running[:before]
            plan_round(now, weights, limits, jobs, state.runs, shares, tasks.rule, free, waiting, running, decided)
            _start_runs(state, ends, free, tasks, limits.restart_seconds, now)
            stopped = _stop_runs(state, free, shares, before, now)
        review = (np.floor(now / REVIEW_SECONDS) + 1.0) * REVIEW_SECONDS if counts[WAITING] > 0 else np.inf


@compiled
def _initial_state(tasks: TrainingTasks, result: TrainingResult) -> TrainingState:
    """Return the state before the first arrival."""
    count = tasks.work.shape[0]
    done, started, since, ends_at = np.zeros(count), np.empty(count), np.empty(count), np.empty(count)
    started[:] = since[:] = ends_at[:] = np.inf
    milli = (tasks.jobs.gpus * WHOLE).astype(np.int64)
    runs = RunColumns(started, since, done, result.starts, milli, tasks.fixed, np.zeros(count, dtype=np.bool_))
    decided = RoundResult(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
    waiting, running = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    counts = np.zeros(RUNNING + 1, dtype=np.int64)
    return TrainingState(runs, decided, result, ends_at, np.ones(count), waiting, running, counts)


@compiled_without_references
def _end_runs(state: TrainingState, ends: TaskHeap, free: FreeArrays, shares: Shares, now: float) -> None:
    """End the runs that end now, and release what they hold."""
    ended, running = 0, state.running
    while ends.size[0] > 0 and ends.times[0] <= now:
        is_current = state.ends_at[ends.tasks[0]] == ends.times[0]
        job = pop_task(ends)
        if is_current:
            add_rows(free, shares, job, 1)
            state.result.ended[job], state.ends_at[job] = now, np.inf
            ended += 1
    if ended > 0:
        kept = 0
        for at in range(state.counts[RUNNING]):
            if np.isnan(state.result.ended[running[at]]):
                running[kept] = running[at]
                kept += 1
        state.counts[RUNNING] = kept


@compiled_without_references
def _start_runs(
    state: TrainingState, ends: TaskHeap, free: FreeArrays, tasks: TrainingTasks, restart_seconds: float, now: float
) -> None:
    """Start the waiting jobs that the round has decided to start, on the GPUs that it has chosen."""
    counts, waiting, runs, result, shares = state.counts, state.waiting, state.runs, state.result, tasks.shares
    kept = 0
    for at in range(counts[WAITING]):
        job = waiting[at]
        if state.decided.action[job] != STARTS:
            waiting[kept] = job
            kept += 1
            continue
        add_rows(free, shares, job, -1)
        delay = restart_seconds if result.starts[job] > 0 else 0.0
        if result.starts[job] == 0:
            result.started[job] = now
        result.starts[job] += 1
        first, end = shares.first_row[job], shares.first_row[job + 1]
        state.speeds[job] = gang_speed(tasks.jobs.gpus[job] > 0.0, tasks.speed_of_node, shares.placements, first, end)
        runs.started[job], runs.since[job] = now, now + delay
        state.ends_at[job] = now + delay + max(0.0, tasks.work[job] - runs.done[job]) / state.speeds[job]
        push_task(ends, state.ends_at[job], job)
        state.running[counts[RUNNING]] = job
        counts[RUNNING] += 1
    counts[WAITING] = kept


@compiled_without_references
def _stop_runs(state: TrainingState, free: FreeArrays, shares: Shares, before: int, now: float) -> int:
    """Stop those of the runs before the round that it has decided to stop; return their number."""
    counts, running, runs = state.counts, state.running, state.runs
    kept, stopped = 0, 0
    for at in range(counts[RUNNING]):
        job = running[at]
        if at >= before or state.decided.action[job] != STOPS:
            running[kept] = job
            kept += 1
            continue
        add_rows(free, shares, job, 1)
        runs.done[job] += max(0.0, now - runs.since[job]) * state.speeds[job]
        runs.since[job], state.ends_at[job] = np.inf, np.inf
        state.waiting[counts[WAITING]] = job
        counts[WAITING] += 1
        stopped += 1
    counts[RUNNING] = kept
    return stopped


@compiled
def _heap_with_room(heap: TaskHeap, more: int) -> TaskHeap:
    """Return a heap with room for so many more tasks: a larger copy, if it has not."""
    times, tasks, size = heap
    needed = size[0] + more
    if needed > times.shape[0]:
        times = np.concatenate((times, np.zeros(2 * needed - times.shape[0])))
        tasks = np.concatenate((tasks, np.zeros(2 * needed - tasks.shape[0], dtype=np.int64)))
    return TaskHeap(times, tasks, size)
