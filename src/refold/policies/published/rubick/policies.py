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
from refold.model import NO_CHANGE, WHOLE, Decision, Plan, Run, Seconds
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge
from refold.policies.common import (
    Draft,
    Option,
    OptionCache,
    ProgressEstimator,
    Reasons,
    Sharing,
    Transition,
    ended_jobs,
    has_external_changes,
)
from refold.policies.published.rubick.gathering import Choice, Gatherer, PlanChooser
from refold.policies.published.rubick.jobs import RubickJobs, Sensitivity, SensitivityCurves, ages_at
from refold.policies.published.rubick.ledger import Ledger


class RubickRound:
    """Schedules all jobs on a draft."""

    def __init__(self, jobs: RubickJobs, placer: Placer) -> None:
        view = jobs.view
        self.draft = Draft(view)
        self._jobs, self._placer = jobs, placer
        self._waiting = [job_id for job_id in view.waiting if self.draft.allocation_of(job_id) is None]
        self._place_unmodelled()
        self._waiting += [run.job for run in view.runs.values() if self._lost_allocation(run)]
        held = {job_id: held for job_id, held in self.draft.allocations() if jobs.can_model(job_id)}
        movable = [job_id for job_id in held if self.draft.may_change(job_id)]
        self._ledger = Ledger(view, self.draft, movable)
        self._plans: dict[str, Plan | None] = {job_id: held[job_id].plan for job_id in movable}
        self._reasons: dict[str, str] = {}
        self._sensitivity = Sensitivity(jobs, self._ledger, self._plans)
        self._gatherer = Gatherer(jobs, self._ledger, self._sensitivity)
        self._chooser = PlanChooser(jobs, self._ledger, self.draft)
        for job_id in movable:
            self._gatherer.update_victim(job_id)

    def _lost_allocation(self, run: Run) -> bool:
        return not run.stopping and self.draft.allocation_of(run.job) is None

    def schedule_all(self) -> None:
        """Schedule waiting guaranteed jobs, then all other jobs by slope."""
        waiting = [job_id for job_id in self._waiting if self._jobs.can_model(job_id)]
        first = [job_id for job_id in waiting if job_id in self._jobs.guaranteed]
        others = [job_id for job_id in waiting if job_id not in self._jobs.guaranteed]
        running = list(self._ledger.shares)
        for job_id in first:
            self._schedule(job_id)
        for job_id in sorted([*others, *running], key=self._slope_order):
            self._schedule(job_id)
        self._ledger.apply(self._plans, self._reasons)
        for job_id in (*first, *others):
            if self.draft.allocation_of(job_id) is None:  # too few CPUs per GPU, or a guarantee
                self._place_by_option(job_id)
        with_range = [job_id for job_id, job in self._jobs.by_id.items() if job.gpu_range is not None]
        sharing = Sharing(self.draft, self._placer, self._jobs.by_id, self._jobs.options, with_range)
        sharing.place(job_id for job_id in self._waiting if self.draft.allocation_of(job_id) is None)

    def _slope_order(self, job_id: str) -> tuple[float, float, str]:
        """Sort key by descending slope: GPUs, then CPUs."""
        return -self._sensitivity.gain(job_id), -self._sensitivity.cpu_gain(job_id), job_id

    def _schedule(self, job_id: str) -> None:
        """Gather resources and choose plans; if there is no acceptable plan, roll back."""
        ledger, gatherer = self._ledger, self._gatherer
        if not (gatherer.could_gain(job_id) or self._sensitivity.cpu_gain(job_id)):
            return
        savepoint = ledger.savepoint()
        gatherer.gather(job_id)
        changed = ledger.changed_since(savepoint)
        if not changed:
            return
        chosen = self._choose_plans(job_id, savepoint)
        if chosen is None:
            ledger.roll_back(savepoint)
        else:
            for each, (plan, why) in chosen.items():
                self._plans[each] = plan
                self._reasons[each] = why
        for each in changed:
            gatherer.update_victim(each)

    def _choose_plans(self, job_id: str, savepoint: int) -> dict[str, Choice] | None:
        """Return plans for a job and its victims; None if not worthwhile or if a guarantee would be broken."""
        own = self._chooser.choose(job_id, savepoint)
        if own is None:
            return None
        self._gatherer.return_unused()
        chosen = {job_id: own}
        for victim in self._ledger.changed_since(savepoint):
            if victim != job_id:
                choice = self._chooser.choose_for_victim(victim, job_id)
                if choice is None:
                    return None
                chosen[victim] = choice
        return chosen

    # Jobs that are placed as a whole.

    def _place_unmodelled(self) -> None:
        """Place waiting jobs without a speed model as requested, guaranteed jobs first."""
        unmodelled = [job_id for job_id in self._waiting if not self._jobs.can_model(job_id)]
        for job_id in sorted(unmodelled, key=lambda job_id: job_id not in self._jobs.guaranteed):
            self._place_by_option(job_id)

    def _place_by_option(self, job_id: str) -> None:
        """Place a job by a complete option instead of unit by unit; for a guaranteed job, stop runs if necessary."""
        options = self._jobs.sufficient_options(job_id)
        if self.draft.place_first(job_id, self._placer, options) or job_id not in self._jobs.guaranteed:
            return
        for option in options:
            if self._place_by_stopping(job_id, option):
                return

    def _place_by_stopping(self, job_id: str, option: Option) -> bool:
        """Stop runs without a guarantee until a guaranteed job fits, smallest slope first."""
        before, guaranteed = self.draft.snapshot(), self._jobs.guaranteed
        held = [
            other for other, _ in self.draft.allocations() if other not in guaranteed and self.draft.may_change(other)
        ]
        for other in sorted(held, key=self._slope_on_draft, reverse=True):
            self.draft.release(other, f"preempted by {job_id}, which is guaranteed")
            if self.draft.place(job_id, self._placer, option.demand, option.plan):
                return True
        self.draft.restore(before)
        return False

    def _slope_on_draft(self, job_id: str) -> tuple[float, str]:
        """Sort key by descending slope, with the allocations on the draft."""
        held = self.draft.allocation_of(job_id)
        if held is None or not self._jobs.can_model(job_id):
            return -inf, job_id
        return -self._jobs.curve(job_id).gain(held.gpu_milli // WHOLE), job_id


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
