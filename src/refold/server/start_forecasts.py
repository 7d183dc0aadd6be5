"""Start estimates of waiting jobs, as of now, and how good they were.

They are made again when something has started or ended, and while runs take longer than expected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf
from time import thread_time

import msgspec
import numpy as np

from refold.client.api import StartAccuracy
from refold.core import PastJob, StartRun
from refold.model import Job, Seconds, StartEstimate
from refold.policies import QueueOrder
from refold.server.live_state import LiveState
from refold.server.subscribers import LoopStep, Subscriber
from refold.simulator import RunTimes, StartSimulator, StartTimes, estimate_end

MAX_FUTURES, MIN_FUTURES = 40, 8
MAX_SIMULATED_JOBS = 100_000
"""There are as many futures as fit into this number of simulated jobs, within these limits."""

MAX_AGE_SECONDS: Seconds = 1.0
"""Estimates are made again after this time even if nothing has happened: runs that have not ended take longer."""

IDLE_FACTOR = 20
"""Estimates are made again at the earliest after this many times as long as making them took."""

MAX_END_AGE_SECONDS: Seconds = 10.0
"""End estimates of running jobs are made again after this time."""

MAX_END_ESTIMATES = 4096
MAX_KEPT_ESTIMATES = 10_000
"""Number of jobs that have started whose first estimate is kept."""

MAX_SCORED_JOBS = 1_000
"""Number of latest starts from which the accuracy is computed."""

TIME_TOLERANCE_SECONDS: Seconds = 1.0
"""A job that starts later than a bound by less than this has met it: starting a run takes time."""


class JobForecast(msgspec.Struct, frozen=True):
    """When a job that is not submitted yet would start and end, and how it would delay the waiting jobs."""

    start: StartEstimate | None
    end: StartEstimate | None
    mean_delay_of_others: Seconds
    delayed_jobs: int


class WhatIfForecast(msgspec.Struct, frozen=True):
    """The forecasts of several jobs, each submitted on its own, and the number of futures that were simulated."""

    futures: int
    jobs: list[JobForecast]


class StartForecasts(Subscriber):
    """Start estimates of the waiting jobs."""

    def __init__(
        self,
        state: LiveState,
        order: QueueOrder | None,
        past: Iterable[PastJob] = (),
        *,
        stopwatch: Callable[[], float] = thread_time,
    ) -> None:
        """`order`: of the queue; None: the policy has none, so that waiting jobs get only the estimates of the policy.

        `past`: jobs that have ended.
        """
        self._state, self._order, self._stopwatch = state, order, stopwatch
        self._run_times = RunTimes()
        for ended in past:
            self._run_times.learn(ended.job, ended.run_time, 0.0)
        self._estimates: dict[str, StartEstimate] = {}
        self._planned_ends: dict[str, StartEstimate] = {}
        self._made_at, self._made_entry, self._cost = -inf, -1, 0.0
        self._first: dict[str, StartEstimate] = {}
        self._first_of_started: dict[str, StartEstimate] = {}
        self._scores: deque[tuple[Seconds, bool | None]] = deque(maxlen=MAX_SCORED_JOBS)
        """Error of the first estimate of each job that has started, and whether its bound was met (None: no bound)."""
        self._unknown = 0
        self._ends: dict[tuple[str, int], tuple[Seconds, StartEstimate | None]] = {}
        """End estimates by job and run, and when they were made."""

    def after_step(self, step: LoopStep) -> None:
        """Learn from jobs that have ended, score the estimates of those that start, and make new ones."""
        for record in step.ended:
            self._first.pop(record.job.id, None)
            if record.known_duration is not None:
                self._run_times.learn(record.job, record.known_duration, step.entry.now)
        for order in step.entry.orders:
            if isinstance(order, StartRun) and order.run == 1:
                self._score_start(order.job, step.entry.now)
        self._refresh()

    def _score_start(self, job_id: str, now: Seconds) -> None:
        """Compare the first estimate of a job with its start. Jobs that start at once need no estimate."""
        first = self._first.pop(job_id, None)
        if first is not None:
            self._first_of_started[job_id] = first
            if len(self._first_of_started) > MAX_KEPT_ESTIMATES:
                del self._first_of_started[next(iter(self._first_of_started))]
            met = None if first.latest is None else now <= first.latest + TIME_TOLERANCE_SECONDS
            self._scores.append((now - first.at, met))
        elif now > self._state.view.active[job_id].submitted + TIME_TOLERANCE_SECONDS:
            self._unknown += 1

    @property
    def accuracy(self) -> StartAccuracy:
        """How good the first estimates of jobs were, since the daemon was started."""
        errors = [error for error, _ in self._scores]
        bounds = [met for _, met in self._scores if met is not None]
        return StartAccuracy(
            jobs=len(errors),
            unknown=self._unknown,
            median_error=float(np.median(np.abs(errors))) if errors else None,
            bounded=len(bounds),
            coverage=sum(bounds) / len(bounds) if bounds else None,
        )

    def estimate(self, job_id: str) -> StartEstimate | None:
        """Return the current start estimate of a waiting job, never in the past; None: it is not known."""
        now, view = self._state.now(), self._state.view
        if not self.makes_estimates:
            by_policy = view.start_estimate(job_id)
            return by_policy if by_policy is not None and by_policy.at >= now else None
        self._refresh()
        estimate = self._estimates.get(job_id) if job_id in view.waiting else None
        if estimate is None:
            return None
        latest = None if estimate.latest is None else max(estimate.latest, now)
        return StartEstimate(job_id, max(estimate.at, now), max(estimate.soonest or now, now), latest)

    def end_estimate(self, job_id: str) -> StartEstimate | None:
        """Return when a running or waiting job ends if it is not stopped or reshaped; None: it is not known."""
        run = self._state.view.runs.get(job_id)
        if run is None and job_id in self._state.view.waiting:
            return self._planned_ends.get(job_id)
        if run is None or run.stopping:
            return None
        now, key = self._state.now(), (job_id, run.number)
        made_at, estimate = self._ends.get(key, (-inf, None))
        if now > made_at + MAX_END_AGE_SECONDS:
            if len(self._ends) >= MAX_END_ESTIMATES:
                self._ends.clear()
            estimate = estimate_end(self._state.view, job_id, self._run_times, now)
            self._ends[key] = now, estimate
        if estimate is None:
            return None
        latest = None if estimate.latest is None else max(estimate.latest, now)
        return StartEstimate(job_id, max(estimate.at, now), max(estimate.soonest or now, now), latest)

    def first_estimate(self, job_id: str) -> StartEstimate | None:
        """Return the first estimate of a job's first start, if it waits or is one of the latest that have started."""
        return self._first.get(job_id) or self._first_of_started.get(job_id)

    def late_jobs(self) -> list[str]:
        """Return the waiting jobs that should have started by now, according to the first estimate of each."""
        now, waiting = self._state.now() - TIME_TOLERANCE_SECONDS, self._state.view.waiting
        return [
            job_id
            for job_id, first in self._first.items()
            if first.latest is not None and first.latest < now and job_id in waiting
        ]

    def _refresh(self) -> None:
        """Make new estimates, unless nothing has changed, or making them would take a large part of the time."""
        state, now = self._state, self._state.now()
        if not (self.makes_estimates and state.view.waiting):
            return
        is_current = self._made_entry == state.entry and now < self._made_at + MAX_AGE_SECONDS
        if is_current or now < self._made_at + IDLE_FACTOR * self._cost:
            return
        import scipy.special  # noqa: F401  # it takes long to load, which must not count as the time of a simulation

        begun = self._stopwatch()
        simulated = self._simulator.simulate(now, self._futures(), state.entry)
        self._estimates, self._planned_ends = simulated.start_estimates(), simulated.end_estimates()
        self._made_at, self._made_entry, self._cost = now, state.entry, self._stopwatch() - begun
        for job_id, estimate in self._estimates.items():
            self._first.setdefault(job_id, estimate)

    def _futures(self) -> int:
        waiting = max(1, len(self._state.view.waiting))
        return min(max(MAX_SIMULATED_JOBS // waiting, MIN_FUTURES), MAX_FUTURES)

    @property
    def makes_estimates(self) -> bool:
        """Whether the policy starts jobs in an order that can be simulated."""
        return self._order is not None

    @property
    def is_exact(self) -> bool:
        """Whether the policy does nothing but to start jobs in that order."""
        return self._order not in (None, "least-work")

    @property
    def _simulator(self) -> StartSimulator:
        return StartSimulator(self._state.view, self._order or "easy", self._run_times)

    def start_of_new(self, job: Job) -> StartEstimate | None:
        """Return when a job that is submitted now would start; None: it is not known."""
        if not self.makes_estimates:
            return None
        simulated = self._simulator.simulate(self._state.now(), self._futures(), self._state.entry, job)
        return simulated.start_estimates().get(job.id)

    def compare(self, jobs: Sequence[Job], seed: int = 0) -> WhatIfForecast:
        """Return when each of these jobs would start and end if it were submitted now."""
        now, futures = self._state.now(), self._futures()
        simulator = self._simulator
        without = simulator.simulate(now, futures, seed)
        with_each = [simulator.simulate(now, futures, seed, job) for job in jobs]
        return WhatIfForecast(
            futures, [_job_forecast(job, times, without) for job, times in zip(jobs, with_each, strict=True)]
        )


def _job_forecast(job: Job, times: StartTimes, without: StartTimes) -> JobForecast:
    others = [column for column, job_id in enumerate(times.job_ids) if job_id != job.id]
    with np.errstate(invalid="ignore"):  # a start that is not known is infinite
        delays = times.starts[:, others] - without.starts
    known = np.isfinite(delays)
    counts = known.sum(axis=0)
    means = np.where(known, delays, 0.0).sum(axis=0)[counts > 0] / counts[counts > 0]
    return JobForecast(
        times.start_estimates().get(job.id),
        times.end_estimate(job.id),
        float(means.mean()) if len(means) else 0.0,
        int((means > TIME_TOLERANCE_SECONDS).sum()),
    )
