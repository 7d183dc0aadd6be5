"""Loops over all jobs in every round of Refold, compiled: there may be tens of thousands of jobs."""

from __future__ import annotations

from typing import NamedTuple

import cython
import numpy as np

from refold.model import Seconds
from refold.placement import Bools, Floats, Ints

if not cython.compiled:
    from math import isnan

    from refold.predict import is_outdated


class PredictionColumns(NamedTuple):
    """Columns of the table of jobs by which predictions become outdated."""

    is_known: Bools
    is_running: Bools
    reported_done: Floats
    computing_since: Floats
    predicted_done: Floats
    predicted_ended: Ints


class DelayColumns(NamedTuple):
    """Columns of the table of jobs by which delays are weighed, and by which it is found who goes first."""

    submitted: Floats
    is_known: Bools
    run_time: Floats
    reported_done: Floats
    computing_since: Floats
    may_be_preferred: Bools
    is_running: Bools
    is_restarted: Bools
    overtaken: Floats
    used_in_all: Floats


class UseColumns(NamedTuple):
    """Columns of the table of jobs by which the use of GPUs is counted; see `GpuUse`."""

    submitted: Floats
    rank: Ints
    asked_gpus: Floats
    is_running: Bools
    held_gpus: Floats
    held_type: Ints
    held_since: Floats
    usable_types: Ints
    overtaken: Floats
    used_in_all: Floats
    used_behind: Floats
    has_room: Bools


class UsableGpus(NamedTuple):
    """By set of GPU types: their GPUs, and the GPU-seconds used on them until the last count (not a number: none yet).

    `is_usable`: by set and type. `overlaps`: by two sets. `used_by_ended`: GPU-seconds of ended runs, by type.
    """

    gpus: Floats
    used_before: Floats
    is_usable: Bools
    overlaps: Bools
    used_by_ended: Floats


class EndedRuns(NamedTuple):
    """Runs that have ended since the last count, and the GPU-seconds that they used."""

    rank: Ints
    submitted: Floats
    gpu_type: Ints
    used: Floats


class DelayRules(NamedTuple):
    """The weight of delays: the times in which it doubles, and that of preferred wide jobs; 0: there are none.

    `overtaking_share`, `restarted_share`: a job is overdue if others have overtaken it for more than this part of the
    GPU time; if it has run before, and if it has not.
    """

    weight_doubling: Seconds
    delay_doubling: Seconds
    wide_weight: float
    overtaking_share: float
    restarted_share: float


class Weighed(NamedTuple):
    """By row: the weight of a second of delay, the work divided by it, and whether a waiting job is overdue."""

    weights: Floats
    work: Floats
    is_overdue: Bools


def _done_by(now: Seconds, reported_done: Seconds, computing_since: Seconds) -> Seconds:
    """Return the work done, in seconds, as `View.done` does."""
    return reported_done if isnan(computing_since) else reported_done + (now - computing_since)


def outdated_rows(now: Seconds, ended_runs: int, columns: PredictionColumns) -> tuple[Ints, Ints]:
    """Return the rows of runs with known work, whose remaining work changes, and those of outdated predictions."""
    is_known, is_running = columns.is_known.view(np.uint8), columns.is_running.view(np.uint8)
    reported_done, computing_since = columns.reported_done, columns.computing_since
    predicted_done, predicted_ended = columns.predicted_done, columns.predicted_ended
    result = np.empty((2, len(is_known)), dtype=np.int64)
    rows, known, predicted = result, 0, 0
    for row in range(len(is_known)):
        if is_known[row]:
            if is_running[row]:
                rows[0, known] = row
                known += 1
            continue
        done = _done_by(now, reported_done[row], computing_since[row])
        if is_outdated(predicted_done[row], predicted_ended[row], done, ended_runs, is_running[row]):
            rows[1, predicted] = row
            predicted += 1
    return result[0, :known], result[1, :predicted]


def weigh_jobs(now: Seconds, rules: DelayRules, columns: DelayColumns, is_preferred: Bools, work: Floats) -> Weighed:
    """Return the weight of a second of delay of every job, apart from its fair share, and what follows from it.

    It grows with the time in the system until completion at full speed; if the remaining work is not known, with the
    delay so far. Wide jobs of unknown length that may be stopped have a weight that does not grow: `wide_weight`, or 1.
    """
    weight_doubling, delay_doubling, wide_weight, overtaking_share, restarted_share = rules
    submitted, run_time = columns.submitted, columns.run_time
    reported_done, computing_since = columns.reported_done, columns.computing_since
    is_known, may_be_preferred = columns.is_known.view(np.uint8), columns.may_be_preferred.view(np.uint8)
    is_running, is_restarted = columns.is_running.view(np.uint8), columns.is_restarted.view(np.uint8)
    overtaken, used_in_all, has_weight = columns.overtaken, columns.used_in_all, is_preferred.view(np.uint8)
    count, unweighted = len(submitted), work
    result = Weighed(np.empty(count), np.empty(count), np.empty(count, dtype=np.bool_))
    weights, weighted, is_overdue = result.weights, result.work, result.is_overdue.view(np.uint8)
    for row in range(len(submitted)):
        age = now - submitted[row]
        if wide_weight > 0.0 and may_be_preferred[row]:
            weights[row] = wide_weight if has_weight[row] else 1.0
        elif is_known[row]:
            weights[row] = 1 + (age + run_time[row]) / weight_doubling
        else:
            delay = max(0.0, age - _done_by(now, reported_done[row], computing_since[row]))
            weights[row] = 1 + delay / delay_doubling
        weighted[row] = unweighted[row] / weights[row]
        limit = restarted_share if is_restarted[row] else overtaking_share
        is_overdue[row] = not is_running[row] and overtaken[row] > limit * used_in_all[row]
    return result


