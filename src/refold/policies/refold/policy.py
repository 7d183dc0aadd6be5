"""Refold's own policy: least remaining work first, each job at its most profitable size, with restart costs charged.

A scheduling round has five steps, all on a `Draft`:

1. Order the waiting jobs by priority, then by remaining work, least first: GPU-seconds at the job's most efficient
   size, divided by a weight that grows with the job's time in the system (`weight_doubling_seconds`). Remaining work
   that is not known is predicted; wide jobs of unknown length that may be stopped have the weight of many
   (`wide_weight`), as long as they use at most a part of the cluster (`wide_share`). Jobs are overdue if those behind
   them have used more than `overtaking_share` of the GPU time since their submission: they go first, in order of
   submission, and nodes are reserved for the first of them that can neither start nor preempt.
2. Choose the shape with which the job ends soonest. While other jobs wait behind it, GPU time has a price
   (`gpu_price`): on a cluster of G GPUs, each GPU-second delays each of these jobs by 1/G of a second.
3. If no shape fits, or only a poor one, the job may preempt: runs with more remaining work are shrunk, moved or
   stopped. The delay of all jobs affected is summed in seconds, restarts included, and compared with the delay of
   waiting until enough runs end. A job of unknown length preempts runs whose weighted remaining work is several times
   its own (`preemption_margin`).
4. If jobs are still without GPUs, runs that requested a range of GPUs and hold more than they requested are shrunk, so
   that each gets its minimum (`Sharing`).
5. Give the remaining free GPUs to the jobs that save the most time per GPU. A run is reshaped only if that saves more
   than a restart costs, and only if the gap between arrivals is long enough for the change to pay back before the
   next job arrives.

A guaranteed job within its quota goes before all others, is never stopped, never gets less than the performance of its
request, and may preempt everything that other jobs hold beyond their own guarantees.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, ClassVar

import msgspec

from refold.core import View
from refold.errors import UnknownName
from refold.model import NO_CHANGE, Decision, Demand, Seconds
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge
from refold.policies import Choices, Range, SettingRange
from refold.policies.common import (
    Draft,
    ExpectedService,
    FairShare,
    GuaranteeRules,
    OptionCache,
    ProgressEstimator,
    Reasons,
    Transition,
    has_external_changes,
)
from refold.policies.refold.arrivals import Arrivals
from refold.policies.refold.domains import DomainWaits
from refold.policies.refold.growth import Growth
from refold.policies.refold.jobs import RefoldSettings, RoundJobs
from refold.policies.refold.reservation import NodeReservation
from refold.policies.refold.sources import JobSources
from refold.policies.refold.starts import Starter
from refold.policies.refold.throughput import maximise_throughput

GOALS = ("time", "throughput")
"""The objective: early completion, or the sum of speeds, each relative to the speed of the job's request."""

SAFETY_FACTOR = 1.1
"""How many times the guaranteed speed a shape must be estimated to reach before it is preferred.

The margin keeps small errors of the model from missing a guarantee.
"""

REVIEW_SECONDS: Seconds = 120.0
"""Time until the next round while jobs of unknown length wait: predictions change with the age of runs."""

BEGIN_REVIEW_SECONDS: Seconds = 10.0
"""Time until the next round while jobs wait and runs have not begun, which are not stopped until then."""

OVERDUE_WAKE_SECONDS: Seconds = 1.0
"""Delay of the next round if its time passed while a transition was under way."""


