"""The scheduling round of the learned policy, compiled.

The training simulator and the policy call the same `plan_round`, so that what was trained is what runs.
"""

from __future__ import annotations

import math

import numpy as np

from refold.jit import compiled, count_ones, inlined
from refold.packing import (
    GPU_MASK,
    MILLI_FREE,
    NODE,
    TYPE_BIT,
    UNLIMITED,
    UP,
    Floats,
    FreeArrays,
    Ints,
    Need,
    PlacementRule,
    need_at,
)
from refold.policies.learned.arrays import (
    CLAIMS,
    RESERVES,
    STARTS,
    STOPS,
    WAITS,
    JobColumns,
    RoundLimits,
    RoundResult,
    RunColumns,
    Shares,
    Weights,
)
from refold.policies.learned.placing import add_rows, copy_free, may_fit, place, take_available, take_if_free
from refold.policies.learned.scores import (
    MARGIN,
    OVERDUE_STEP,
    PRIORITY_STEP,
    PROTECTION,
    done_by,
    is_overdue,
    mean_rest,
    sort_key,
)


@inlined
def _preempted_below(
    weights: Weights, limits: RoundLimits, runs: RunColumns, run: int, now: float, run_key: float
) -> float:
    """Return the key below which a job may preempt a run; -inf: none may.

    A run that was started too often yields to a higher priority only, one that was started just now also to a job that
    has waited for long.
    """
    if runs.fixed[run] or runs.stopping[run]:
        return -math.inf
    if runs.starts[run] > limits.max_restarts:
        return run_key - PRIORITY_STEP / 2
    if now - runs.started[run] <= weights.rules[PROTECTION] * limits.restart_seconds * runs.starts[run]:
        return run_key - OVERDUE_STEP / 2
    return float(run_key - weights.rules[MARGIN])


@compiled
def _can_release(
    need: Need, key: float, shares: Shares, future: FreeArrays, running: Ints, preempted_below: Floats
) -> bool:
    """Return whether a demand may fit, by its GPUs, without the runs that may be preempted for a job with this key.

    Most attempts to preempt fail, and this finds most of them without a placement.
    """
    nodes, each = future.nodes, need.gpus * need.milli
    if each == 0:
        return True
    released, missing = np.zeros(nodes.shape[0] - 1, dtype=np.int64), need.instances
    for node in range(released.shape[0]):
        is_usable = nodes[node, UP] and nodes[node, TYPE_BIT] & need.types != 0
        released[node] = nodes[node, MILLI_FREE] if is_usable else -UNLIMITED
        missing -= max(released[node], 0) // each
    for at in range(running.shape[0]):
        if missing <= 0:
            return True
        if key >= preempted_below[at]:
            continue
        for row in range(shares.first_row[running[at]], shares.first_row[running[at] + 1]):
            node, gpus = shares.placements[row, NODE], count_ones(np.uint64(shares.placements[row, GPU_MASK]))
            before = max(released[node], 0) // each
            released[node] += gpus * shares.amounts[row, 0]
            missing -= max(released[node], 0) // each - before
    return bool(missing <= 0)


@compiled
def _stop_runs_for(
    job: int,
    key: float,
    jobs: JobColumns,
    runs: RunColumns,
    shares: Shares,
    rule: PlacementRule,
    future: FreeArrays,
    by_urgency: Ints,
    preempted_below: Floats,
    running: Ints,
    result: RoundResult,
) -> bool:
    """Choose runs, the least urgent first, that are stopped for a job; place it on what will be free then."""
    victims = np.empty(running.shape[0], dtype=np.int64)
    need = need_at(rule.demands, jobs.demand[job])
    missing = need.instances * need.gpus * need.milli - future.nodes[future.nodes.shape[0] - 1, MILLI_FREE]
    count, position, released, wanted = 0, running.shape[0] - 1, 0, 1
    while True:
        # 1. Take enough candidates: first as many as hold the missing GPUs, then twice as many, and so on.
        while position >= 0 and (missing > 0 or count < wanted):
            index = by_urgency[position]
            position -= 1
            if key < preempted_below[index]:
                victims[count] = index
                count += 1
                missing -= runs.milli[running[index]]
        # 2. Place the job without them.
        if missing > 0 or count == released:
            break
        for at in range(released, count):
            add_rows(future, shares, running[victims[at]], 1)
        released = count
        if place(future, rule, jobs, shares, job):
            # 3. Spare the candidates whose resources are not needed, the most urgent first.
            for at in range(count - 1, -1, -1):
                run = running[victims[at]]
                if not take_if_free(future, shares, run):
                    result.action[run], result.stopped_for[run] = STOPS, job
                    preempted_below[victims[at]] = -np.inf
            return True
        wanted = 2 * count
    for at in range(released):
        add_rows(future, shares, running[victims[at]], -1)
    return False


