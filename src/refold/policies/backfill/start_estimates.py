"""Start estimates with bounds, calibrated by how far earlier plans were off.

A plan says when a job should start, but runs end early or late, and other jobs get ahead of it. For each kind of job,
the ratios of actual to planned waits of the latest jobs are stored, as logarithms. Their quantiles turn a plan into
an interval: a job starts between `soonest` and `latest` with the desired coverage. The quantile for `latest` is
adjusted by whether earlier bounds held (adaptive conformal inference, Gibbs and Candès 2021), so that a bound meant
to hold for 95 of 100 jobs does, however good the plans are. A bound that has passed counts as violated as soon as
that is observed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from heapq import heappop, heappush
from math import exp, log

from refold.model import HOUR, MINUTE, Seconds, StartEstimate

WAIT_OFFSET: Seconds = 10 * MINUTE
"""Added to all waits before they are compared, so that a few minutes do not matter."""

TARGET_COVERAGE = 0.98
"""Higher than the 0.95 that is documented: jobs that arrive together are late together, before bounds can adapt."""

SOONEST_QUANTILE = 0.05

MIN_LOG_MARGIN = log(3.0)
"""The bound is never less than this many times the planned wait."""

MAX_STORED_ERRORS = 2000
"""Number of errors stored per kind of job."""

MIN_STORED_ERRORS = 20
"""With fewer errors the bound is not learned; until then it is `INITIAL_LOG_MARGIN` above the planned wait."""

INITIAL_LOG_MARGIN = log(20.0)

ADJUSTMENT_STEP = 0.02
"""Step size of the adjustment of the quantile."""

MIN_QUANTILE, MAX_QUANTILE = 0.5, 1.1
"""Range of the adjusted quantile; above 1, bounds are wider than all observed errors."""

LOG_MARGIN_PER_QUANTILE = 20.0
"""Additional logarithmic margin for each unit of the quantile above 1."""

MIN_EXTENSION: Seconds = HOUR / 2
"""The new bound of a job whose bound was violated is at least this far away."""


class StartEstimates:
    """Start estimates of waiting jobs, and how accurate earlier ones were."""

    def __init__(self) -> None:
        self._first_estimates: dict[str, _FirstEstimate] = {}
        self._bounds: list[tuple[Seconds, str]] = []
        """Heap of (latest start, job); may contain outdated entries."""
        self._errors_of: dict[str, _Errors] = {}
        self._all = _Errors()

    def estimate(self, job_id: str, kind: str, now: Seconds, planned: Seconds) -> StartEstimate:
        """Return an estimate for a job that is planned to start then; it replaces an earlier one of the same job."""
        wait = max(planned - now, 0.0) + WAIT_OFFSET
        errors = self._errors(kind)
        latest = now + wait * exp(errors.upper_bound()) - WAIT_OFFSET
        first_estimate = self._first_estimates.get(job_id)
        if first_estimate is None:
            first_estimate = self._first_estimates[job_id] = _FirstEstimate(kind, now, wait)
        else:
            latest = max(latest, now + MIN_EXTENSION)
        first_estimate.latest = latest
        heappush(self._bounds, (latest, job_id))
        at = min(now + max(wait * exp(errors.quantile(0.5)) - WAIT_OFFSET, 0.0), latest)
        soonest = min(now + max(wait * exp(errors.quantile(SOONEST_QUANTILE)) - WAIT_OFFSET, 0.0), at)
        return StartEstimate(job_id, at, soonest, latest)

    def pop_overdue(self, now: Seconds) -> list[str]:
        """Return the jobs whose bound has passed since the last call; each needs a new estimate."""
        overdue: list[str] = []
        while self._bounds and self._bounds[0][0] < now:
            latest, job_id = heappop(self._bounds)
            first_estimate = self._first_estimates.get(job_id)
            if first_estimate is not None and first_estimate.latest == latest:
                overdue.append(job_id)
                self._score(first_estimate, held=False)
        return overdue

    def note_start(self, job_id: str, now: Seconds) -> None:
        """Learn from a job that starts now."""
        first_estimate = self._first_estimates.pop(job_id, None)
        if first_estimate is None:
            return
        self._score(first_estimate, held=now <= first_estimate.latest)
        error = log((now - first_estimate.at + WAIT_OFFSET) / first_estimate.planned_wait)
        for errors in (self._own_errors(first_estimate.kind), self._all):
            errors.add(error)

    def forget(self, job_id: str) -> None:
        """Drop the estimate of a job that no longer waits and has not started."""
        self._first_estimates.pop(job_id, None)

    def _score(self, first_estimate: _FirstEstimate, held: bool) -> None:
        """Adjust the quantile by whether the first bound of a job held; each job counts once."""
        if not first_estimate.scored:
            first_estimate.scored = True
            for errors in (self._own_errors(first_estimate.kind), self._all):
                errors.adjust(held)

    def _errors(self, kind: str) -> _Errors:
        own = self._own_errors(kind)
        return own if own.are_enough else self._all

    def _own_errors(self, kind: str) -> _Errors:
        return self._errors_of.setdefault(kind, _Errors())


class _FirstEstimate:
    """Time and planned wait of a job's first estimate, and the current bound."""

    __slots__ = ("at", "kind", "latest", "planned_wait", "scored")

    def __init__(self, kind: str, at: Seconds, planned_wait: Seconds) -> None:
        self.kind = kind
        self.at = at
        self.planned_wait = planned_wait
        self.latest: Seconds = at
        self.scored = False


class _Errors:
    """The latest logarithmic errors of plans, sorted, and the adjusted quantile for the bound."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._bound_quantile = TARGET_COVERAGE

    @property
    def are_enough(self) -> bool:
        return len(self._sorted) >= MIN_STORED_ERRORS

    def add(self, error: float) -> None:
        self._latest.append(error)
        insort(self._sorted, error)
        if len(self._latest) > MAX_STORED_ERRORS:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def adjust(self, held: bool) -> None:
        adjusted = self._bound_quantile + ADJUSTMENT_STEP * (TARGET_COVERAGE - held)
        self._bound_quantile = min(max(adjusted, MIN_QUANTILE), MAX_QUANTILE)

    def upper_bound(self) -> float:
        """Return the logarithm of the factor by which a wait exceeds its plan at most, with the target coverage."""
        if not self.are_enough:
            return INITIAL_LOG_MARGIN
        excess = LOG_MARGIN_PER_QUANTILE * max(self._bound_quantile - 1.0, 0.0)
        return max(self.quantile(min(self._bound_quantile, 1.0)) + excess, MIN_LOG_MARGIN)

    def quantile(self, part: float) -> float:
        if not self._sorted:
            return 0.0
        return self._sorted[min(int(part * len(self._sorted)), len(self._sorted) - 1)]
