"""The scoring function and the scheduling round of the learned policy, compiled.

The training simulator and the policy call the same `plan_round`, so that what was trained is what runs. A score is a
linear function of the features of a job, plus the outputs of hidden units, if there are any; the job with the lowest
score is the most urgent one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refold.jit import compiled, count_ones, inlined
from refold.model import HOUR, MINUTE, WHOLE
from refold.packing import (
    CPU_FREE,
    FIRST_GPU,
    GPU_MASK,
    MEMORY_FREE,
    MILLI_FREE,
    NODE,
    RULES,
    TYPE_BIT,
    UNLIMITED,
    UP,
    WHOLE_FREE,
    Bools,
    DemandHistory,
    Floats,
    Ints,
    Need,
    RackDraw,
    ScoreCache,
    Words,
    adjust_free,
    need_at,
    place_instances,
)

Singles = npt.NDArray[np.float32]

FEATURES = (
    "service",
    "rest",
    "gpus",
    "wide",
    "delay",
    "short_delay",
    "attained",
    "service_in_queue",
    "gpus_in_queue",
    "delay_in_queue",
)
"""The features of a job, all but one logarithms. `service`: expected service per completion (the inverse of the Gittins
index); `rest`: mean remaining time; `gpus`: GPUs requested; `wide`: 1 if these are eight or more; `delay`: time since
submission in which the job did not run, 1 + hours; `short_delay`: the same in minutes; `attained`: 1 + GPU-hours used;
`…_in_queue`: features multiplied by the length of the queue (GPUs requested, relative to the cluster).
"""

(SERVICE, REST, GPUS_REQUESTED, WIDE, DELAY, SHORT_DELAY, ATTAINED, SERVICE_Q, GPUS_Q, DELAY_Q) = range(10)

MARGIN, PATIENCE, PROTECTION = range(3)
"""Entries of `Weights.rules`.