@compiled
def _reserve(
    job: int,
    now: float,
    jobs: JobColumns,
    runs: RunColumns,
    shares: Shares,
    rule: PlacementRule,
    future: FreeArrays,
    running: Ints,
) -> bool:
    """Place a job on what will be free when the runs with the shortest rest have ended."""
    rests = np.empty(running.shape[0])
    for at in range(running.shape[0]):
        rests[at] = mean_rest(jobs, running[at], done_by(runs, running[at], now))
    ended, order = copy_free(future), np.argsort(rests, kind="mergesort")
    need = need_at(rule.demands, jobs.demand[job])
    missing, attempt = need.instances * need.gpus * need.milli, 1
    for position in range(order.shape[0]):
        run = running[order[position]]
        if not runs.stopping[run]:
            add_rows(ended, shares, run, 1)
        is_due = position + 1 >= attempt or position + 1 == order.shape[0]
        if is_due and ended.nodes[ended.nodes.shape[0] - 1, MILLI_FREE] >= missing:
            if place(ended, rule, jobs, shares, job):
                return True
            attempt = position + 1 + max(1, position // 4)
    return False


@compiled
def plan_round(
    now: float,
    weights: Weights,
    limits: RoundLimits,
    jobs: JobColumns,
    runs: RunColumns,
    shares: Shares,
    rule: PlacementRule,
    available: FreeArrays,
    waiting: Ints,
    running: Ints,
    result: RoundResult,
) -> int:
    """Decide what happens to the waiting jobs and the runs; return the number of runs to stop.

    The placements of started jobs are written to their rows of `shares`. `available` is not changed.
    """
    features = np.empty(weights.linear.shape[0])
    keys, run_keys = np.empty(waiting.shape[0]), np.empty(running.shape[0])
    is_open = np.zeros(rule.demands.shape[0], dtype=np.bool_)
    open_demands, queue = 0, 0.0

    # 1. Score the waiting jobs.
    for at in range(waiting.shape[0]):
        job = waiting[at]
        queue += jobs.gpus[job]
        open_demands += not is_open[jobs.demand[job]]
        is_open[jobs.demand[job]] = True
        result.action[job] = WAITS
    queue = math.log1p(queue / limits.cluster_gpus)
    for at in range(waiting.shape[0]):
        job = waiting[at]
        keys[at] = sort_key(weights, jobs, job, now, runs.done[job], queue, features)
    stopping, highest, preempted_below = 0, -math.inf, np.empty(running.shape[0])
    for at in range(running.shape[0]):
        result.action[running[at]] = WAITS
        stopping += runs.stopping[running[at]]

    # 2. In order of urgency, start each job, or stop less urgent runs for it, or reserve what it needs. Runs are scored
    #    when the first job does not fit: in many rounds, all do.
    order = np.argsort(keys, kind="mergesort")
    free = copy_free(available)
    future, has_future, stops, has_reservation, is_scored = free, False, 0, False, False
    by_urgency = np.empty(0, dtype=np.int64)
    for position in range(order.shape[0]):
        job = waiting[order[position]]
        key, demand = keys[order[position]], jobs.demand[job]
        if not is_open[demand]:
            continue
        need = need_at(rule.demands, demand)
        if may_fit(free, need) and place(free, rule, jobs, shares, job):
            result.action[job] = STARTS
            if has_future:
                add_rows(future, shares, job, -1)
            continue
        if not is_scored:
            for at in range(running.shape[0]):
                run = running[at]
                run_keys[at] = sort_key(weights, jobs, run, now, done_by(runs, run, now), queue, features)
                preempted_below[at] = _preempted_below(weights, limits, runs, run, now, run_keys[at])
                highest = max(highest, preempted_below[at])
            is_scored = True
        may_preempt = key < highest and _can_release(need, key, shares, future, running, preempted_below)
        overdue = is_overdue(weights, jobs, job, now, runs.done[job]) and not has_reservation
        if (may_preempt or overdue or stopping > 0) and not has_future:
            future, has_future = copy_free(free), True
            for at in range(running.shape[0]):
                if runs.stopping[running[at]]:
                    add_rows(future, shares, running[at], 1)
        claims = (stopping > 0 or stops > 0) and may_fit(future, need) and place(future, rule, jobs, shares, job)
        if not claims and may_preempt:
            if by_urgency.shape[0] == 0:
                by_urgency = np.argsort(run_keys, kind="mergesort")
            claims = _stop_runs_for(
                job, key, jobs, runs, shares, rule, future, by_urgency, preempted_below, running, result
            )
            stops += claims
        if claims:
            result.action[job] = CLAIMS
            take_available(free, shares, job)
            continue
        if overdue and _reserve(job, now, jobs, runs, shares, rule, future, running):
            result.action[job], has_reservation = RESERVES, True
            take_available(free, shares, job)
            take_available(future, shares, job)
        is_open[demand] = False
        open_demands -= 1
        if open_demands == 0:
            break
    return stops