class Refold:
    """Least remaining work first, each job at its most profitable size."""

    name = "refold"
    ranges: ClassVar[Mapping[str, SettingRange]] = {
        "gpu_price": Range(0.5, 32.0, log=True),
        "weight_doubling_seconds": Range(1800.0, 10 * 86_400.0, log=True),
        "delay_doubling_seconds": Range(600.0, 86_400.0, log=True),
        "overtaking_share": Range(0.1, 0.9),
        "wide_weight": Range(1.0, 64.0, log=True),
        "wide_share": Range(0.1, 1.0),
        "preemption_margin": Range(1.0, 20.0, log=True),
        "max_restarts": Choices((0, 1, 2, 3, 5, 10, 20)),
        "fair_share": Choices((0.0, 0.5, 1.0)),
    }

    def __init__(
        self,
        restart_seconds: float = 78.0,
        gpu_price: float = 4.0,
        weight_doubling_seconds: float = 14_400.0,
        delay_doubling_seconds: float = 3600.0,
        overtaking_share: float = 2 / 3,
        wide_weight: float = 8.0,
        wide_share: float = 0.55,
        preemption_margin: float = 3.0,
        max_restarts: int = 10,
        max_preemptors: int = 64,
        fair_share: float = 0.0,
        fair_share_half_life: float = 7 * 24 * 3600.0,
        trust_steps: bool = True,
        goal: str = "time",
        placement: str = "best-fit",
        seed: int = 0,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """Create the policy.

        `restart_seconds`: assumed cost of reshaping a run. `gpu_price`: weight of the delay that GPU time causes to
        jobs waiting behind; 0: GPU time is free. `weight_doubling_seconds`: time in the system after which a second of
        delay counts double; `delay_doubling_seconds`: the same for the delay so far of jobs of unknown length.
        `overtaking_share`: a job goes first, and nodes are reserved for it, when those behind it have used more than
        this part of the GPU time since it was submitted. `wide_weight`: least weight of preemptible jobs of unknown
        length with eight or more GPUs, as long as they use at most `wide_share` of the GPUs. `preemption_margin`: how
        many times the weighted remaining work of a job of unknown length a run must have to be preempted for it.
        `max_restarts`: how often a job of unknown length is preempted. `max_preemptors`: number of jobs per round that
        may preempt; guaranteed jobs always may. `fair_share`: how much the weight of a job depends on what its user and
        tenant have used, 0 (not at all) to 1; `fair_share_half_life`: GPU time used this long ago counts half.
        `trust_steps`: take the number of steps that jobs declare as exact. `placement`: rule by which jobs are placed;
        `seed`: of its random numbers.
        """
        if goal not in GOALS:
            raise UnknownName("goal of refold", goal, GOALS)
        self._settings = RefoldSettings(
            restart_seconds,
            gpu_price,
            weight_doubling_seconds,
            delay_doubling_seconds,
            overtaking_share,
            wide_weight,
            wide_share,
            preemption_margin,
            max_restarts,
            max_preemptors,
        )
        self._goal = goal
        self._fair_share = FairShare(fair_share, fair_share_half_life)
        self._placer = Placer(placement, seed)
        self._trust_steps = trust_steps
        self._knowledge = Knowledge.from_settings(knowledge)
        self._transition = Transition(self._placer)
        self._reasons = Reasons(self._placer)
        self._arrivals = Arrivals()
        self._wake_at: Seconds = inf
        self._last_round: Seconds = -inf
        self._sources: JobSources | None = None
        self._reservation: NodeReservation | None = None
        """The nodes that are reserved for the first overdue job that cannot start."""
        self._domains: DomainWaits | None = None
        """The jobs that wait for domains; None on a cluster without levels."""
        self._draft: Draft | None = None
        """That of the last round."""
        self._overtaken: dict[str, int] = {}
        """How many jobs were started in the last round before each waiting job by fair share alone."""

    def decide(self, view: View) -> Decision:
        """Run a scheduling round if anything relevant has changed; otherwise continue the transition under way."""
        sources = self._observe(view)
        corrected = sources.learn(view)
        if self._transition.can_continue(view):
            return self._with_reasons(view, self._transition.next_step(view))
        guarantee_missed = sources.guarantees.observe_progress(view)
        requeued = bool(view.changes.requeued) and self._last_round < view.now
        if not (has_external_changes(view) or guarantee_missed or corrected or requeued) and view.now < self._wake_at:
            return self._with_reasons(view, NO_CHANGE) if view.changes.requeued else NO_CHANGE
        self._last_round = view.now
        sources.update(view)
        if sources.is_settled(view):
            self._reservation, self._overtaken, self._wake_at = None, {}, view.next_preemptible_at()
            return self._with_reasons(view, self._transition.step_towards(view, {}))
        draft = self._run_round(view, sources)
        return self._with_reasons(view, self._transition.step_towards(view, draft.target()))

    def _run_round(self, view: View, sources: JobSources) -> Draft:
        """Return a draft of all allocations after a round, and set the time of the next one."""
        jobs = RoundJobs(view, sources, self._settings, self._arrivals.summary(view.now))
        draft = self._draft = Draft(view, self._placer, self._draft)
        if self._domains is not None:
            self._domains.begin_round(jobs)
        if self._goal == "time":
            max_preemptors = self._settings.max_preemptors
            starter = Starter(jobs, draft, self._placer, max_preemptors, self._reservation, self._domains)
            starter.place_waiting()
            wake_at = Growth(jobs, draft, self._placer).grow()
        else:
            wake_at = maximise_throughput(jobs, draft, self._placer)
            starter = Starter(jobs, draft, self._placer, 0, self._reservation)
            starter.place_waiting()  # jobs outside the optimisation get free GPUs only
        self._reservation = starter.reservation
        self._overtaken = starter.overtaken_by_fair_share()
        self._wake_at = min(wake_at, view.next_preemptible_at(), jobs.next_settled_at())
        if view.waiting and jobs.have_unbegun_runs():
            self._wake_at = min(self._wake_at, view.now + BEGIN_REVIEW_SECONDS)
        if starter.is_review_useful():
            self._wake_at = min(self._wake_at, view.now + REVIEW_SECONDS)
        if self._domains is not None:
            self._wake_at = min(self._wake_at, self._domains.wake_at())
        return draft

    def _observe(self, view: View) -> JobSources:
        if self._sources is None:
            restart_seconds = self._settings.restart_seconds
            service = ExpectedService(self._knowledge, restart_seconds)
            estimator = ProgressEstimator(
                view,
                self._knowledge,
                restart_seconds,
                trust_steps=self._trust_steps,
                expected_service=service,
                assumes_scaling=True,
            )
            options = OptionCache(estimator.speeds)
            guarantees = GuaranteeRules(estimator, options, SAFETY_FACTOR)
            self._sources = JobSources(estimator, options, guarantees, service, self._fair_share)
            self._domains = DomainWaits(view.cluster) if view.cluster.levels else None
        self._placer.observe(view)
        self._sources.expected_service.observe(view)
        self._sources.observe(view)
        self._arrivals.record(view.now, view.changes.submitted)
        return self._sources

    def _note_reserved(self, view: View, placed: Collection[str]) -> list[str]:
        """Note which jobs wait only because nodes are reserved, and return them."""
        if self._reservation is None:
            return []
        free, fits = view.trial().free, dict[Demand, bool]()
        kept_off = []
        for job in view.waiting.values():
            if job.id in placed or job.id == self._reservation.job:
                continue
            if job.demand not in fits:
                fits[job.demand] = job.demand.instances == 1 and free.fits_one_instance(job.demand)
            if fits[job.demand]:
                self._reasons.note_reserved(job)
                kept_off.append(job.id)
        return kept_off

    def _with_reasons(self, view: View, decision: Decision) -> Decision:
        """Add the reasons why jobs wait, and the time of the next round."""
        placed = {*self._transition.pending, *(start.job for start in decision.starts)}
        for job_id, ahead in self._overtaken.items():
            if job_id in view.waiting and job_id not in placed:
                self._reasons.note_fair_share(view.waiting[job_id], ahead)
        held_back = self._domains.waits if self._domains is not None else {}
        for job_id, wait in held_back.items():
            if job_id in view.waiting and job_id not in placed:
                self._reasons.note_topology(view.waiting[job_id], wait)
        explained = {*self._overtaken, *held_back, *self._note_reserved(view, placed)}
        waits = self._reasons.collect_all(view, decision.starts, self._transition.pending, behind=explained)
        wake_at = max(self._wake_at, view.now + OVERDUE_WAKE_SECONDS) if self._wake_at < inf else None
        if self._transition.is_stalled(view, decision):
            wake_at = view.now + OVERDUE_WAKE_SECONDS
        if not (waits or wake_at or decision.starts or decision.stops or decision.reshapes):
            return NO_CHANGE
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)
