"""Start estimates of waiting jobs, as of now, and how good they were.

The policy itself decides in several futures, in a copy of the daemon's process. Estimates are made again when something
has started or ended, and while runs take longer than expected, within a part of the time of a CPU.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from math import inf
from typing import TypeVar

import msgspec
import numpy as np

from refold.client.api import StartAccuracy
from refold.core import JobSubmitted, PastJob, StartRun
from refold.errors import Unavailable
from refold.model import Job, Plan, Seconds, StartEstimate
from refold.server.forked_work import ForkedWork, WorkHere, WorkOutcome
from refold.server.live_state import LiveState
from refold.server.subscribers import LoopStep, Subscriber
from refold.simulator import (
    MAX_VISITS,
    CannotCopy,
    EstimateMaker,
    RunTimes,
    StartSimulator,
    StartTimes,
    copies_of,
    estimate_end,
)

T = TypeVar("T")
log = logging.getLogger("refold")

MAX_AGE_SECONDS: Seconds = 1.0
"""Estimates are made again after this time even if nothing has happened: runs that have not ended take longer."""

IDLE_FACTOR = 10
"""Estimates are made again at the earliest after this many times as long as making them took."""

MAX_END_AGE_SECONDS: Seconds = 10.0
"""End estimates of running jobs are made again after this time."""

ESTIMATES_AT_ONCE = 100
"""Number of estimates between which the daemon does other work: making one takes about 20 µs."""

MAX_END_ESTIMATES = 4096
MAX_KEPT_ESTIMATES = 10_000
"""Number of jobs that have started whose first estimate is kept."""

MAX_SCORED_JOBS = 1_000
"""Number of latest starts from which the accuracy is computed."""

TIME_TOLERANCE_SECONDS: Seconds = 1.0
"""A job that starts later than a bound by less than this has met it: starting a run takes time."""


class TenantScores(msgspec.Struct):
    """How good the first estimates of a tenant's jobs were, since the daemon was started. `error`: sum, absolute."""

    jobs: int = 0
    error: Seconds = 0.0
    bounds_met: int = 0
    bounds_missed: int = 0


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


class SubmissionTrial(msgspec.Struct, frozen=True):
    """What happens to a job that is submitted now: it starts with a plan, or may start later."""

    starts_now: bool = False
    plan: Plan | None = None
    start: StartEstimate | None = None


