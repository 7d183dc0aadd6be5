"""Calibration of start estimates: by which factor actual waits exceed simulated ones.

The errors of the latest jobs, as logarithms, give the factor for a bound that is meant to hold. Jobs that still wait
count as well: their error is at least what it would be if they started now. So the quantile is that of an estimate for
censored data (Kaplan and Meier 1958), and a queue in which nothing starts makes bounds wider before any job has
started. A prior counts as a number of further errors, so that the first bounds are wide and become narrower slowly.
Each kind of job has its own errors; those of all kinds count for it like a prior.
"""

from __future__ import annotations

from collections import deque
from math import exp, inf, log
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from refold.model import MINUTE, Seconds
from refold.placement import Bools, Floats

WAIT_OFFSET: Seconds = 5 * MINUTE
"""Added to waits before they are compared, so that a few minutes do not matter."""

TARGET_COVERAGE = 0.99
"""Higher than the 0.95 that is documented: jobs that arrive together are late together."""

SOONEST_SHARE = 0.05

MAX_ERRORS = 1000
"""Number of latest errors that count."""

PRIOR_WEIGHT = 20.0
"""Number of errors that the prior counts for, and the errors of all kinds of jobs for one of them."""

PRIOR_DEVIATION = 1.0
"""Standard deviation of the prior of errors: 99 % of the waits are less than 9 times as long as simulated."""

PRIOR_ERRORS = 100

MAX_LOG_FACTOR = log(60.0)
"""A larger factor for a bound says that waits are not known."""

MAX_AGE: Seconds = 10 * MINUTE
MAX_NEW_ERRORS = 10
"""Factors are computed again after this time, or so many new errors."""


class WaitFactors(NamedTuple):
    """Factors of simulated waits, as logarithms: for the soonest, the expected and the latest start."""

    soonest: float
    expected: float
    latest: float

    @property
    def are_known(self) -> bool:
        return self.latest <= MAX_LOG_FACTOR


class StartBounds:
    """Errors of simulated waits, by kind of job."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Errors] = {}
        self._kind_of: dict[str, str] = {}
        self._all = _Errors()
        self._factors: dict[str, WaitFactors] = {}
        self._made_at: Seconds = -inf
        self._new_errors = 0

    def add(self, job_id: str, kind: str, now: Seconds, wait: Seconds) -> None:
        """Note the simulated wait of a job, unless one was noted before."""
        if job_id not in self._kind_of:
            self._kind_of[job_id] = kind
            for errors in (self._kinds.setdefault(kind, _Errors()), self._all):
                errors.waiting[job_id] = now, log(wait + WAIT_OFFSET)

    def note_start(self, job_id: str, now: Seconds) -> None:
        kind = self._kind_of.pop(job_id, None)
        if kind is not None:
            self._new_errors += 1
            for errors in (self._kinds[kind], self._all):
                made_at, log_wait = errors.waiting.pop(job_id)
                errors.latest.append(log(max(now - made_at, 0.0) + WAIT_OFFSET) - log_wait)

    def forget(self, job_id: str) -> None:
        """Drop a job that no longer waits and has not started."""
        kind = self._kind_of.pop(job_id, None)
        if kind is not None:
            for errors in (self._kinds[kind], self._all):
                del errors.waiting[job_id]

    def factors(self, kind: str, now: Seconds) -> WaitFactors:
        """Return by which factors the waits of a kind of jobs differ from simulated ones."""
        if now >= self._made_at + MAX_AGE or self._new_errors >= MAX_NEW_ERRORS:
            self._factors.clear()
            self._made_at, self._new_errors = now, 0
        if kind not in self._factors:
            self._factors[kind] = self._make_factors(kind, now)
        return self._factors[kind]

    def _make_factors(self, kind: str, now: Seconds) -> WaitFactors:
        everything = _joined(self._all.sample(now), _prior())
        everything = everything._replace(weights=everything.weights * PRIOR_WEIGHT / everything.weights.sum())
        own = self._kinds.get(kind)
        sample = everything if own is None else _joined(own.sample(now), everything)
        return WaitFactors(*censored_quantiles(sample, (SOONEST_SHARE, 0.5, TARGET_COVERAGE)))


def scaled(wait: Seconds, log_factor: float) -> Seconds:
    """Return a simulated wait multiplied by a factor; the offset is part of what is multiplied."""
    return max((wait + WAIT_OFFSET) * exp(log_factor) - WAIT_OFFSET, 0.0)


class CensoredSample(NamedTuple):
    """Values of which some are not final, but only known to be at least so large, with weights."""

    values: Floats
    is_final: Bools
    weights: Floats


def censored_quantiles(sample: CensoredSample, shares: tuple[float, ...]) -> list[float]:
    """Return quantiles of a sample; infinite: beyond all final values."""
    values, is_final, weights = sample
    order = np.lexsort((~is_final, values))
    weights = weights[order]
    left = np.cumsum(weights[::-1])[::-1]
    survival = np.cumprod(np.where(is_final[order], 1.0 - weights / left, 1.0))
    found = [int(np.searchsorted(-survival, share - 1.0 - 1e-9)) for share in shares]
    return [float(values[order[at]]) if at < len(values) else inf for at in found]


class _Errors:
    """The latest errors, and the waiting jobs: time of the estimate and logarithm of the simulated wait."""

    def __init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=MAX_ERRORS)
        self.waiting: dict[str, tuple[Seconds, float]] = {}

    def sample(self, now: Seconds) -> CensoredSample:
        made = np.array(list(self.waiting.values())).reshape(-1, 2)
        so_far = np.log(np.maximum(now - made[:, 0], 0.0) + WAIT_OFFSET) - made[:, 1]
        values = np.concatenate([np.array(self.latest), so_far])
        return CensoredSample(values, np.arange(len(values)) < len(self.latest), np.ones(len(values)))


def _prior() -> CensoredSample:
    normal = NormalDist(0.0, PRIOR_DEVIATION)
    values = np.array([normal.inv_cdf((at + 0.5) / PRIOR_ERRORS) for at in range(PRIOR_ERRORS)])
    weight = PRIOR_WEIGHT / PRIOR_ERRORS
    return CensoredSample(values, np.ones(PRIOR_ERRORS, np.bool_), np.full(PRIOR_ERRORS, weight))


def _joined(one: CensoredSample, other: CensoredSample) -> CensoredSample:
    return CensoredSample(*(np.concatenate(columns) for columns in zip(one, other, strict=True)))
