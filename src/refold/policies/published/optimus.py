"""Optimus (EuroSys'18): each job gets its smallest size, then further GPUs go where they save the most time.

The remaining time of a job on n GPUs is its remaining steps divided by its speed on n GPUs. Smallest sizes are granted
in order of arrival. Then the job with the largest marginal gain (seconds saved per GPU) gets its next size, repeatedly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

from refold.core import View
from refold.model import Decision, Job, Seconds
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge
from refold.policies.common import (
    GpuBudget,
    Option,
    PreferredOptions,
    ProgressEstimator,
    Rounds,
    feasible_options,
    matches_option,
)
from refold.policies.published.replicas import Replicas

UNLIMITED_GPUS = 2**40
"""Optimus does not limit how far a job grows in one round."""


class Optimus:
    """In rounds, GPUs go to the jobs with the largest marginal gain."""

    name = "optimus"

    def __init__(
        self,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
        placement: str = "best-fit",
        seed: int = 0,
        round_seconds: Seconds = 60.0,
        restart_seconds: Seconds = 78.0,
    ) -> None:
        self._knowledge = Knowledge.from_settings(knowledge)
        self._restart_seconds = restart_seconds
        self._rounds = Rounds(round_seconds, Placer(placement, seed))
        self._estimator: ProgressEstimator | None = None
        self._replicas: Replicas | None = None

    def decide(self, view: View) -> Decision:
        """Divide the GPUs once per round."""
        if self._estimator is None or self._replicas is None:
            self._estimator = ProgressEstimator(view, self._knowledge, self._restart_seconds)
            self._replicas = Replicas(self._estimator.speeds, self._knowledge, powers_of_two=False)
        if self._estimator.learn(view):
            self._replicas.clear()
        return self._rounds.decide(view, self, self._estimator)

    def options(self, job: Job) -> Sequence[Option]:
        """Return an option for every possible number of replicas."""
        assert self._replicas is not None
        return self._replicas.for_job(job, UNLIMITED_GPUS)

    def allocate_gpus(self, view: View, jobs: Mapping[str, Job], budget: GpuBudget) -> PreferredOptions:
        """Grant smallest sizes in order of arrival, then grow by marginal gain; small gains do not reshape a run."""
        assert self._estimator is not None
        pool = UnallocatedGpus(budget)
        options = {job.id: feasible_options(view, job, self.options(job)) for job in jobs.values()}
        first = {}
        for job in sorted(jobs.values(), key=lambda job: (job.submitted, job.id)):
            option = pool.take_smallest(options[job.id])
            if option is not None:
                first[job.id] = option
        remaining = {job_id: self._estimator.remaining_work(view, jobs[job_id]) for job_id in first}
        granted = grow_by_marginal_gain(first, options, remaining, pool)
        return {
            job_id: self._preferred_options(view, job_id, options[job_id], option, remaining[job_id])
            for job_id, option in granted.items()
        }

    def _preferred_options(
        self, view: View, job_id: str, options: Sequence[Option], granted: Option, remaining: float
    ) -> Sequence[Option]:
        """Return the option granted, then smaller ones; for a run that would not recover its restart, its own."""
        run, estimator = view.runs.get(job_id), self._estimator
        assert estimator is not None
        held = next((item for item in options if run is not None and matches_option(view, item, run.allocation)), None)
        if held is not None and held.gpus < granted.gpus:
            saved = remaining / held.speed - remaining / granted.speed
            if saved <= estimator.restart_cost(view, view.active[job_id], granted.demand):
                return [held]
        return [granted, *(option for option in reversed(options) if option.gpus < granted.gpus)]


class UnallocatedGpus:
    """Pool of GPUs by type that have not been granted yet."""

    def __init__(self, budget: GpuBudget) -> None:
        self._of_type = dict(budget.by_type)

    def take_smallest(self, options: Sequence[Option]) -> Option | None:
        """Take GPUs for the first option of the smallest size that the pool can satisfy."""
        for option in options:
            if option.gpus > options[0].gpus:
                return None
            if self.take(option, option.demand.total_gpu_milli):
                return option
        return None

    def take(self, option: Option, milli: int) -> bool:
        """Take milli-GPUs of the option's types, scarcest type last; if there are too few, take none, return False."""
        accepted = option.demand.gpu_types or tuple(self._of_type)
        if sum(self._of_type.get(name, 0) for name in accepted) < milli:
            return False
        for name in sorted(accepted, key=lambda name: -self._of_type.get(name, 0)):
            taken = min(milli, max(0, self._of_type.get(name, 0)))
            if taken:
                self._of_type[name] -= taken
                milli -= taken
        return True


def grow_by_marginal_gain(
    first: Mapping[str, Option],
    options: Mapping[str, Sequence[Option]],
    remaining: Mapping[str, float],
    pool: UnallocatedGpus,
) -> dict[str, Option]:
    """Grant next sizes by marginal gain until no job gains or no GPUs are left.

    Ties are broken by the order of `first`. A job whose next size exceeds the pool stops growing.
    """
    granted = dict(first)
    position_of = {job_id: position for position, job_id in enumerate(first)}
    gains: list[tuple[float, int, str, Option]] = []

    def push_next_size(job_id: str) -> None:
        now = granted[job_id]
        larger = _next_size(now, options[job_id])
        if larger is not None:
            gain = remaining[job_id] * (1 / now.speed - 1 / larger.speed) / (larger.gpus - now.gpus)
            if 0 < gain < inf:
                heappush(gains, (-gain, position_of[job_id], job_id, larger))

    for job_id in granted:
        push_next_size(job_id)
    while gains:
        _, _, job_id, larger = heappop(gains)
        more = larger.demand.total_gpu_milli - granted[job_id].demand.total_gpu_milli
        if pool.take(larger, more):
            granted[job_id] = larger
            push_next_size(job_id)
    return granted


def _next_size(now: Option, options: Sequence[Option]) -> Option | None:
    """Return the next larger option on the same GPU type."""
    return next((o for o in options if o.gpus > now.gpus and o.demand.gpu_types == now.demand.gpu_types), None)
