"""One scheduling round of Rubick: Algorithm 1 of the paper."""

from __future__ import annotations

from math import inf

from refold.model import WHOLE, Plan, Run
from refold.placement import Placer
from refold.policies.common import Draft, Option, Sharing
from refold.policies.published.rubick.gathering import Gatherer
from refold.policies.published.rubick.jobs import RubickJobs, Sensitivity
from refold.policies.published.rubick.ledger import Ledger
from refold.policies.published.rubick.plans import Choice, PlanChooser


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
