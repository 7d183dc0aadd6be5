"""Expected service until completion, for jobs whose run time is not known: predicted, given what they have done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refold.core import View
from refold.model import Job, Seconds
from refold.planning.plans import Knowledge
from refold.policies.common.durations import DurationSource
from refold.predict import DurationDistribution, Floats, is_outdated

MIN_REMAINING: Seconds = 1.0


class PredictionBasis(NamedTuple):
    """The work that a job had done, and the number of runs that had ended, at the time of a prediction."""

    done: Seconds
    ended_runs: int


NO_PREDICTION = PredictionBasis(0.0, 0)


class _Expectation(NamedTuple):
    """The expected service until completion. `is_mean`: it is the mean."""

    seconds: Seconds
    basis: PredictionBasis
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
        return NO_PREDICTION if last is None else last.basis

    def seconds(self, view: View, job: Job) -> Seconds:
        """Return the expected service until a job completes.

        This is `DurationDistribution.service_per_completion`; but the mean for a waiting job that may not be stopped:
        once started, it runs to its end, however long that takes.
        """
        done, is_running = view.done(job.id), job.id in view.runs
        is_mean = not job.preemptible and not is_running
        last = self._expectations.get(job.id)
        if last is None or last.is_mean != is_mean or is_outdated(*last.basis, done, self.ended_runs, is_running):
            total = self._total(self.durations.distribution(view, job), is_mean)
            seconds = max(total - done, MIN_REMAINING) if is_mean else total
            last = self._expectations[job.id] = _Expectation(seconds, PredictionBasis(done, self.ended_runs), is_mean)
        return last.seconds

    def renew(self, view: View, jobs: Sequence[Job], done: Floats) -> Floats:
        """Return what `seconds` does for each of these jobs, whose predictions are outdated: most of them in one call.

        `done`: the work that each has done.
        """
        can_batch = np.array([self._can_batch(view, job) for job in jobs], dtype=np.bool_)
        seconds = np.empty(len(jobs))
        batch = [job for job, is_batched in zip(jobs, can_batch, strict=True) if is_batched]
        seconds[can_batch] = self.durations.service_of(batch, done[can_batch], self._min_service)
        for at in np.flatnonzero(~can_batch).tolist():
            seconds[at] = self.seconds(view, jobs[at])
        for job, service, work in zip(batch, seconds[can_batch].tolist(), done[can_batch].tolist(), strict=True):
            self._expectations[job.id] = _Expectation(service, PredictionBasis(work, self.ended_runs), is_mean=False)
        return seconds

    def _can_batch(self, view: View, job: Job) -> bool:
        return (job.preemptible or job.id in view.runs) and self.durations.can_batch(view, job)

    def _total(self, distribution: DurationDistribution, is_mean: bool) -> Seconds:
        """Return the mean, or the service until completion. Many jobs share their distribution with the one before."""
        if self._last_total is None or self._last_total[:2] != (distribution, is_mean):
            seconds = distribution.mean if is_mean else distribution.service_per_completion(self._min_service)
            self._last_total = distribution, is_mean, seconds
        return self._last_total[2]

    def forget(self, job_id: str) -> None:
        """Drop what is cached for a job that has ended."""
        self._expectations.pop(job_id, None)