class StartForecasts(Subscriber):
    def __init__(
        self,
        state: LiveState,
        past: Iterable[PastJob] = (),
        *,
        work: ForkedWork | WorkHere | None = None,
        visits: int = MAX_VISITS,
    ) -> None:
        """`past`: jobs that have ended. `work`: where futures are simulated. `visits`: how much is simulated."""
        self._state, self._work, self._visits = state, work or ForkedWork(), visits
        self._run_times, self._maker = RunTimes(), EstimateMaker()
        for ended in past:
            self._run_times.learn(ended.job, ended.run_time, 0.0)
        self._estimates: dict[str, StartEstimate] = {}
        self._times: StartTimes | None = None
        self._columns: dict[str, int] = {}
        """Those of jobs in `_times`."""
        self._made_at, self._made_entry, self._cost = -inf, -1, 0.0
        self._renewal: asyncio.Task[None] | None = None
        self._first: dict[str, StartEstimate] = {}
        self._first_of_started: dict[str, StartEstimate] = {}
        self._scores: deque[tuple[Seconds, bool | None]] = deque(maxlen=MAX_SCORED_JOBS)
        """Error of the first estimate of each job that has started, and whether its bound was met (None: no bound)."""
        self._unknown = 0
        self.scores_of_tenants: dict[str, TenantScores] = {}
        self._ends: dict[tuple[str, int], tuple[Seconds, StartEstimate | None]] = {}
        """End estimates by job and run, and when they were made."""

    def after_step(self, step: LoopStep) -> None:
        """Learn from jobs that have ended, score the estimates of those that start, and make new ones."""
        for record in step.ended:
            self._first.pop(record.job.id, None)
            self._maker.forget(record.job.id)
            if record.known_duration is not None:
                self._run_times.learn(record.job, record.known_duration, step.entry.now)
        for order in step.entry.orders:
            if isinstance(order, StartRun):
                self._maker.note_start(order.job, step.entry.now)
                if order.run == 1:
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
            scores = self.scores_of_tenants.setdefault(self._state.view.active[job_id].tenant, TenantScores())
            scores.jobs += 1
            scores.error += abs(now - first.at)
            scores.bounds_met += met is True
            scores.bounds_missed += met is False
        elif now > self._state.view.active[job_id].submitted + TIME_TOLERANCE_SECONDS:
            self._unknown += 1

    @property
    def accuracy(self) -> StartAccuracy:
        """How good the first estimates were, since the daemon was started; late jobs count before they have started."""
        errors = [error for error, _ in self._scores]
        bounds = [met for _, met in self._scores if met is not None] + [False] * len(self.late_jobs())
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
        self._refresh()
        if job_id not in view.waiting:
            return None
        estimate = self._estimates.get(job_id)
        return None if estimate is None else as_of(estimate, now)

    def end_estimate(self, job_id: str) -> StartEstimate | None:
        """Return when a running or waiting job ends if it is not stopped or reshaped; None: it is not known."""
        run = self._state.view.runs.get(job_id)
        if run is None and job_id in self._state.view.waiting:
            column = self._columns.get(job_id)
            return None if self._times is None or column is None else self._times.end_of(column).estimate()
        if run is None or run.stopping:
            return None
        now, key = self._state.now(), (job_id, run.number)
        made_at, estimate = self._ends.get(key, (-inf, None))
        if now > made_at + MAX_END_AGE_SECONDS:
            if len(self._ends) >= MAX_END_ESTIMATES:
                self._ends.clear()
            estimate = estimate_end(self._state.view, job_id, self._run_times, now)
            self._ends[key] = now, estimate
        return None if estimate is None else as_of(estimate, now)

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

    @property
    def is_busy(self) -> bool:
        """Whether estimates are being made."""
        return self._renewal is not None

    def _refresh(self) -> None:
        """Begin to make new estimates, unless nothing has changed, or it would take a large part of the time."""
        state, now = self._state, self._state.now()
        if self.is_busy or not state.view.waiting:
            return
        is_current = self._made_entry == state.entry and now < self._made_at + MAX_AGE_SECONDS
        if not is_current and now >= self._made_at + IDLE_FACTOR * self._cost:
            self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        try:
            outcome = await self._run(self._simulate)
            self._made_at, self._cost = self._state.now(), outcome.seconds
            if outcome.result is None:
                return
            self._made_at, self._made_entry, times = outcome.result
            if times is None:
                log.warning("there are no start estimates: the policy %s cannot be copied", self._state.header.policy)
                self._cost = inf
                return
            is_known = bool(np.isfinite(times.starts).any())
            self._times = times if is_known else None
            self._columns = {job_id: column for column, job_id in enumerate(times.job_ids) if is_known}
            self._estimates = await self._make_estimates(times)
            for job_id, estimate in self._estimates.items():
                self._first.setdefault(job_id, estimate)
        finally:
            self._renewal = None

    async def _make_estimates(self, times: StartTimes) -> dict[str, StartEstimate]:
        """Make the estimates of all waiting jobs. If there are many, other work is done meanwhile."""
        made: dict[str, StartEstimate] = {}
        for begin in range(0, len(times.job_ids), ESTIMATES_AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            columns = range(begin, min(begin + ESTIMATES_AT_ONCE, len(times.job_ids)))
            made |= self._maker.estimates(self._state.view, times, self._made_at, columns)
        return {job_id: estimate for job_id, estimate in made.items() if job_id in self._state.view.waiting}

    async def _run(self, work: Callable[[], T]) -> WorkOutcome[T]:
        await asyncio.to_thread(import_module, "scipy.special")  # takes long to load; the copy needs it
        self._run_times.update()  # in this process, so that no copy has to learn the same again
        return await self._work.run(work)

    def _simulate(self) -> tuple[Seconds, int, StartTimes | None]:
        """Return as of when the start times are, for the copy may be made late, and the times: None if unknown."""
        now, entry = self._state.now(), self._state.entry
        with suppress(CannotCopy):
            return now, entry, self._simulator(now).simulate(entry)
        return now, entry, None

    def _simulator(self, now: Seconds) -> StartSimulator:
        copy = copies_of(self._state.scheduler.policy, self._state.view)
        return StartSimulator(self._state.view, copy, self._run_times, now, self._visits)

    async def try_submission(self, job: Job) -> SubmissionTrial:
        """Return what happens to a job if it is submitted now."""
        outcome = await self._run(lambda: self._try(job))
        return outcome.result or SubmissionTrial()

    def _try(self, job: Job) -> SubmissionTrial:
        now, seed = self._state.now(), self._state.entry
        try:
            simulator, scheduler = self._simulator(now), copies_of(self._state.scheduler.policy, self._state.view)()
        except CannotCopy:
            return SubmissionTrial()
        for order in scheduler.step(now, [JobSubmitted(job)]).orders:
            if isinstance(order, StartRun) and order.job == job.id:
                return SubmissionTrial(True, order.allocation.plan)
        if job.id not in scheduler.view.waiting:
            return SubmissionTrial()
        times = simulator.simulate(seed, job)
        return SubmissionTrial(
            start=self._maker.estimate(scheduler.view, job, times.of(times.job_ids.index(job.id)), now)
        )

    async def compare(self, jobs: Sequence[Job], seed: int = 0) -> WhatIfForecast:
        """Return when each of these jobs would start and end if it were submitted now."""
        outcome = await self._run(lambda: self._compare(jobs, seed))
        if outcome.result is None:
            raise Unavailable("the simulation has failed or took too long; the daemon's log says why")
        return outcome.result

    def _compare(self, jobs: Sequence[Job], seed: int) -> WhatIfForecast:
        simulator = self._simulator(self._state.now())
        without = simulator.simulate(seed)
        forecasts = [_job_forecast(job, simulator.simulate(seed, job), without) for job in jobs]
        return WhatIfForecast(len(without.starts), forecasts)


def as_of(estimate: StartEstimate, now: Seconds) -> StartEstimate:
    """Return an estimate at a later time: what has passed is as far ahead as it has been exceeded."""
    at, soonest = _ahead(estimate.at, now), estimate.soonest or now
    latest = None if estimate.latest is None else max(_ahead(estimate.latest, now), at)
    return StartEstimate(estimate.job, at, min(max(soonest, now), at), latest)


def _ahead(moment: Seconds, now: Seconds) -> Seconds:
    return now + abs(moment - now)


def _job_forecast(job: Job, times: StartTimes, without: StartTimes) -> JobForecast:
    others = [column for column, job_id in enumerate(times.job_ids) if job_id != job.id]
    with np.errstate(invalid="ignore"):  # a start that is not known is infinite
        delays = times.starts[:, others] - without.starts
    simulated = (times.starts[:, others] <= times.until[:, None]) & (without.starts <= without.until[:, None])
    known = simulated & np.isfinite(delays)
    counts = known.sum(axis=0)
    means = np.where(known, delays, 0.0).sum(axis=0)[counts > 0] / counts[counts > 0]
    own = times.job_ids.index(job.id)
    return JobForecast(
        times.of(own).estimate(),
        times.end_of(own).estimate(),
        float(means.mean()) if len(means) else 0.0,
        int((means > TIME_TOLERANCE_SECONDS).sum()),
    )
