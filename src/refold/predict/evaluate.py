"""Evaluation of run-time predictions on a job history, and the baseline predictors to compare with."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

import msgspec
import numpy as np

from refold.model import HOUR, MINUTE, Job, Seconds
from refold.predict.layout import Floats
from refold.predict.predictor import Predictor
from refold.predict.survival import quantiles

QUANTILE_LEVELS = (0.025, *(percent / 100 for percent in range(5, 96, 5)), 0.975)
"""Quantile levels that every predictor is evaluated at: 5 % to 95 % in steps of 5 %, and the 95 % interval's ends."""

_LEVELS = np.array(QUANTILE_LEVELS)
MAX_HISTORY = 1000
"""Number of past jobs, or past errors, that a baseline's distribution is made from."""

DEFAULT_SECONDS: Seconds = 600.0
"""Run time predicted for a job without history."""

Clock = Callable[[], Seconds]
"""Returns the process time, for measuring the cost of predictions."""

RECHECKED, ENDED, SUBMITTED = range(3)
"""Kinds of events."""

RECHECK_SECONDS = (10 * MINUTE, HOUR)
"""Elapsed run times after which running jobs are predicted again."""


class QuantilePredictor(Protocol):
    """Predicts run times as quantiles at `QUANTILE_LEVELS`, in seconds."""

    def quantiles(self, job: Job, now: Seconds) -> Floats:
        """Return the predicted quantiles for a job submitted now."""

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """Record the run time of a job that has ended."""


class PredictorQuantiles:
    """`Predictor` as a `QuantilePredictor`."""

    def __init__(self) -> None:
        self.predictor = Predictor()

    def quantiles(self, job: Job, now: Seconds) -> Floats:
        """Return the predicted quantiles for a job submitted now."""
        self.predictor.submitted(job, now)
        distribution = self.predictor.expect(job, now)
        return np.minimum(quantiles(distribution.survival, _LEVELS), distribution.ceiling)

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """Record the run time of a job that has ended."""
        self.predictor.finished(job, seconds, now)


def same_owner(job: Job) -> tuple[object, ...]:
    """Return the key of jobs of one owner: the user; if there is none, the tenant and demand."""
    return (job.tenant, job.user) if job.user else (job.tenant, job.demand)


def same_group(job: Job) -> tuple[object, ...]:
    """Return the key of jobs of one group: same tenant, user, group, workload and demand."""
    return (job.tenant, job.user, job.group, job.workload, job.demand)


class LastTwo:
    """Mean run time of the last two jobs of the same owner (Tsafrir, Etsion and Feitelson, 2007)."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], tuple[Seconds, ...]] = {}

    def point(self, job: Job) -> Seconds:
        """Return the predicted run time."""
        last = self._last.get(same_owner(job))
        return sum(last) / len(last) if last else DEFAULT_SECONDS

    def learn(self, job: Job, seconds: Seconds) -> None:
        """Record the run time of a job that has ended."""
        owner = same_owner(job)
        self._last[owner] = (*self._last.get(owner, ())[-1:], seconds)


class GroupMean:
    """Mean run time of all earlier jobs of the group."""

    def __init__(self) -> None:
        self._sums: dict[tuple[object, ...], tuple[float, int]] = {}

    def point(self, job: Job) -> Seconds:
        """Return the predicted run time."""
        total, count = self._sums.get(same_group(job), (0.0, 0))
        return total / count if count else DEFAULT_SECONDS

    def learn(self, job: Job, seconds: Seconds) -> None:
        """Record the run time of a job that has ended."""
        total, count = self._sums.get(same_group(job), (0.0, 0))
        self._sums[same_group(job)] = (total + seconds, count + 1)


class TimeLimit:
    """The job's time limit."""

    def point(self, job: Job) -> Seconds:
        """Return the predicted run time."""
        return DEFAULT_SECONDS if job.time_limit is None else job.time_limit

    def learn(self, job: Job, seconds: Seconds) -> None:
        """Do nothing: the time limit needs no history."""


class PointPredictor(Protocol):
    """Predicts run times as single numbers."""

    def point(self, job: Job) -> Seconds:
        """Return the predicted run time."""

    def learn(self, job: Job, seconds: Seconds) -> None:
        """Record the run time of a job that has ended."""


class PointMass:
    """A point prediction as a distribution: all quantiles are equal."""

    def __init__(self, predictor: PointPredictor) -> None:
        self._predictor = predictor

    def quantiles(self, job: Job, now: Seconds) -> Floats:  # noqa: ARG002
        """Return the predicted quantiles for a job submitted now."""
        return np.full(len(QUANTILE_LEVELS), self._predictor.point(job))

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:  # noqa: ARG002
        """Record the run time of a job that has ended."""
        self._predictor.learn(job, seconds)


@dataclass(slots=True)
class _SortedWindow:
    """A sliding window over the latest values, sorted."""

    arrived: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, number: float) -> None:
        insort(self.ordered, number)
        self.arrived.append(number)
        if len(self.arrived) > MAX_HISTORY:
            self.ordered.remove(self.arrived.popleft())

    def quantiles(self) -> Floats:
        """Return the empirical quantiles at `QUANTILE_LEVELS`, linearly interpolated."""
        positions = _LEVELS * (len(self.ordered) - 1)
        quantiles: Floats = np.interp(positions, np.arange(len(self.ordered)), self.ordered)
        return quantiles


class PointWithErrors:
    """A point prediction multiplied by the distribution of its past relative errors: a fair baseline distribution."""

    def __init__(self, predictor: PointPredictor) -> None:
        self._predictor = predictor
        self._predicted: dict[str, Seconds] = {}
        self._errors = _SortedWindow()

    def quantiles(self, job: Job, now: Seconds) -> Floats:  # noqa: ARG002
        """Return the predicted quantiles for a job submitted now."""
        point = self._predicted[job.id] = max(self._predictor.point(job), 1.0)
        return (
            point * np.exp(self._errors.quantiles()) if self._errors.ordered else np.full(len(QUANTILE_LEVELS), point)
        )

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:  # noqa: ARG002
        """Record the run time of a job that has ended."""
        self._errors.add(math.log(max(seconds, 1.0) / self._predicted.pop(job.id)))
        self._predictor.learn(job, seconds)


class GroupHistory:
    """Empirical distribution of the group's latest run times; of all jobs if the group has no history."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], _SortedWindow] = {}
        self._all = _SortedWindow()

    def quantiles(self, job: Job, now: Seconds) -> Floats:  # noqa: ARG002
        """Return the predicted quantiles for a job submitted now."""
        history = self._groups.get(same_group(job), self._all)
        return history.quantiles() if history.ordered else np.full(len(QUANTILE_LEVELS), DEFAULT_SECONDS)

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:  # noqa: ARG002
        """Record the run time of a job that has ended."""
        self._groups.setdefault(same_group(job), _SortedWindow()).add(seconds)
        self._all.add(seconds)


COMPARATORS: dict[str, Callable[[], QuantilePredictor]] = {
    "limit": lambda: PointMass(TimeLimit()),
    "limit + its past errors": lambda: PointWithErrors(TimeLimit()),
    "last two": lambda: PointMass(LastTwo()),
    "last two + its past errors": lambda: PointWithErrors(LastTwo()),
    "group mean": lambda: PointMass(GroupMean()),
    "group mean + its past errors": lambda: PointWithErrors(GroupMean()),
    "group's last 1000": GroupHistory,
}
"""Constructors of the baseline predictors, by name."""


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
