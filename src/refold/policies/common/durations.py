"""Run times of jobs as a policy assumes them: predicted, from the users' time limits, or known.

Known run times are for oracles, in simulations only. Time limits are upper bounds, mostly far too long. Predictions are
distributions, from which a policy takes the quantile that it needs.

The expected service until completion is predicted for jobs whose run time is not known, given what they have done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import compress, repeat
from math import inf
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from refold.core import View
from refold.errors import BadValue
from refold.model import MINUTE, WHOLE, Job, Run, Seconds
from refold.planning.plans import CATALOGUE_ONLY, Knowledge, Speeds
from refold.predict import DurationDistribution, Floats, Predictor, is_outdated

DurationSourceName = Literal["predicted", "limit", "known"]

MIN_RUN_TIME: Seconds = 1.0
"""Shortest run time that is assumed for any job."""

MAX_RECORDED = 128
"""Number of new jobs that are recorded per decision; if more appear at once, the next decisions record the rest."""

MIN_OVERRUN: Seconds = MINUTE
MIN_OVERRUN_SHARE = 0.05
"""A run that exceeds its assumed end is assumed to continue for at least this long, and this share of its age."""

MIN_REMAINING: Seconds = 1.0


class DurationSource:
    """Run times of jobs, learned only from the views passed to `observe`."""

    def __init__(
        self, source: DurationSourceName = "predicted", knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY
    ) -> None:
        """`knowledge`: speeds of jobs, from which the run time of jobs with a known number of steps follows."""
        if source not in get_args(DurationSourceName):
            raise BadValue(f"durations is {source!r}, expected one of {', '.join(get_args(DurationSourceName))}")
        self._source = source
        self._knowledge = Knowledge.from_settings(knowledge)
        self._speeds: Speeds | None = None
        self._predictor = Predictor(self._modelled_run_time)
        self._has_learned = source == "known"
        self._jobs: dict[str, Job] = {}
        self._unrecorded: deque[Job] = deque()
        """New jobs of which the predictor has not been told yet."""
        self._elapsed: dict[str, Seconds] = {}
        """Run time of the ended runs of each job, converted to the speed of what it requested."""
        self._speedup: dict[str, float] = {}
        """Speed of a run relative to the job's request, where it is not 1."""

    def observe(self, view: View) -> None:
        """Learn from jobs that have ended and record new ones. Must be called once for each view."""
        if self._source == "known":
            return
        if self._speeds is None:
            self._speeds = Speeds(view.cluster, self._knowledge)
        changes, now = view.changes, view.now
        for job, duration in changes.past_jobs:
            self._has_learned = True
            self._predictor.submitted(job, now)
            self._predictor.finished(job, duration, now)
        for run in changes.ended:
            elapsed = self._elapsed.pop(run.job, 0.0) + (now - run.since) * self._speedup.get(run.job, 1.0)
            if run.job in view.waiting or run.job in view.runs:
                self._elapsed[run.job] = elapsed
            else:
                self._learn(run, elapsed, now)
        for job_id in changes.removed:
            self._forget(job_id)
        for job in changes.submitted:
            self._add(view, job)
        for run in changes.started:
            if run.job not in self._jobs and run.job in view.active:  # it was running when the journal began
                self._add(view, view.active[run.job])
        for _ in range(min(len(self._unrecorded), MAX_RECORDED)):
            job = self._unrecorded.popleft()
            if self._jobs.get(job.id) is job:
                self._predictor.submitted(job, now)

    def _add(self, view: View, job: Job) -> None:
        self._jobs[job.id] = job
        self._unrecorded.append(job)
        before = _earlier_run_time(view, job)
        if before > MIN_RUN_TIME:
            self._elapsed[job.id] = before

    def _learn(self, run: Run, elapsed: Seconds, now: Seconds) -> None:
        """Learn from a job that has ended, unless it was cancelled or ended by a watch rule."""
        job = self._jobs.get(run.job)
        if job is not None and not run.stopping:
            self._has_learned = True
            self._predictor.finished(job, elapsed, now)
            del self._jobs[run.job]
        self._forget(run.job)

    def _forget(self, job_id: str) -> None:
        if self._jobs.pop(job_id, None) is not None:
            self._predictor.forget(job_id)
        self._elapsed.pop(job_id, None)
        self._speedup.pop(job_id, None)

    def _modelled_run_time(self, job: Job) -> Seconds | None:
        """Return the run time that follows from the job's steps and its modelled speed; None if either is unknown."""
        if self._speeds is None or job.steps is None or not self._speeds.can_model(job):
            return None
        return job.steps / self._speeds.requested_speed(job).steps_per_second

    def are_known(self, view: View) -> bool:
        """Whether anything is known about run times: a job has ended, or those of all jobs are limited or modelled."""
        if self._has_learned:
            return True
        jobs = (*view.active.values(), *view.waiting.values())
        return all(job.time_limit is not None or self._modelled_run_time(job) is not None for job in jobs)

    def note_start(self, job_id: str, speedup: float) -> None:
        """Record the speed at which a job is started, relative to what it requested."""
        if speedup != 1.0:
            self._speedup[job_id] = speedup
        else:
            self._speedup.pop(job_id, None)

    def distribution(self, view: View, job: Job) -> DurationDistribution:
        """Return the predicted distribution of the total run time of a job, given its work and progress so far."""
        done = view.done(job.id)
        if done <= 0.0:
            return self._predictor.expect(job, view.now)
        return self._predictor.expect_running(job, view.now, done, view.share_done(job))

    def can_batch(self, view: View, job: Job) -> bool:
        """Return whether `service_of` accepts a job: it has been recorded, and has reported no steps."""
        return self._predictor.has_recorded(job) and view.share_done(job) is None

    def service_of(self, jobs: Sequence[Job], done: Floats, min_service: Seconds) -> Floats:
        """Return `DurationDistribution.service_per_completion` of many jobs, given the work that each has done."""
        return self._predictor.service_of(jobs, done, min_service)

    def remaining_time(self, view: View, job: Job) -> RemainingTime:
        """Return how long a waiting job will run if it is started on what it requested."""
        exact = self._exact_run_time(job)
        if exact is not None:
            return RemainingTime(exact=max(exact - view.done(job.id), MIN_RUN_TIME))
        elapsed = self._elapsed.get(job.id, 0.0)
        if elapsed == 0.0:
            return RemainingTime(self._predictor.expect(job, view.now))
        share = view.share_done(job)
        return RemainingTime(self._predictor.expect_running(job, view.now, elapsed, share), elapsed)

    def remaining_run_time(self, view: View, run: Run, quantile: float) -> Seconds:
        """Return how much longer a run will take that is not known to the policy or has exceeded its assumed end."""
        job, speedup = view.active[run.job], self._speedup.get(run.job, 1.0)
        age = view.now - run.since
        overrun = max(MIN_OVERRUN, MIN_OVERRUN_SHARE * age)
        if self._source == "known":
            remaining = _known_run_time(job) - view.done(job.id)
            return max(remaining, MIN_RUN_TIME, min(-remaining, overrun))  # as late again as it is already
        if self._source == "limit":
            return overrun
        elapsed = self._elapsed.get(job.id, 0.0) + age * speedup
        expected = self._predictor.expect_running(job, view.now, elapsed, view.share_done(job))
        return max((expected.quantile(quantile) - elapsed) / speedup, overrun)

    def _exact_run_time(self, job: Job) -> Seconds | None:
        """Return the run time that is taken as certain; None if it has to be predicted."""
        if self._source == "known":
            return _known_run_time(job)
        return job.time_limit if self._source == "limit" else None


