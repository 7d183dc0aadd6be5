"""Optimality gap of a policy, decision by decision, on clusters small enough to compute the optimum.

After each decision, the total normalised throughput of the running jobs (see `benchmarks.research.optimal`) is compared
with the largest total that the same jobs can reach on the same nodes. The gap is the missing fraction. The optimum does
not look ahead, so a policy that holds back now to gain later has a gap for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.research.optimal import OptimumSearch, throughput_of
from refold.core import Policy, View
from refold.errors import BadInput
from refold.model import Allocation, Decision, Seconds
from refold.planning.plans import CATALOGUE_ONLY, Knowledge, Speeds
from refold.policies.common import Draft


def running_after(view: View, decision: Decision) -> dict[str, Allocation]:
    """Return the allocations of all jobs once a decision has been carried out and stopping runs have stopped."""
    after: dict[str, Allocation] = {}
    for run in view.runs.values():
        held = view.next_allocation(run.job) if run.stopping else run.allocation
        if held is not None:
            after[run.job] = held
    for stop in decision.stops:
        after.pop(stop.job, None)
    after.update({reshape.job: reshape.allocation for reshape in decision.reshapes})
    after.update({start.job: start.allocation for start in decision.starts})
    return after


def gap_between(reached: float, best: float) -> float:
    """Return the missing fraction of the best; negative if a job runs in a way that the optimum may not use."""
    return (best - reached) / best if best > 0 else 0.0


class GapMeter:
    """Wraps a policy and measures the gap of its decisions, which it does not change.

    Of several decisions at one time only the last counts, since the others are steps towards it. Times without any job
    do not count. If an instance is too large to compute the optimum, measuring ends, and `unavailable` has the reason.
    """

    def __init__(self, policy: Policy, knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY) -> None:
        self.name = policy.name
        self.unavailable = ""
        self._policy = policy
        self._knowledge = Knowledge.from_settings(knowledge)
        self._search: OptimumSearch | None = None
        self._best: dict[object, float] = {}
        self._gaps: dict[Seconds, float] = {}

    @property
    def gap(self) -> float | None:
        """Mean gap over all decision times; None if there was none, or if the gap is unavailable."""
        if self.unavailable or not self._gaps:
            return None
        return sum(self._gaps.values()) / len(self._gaps)

    def decide(self, view: View) -> Decision:
        """Return the policy's decision. The optimum is computed first, since policies modify the view's trial state."""
        best = self._find_best(view)
        decision = self._policy.decide(view)
        if best and self._search is not None:
            reached = throughput_of(view, self._search.speeds, running_after(view, decision))
            self._gaps[view.now] = gap_between(reached, best)
        return decision

    def _find_best(self, view: View) -> float | None:
        if self.unavailable:
            return None
        if self._search is None:
            self._search = OptimumSearch(Speeds(view.cluster, self._knowledge))
        key = _cache_key(view)
        if key not in self._best:
            try:
                self._best[key] = self._search.best(view, Draft(view)).upper_bound
            except BadInput as error:
                self.unavailable = str(error)
                return None
        return self._best[key]


def _cache_key(view: View) -> object:
    """Return what the optimum depends on: the jobs, the allocations that cannot be moved, and what is down."""
    free = view.trial().free
    held = {run.job: run.allocation for run in view.runs.values()}
    fixed = {
        job_id: allocation
        for job_id, allocation in held.items()
        if not view.is_preemptible(job_id) or not free.is_placement_up(allocation.placement)
    }
    return frozenset((*view.waiting, *view.active)), frozenset(fixed.items()), free.down_nodes, free.down_gpus
