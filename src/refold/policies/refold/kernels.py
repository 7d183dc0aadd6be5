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
    """Columns of the table of jobs by which delays are weighed."""

    submitted: Floats
    is_known: Bools
    run_time: Floats
    reported_done: Floats
    computing_since: Floats
    may_be_preferred: Bools


class DelayRules(NamedTuple):
    """The weight of delays: the times in which it doubles, and that of preferred wide jobs; 0: there are none."""

    weight_doubling: Seconds
    delay_doubling: Seconds
    wide_weight: float


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


def delay_weights(now: Seconds, rules: DelayRules, columns: DelayColumns, is_preferred: Bools) -> Floats:
    """Return the weight of a second of delay of every job, apart from its fair share.

    It grows with the time in the system until completion at full speed; if the remaining work is not known, with the
    delay so far. Wide jobs of unknown length that may be stopped have a weight that does not grow: `wide_weight`, or 1.
    """
    weight_doubling, delay_doubling, wide_weight = rules
    submitted, run_time = columns.submitted, columns.run_time
    reported_done, computing_since = columns.reported_done, columns.computing_since
    is_known, may_be_preferred = columns.is_known.view(np.uint8), columns.may_be_preferred.view(np.uint8)
    has_weight, result = is_preferred.view(np.uint8), np.empty(len(submitted))
    weights = result
    for row in range(len(submitted)):
        age = now - submitted[row]
        if wide_weight > 0.0 and may_be_preferred[row]:
            weights[row] = wide_weight if has_weight[row] else 1.0
        elif is_known[row]:
            weights[row] = 1 + (age + run_time[row]) / weight_doubling
        else:
            delay = max(0.0, age - _done_by(now, reported_done[row], computing_since[row]))
            weights[row] = 1 + delay / delay_doubling
    return result