`MARGIN`: by how much the score of a run must exceed that of a job which preempts it. `PATIENCE`: delay in seconds from
which a job goes first, and has a reservation if it cannot start. `PROTECTION`: a run is not preempted before this
multiple of its restart cost and its starts.
"""

AGES = 27
"""Number of ages for which expectations are stored: 0, and powers of two from one second on."""

WIDE_GPUS = 8.0
MIN_SECONDS = 1.0
MIN_GPUS = 0.1
MAX_SCORE = 1e3
OVERDUE_STEP = 1e4
PRIORITY_STEP = 1e6
"""Keys are scores less these steps: jobs that have waited for long go before others, and higher priorities first."""

WAITS, STARTS, STOPS, CLAIMS, RESERVES = range(5)
"""What a round decides for a job. `CLAIMS`: it starts when runs have stopped; `RESERVES`: when runs have ended."""

BEST_FIT = RULES["best-fit"][0]


class Weights(NamedTuple):
    """The parameters of the policy. `hidden`: a row per hidden unit, the last entry its bias; `output`: its weight."""

    linear: Floats
    hidden: Floats
    output: Floats
    rules: Floats


class JobColumns(NamedTuple):
    """What is known of jobs. `known`: run time, NaN if it is predicted; `service` and `rest`: the features by age."""

    submitted: Floats
    priority: Ints
    demand: Ints
    gpus: Floats
    known: Floats
    service: Singles
    rest: Singles


class RunColumns(NamedTuple):
    """The state of each job: start of its run, since when it computes, work done until then, number of starts.

    `milli`: thousandths of GPUs that the run holds. `fixed`: it may not be stopped. `stopping`: it is being stopped.
    """

    started: Floats
    since: Floats
    done: Floats
    starts: Ints
    milli: Ints
    fixed: Bools
    stopping: Bools


class Shares(NamedTuple):
    """What each job holds or will hold: rows of (node, GPU mask) from `first_row` on, each with (GPU, CPU, memory)."""

    first_row: Ints
    placements: Ints
    amounts: Ints


class FreeArrays(NamedTuple):
    """The arrays of `FreeResources`."""

    nodes: Ints
    gpus: Ints
    bits: Words


class PlacementRule(NamedTuple):
    """What `place_instances` needs besides: demands as rows, and the state of a rule that has none."""

    demands: Ints
    state: Ints
    history: DemandHistory
    cache: ScoreCache
    racks: RackDraw


class RoundLimits(NamedTuple):
    """The costs and limits of preemption, and the GPUs of the cluster."""

    restart_seconds: float
    max_restarts: int
    cluster_gpus: float


class RoundResult(NamedTuple):
    """What a round decides: the action for each job, and for a stopped job the one that it is stopped for."""

    action: Ints
    stopped_for: Ints


@compiled
def fill_expectations(survival: Floats, edges: Floats, ceiling: float, service: Singles, rest: Singles) -> None:
    """Write the logarithms of the expected service per completion, and of the mean rest, of a job of each age.

    `survival` is the probability that the run time exceeds each of `edges`; beyond the last edge nothing is expected.
    """
    count = edges.shape[0]
    area = np.zeros(count)  # the integral of survival up to each edge
    alive = np.empty(count)
    for at in range(count):
        alive[at] = survival[at] if edges[at] < ceiling else 0.0
        if at:
            area[at] = area[at - 1] + 0.5 * (alive[at] + survival[at - 1]) * (
                min(edges[at], ceiling) - min(edges[at - 1], ceiling)
            )
    first = 0
    for age in range(AGES):
        seconds = 0.0 if age == 0 else 2.0 ** (age - 1)
        while first < count - 1 and edges[first] < seconds:
            first += 1
        least = math.inf
        for at in range(first + 1, count):
            completed = alive[first] - alive[at]
            if completed > 1e-9:
                least = min(least, (area[at] - area[first]) / completed)
        mean = (area[count - 1] - area[first]) / alive[first] if alive[first] > 1e-9 else seconds
        service[age] = math.log(max(MIN_SECONDS, least if least < math.inf else max(seconds, mean)))
        rest[age] = math.log(max(MIN_SECONDS, mean))


@inlined
def done_by(runs: RunColumns, job: int, now: float) -> float:
    """Return the work that a job has done, in seconds."""
    return float(runs.done[job] + max(0.0, now - runs.since[job]))


@inlined
def age_of(done: float) -> int:
    """Return the entry of the tables by age for a job that has done so much."""
    return 0 if done < 1.0 else min(AGES - 1, math.frexp(done)[1])


@inlined
def mean_rest(jobs: JobColumns, job: int, done: float) -> float:
    """Return the mean remaining time of a job."""
    if not math.isnan(jobs.known[job]):
        return float(max(MIN_SECONDS, jobs.known[job] - done))
    return math.exp(jobs.rest[job, age_of(done)])


@inlined
def write_features(jobs: JobColumns, job: int, now: float, done: float, queue: float, features: Floats) -> None:
    """Write the features of a job."""
    if math.isnan(jobs.known[job]):
        features[SERVICE], features[REST] = jobs.service[job, age_of(done)], jobs.rest[job, age_of(done)]
    else:
        features[SERVICE] = features[REST] = math.log(max(MIN_SECONDS, jobs.known[job] - done))
    gpus = max(jobs.gpus[job], MIN_GPUS)
    delay = max(0.0, now - jobs.submitted[job] - done)
    features[GPUS_REQUESTED] = math.log(gpus)
    features[WIDE] = 1.0 if gpus >= WIDE_GPUS else 0.0
    features[DELAY] = math.log1p(delay / HOUR) if delay > 0.0 else 0.0
    features[SHORT_DELAY] = math.log1p(delay / MINUTE) if delay > 0.0 else 0.0
    features[ATTAINED] = math.log1p(gpus * done / HOUR) if done > 0.0 else 0.0
    features[SERVICE_Q] = queue * features[SERVICE]
    features[GPUS_Q] = queue * features[GPUS_REQUESTED]
    features[DELAY_Q] = queue * features[DELAY]


@inlined
def score(weights: Weights, features: Floats) -> float:
    """Return the score of a job: the lowest is the most urgent."""
    total = 0.0
    for feature in range(features.shape[0]):
        total += weights.linear[feature] * features[feature]
    for unit in range(weights.output.shape[0]):
        inner = weights.hidden[unit, features.shape[0]]
        for feature in range(features.shape[0]):
            inner += weights.hidden[unit, feature] * features[feature]
        total += weights.output[unit] * math.tanh(inner)
    return min(max(total, -MAX_SCORE), MAX_SCORE)


@inlined
def sort_key(
    weights: Weights, jobs: JobColumns, job: int, now: float, done: float, queue: float, features: Floats
) -> float:
    """Return the sort key of a job: its score, less steps for its priority and for a long delay."""
    write_features(jobs, job, now, done, queue, features)
    key = score(weights, features) - PRIORITY_STEP * jobs.priority[job]
    return float(key - OVERDUE_STEP if is_overdue(weights, jobs, job, now, done) else key)


@inlined
def is_overdue(weights: Weights, jobs: JobColumns, job: int, now: float, done: float) -> bool:
    """Return whether a job has waited for so long that it goes first."""
    return bool(now - jobs.submitted[job] - done >= weights.rules[PATIENCE])


@compiled
def add_rows(free: FreeArrays, shares: Shares, job: int, sign: int) -> None:
    """Release what a job holds (sign 1), or take it again (-1)."""
    for row in range(shares.first_row[job], shares.first_row[job + 1]):
        adjust_free(
            free.nodes,
            free.gpus,
            free.bits,
            shares.placements[row, NODE],
            shares.placements[row, GPU_MASK],
            sign * shares.amounts[row, 0],
            sign * shares.amounts[row, 1],
            sign * shares.amounts[row, 2],
        )


@inlined
def _is_row_free(free: FreeArrays, shares: Shares, row: int) -> bool:
    node, mask = shares.placements[row, NODE], shares.placements[row, GPU_MASK]
    gpu = free.nodes[node, FIRST_GPU]
    while mask:
        if mask & 1 and free.gpus[gpu] < shares.amounts[row, 0]:
            return False
        mask >>= 1
        gpu += 1
    return bool(
        free.nodes[node, UP]
        and free.nodes[node, CPU_FREE] >= shares.amounts[row, 1]
        and free.nodes[node, MEMORY_FREE] >= shares.amounts[row, 2]
    )


@compiled
def _take_if_free(free: FreeArrays, shares: Shares, job: int) -> bool:
    """Take what a job holds, if all of it is free; otherwise take nothing."""
    first, end = shares.first_row[job], shares.first_row[job + 1]
    for row in range(first, end):
        fits = _is_row_free(free, shares, row)
        sign, until = (-1, row + 1) if fits else (1, row)
        for other in range(row if fits else first, until):
            adjust_free(
                free.nodes,
                free.gpus,
                free.bits,
                shares.placements[other, NODE],
                shares.placements[other, GPU_MASK],
                sign * shares.amounts[other, 0],
                sign * shares.amounts[other, 1],
                sign * shares.amounts[other, 2],
            )
        if not fits:
            return False
    return True


@compiled
def _take_available(free: FreeArrays, shares: Shares, job: int) -> None:
    """Take the free part of what a job will hold."""
    nodes, gpus = free.nodes, free.gpus
    for row in range(shares.first_row[job], shares.first_row[job + 1]):
        node, mask = shares.placements[row, NODE], shares.placements[row, GPU_MASK]
        first, gpu = nodes[node, FIRST_GPU], 0
        while mask >> gpu:
            available = min(max(gpus[first + gpu], 0), shares.amounts[row, 0])
            if mask >> gpu & 1 and available > 0:
                adjust_free(nodes, gpus, free.bits, node, 1 << gpu, -available, 0, 0)
            gpu += 1
        cpu = min(max(nodes[node, CPU_FREE], 0), shares.amounts[row, 1])
        memory = min(max(nodes[node, MEMORY_FREE], 0), shares.amounts[row, 2])
        adjust_free(nodes, gpus, free.bits, node, 0, 0, -cpu, -memory)


@compiled
def _place(free: FreeArrays, rule: PlacementRule, jobs: JobColumns, shares: Shares, job: int) -> bool:
    """Take resources for all instances of a job and write them to its rows; otherwise take nothing."""
    demand = jobs.demand[job]
    return place_instances(
        BEST_FIT,
        free.nodes,
        free.gpus,
        free.bits,
        rule.demands,
        demand,
        demand,
        rule.state,
        rule.history,
        rule.cache,
        rule.racks,
        shares.placements,
        shares.first_row[job],
    )


@inlined
def _may_fit(free: FreeArrays, need: Need) -> bool:
    """Return whether a demand may fit, by counts that are at hand: a call of `place_instances` costs more."""
    totals = free.nodes.shape[0] - 1
    if need.milli < WHOLE or need.gpus == 0:
        return bool(free.nodes[totals, MILLI_FREE] >= need.instances * need.gpus * need.milli)
    if free.nodes[totals, WHOLE_FREE] < need.instances * need.gpus:
        return False
    return bool(free.bits[need.gpus, free.bits.shape[1] - 1] > np.uint64(0))


@inlined
def _copy(free: FreeArrays) -> FreeArrays:
    return FreeArrays(free.nodes.copy(), free.gpus.copy(), free.bits.copy())


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
        if _place(future, rule, jobs, shares, job):
            # 3. Spare the candidates whose resources are not needed, the most urgent first.
            for at in range(count - 1, -1, -1):
                run = running[victims[at]]
                if not _take_if_free(future, shares, run):
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
    ended, order = _copy(future), np.argsort(rests, kind="mergesort")
    need = need_at(rule.demands, jobs.demand[job])
    missing, attempt = need.instances * need.gpus * need.milli, 1
    for position in range(order.shape[0]):
        run = running[order[position]]
        if not runs.stopping[run]:
            add_rows(ended, shares, run, 1)
        is_due = position + 1 >= attempt or position + 1 == order.shape[0]
        if is_due and ended.nodes[ended.nodes.shape[0] - 1, MILLI_FREE] >= missing:
            if _place(ended, rule, jobs, shares, job):
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

    # 1. Score the waiting jobs and the runs.
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
        run = running[at]
        result.action[run] = WAITS
        run_keys[at] = sort_key(weights, jobs, run, now, done_by(runs, run, now), queue, features)
        preempted_below[at] = _preempted_below(weights, limits, runs, run, now, run_keys[at])
        highest = max(highest, preempted_below[at])
        stopping += runs.stopping[run]

    # 2. In order of urgency, start each job, or stop less urgent runs for it, or reserve what it needs.
    order = np.argsort(keys, kind="mergesort")
    free = _copy(available)
    future, has_future, stops, has_reservation = free, False, 0, False
    by_urgency = np.empty(0, dtype=np.int64)
    for position in range(order.shape[0]):
        job = waiting[order[position]]
        key, demand = keys[order[position]], jobs.demand[job]
        if not is_open[demand]:
            continue
        need = need_at(rule.demands, demand)
        if _may_fit(free, need) and _place(free, rule, jobs, shares, job):
            result.action[job] = STARTS
            if has_future:
                add_rows(future, shares, job, -1)
            continue
        may_preempt = key < highest and _can_release(need, key, shares, future, running, preempted_below)
        overdue = is_overdue(weights, jobs, job, now, runs.done[job]) and not has_reservation
        if (may_preempt or overdue or stopping > 0) and not has_future:
            future, has_future = _copy(free), True
            for at in range(running.shape[0]):
                if runs.stopping[running[at]]:
                    add_rows(future, shares, running[at], 1)
        claims = (stopping > 0 or stops > 0) and _may_fit(future, need) and _place(future, rule, jobs, shares, job)
        if not claims and may_preempt:
            if by_urgency.shape[0] == 0:
                by_urgency = np.argsort(run_keys, kind="mergesort")
            claims = _stop_runs_for(
                job, key, jobs, runs, shares, rule, future, by_urgency, preempted_below, running, result
            )
            stops += claims
        if claims:
            result.action[job] = CLAIMS
            _take_available(free, shares, job)
            continue
        if overdue and _reserve(job, now, jobs, runs, shares, rule, future, running):
            result.action[job], has_reservation = RESERVES, True
            _take_available(free, shares, job)
            _take_available(future, shares, job)
        is_open[demand] = False
        open_demands -= 1
        if open_demands == 0:
            break
    return stops
