"""Baseline predictors of run time, for comparison with `Predictor`; they use the same information."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from refold.model import Job, Seconds
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


class QuantilePredictor(Protocol):
    """Predicts run times as quantiles at `QUANTILE_LEVELS`, in seconds."""

    def quantiles(self, job: Job, now: Seconds) -> Floats:
        """Return the predicted quantiles for a job submitted now."""

    def finished(self, job: Job, seconds: Seconds, now: Seconds) -> None:
        """Record the run time of a job that has ended."""


class PredictorQuantiles:
    """`Predictor` as a `QuantilePredictor`."""

    def __init__(self, predictor: Predictor | None = None) -> None:
        self.predictor = predictor or Predictor()

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
