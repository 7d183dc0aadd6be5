"""Start estimates of waiting jobs: simulated futures of the policy, with bounds calibrated by earlier errors.

A bound is only replaced by an earlier one, or when it has passed or cannot be kept. Jobs get no estimate if nothing is
known about run times, or if errors were so large that waits cannot be bounded.
"""

from __future__ import annotations

from math import inf

import msgspec

from refold.core import Policy, View
from refold.model import MINUTE, Decision, Job, Seconds, StartEstimate
from refold.simulator.run_time_draws import RunTimes
from refold.simulator.start_bounds import StartBounds, scaled
from refold.simulator.start_times import MAX_VISITS, JobTimes, StartSimulator, StartTimes, copies_of

BASE_SHARE = 0.75
"""Share of futures in which a job starts no later than the simulated wait that is scaled."""

SOONEST_SHARE = 0.05

MIN_EXTENSION: Seconds = 30 * MINUTE
"""The new bound of a job whose bound has passed is at least this far away, and as far as it has been exceeded."""

POLL_SECONDS: Seconds = 60 * MINUTE
"""In simulations, estimates are made this often, as if somebody looked at the queue."""

POLL_VISITS = MAX_VISITS // 20
"""In simulations, less work is done for each estimate than in a daemon: there are hundreds of them."""


class EstimateMaker:
    """Makes estimates from simulated start times, and learns from their errors."""

    def __init__(self) -> None:
        self._bounds = StartBounds()
        self._latest: dict[str, Seconds] = {}
        """Last bound of each waiting job that has an estimate."""

    def note_start(self, job_id: str, now: Seconds) -> None:
        self._bounds.note_start(job_id, now)
        self._latest.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        """Drop a job that no longer waits and has not started."""
        self._bounds.forget(job_id)
        self._latest.pop(job_id, None)

    def estimates(
        self, view: View, times: StartTimes, now: Seconds, columns: range | None = None
    ) -> dict[str, StartEstimate]:
        """Return the estimates of all waiting jobs whose start is known, and remember them.

        `columns`: of these jobs only.
        """
        made = {}
        for column in range(len(times.job_ids)) if columns is None else columns:
            job_id = times.job_ids[column]
            job = view.waiting.get(job_id)
            estimate = None if job is None else self.estimate(view, job, times.of(column), now)
            if estimate is not None:
                made[job_id] = estimate
                self._latest[job_id] = estimate.latest or inf
            if job is not None and (wait := times.of(column).quantile(BASE_SHARE) - now) < inf:
                self._bounds.add(job_id, _kind_of(view, job), now, wait)
        return made

    def estimate(self, view: View, job: Job, times: JobTimes, now: Seconds) -> StartEstimate | None:
        """Return the estimate of a job; None if its start is not known."""
        factors, wait = self._bounds.factors(_kind_of(view, job), now), times.quantile(BASE_SHARE) - now
        if wait == inf or not factors.are_known:
            return None
        median = times.quantile(0.5) - now
        at = now + max(median, scaled(median, factors.expected))
        latest = now + scaled(wait, factors.latest)
        latest = self._bound(job.id, now, at, min(latest, times.latest))
        at = min(at, latest)
        return StartEstimate(job.id, at, min(times.quantile(SOONEST_SHARE), at), latest)

    def _bound(self, job_id: str, now: Seconds, expected: Seconds, latest: Seconds) -> Seconds:
        before = self._latest.get(job_id, inf)
        if before < now:
            return max(latest, now + max(MIN_EXTENSION, now - before))
        return min(latest, before) if expected <= before else latest


def _kind_of(view: View, job: Job) -> str:
    """Return the class of jobs that wait for similar resources."""
    if job.demand.instances > 1:
        return "several nodes"
    return "a node" if job.demand.gpus >= view.cluster.max_node_gpus else "part of a node"


class EstimatingPolicy:
    """A policy with start estimates in its decisions, for simulations. Its orders are the same without them."""

    def __init__(self, policy: Policy, every: Seconds = POLL_SECONDS) -> None:
        """`every`: estimates are made at most this often."""
        self.name, self.oracle = policy.name, bool(getattr(policy, "oracle", False))
        self._policy, self._every = policy, every
        self._maker, self._run_times = EstimateMaker(), RunTimes(trust_work=False)
        self._polled_at: Seconds = -inf
        self._jobs: dict[str, Job] = {}
        self._elapsed: dict[str, Seconds] = {}
        """Run time of the ended runs of jobs that have not ended."""

    def decide(self, view: View) -> Decision:
        """Return the decision of the policy; with estimates of all waiting jobs, once in a while."""
        self._learn(view)
        if not view.waiting or view.now < self._polled_at + self._every:
            return self._without_estimates(view)
        self._polled_at = view.now
        simulator = StartSimulator(view, copies_of(self._policy, view), self._run_times, view.now, POLL_VISITS)
        times = simulator.simulate()
        decision = self._without_estimates(view)
        made = self._maker.estimates(view, times, view.now)
        for start in decision.starts:
            made.pop(start.job, None)
            self._maker.forget(start.job)
        return msgspec.structs.replace(decision, start_estimates=tuple(made.values()))

    def _without_estimates(self, view: View) -> Decision:
        decision = self._policy.decide(view)
        for start in decision.starts:
            self._maker.note_start(start.job, view.now)
        return decision

    def _learn(self, view: View) -> None:
        changes, now = view.changes, view.now
        for job, run_time in changes.past_jobs:
            self._run_times.learn(job, run_time, now)
        for job_id in changes.removed:
            self._jobs.pop(job_id, None)
            self._maker.forget(job_id)
        for job in changes.submitted:
            self._jobs[job.id] = job
        for run in changes.ended:
            elapsed = self._elapsed.pop(run.job, 0.0) + now - run.since
            if run.job in view.waiting or run.job in view.runs or run.job in view.held:
                self._elapsed[run.job] = elapsed
            elif (ended := self._jobs.pop(run.job, None)) is not None and not run.stopping:
                self._run_times.learn(ended, elapsed, now)