class RemainingTime(NamedTuple):
    """Remaining run time of a job: exact, or the distribution of its total run time of which `elapsed` has passed."""

    total: DurationDistribution | None = None
    elapsed: Seconds = 0.0
    exact: Seconds = 0.0

    def quantile(self, quantile: float) -> Seconds:
        """Return the remaining time that is not exceeded with this probability."""
        if self.total is None:
            return self.exact
        return max(self.total.quantile(quantile) - self.elapsed, MIN_RUN_TIME)


def _earlier_run_time(view: View, job: Job) -> Seconds:
    """Return how long a job ran before it was added, from its GPU-seconds: it was held or predates the journal."""
    requested, attained = job.demand.total_gpus, view.gpu_seconds(job.id)
    if not requested or not attained:
        return 0.0
    run = view.runs.get(job.id)
    return (
        attained if run is None else attained - (view.now - run.since) * run.allocation.gpu_milli / WHOLE
    ) / requested


def _known_run_time(job: Job) -> Seconds:
    return inf if job.work is None else job.work


class PredictionBasis(NamedTuple):
    """The work that a job had done, and the number of runs that had ended, at the time of a prediction."""

    done: Seconds
    ended_runs: int


NO_PREDICTION = PredictionBasis(0.0, 0)


class _Expectation(NamedTuple):
    """The expected service until completion, and the basis of the prediction. `is_mean`: it is the mean."""

    seconds: Seconds
    done: Seconds
    ended_runs: int
    is_mean: bool


