"""How long jobs will last, as a policy believes it: by what is predicted, by what users said, or by what is known.

What is known is for oracles, in simulations only. What users say is a bound, and mostly far too long. Predictions are
distributions: a policy asks for the quantile that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Literal, NamedTuple, get_args

from refold.core import View
from refold.errors import BadValue
from refold.model import MINUTE, WHOLE, Job, Run, Seconds
from refold.plans import NOTHING_MORE, Knowledge, Speeds
from refold.predict import DurationDistribution, Predictor

Source = Literal["predicted", "limit", "known"]

AT_LEAST: Seconds = 1.0
"""Nobody is believed to need less."""

LATE_BY_AT_LEAST: Seconds = MINUTE
LATE_BY_PART = 0.05
"""A run that has outlived what was believed is believed to go on for at least so long, and such a part of its age."""


class DurationSource:
    """Beliefs about how long jobs last. What it remembers comes from the views it has seen."""

    def __init__(self, source: Source = "predicted", knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE) -> None:
        """`knowledge`: what is known of the speeds of jobs, so that those that count steps say how long they take."""
        if source not in get_args(Source):
            raise BadValue(f"durations is {source!r}, expected one of {', '.join(get_args(Source))}")
        self._source = source
        self._knowledge = Knowledge.of(knowledge)
        self._speeds: Speeds | None = None
        self._predictor = Predictor(self._modelled)
        self._jobs: dict[str, Job] = {}
        self._ran: dict[str, Seconds] = {}
        """How long the ended runs of each job would have taken with what it asked for."""
        self._faster: dict[str, float] = {}
        """How many times as fast runs are as what was asked for, where they are not as fast."""

    def observe(self, view: View) -> None:
        """Learn from whoever is over; take note of whoever has come. Must see every view once."""
        if self._source == "known":
            return
        if self._speeds is None:
            self._speeds = Speeds(view.cluster, self._knowledge)
        changes, now = view.changes, view.now
        for job, lasted in changes.remembered:
            self._predictor.submitted(job, now)
            self._predictor.finished(job, lasted, now)
        for run in changes.ended:
            ran = self._ran.pop(run.job, 0.0) + (now - run.since) * self._faster.get(run.job, 1.0)
            if run.job in view.waiting or run.job in view.runs:
                self._ran[run.job] = ran
            else:
                self._learn(run, ran, now)
        for job_id in changes.gone:
            self._forget(job_id)
        for job in changes.submitted:
            self._come(view, job)
        for run in changes.started:
            if run.job not in self._jobs and run.job in view.active:  # it was going on when the journal began
                self._come(view, view.active[run.job])

    def _come(self, view: View, job: Job) -> None:
        self._jobs[job.id] = job
        self._predictor.submitted(job, view.now)
        before = _ran_before(view, job)
        if before > AT_LEAST:
            self._ran[job.id] = before

    def _learn(self, run: Run, ran: Seconds, now: Seconds) -> None:
        """A job is over. One that was cancelled, or ended by a rule, has had no end of its own."""
        job = self._jobs.get(run.job)
        if job is not None and not run.stopping:
            self._predictor.finished(job, ran, now)
            del self._jobs[run.job]
        self._forget(run.job)

    def _forget(self, job_id: str) -> None:
        if self._jobs.pop(job_id, None) is not None:
            self._predictor.forget(job_id)
        self._ran.pop(job_id, None)
        self._faster.pop(job_id, None)

    def _modelled(self, job: Job) -> Seconds | None:
        """How long a job takes by its own steps, with what it asked for; None: nobody knows."""
        if self._speeds is None or job.steps is None or not self._speeds.knows(job):
            return None
        return job.steps / self._speeds.asked(job).steps_per_second

    def starts(self, job_id: str, faster: float) -> None:
        """A job is started on another size than it asked for, which is so many times as fast."""
        if faster != 1.0:
            self._faster[job_id] = faster
        else:
            self._faster.pop(job_id, None)

    def life(self, view: View, job: Job) -> RemainingTime:
        """How long a job that waits will still run, when it is started on what it asked for."""
        certain = self._certain(job)
        if certain is not None:
            return RemainingTime(exactly=max(certain - view.done(job.id), AT_LEAST))
        elapsed = self._ran.get(job.id, 0.0)
        if elapsed == 0.0:
            return RemainingTime(self._predictor.expect(job, view.now))
        share = view.share_done(job)
        return RemainingTime(self._predictor.expect_running(job, view.now, elapsed, share), elapsed)

    def left(self, view: View, run: Run, quantile: float) -> Seconds:
        """How long a run will go on that has outlived what was believed of it."""
        job, faster = view.active[run.job], self._faster.get(run.job, 1.0)
        age = view.now - run.since
        late = max(LATE_BY_AT_LEAST, LATE_BY_PART * age)
        if self._source == "known":
            return max(_known(job) - view.done(job.id), AT_LEAST)
        if self._source == "limit":
            return late
        elapsed = self._ran.get(job.id, 0.0) + age * faster
        expected = self._predictor.expect_running(job, view.now, elapsed, view.share_done(job))
        return max((expected.quantile(quantile) - elapsed) / faster, late)

    def _certain(self, job: Job) -> Seconds | None:
        """What is believed without a doubt; None: nothing is."""
        if self._source == "known":
            return _known(job)
        return job.time_limit if self._source == "limit" else None


class RemainingTime(NamedTuple):
    """How long a job will run from now on: the distribution of its whole life, of which `elapsed` is over; or exactly
    so long."""

    whole: DurationDistribution | None = None
    elapsed: Seconds = 0.0
    exactly: Seconds = 0.0

    def quantile(self, quantile: float) -> Seconds:
        """So long at most, with so much confidence."""
        if self.whole is None:
            return self.exactly
        return max(self.whole.quantile(quantile) - self.elapsed, AT_LEAST)


def _ran_before(view: View, job: Job) -> Seconds:
    """How long a job had run when it came, by the service it has had: it was held, or is older than the journal."""
    asked, had = job.demand.total_gpus, view.gpu_seconds(job.id)
    if not asked or not had:
        return 0.0
    run = view.runs.get(job.id)
    return (had if run is None else had - (view.now - run.since) * run.allocation.gpu_milli / WHOLE) / asked


def _known(job: Job) -> Seconds:
    return inf if job.work is None else job.work
