"""Rubick (MLSys 2025): Algorithm 1 of the paper, and the variants Rubick-E, Rubick-R and Rubick-N.

A round starts when a job is submitted or ends:

1. Schedule the waiting guaranteed jobs that fit in their tenants' remaining quotas, in queue order.
2. Schedule all other waiting jobs and all runs by descending slope of the resource sensitivity curve: the gain from
   one more GPU, normalised by the speed of the job's request; ties are broken by the gain from one more CPU.

To schedule a job, visit nodes one by one. On a node, take the free GPUs first. Then take GPUs, one at a time, from the
victim: the job on the node with the smallest loss among the jobs above their minimum resource demand. Continue while
the victim's loss is below the job's gain, or the job is below its own minimum. CPUs are taken in the same way. Finally
choose the best plan for the resources gathered, and allocate host memory for it. If the job has not reached its
minimum, or no plan fits, roll everything back.

The paper leaves three rules open, described in docs/policies/rubick.md: the smallest gain for which a job takes more
GPUs (`MIN_GAIN_PER_GPU`), the reconfiguration penalty, and ageing (`AGEING_SECONDS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

from refold.core import View
from refold.errors import BadValue
from refold.model import NO_CHANGE, Decision, Seconds
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge
from refold.policies.common import OptionCache, ProgressEstimator, Reasons, Transition, ended_jobs, has_external_changes
from refold.policies.published.rubick.jobs import RubickJobs, ages_at
from refold.policies.published.rubick.round import RubickRound
from refold.policies.published.rubick.sensitivity_curves import SensitivityCurves


class Rubick:
    """The best plan for every allocation; GPUs and CPUs go to the jobs that gain most from them."""

    name = "rubick"
    plans = True
    resources = True

    def __init__(
        self,
        restart_seconds: float = 78.0,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """Create the policy; `restart_seconds`: assumed cost of reshaping a run."""
        if not 0 <= restart_seconds < inf:
            raise BadValue(f"restart_seconds is {restart_seconds}, expected a number ≥ 0")
        self._restart_seconds = restart_seconds
        self._placer = Placer("best-fit")
        self._knowledge = Knowledge.from_settings(knowledge)
        self._transition = Transition()
        self._reasons = Reasons()
        self._estimator: ProgressEstimator | None = None
        self._last_round: Seconds = -inf
        self._wake_at: Seconds = inf

    def decide(self, view: View) -> Decision:
        """Run a round if anything relevant has changed; otherwise continue the transition under way."""
        if self._estimator is None:
            self._estimator = ProgressEstimator(view, self._knowledge, self._restart_seconds)
            options = OptionCache(self._estimator.speeds, self.plans, self.resources)
            self._curves = SensitivityCurves(self._estimator, options)
        for job_id in ended_jobs(view):
            self._curves.forget(job_id)
        corrected = self._estimator.learn(view)
        if corrected:
            self._curves.clear()
        if self._transition.can_continue(view):
            return self._with_reasons(view, self._transition.next_step(view))
        requeued = bool(view.changes.requeued) and self._last_round < view.now
        if not (has_external_changes(view) or corrected or requeued) and view.now < self._wake_at:
            return self._with_reasons(view, NO_CHANGE) if view.changes.requeued else NO_CHANGE
        self._last_round, self._wake_at = view.now, self._next_ageing(view)
        round_ = RubickRound(RubickJobs(view, self._estimator, self._curves, self.resources), self._placer)
        round_.schedule_all()
        return self._with_reasons(view, self._transition.step_towards(view, round_.draft.target()))

    def _with_reasons(self, view: View, decision: Decision) -> Decision:
        """Add the reasons why jobs wait, and the time of the next round."""
        waits = self._reasons.collect_all(view, decision.starts, self._transition.pending)
        wake_at = self._wake_at if view.now < self._wake_at < inf else None
        if not (waits or wake_at or decision.starts or decision.stops or decision.reshapes):
            return NO_CHANGE
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)

    def _next_ageing(self, view: View) -> Seconds:
        """Return when the next waiting job has aged."""
        ends = (ages_at(job) for job in view.waiting.values())
        return min((end for end in ends if end > view.now), default=inf)


class RubickE(Rubick):
    """Rubick-E: chooses plans only; every job gets the resources it requested."""

    name = "rubick-e"
    resources = False


class RubickR(Rubick):
    """Rubick-R: chooses resources only; every job keeps its own plan, with more or fewer replicas."""

    name = "rubick-r"
    plans = False


class RubickN(Rubick):
    """Rubick-N: chooses neither plans nor resources."""

    name = "rubick-n"
    plans = False
    resources = False
