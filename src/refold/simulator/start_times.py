"""Start times of the jobs that wait now, in several futures in which the policy decides by itself.

The work is bounded: each future has a number of decisions, fewer if the queue is long. Jobs that have not started by
then are assumed to start in order of arrival, on as many GPUs as were in use on average.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np

from refold.core import Policy, Scheduler, View
from refold.model import Job, Seconds, StartEstimate
from refold.placement import Floats
from refold.policies.common import RunWatch
from refold.simulator.costs import RecordedSpeeds
from refold.simulator.fork import Fork
from refold.simulator.futures import Future, work_done
from refold.simulator.run_time_draws import RunTimes, StartedJob

ESTIMATE_SHARES = (0.05, 0.5, 0.95)
"""Quantiles over the futures: the soonest, the estimated and the latest time."""

MAX_FUTURES, MIN_FUTURES = 40, 4
MAX_VISITS = 400_000
"""All futures together make as many decisions as fit into this number of jobs that are waiting or running."""

OVERHEAD_VISITS = 50
"""A decision takes at least as long as if there were so many jobs more."""

MIN_STEPS = 25
"""Number of decisions in a future, at least."""

STEPS_PER_JOB, MAX_STEPS_PER_JOB = 2, 16
"""Number of decisions in which a job starts and ends; at most, with those of a policy that wakes up often."""


class Budget(NamedTuple):
    """Number of futures, and of decisions in each of them."""

    futures: int
    steps: int


def budget_for(jobs: int, visits: int = MAX_VISITS) -> Budget:
    """Return how much is simulated with a number of waiting and running jobs; `visits`: see `MAX_VISITS`."""
    steps = visits // (jobs + OVERHEAD_VISITS)
    futures = min(max(steps // (STEPS_PER_JOB * max(jobs, 1)), MIN_FUTURES), MAX_FUTURES)
    return Budget(futures, max(min(steps // futures, MAX_STEPS_PER_JOB * jobs), MIN_STEPS))


class StartTimes(NamedTuple):
    """Start times and run times of jobs (columns) in each future (rows); infinite if unknown.

    `latest`: when each job starts at the latest if all jobs use their time limits; infinite if some have none.
    `until`: the last start that was simulated in each future; later ones are assumed.
    """

    job_ids: list[str]
    starts: Floats
    durations: Floats
    latest: Floats
    until: Floats

    def of(self, column: int) -> JobTimes:
        return JobTimes(self.job_ids[column], sorted(self.starts[:, column].tolist()), float(self.latest[column]))

    def end_of(self, column: int) -> JobTimes:
        return JobTimes(self.job_ids[column], sorted((self.starts[:, column] + self.durations[:, column]).tolist()))


class JobTimes(NamedTuple):
    """When a job starts, or ends, in each future, the soonest first; and the latest time."""

    job_id: str
    ordered: list[Seconds]
    latest: Seconds = inf

    def quantile(self, share: float) -> Seconds:
        """Return the time that is not exceeded in this share of the futures."""
        return min(self.ordered[int(share * (len(self.ordered) - 1) + 0.5)], self.latest)

    def estimate(self) -> StartEstimate | None:
        """Return the median, with the 5 % and 95 % quantiles as bounds; None if it is not known."""
        soonest, at, latest = map(self.quantile, ESTIMATE_SHARES)
        return StartEstimate(self.job_id, at, soonest, latest if latest < inf else None) if at < inf else None


def started_job(view: View, job_id: str, now: Seconds) -> StartedJob:
    job = view.active[job_id]
    return StartedJob(job, work_done(view, job_id, now), view.share_done(job))


def estimate_end(view: View, job_id: str, run_times: RunTimes, now: Seconds) -> StartEstimate | None:
    """Return when a running job ends unless it is stopped; None if nothing is known."""
    remaining = run_times.remaining_quantiles(started_job(view, job_id, now), ESTIMATE_SHARES, now)
    return JobTimes(job_id, [now + max(0.0, seconds) for seconds in remaining]).estimate()


def copies_of(policy: Policy, view: View) -> Callable[[], Scheduler]:
    """Return a function that returns schedulers in the current state.

    Their policies end no runs by rule and do not learn; what they reject is dropped without a message.
    """
    present = Fork((policy, view), learns=False)

    def copy() -> Scheduler:
        own_policy, own_view = present.copy()
        if isinstance(own_policy, RunWatch):
            own_policy.disable()
        return Scheduler(own_view.cluster, own_policy, on_rejection=lambda _: None, view=own_view)

    return copy


class StartSimulator:
    """Simulates futures of a scheduler. It can be asked several times: nothing changes."""

    def __init__(
        self,
        view: View,
        copy: Callable[[], Scheduler],
        run_times: RunTimes,
        now: Seconds,
        visits: int = MAX_VISITS,
    ) -> None:
        """`view`: the current state. `copy`: returns a copy of the scheduler, which may be changed."""
        self._view, self._copy, self._run_times, self._now = view, copy, run_times, now
        self._visits = visits
        self._charge = RecordedSpeeds(view.cluster)

    def simulate(self, seed: int = 0, new_job: Job | None = None) -> StartTimes:
        """Return the start times of the waiting jobs, and of one more that is submitted now.

        The run times drawn for a seed do not depend on `new_job`.
        """
        view, now = self._view, self._now
        running = [*view.runs]  # also those that are stopping: they may start again
        waiting = list(view.waiting.values())
        futures, steps = budget_for(len(waiting) + len(running), self._visits)
        draws = self._run_times.draws(futures, seed)
        remaining = draws.remaining([started_job(view, job_id, now) for job_id in running], now)
        durations = draws.waiting(waiting, now)
        if new_job is not None:
            waiting, durations = [*waiting, new_job], np.hstack([durations, draws.waiting([new_job], now)])
        simulated = [
            self._starts(waiting, dict(zip(running, ends, strict=True)), own, steps, new_job)
            for ends, own in zip(remaining.tolist(), durations.tolist(), strict=True)
        ]
        latest = self._latest(waiting, running, steps, new_job)
        starts, until = ([part for part, _ in simulated], [end for _, end in simulated])
        return StartTimes([job.id for job in waiting], np.array(starts), durations, np.array(latest), np.array(until))

    def _latest(self, waiting: list[Job], running: list[str], steps: int, new_job: Job | None) -> list[Seconds]:
        """Return when the jobs start if all use their time limits."""
        limits = [job.time_limit or inf for job in waiting]
        started = [started_job(self._view, job_id, self._now) for job_id in running]
        remaining = {one.job.id: self._run_times.until_limit(one) for one in started}
        if inf in remaining.values():
            return [inf] * len(waiting)
        return self._starts(waiting, remaining, limits, steps, new_job)[0]

    def _starts(
        self,
        waiting: list[Job],
        remaining: dict[str, Seconds],
        durations: list[Seconds],
        steps: int,
        new_job: Job | None,
    ) -> tuple[list[Seconds], Seconds]:
        """Return the starts of the jobs in one future, and the last of them that was simulated."""
        view = self._view
        run_time = remaining | {job.id: seconds for job, seconds in zip(waiting, durations, strict=True)}
        jobs = [*view.active.values(), *view.held.values(), *waiting]
        future = Future(self._copy(), self._now, jobs, run_time, self._charge)
        future.run([] if new_job is None else [new_job], [job.id for job in waiting], max_steps=steps)
        later = _Backlog(future, self._now)
        starts = [
            future.started[job.id] if job.id in future.started else later.add(job, seconds)
            for job, seconds in zip(waiting, durations, strict=True)
        ]
        return starts, max(future.started.values(), default=self._now)


class _Backlog:
    """The jobs that have not started when a future has used up its decisions, in the order in which they are added."""

    def __init__(self, future: Future, since: Seconds) -> None:
        span = future.now - since
        self._gpus = future.gpu_seconds / span if span > 0 and not future.is_over else 0.0
        self._start = future.now if self._gpus else inf

    def add(self, job: Job, run_time: Seconds) -> Seconds:
        """Return when a job starts behind those before it."""
        start = self._start
        if self._gpus:
            self._start += run_time * job.demand.total_gpus / self._gpus
        return start
