"""What Refold knows of all waiting and running jobs, kept between rounds and renewed where it may have changed."""

from __future__ import annotations

from collections.abc import Collection
from math import nan
from typing import Any, NamedTuple

from refold.core import View
from refold.model import Job
from refold.placement import Ints
from refold.policies.common import (
    ExpectedService,
    FairShare,
    GuaranteeRules,
    OptionCache,
    Options,
    ProgressEstimator,
    ended_jobs,
)
from refold.policies.refold.arrivals import is_wide
from refold.policies.refold.kernels import PredictionColumns, outdated_rows
from refold.policies.refold.overtaking import Overtaking
from refold.policies.refold.table import EstimateRow, EstimateTable

MAX_KINDS_PER_JOB, MIN_KINDS = 2, 100
"""Kinds of jobs are numbered anew when there are more of them than so many per job, and this many."""


class JobFacts(NamedTuple):
    """What a round knows of a job besides its row in the table."""

    options: Options
    is_known: bool


class JobSources:
    """Estimates that outlive a round, and what is known of all jobs."""

    def __init__(
        self,
        estimator: ProgressEstimator,
        options: OptionCache,
        guarantees: GuaranteeRules,
        expected_service: ExpectedService,
        fair_share: FairShare,
    ) -> None:
        self.estimator, self.options, self.guarantees = estimator, options, guarantees
        self.expected_service, self.fair_share = expected_service, fair_share
        self.table = EstimateTable()
        self.facts: dict[str, JobFacts] = {}
        self.by_id: dict[str, Job] = {}
        """All waiting and running jobs."""
        self.guaranteed: set[str] = set()
        """The guaranteed jobs within their tenants' quotas."""
        self.kinds: dict[Options, int] = {}
        """Numbers for the sets of shapes that jobs may have."""
        self.with_shapes: dict[str, None] = {}
        """Jobs with more than one possible shape; a dictionary, to keep their order, as below."""
        self.with_range: dict[str, None] = {}
        """Jobs that requested a range of GPUs."""
        self._overtaking = Overtaking()
        self._changed: dict[str, None] = {}
        """Jobs that have changed since the last round."""
        self._may_change_with_time: dict[str, None] = {}
        """Jobs that are guaranteed, or whose runs may be changed only so often."""

    def observe(self, view: View) -> None:
        """Note what has changed. Must be called once for each view."""
        changes = view.changes
        self._overtaking.observe(view, self.by_id, self.guaranteed)
        for job_id in ended_jobs(view):
            self._forget(job_id)
        for job in (*changes.submitted, *changes.requeued):
            self._changed[job.id] = None
        for run in (*changes.started, *changes.progressed):
            if run.job in view.runs:
                self._changed[run.job] = None

    def _forget(self, job_id: str) -> None:
        """Drop what is cached for a job that has ended."""
        for cache in (self.options, self.estimator, self.expected_service):
            cache.forget(job_id)
        self.table.drop(job_id)
        by_job: tuple[dict[str, Any], ...] = (self.facts, self.by_id)
        members = (self.with_shapes, self.with_range, self._changed, self._may_change_with_time)
        for known in (*by_job, *members):
            known.pop(job_id, None)

    def learn(self, view: View) -> bool:
        """Correct the estimates by measured speeds; return whether any has changed."""
        if not self.estimator.learn(view):
            return False
        self.options.clear()
        self.guarantees.clear()
        self.kinds.clear()
        self._changed.update(dict.fromkeys(self.by_id))
        return True

    def update(self, view: View) -> None:
        """Bring the table up to date: for jobs that have changed, and for those whose estimates change with time."""
        guaranteed = self.guaranteed = self.guarantees.guaranteed_jobs(view)
        if len(self.kinds) > MAX_KINDS_PER_JOB * len(self.by_id) + MIN_KINDS:  # most are those of jobs that have ended
            self.kinds.clear()
            self._changed.update(dict.fromkeys(self.by_id))
        may_change = dict.fromkeys((*self._changed, *self._may_change_with_time, *view.stopping, *sorted(guaranteed)))
        self._changed = {}
        for job_id in may_change:
            self._renew(view, job_id, guaranteed)
        if len(self.table) < len(view.waiting) + len(view.active):  # this policy has not seen how they came here
            for job_id in (*view.waiting, *view.active):
                self._renew(view, job_id, guaranteed)
        columns = self.table.columns(PredictionColumns)
        known, predicted = outdated_rows(view.now, self.expected_service.ended_runs, columns)
        for job_id in self.table.ids[known].tolist():
            self._renew(view, job_id, guaranteed)
        self._renew_predictions(view, predicted)
        self._overtaking.update(view, self.table)

    def is_settled(self, view: View) -> bool:
        """Return whether a round would change nothing: no job waits or stops, and none may change its shape."""
        return not (view.waiting or view.stopping or self.guaranteed or self.with_shapes or self.with_range)

    def _renew_predictions(self, view: View, rows: Ints) -> None:
        """Renew the predictions in these rows, which have not changed otherwise."""
        if not len(rows):
            return
        jobs = [self.by_id[job_id] for job_id in self.table.ids[rows]]
        done, column = self.table.done(rows, view.now), self.table.column
        remaining = self.expected_service.renew(view, jobs, done) * column("requested_speed")[rows]
        column("remaining")[rows] = remaining
        column("work")[rows] = remaining * column("gpu_seconds_per_step")[rows]
        column("run_time")[rows] = remaining / column("top_speed")[rows]
        column("predicted_done")[rows], column("predicted_ended")[rows] = done, self.expected_service.ended_runs

    def _renew(self, view: View, job_id: str, guaranteed: Collection[str]) -> None:
        """Estimate the remaining work of a job, and renew its row."""
        job = view.waiting.get(job_id) or view.active[job_id]
        options = self.guarantees.safe_options(job) if job_id in guaranteed else self.options.for_job(job)
        is_known, remaining = self.estimator.knows_work(job), self.estimator.remaining_work(view, job)
        is_running, since = job_id in view.runs, view.computing_since(job_id)
        predicted = self.expected_service.basis(job_id)
        row = EstimateRow(
            submitted=job.submitted,
            priority=job.priority,
            gpus=job.demand.total_gpus,
            reported_done=view.reported_done(job_id),
            computing_since=nan if since is None else since,
            remaining=remaining,
            requested_speed=self.estimator.requested_speed(job),
            gpu_seconds_per_step=options.gpu_seconds_per_step,
            top_speed=options.top_speed,
            work=remaining * options.gpu_seconds_per_step,
            run_time=remaining / options.top_speed,
            is_known=is_known,
            may_be_preferred=not is_known and job.preemptible and is_wide(job),
            kind=self.kinds.setdefault(options, len(self.kinds)),
            is_running=is_running,
            may_be_stopped=is_running and job_id not in view.stopping and view.is_preemptible(job_id),
            predicted_done=predicted.done,
            predicted_ended=predicted.ended_runs,
            is_restarted=job.preemptible and view.run_count(job_id) > 0,
        )
        self.table.put(job_id, row, self._overtaking.columns(view, self.table, job, guaranteed))
        self.facts[job_id], self.by_id[job_id] = JobFacts(options, is_known), job
        _set_member(self.with_shapes, job_id, len(options) > 1)
        _set_member(self.with_range, job_id, job.gpu_range is not None)
        _set_member(self._may_change_with_time, job_id, job_id in guaranteed or job.change_limit is not None)


def _set_member(members: dict[str, None], job_id: str, is_member: bool) -> None:
    if is_member:
        members[job_id] = None
    else:
        members.pop(job_id, None)
