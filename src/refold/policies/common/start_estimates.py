"""Start estimates of waiting jobs: simulated futures of the queue, with bounds calibrated by earlier errors.

An estimate is made when a job begins to wait, and again after a part of the expected wait, so that a job gets a few
estimates, however long it waits. A bound is only replaced by an earlier one, or when it has passed or cannot be kept.
Starts that are not known, because nothing is known about run times or the queue grows without end, get no estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from refold.core import View
from refold.model import MINUTE, Demand, Seconds, Start, StartEstimate, Stop
from refold.policies.common.queue_futures import OrderRule, simulate_starts
from refold.policies.common.queue_model import QueueModel, RemainingTimes
from refold.policies.common.start_bounds import StartBounds, WaitFactors, scaled

MAX_FUTURES, MIN_FUTURES = 16, 4
MAX_SIMULATED_JOBS = 20_000
"""There are as many futures as fit into this number of waiting and running jobs, within these limits."""

BASE_SHARE = 0.75
"""Share of futures in which a job starts no later than the simulated wait that is scaled."""

REFRESH_SHARE = 0.25
MIN_REFRESH: Seconds = 5 * MINUTE
"""The estimate of a job is renewed after this share of the expected wait, and at least this time.

If it is not known, it is tried again after this share of the time that the job has waited. Estimates are renewed
together, at most once in this time.
"""

MANY_JOBS = 2_000
"""With more jobs waiting and running, new ones get their first estimate when others are renewed: it takes long."""

MIN_EXTENSION: Seconds = 30 * MINUTE
"""The new bound of a job whose bound has passed is at least this far away."""


class QueueState(NamedTuple):
    """The queue after a decision, and what the decision changes.

    `order`: returns the waiting jobs in order; `ranks`: the ranks of jobs in order. They are called only if estimates
    are due, because the queue may be long. `arrival_rank`: the rank that a job had when it was submitted.
    """

    order: Callable[[], Sequence[str]]
    ranks: Callable[[Sequence[str]], Mapping[str, float]]
    arrival_rank: Callable[[str], float]
    starts: Sequence[Start] = ()
    stops: Sequence[Stop] = ()


class StartEstimator:
    """Makes the start estimates of a policy."""

    def __init__(self, remaining_time: RemainingTimes, rule: OrderRule) -> None:
        """`remaining_time`: how long jobs run. `rule`: how the policy orders jobs."""
        self._remaining_time, self._rule = remaining_time, rule
        self._model: QueueModel | None = None
        self._bounds = StartBounds()
        self._latest: dict[str, Seconds] = {}
        """Last bound of each job that has an estimate."""
        self._refresh_at: dict[str, Seconds] = {}
        """When the estimate of each waiting job is renewed, or tried again."""
        self._due: list[tuple[Seconds, str]] = []
        """Heap of (time of renewal, job); may contain outdated entries."""
        self._renewed_at: Seconds = -inf

    def observe(self, view: View) -> None:
        """Learn from what has changed. Must be called once for each view."""
        if self._model is None:
            self._model = QueueModel(view.cluster, self._remaining_time, MAX_FUTURES)
        self._model.observe(view)
        for run in view.changes.started:
            self._bounds.note_start(run.job, run.since)
            self._drop(run.job)
        for job_id in view.changes.removed:
            self._bounds.forget(job_id)
            self._drop(job_id)

    def estimates(self, view: View, queue: QueueState) -> tuple[StartEstimate, ...]:
        """Return the estimates that are due."""
        assert self._model is not None
        self._model.rank_arrivals(queue.arrival_rank)
        starting = self._apply(view, queue)
        if not self._may_be_due(view.now, len(view.waiting) - len(starting) + len(view.runs)):
            return ()
        order = [job_id for job_id in queue.order() if job_id not in starting]
        due = self._pop_due(view.now, order)
        if not due:
            return ()
        targets = [position for position, job_id in enumerate(order) if job_id in due]
        scene = self._model.scene(view.now, order, queue.ranks(order))
        jobs = len(order) + len(view.runs)
        futures = min(max(MAX_SIMULATED_JOBS // max(jobs, 1), MIN_FUTURES), MAX_FUTURES)
        starts = simulate_starts(scene, view.now, np.array(targets, np.int64), futures, self._rule)
        waits = np.sort(starts - view.now, axis=0)[int(BASE_SHARE * futures)].tolist()
        made = (self._estimate(view, order[at], wait) for at, wait in zip(targets, waits, strict=True))
        return tuple(estimate for estimate in made if estimate is not None)

    def _apply(self, view: View, queue: QueueState) -> set[str]:
        """Update the model by the decision; return the jobs that start."""
        assert self._model is not None
        self._model.start_all(view, [(start.job, start.allocation.placement, view.now) for start in queue.starts])
        for stop in queue.stops:
            self._model.stop(stop.job, view.now)
        return {start.job for start in queue.starts}

    def _may_renew(self, now: Seconds) -> bool:
        return now >= self._renewed_at + MIN_REFRESH

    def _may_be_due(self, now: Seconds, jobs: int) -> bool:
        """Return whether jobs may need an estimate: if there are many, new ones when others are renewed."""
        return jobs <= MANY_JOBS or self._may_renew(now)

    def _pop_due(self, now: Seconds, order: Iterable[str]) -> set[str]:
        """Return the waiting jobs that need an estimate."""
        due = {job_id for job_id in order if job_id not in self._refresh_at}
        if not self._may_renew(now):
            return due
        self._renewed_at = now
        while self._due and self._due[0][0] <= now:
            at, job_id = heappop(self._due)
            if self._refresh_at.get(job_id) == at:
                due.add(job_id)
        return due

    def _estimate(self, view: View, job_id: str, wait: Seconds) -> StartEstimate | None:
        """Return the estimate of a job from its simulated wait; None: its start is not known."""
        now, kind = view.now, kind_of(view.waiting[job_id].demand, view.cluster.max_node_gpus)
        factors = self._bounds.factors(kind, now)
        if wait == inf or not factors.are_known:
            self._set_refresh(job_id, now, REFRESH_SHARE * (now - view.waiting[job_id].submitted))
            return None
        self._bounds.add(job_id, kind, now, wait)
        estimate = self._bounded(job_id, now, wait, factors)
        if estimate.latest is not None:
            self._latest[job_id] = estimate.latest
        self._set_refresh(job_id, now, REFRESH_SHARE * (estimate.at - now))
        return estimate

    def _bounded(self, job_id: str, now: Seconds, wait: Seconds, factors: WaitFactors) -> StartEstimate:
        soonest, expected, latest = (now + scaled(wait, factor) for factor in factors)
        before = self._latest.get(job_id)
        if before is not None and before < now:
            latest = max(latest, now + MIN_EXTENSION)
        elif before is not None and expected <= before:
            latest = min(latest, before)
        return StartEstimate(job_id, min(expected, latest), min(soonest, latest), latest)

    def _set_refresh(self, job_id: str, now: Seconds, seconds: Seconds) -> None:
        at = now + max(seconds, MIN_REFRESH)
        self._refresh_at[job_id] = at
        heappush(self._due, (at, job_id))

    def _drop(self, job_id: str) -> None:
        self._latest.pop(job_id, None)
        self._refresh_at.pop(job_id, None)


def kind_of(demand: Demand, whole_node: int) -> str:
    """Return the class of jobs that wait for similar resources."""
    if demand.instances > 1:
        return "several nodes"
    if demand.gpus >= whole_node:
        return "a node"
    return "part of a node"
