"""Evaluation of run-time predictions on a job history, causally, as if each job started when it was submitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import msgspec
import numpy as np

from refold.model import HOUR, MINUTE, Job, Seconds
from refold.predict.comparators import QUANTILE_LEVELS, PredictorQuantiles, QuantilePredictor
from refold.predict.layout import Floats

Clock = Callable[[], Seconds]
"""Returns the process time, for measuring the cost of predictions."""

RECHECKED, ENDED, SUBMITTED = range(3)
"""Kinds of events."""

RECHECK_SECONDS = (10 * MINUTE, HOUR)
"""Elapsed run times after which running jobs are predicted again."""


class Score(msgspec.Struct, frozen=True):
    """Quality of predicted quantiles.

    Losses are means over the 5 % to 95 % quantiles; coverages are those of the central 50, 80 and 95 % intervals.
    """

    jobs: int
    pinball_log10: float
    pinball_hours: float
    coverage_50: float
    coverage_80: float
    coverage_95: float
    median_relative_error: float
    rank_correlation: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Actual durations and predicted quantiles of jobs, in order of prediction, and the cost of predicting."""

    durations: Floats
    quantiles: Floats
    microseconds_per_query: float
    microseconds_per_update: float


def evaluate_at_submission(jobs: Sequence[Job], predictor: QuantilePredictor, clock: Clock) -> Evaluation:
    """Predict each job's run time when it is submitted; the predictor learns it when the job ends."""
    quantiles = np.empty((len(jobs), len(QUANTILE_LEVELS)))
    query_seconds = update_seconds = 0.0
    for now, index, event in _events(jobs):
        job = jobs[index]
        started = clock()
        if event == ENDED:
            predictor.finished(job, _duration(job), now)
            update_seconds += clock() - started
        else:
            quantiles[index] = predictor.quantiles(job, now)
            query_seconds += clock() - started
    per_job = 1e6 / max(len(jobs), 1)
    return Evaluation(
        np.array([_duration(job) for job in jobs]), quantiles, query_seconds * per_job, update_seconds * per_job
    )


def evaluate_while_running(jobs: Sequence[Job], elapsed: Seconds) -> Evaluation:
    """Predict the run time of each job that has run for `elapsed`, with `Predictor`."""
    adapter, levels = PredictorQuantiles(), np.array(QUANTILE_LEVELS)
    quantiles, durations = [], []
    for now, index, event in _events(jobs, elapsed):
        job = jobs[index]
        if event == RECHECKED:
            distribution = adapter.predictor.expect_running(job, now, elapsed)
            quantiles.append([distribution.quantile(level) for level in levels])
            durations.append(_duration(job))
        elif event == ENDED:
            adapter.finished(job, _duration(job), now)
        else:
            adapter.predictor.submitted(job, now)
    return Evaluation(np.array(durations), np.array(quantiles).reshape(len(durations), len(QUANTILE_LEVELS)), 0.0, 0.0)


def _events(jobs: Sequence[Job], recheck_after: Seconds = math.inf) -> Iterator[tuple[Seconds, int, int]]:
    """Yield (time, job index, event) of all submissions, rechecks and ends; ends precede simultaneous submissions."""
    pending: list[tuple[Seconds, int, int]] = []
    for index, job in enumerate(jobs):
        while pending and pending[0][0] <= job.submitted:
            yield heappop(pending)
        yield job.submitted, index, SUBMITTED
        heappush(pending, (job.submitted + _duration(job), index, ENDED))
        if _duration(job) > recheck_after:
            heappush(pending, (job.submitted + recheck_after, index, RECHECKED))
    while pending:
        yield heappop(pending)


def _duration(job: Job) -> Seconds:
    """Return the job's actual run time, which predictors learn only when it ends."""
    return job.work or 0.0


def score(durations: Floats, quantiles: Floats) -> Score:
    """Score predicted quantiles, at `QUANTILE_LEVELS`, against actual durations."""
    durations, quantiles = np.maximum(durations, 1.0), np.maximum(quantiles, 1.0)
    median = quantiles[:, QUANTILE_LEVELS.index(0.5)]
    return Score(
        len(durations),
        pinball_loss(np.log10(durations), np.log10(quantiles)[:, 1:-1], np.array(QUANTILE_LEVELS[1:-1])),
        pinball_loss(durations, quantiles[:, 1:-1], np.array(QUANTILE_LEVELS[1:-1])) / HOUR,
        _coverage(durations, quantiles, 0.25),
        _coverage(durations, quantiles, 0.1),
        _coverage(durations, quantiles, 0.025),
        float(np.median(np.abs(median - durations) / durations)),
        rank_correlation(median, durations),
    )


def pinball_loss(truth: Floats, quantiles: Floats, levels: Floats) -> float:
    """Return the mean pinball loss of quantiles q at levels p: max(p × (truth - q), (1 - p) × (q - truth))."""
    above = truth[:, None] - quantiles
    return float(np.maximum(levels * above, (levels - 1.0) * above).mean())


def _coverage(durations: Floats, quantiles: Floats, tail: float) -> float:
    low, high = quantiles[:, QUANTILE_LEVELS.index(tail)], quantiles[:, QUANTILE_LEVELS.index(1.0 - tail)]
    return float(((low <= durations) & (durations <= high)).mean())


def rank_correlation(first_values: Floats, second_values: Floats) -> float:
    """Return Spearman's rank correlation; 0 if all values of one are equal."""
    from scipy.stats import rankdata

    first, second = rankdata(first_values), rankdata(second_values)
    if first.std() == 0.0 or second.std() == 0.0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