def order_by_rank(before: Ints, columns: UseColumns) -> Ints:
    """Return the rows by rank, highest first, then by submission, then by row, as `np.lexsort` would.

    `before`: the order at another time, from which that of few rows differs: only these are moved.
    """
    submitted, rank = columns.submitted, columns.rank
    rows = len(rank)
    result, found = np.empty(rows, dtype=np.int64), np.zeros(rows, dtype=np.uint8)
    order, is_placed, last = result, found, 0
    for at in range(len(before)):
        if before[at] < rows:
            order[last] = before[at]
            is_placed[before[at]] = 1
            last += 1
    for row in range(rows):
        if not is_placed[row]:
            order[last] = row
            last += 1
    for at in range(1, rows):
        row, to = order[at], at
        while to > 0:
            other = order[to - 1]
            if rank[other] > rank[row] or (rank[other] == rank[row] and submitted[other] < submitted[row]):
                break
            if rank[other] == rank[row] and submitted[other] == submitted[row] and other < row:
                break
            order[to] = other
            to -= 1
        order[to] = row
    return result


def count_use(now: Seconds, order: Ints, columns: UseColumns, usable: UsableGpus, ended: EndedRuns) -> None:
    """Count what was used since the last time, in the rows of waiting jobs and of runs. `order`: rows by rank."""
    submitted, rank, asked_gpus = columns.submitted, columns.rank, columns.asked_gpus
    held_gpus, held_type, held_since = columns.held_gpus, columns.held_type, columns.held_since
    is_running, has_room = columns.is_running.view(np.uint8), columns.has_room.view(np.uint8)
    usable_types, overtaken, used_in_all = columns.usable_types, columns.overtaken, columns.used_in_all
    used_behind, used_before, used_by_ended = columns.used_behind, usable.used_before, usable.used_by_ended
    gpus_of, is_usable, overlaps = usable.gpus, usable.is_usable.view(np.uint8), usable.overlaps.view(np.uint8)
    ended_rank, ended_submitted, ended_type, ended_used = ended
    used_now, last = np.empty(len(order)), len(order) - 1
    used = used_now
    for types in range(len(gpus_of)):
        in_all, is_empty = 0.0, True
        for row in range(len(order)):
            is_empty = is_empty and usable_types[row] != types
            is_held = held_gpus[row] > 0.0 and is_usable[types, held_type[row]]
            used[row] = held_gpus[row] * (now - held_since[row]) if is_held else 0.0
            in_all += used[row]
        if is_empty:  # no job may use just these types
            continue
        for gpu_type in range(len(used_by_ended)):
            if is_usable[types, gpu_type]:
                in_all += used_by_ended[gpu_type]
        used_by_all = 0.0 if isnan(used_before[types]) else max(in_all - used_before[types], 0.0)
        used_before[types] = in_all

        # From the last job to the first: what those behind a job have used. Equal jobs are not behind each other.
        behind, following = 0.0, last
        for at in range(last, -1, -1):
            row, other = order[at], order[following]
            if rank[row] != rank[other] or submitted[row] != submitted[other]:
                for passed in range(following, at, -1):
                    behind += used[order[passed]]
                following = at
            if usable_types[row] != types:
                continue
            before = used_behind[row]
            used_behind[row] = behind
            if isnan(before):
                continue
            for run in range(len(ended_rank)):
                is_behind = rank[row] == ended_rank[run] and submitted[row] < ended_submitted[run]
                if is_usable[types, ended_type[run]] and (is_behind or rank[row] > ended_rank[run]):
                    before -= ended_used[run]
            if is_running[row]:
                used_in_all[row] += used_by_all
                continue
            used_by_those_behind = max(behind - before, 0.0)
            overtaken[row] += used_by_those_behind
            used_in_all[row] += used_by_those_behind if has_room[row] else used_by_all

        # From the first job to the last: whether there is room beside all jobs ahead.
        ahead = 0.0
        for at in range(len(order)):
            row = order[at]
            if usable_types[row] == types:
                has_room[row] = ahead + asked_gpus[row] <= gpus_of[types]
            if not is_running[row]:
                ahead += asked_gpus[row] if overlaps[types, usable_types[row]] else 0.0
            elif held_gpus[row] > 0.0 and is_usable[types, held_type[row]]:
                ahead += held_gpus[row]
