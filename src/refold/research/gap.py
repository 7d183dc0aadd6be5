"""How far a policy is from the best that could be done, decision by decision, on clusters small enough to know it.

At every moment at which a policy decides, the jobs that then run are worth so much together (`policies.optimal`: speed
by speed as asked for, summed). The gap is what is missing to the largest worth that the same jobs on the same nodes can
have. Nobody looks ahead here: a policy that holds back now to be better later has a gap for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refold.core import Policy, View
from refold.errors import BadInput
from refold.journal import History
from refold.model import Allocation, Decision, Seconds
from refold.plans import NOTHING_MORE, Knowledge, Speeds
from refold.policies.common import Draft
from refold.research.optimal import OptimumSearch, throughput_of
from refold.results import Measures, ReportRun


@dataclass(frozen=True, slots=True)
class GapRun(ReportRun):
    """A run of which the mean gap was asked for, 0 to 1; None where it cannot be said, and why."""

    gap: float | None = None
    refused: str = ""


def running_after(view: View, decision: Decision) -> dict[str, Allocation]:
    """What runs once a decision has been carried out, runs that stop having stopped."""
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
    """The part of the best that is missing; less than 0 where somebody was outside what the best may do."""
    return (best - reached) / best if best > 0 else 0.0


class GapMeter:
    """A policy with somebody beside it who knows the best. What it decides is not touched.

    Of several decisions at one moment the last counts, since the others only lead there. Moments at which there is
    nobody to run do not count. Where an instance is too large to know the best, watching ends: `refused` says why.
    """

    def __init__(self, policy: Policy, knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE) -> None:
        self.name = policy.name
        self.refused = ""
        self._policy = policy
        self._knowledge = Knowledge.of(knowledge)
        self._finder: OptimumSearch | None = None
        self._best: dict[object, float] = {}
        self._gaps: dict[Seconds, float] = {}

    @property
    def gap(self) -> float | None:
        """The mean over all moments; None if there was none, or watching has ended."""
        if self.refused or not self._gaps:
            return None
        return sum(self._gaps.values()) / len(self._gaps)

    def run_of(self, name: str, history: History, measures: Measures) -> GapRun:
        """What came of it, with the gap."""
        return GapRun(name, history, measures, self.gap, self.refused)

    def decide(self, view: View) -> Decision:
        """What the policy decides. The best is looked for before, since policies try things out in the view."""
        best = self._best_of(view)
        decision = self._policy.decide(view)
        if best and self._finder is not None:
            reached = throughput_of(view, self._finder.speeds, running_after(view, decision))
            self._gaps[view.now] = gap_between(reached, best)
        return decision

    def _best_of(self, view: View) -> float | None:
        if self.refused:
            return None
        if self._finder is None:
            self._finder = OptimumSearch(Speeds(view.cluster, self._knowledge))
        asked = _what_the_best_depends_on(view)
        if asked not in self._best:
            try:
                self._best[asked] = self._finder.best(view, Draft(view)).at_most
            except BadInput as too_large:
                self.refused = str(too_large)
                return None
        return self._best[asked]


def _what_the_best_depends_on(view: View) -> object:
    """Who is there, who cannot be moved from where, and which nodes are up: while these last, the best does."""
    up = [view.is_up(node) for node in range(len(view.cluster.nodes))]
    held = {run.job: run.allocation for run in view.runs.values()}
    fixed = {
        job_id: allocation
        for job_id, allocation in held.items()
        if not view.active[job_id].preemptible or not all(up[node] for node in allocation.nodes)
    }
    return frozenset((*view.waiting, *view.active)), frozenset(fixed.items()), tuple(up)


def gap_notes(runs: Sequence[ReportRun]) -> list[str]:
    """Why gaps are not known, each reason once."""
    return list(dict.fromkeys(f"no gap: {run.refused}" for run in runs if isinstance(run, GapRun) and run.refused))