class ExpectedService:
    """Seconds of service that jobs need until completion, at the speed of what they requested."""

    def __init__(self, knowledge: Knowledge | Mapping[str, Any], min_service: Seconds = 0.0) -> None:
        """`min_service`: time for which a run is not stopped; it costs as much to start it again."""
        self._min_service = min_service
        self.durations = DurationSource("predicted", knowledge)
        self._expectations: dict[str, _Expectation] = {}
        self._last_total: tuple[DurationDistribution, bool, Seconds] | None = None
        self.ended_runs = 0
        """Number of runs that have ended so far."""

    def observe(self, view: View) -> None:
        """Learn from jobs that have ended. Must be called once for each view."""
        self.durations.observe(view)
        self.ended_runs += len(view.changes.ended)

    def basis(self, job_id: str) -> PredictionBasis:
        """Return the basis of the last prediction for a job."""
        last = self._expectations.get(job_id)
        return NO_PREDICTION if last is None else PredictionBasis(last.done, last.ended_runs)

    def seconds(self, view: View, job: Job) -> Seconds:
        """Return the expected service until a job completes.

        This is `DurationDistribution.service_per_completion`; but the mean for a waiting job that may not be stopped:
        once started, it runs to its end, however long that takes.
        """
        done, is_running = view.done(job.id), job.id in view.runs
        is_mean = not job.preemptible and not is_running
        last = self._expectations.get(job.id)
        ended = self.ended_runs
        if last is None or last.is_mean != is_mean or is_outdated(*last[1:3], done, ended, is_running):
            total = self._total(self.durations.distribution(view, job), is_mean)
            seconds = max(total - done, MIN_REMAINING) if is_mean else total
            last = self._expectations[job.id] = _Expectation(seconds, done, ended, is_mean)
        return last.seconds

    def renew(self, view: View, jobs: Sequence[Job], done: Floats) -> Floats:
        """Return what `seconds` does for each of these jobs, whose predictions are outdated: most of them in one call.

        `done`: the work that each has done.
        """
        runs, can_batch = view.runs, self.durations.can_batch
        is_batched = [(job.preemptible or job.id in runs) and can_batch(view, job) for job in jobs]
        if all(is_batched):
            return self._renew_batch(jobs, done)
        in_batch, seconds = np.array(is_batched), np.empty(len(jobs))
        seconds[in_batch] = self._renew_batch(list(compress(jobs, is_batched)), done[in_batch])
        for at in np.flatnonzero(~in_batch).tolist():
            seconds[at] = self.seconds(view, jobs[at])
        return seconds

    def _renew_batch(self, jobs: Sequence[Job], done: Floats) -> Floats:
        seconds = self.durations.service_of(jobs, done, self._min_service)
        job_ids, ended, is_mean = [job.id for job in jobs], repeat(self.ended_runs), repeat(False)
        expectations = map(_Expectation, seconds.tolist(), done.tolist(), ended, is_mean)
        self._expectations.update(zip(job_ids, expectations, strict=True))
        return seconds

    def _total(self, distribution: DurationDistribution, is_mean: bool) -> Seconds:
        """Return the mean, or the service until completion. Many jobs share their distribution with the one before."""
        if self._last_total is None or self._last_total[:2] != (distribution, is_mean):
            seconds = distribution.mean if is_mean else distribution.service_per_completion(self._min_service)
            self._last_total = distribution, is_mean, seconds
        return self._last_total[2]

    def forget(self, job_id: str) -> None:
        """Drop what is cached for a job that has ended."""
        self._expectations.pop(job_id, None)
