"""The compiled simulator with which the learned policy is trained: rigid jobs, preemption, and a restart cost.

Without costs it starts every job when the general simulator with policy `learned` does, given the same predictions:
both call `plan_round` at the same times (a test compares them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refold.jit import compiled
from refold.model import WHOLE, Cluster, Job, Seconds
from refold.packing import NODE, Bools, Floats, FreeArrays, FreeResources, Ints, PlacementRule, pop, push
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
from refold.simulator.costs import RecordedSpeeds


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
    work, fixed, jobs, shares, rule, _, speed_of_node, _ = tasks
    count = work.shape[0]
    started, since, done = np.full(count, np.inf), np.full(count, np.inf), np.zeros(count)
    milli = (jobs.gpus * WHOLE).astype(np.int64)
    runs = RunColumns(started, since, done, result.starts, milli, fixed, np.zeros(count, dtype=np.bool_))
    decided = RoundResult(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
    waiting, running = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    run_end = np.full(count, np.inf)  # ends that were cancelled by a stop stay in the heap, with another time
    capacity = 2 * count + 64
    times, heap = np.empty(capacity), np.empty(capacity, dtype=np.int64)
    speeds = np.ones(count)
    size = arrived = waiting_count = running_count = 0
    review = np.inf
    while arrived < count or running_count > 0:
        while size > 0 and run_end[heap[0]] != times[0]:
            pop(times, heap, size)
            size -= 1
        now = review
        if arrived < count:
            now = min(now, jobs.submitted[arrived])
        if size > 0:
            now = min(now, times[0])

        # 1. Process the runs that end and the jobs that arrive now.
        ended = 0
        while size > 0 and times[0] <= now:
            job = heap[0]
            is_current = run_end[job] == times[0]
            pop(times, heap, size)
            size -= 1
            if is_current:
                add_rows(free, shares, job, 1)
                result.ended[job], run_end[job] = now, np.inf
                ended += 1
        if ended > 0:
            kept = 0
            for at in range(running_count):
                if np.isnan(result.ended[running[at]]):
                    running[kept] = running[at]
                    kept += 1
            running_count = kept
        while arrived < count and jobs.submitted[arrived] == now:
            waiting[waiting_count] = arrived
            waiting_count += 1
            arrived += 1

        # 2. Run scheduling rounds until no more runs are stopped.
        stops = 1
        while stops > 0 and waiting_count > 0:
            stops = plan_round(
                now,
                weights,
                limits,
                jobs,
                runs,
                shares,
                rule,
                free,
                waiting[:waiting_count],
                running[:running_count],
                decided,
            )
            kept, stopped, before = 0, 0, running_count
            for at in range(waiting_count):
                job = waiting[at]
                if decided.action[job] != STARTS:
                    waiting[kept] = job
                    kept += 1
                    continue
                add_rows(free, shares, job, -1)
                delay = limits.restart_seconds if result.starts[job] > 0 else 0.0
                if result.starts[job] == 0:
                    result.started[job] = now
                result.starts[job] += 1
                speeds[job] = _speed(shares, speed_of_node, jobs, job)
                started[job], since[job] = now, now + delay
                run_end[job] = now + delay + max(0.0, work[job] - done[job]) / speeds[job]
                if size == capacity:
                    times, heap = np.append(times, np.empty(capacity)), np.append(heap, np.zeros(capacity, np.int64))
                    capacity *= 2
                push(times, heap, size, run_end[job], job)
                size += 1
                running[running_count] = job
                running_count += 1
            waiting_count, kept = kept, 0
            for at in range(running_count):
                job = running[at]
                if at >= before or decided.action[job] != STOPS:
                    running[kept] = job
                    kept += 1
                    continue
                add_rows(free, shares, job, 1)
                done[job] += max(0.0, now - since[job]) * speeds[job]
                since[job], run_end[job] = np.inf, np.inf
                waiting[waiting_count] = job
                waiting_count += 1
                stopped += 1
            running_count, stops = kept, stopped
        review = (np.floor(now / REVIEW_SECONDS) + 1.0) * REVIEW_SECONDS if waiting_count > 0 else np.inf


@compiled
def _speed(shares: Shares, speed_of_node: Floats, jobs: JobColumns, job: int) -> float:
    """Return the speed of the slowest node of a gang; 1 for tasks without GPUs."""
    slowest = np.inf if jobs.gpus[job] > 0.0 else 1.0
    if jobs.gpus[job] > 0.0:
        for row in range(shares.first_row[job], shares.first_row[job + 1]):
            slowest = min(slowest, speed_of_node[shares.placements[row, NODE]])
    return slowest
