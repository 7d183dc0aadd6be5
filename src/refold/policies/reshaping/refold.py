"""Refold's own policy: least remaining work first, each job at its most profitable size, with restart costs charged.

A scheduling round has four steps, all on a `Draft`:

1. Order the waiting jobs by remaining work, least first: GPU-seconds at the job's most efficient size, divided by a
   weight that grows with the job's time in the system (`weight_doubling_seconds`).
2. Choose the shape with which the job ends soonest. While other jobs wait behind it, GPU time has a price
   (`gpu_price`): on a cluster of G GPUs, each GPU-second delays each of these jobs by 1/G of a second.
3. If no shape fits, or only a poor one, the job may preempt: runs with more remaining work are shrunk, moved or
   stopped. The delay of all jobs affected is summed in seconds, restarts included, and compared with the delay of
   waiting until enough runs end.
4. Give the remaining free GPUs to the jobs that save the most time per GPU. A run is reshaped only if that saves more
   than a restart costs, and only if the gap between arrivals is long enough for the change to pay back before the
   next job arrives.

A guaranteed job within its quota goes before all others, is never stopped, never gets less than the performance of its
request, and may preempt everything that other jobs hold beyond their own guarantees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple

import msgspec

from refold.core import View
from refold.errors import BadValue, UnknownName
from refold.model import NO_CHANGE, WHOLE, Allocation, Decision, Job, Seconds, format_duration
from refold.packing import Placer
from refold.plans import CATALOGUE_ONLY, Knowledge
from refold.policies.common import (
    MIN_SPEEDUP,
    Draft,
    GuaranteeRules,
    Option,
    OptionCache,
    ProgressEstimator,
    Reasons,
    ThroughputPacker,
    Transition,
    ended_jobs,
    has_external_changes,
)

GOALS = ("time", "throughput")
"""The objective: early completion, or the sum of speeds, each relative to the speed of the job's request."""

ARRIVAL_GAPS = 10
"""Number of recent inter-arrival times that are averaged."""

MAX_SHAPES_TRIED = 6
"""Number of a job's best shapes that are tried when it preempts."""

MAX_FIRST_NODES = 8
"""Number of nodes that are tried as the first node to clear for a guaranteed job."""

OVERDUE_WAKE_SECONDS: Seconds = 1.0
"""Delay of the next round if its time passed while a transition was under way."""

MIN_SECONDS_SAVED: Seconds = 1.0
"""A job that is not running yet starts on more GPUs if that saves more than this."""


class Refold:
    """Least remaining work first, each job at its most profitable size."""

    name = "refold"

    def __init__(
        self,
        restart_seconds: float = 78.0,
        gpu_price: float = 4.0,
        weight_doubling_seconds: float = 3600.0,
        starvation_seconds: float = 12 * 3600.0,
        safety_factor: float = 1.1,
        max_preemptors: int = 16,
        trust_steps: bool = True,
        goal: str = "time",
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """Create the policy.

        `restart_seconds`: assumed cost of reshaping a run. `gpu_price`: weight of the delay that GPU time causes to
        jobs waiting behind; 0: GPU time is free. `weight_doubling_seconds`: time in the system after which a second of
        delay counts double. `starvation_seconds`: jobs that have waited this long go first. `safety_factor`: how many
        times the guaranteed speed a shape must be estimated to reach before it is preferred. `max_preemptors`: number
        of jobs per round that may preempt; guaranteed jobs always may. `trust_steps`: use the number of steps that
        jobs declare.
        """
        if goal not in GOALS:
            raise UnknownName("goal of refold", goal, GOALS)
        if not (0 <= restart_seconds < inf and gpu_price >= 0 and max_preemptors >= 0):
            raise BadValue(
                f"restart_seconds is {restart_seconds}, gpu_price is {gpu_price}, max_preemptors is {max_preemptors}, "
                "expected numbers ≥ 0"
            )
        if not (weight_doubling_seconds > 0 and starvation_seconds > 0):
            raise BadValue(
                f"weight_doubling_seconds is {weight_doubling_seconds}, starvation_seconds is {starvation_seconds}, "
                "expected numbers > 0"
            )
        self.restart_seconds = restart_seconds
        self.gpu_price = gpu_price
        self.weight_doubling_seconds = weight_doubling_seconds
        self.starvation_seconds = starvation_seconds
        self.max_preemptors = max_preemptors
        self._goal = goal
        self.placer = Placer("best-fit")
        self.waiting_since: dict[str, Seconds] = {}
        """When each waiting job was submitted or returned to the queue."""
        self._safety_factor, self._trust_steps = safety_factor, trust_steps
        self._knowledge = Knowledge.from_settings(knowledge)
        self._transition = Transition()
        self._reasons = Reasons()
        self._arrivals = _Arrivals()
        self._wake_at: Seconds = inf
        self._last_round: Seconds = -inf
        self._estimator: ProgressEstimator | None = None

    def decide(self, view: View) -> Decision:
        """Run a scheduling round if anything relevant has changed; otherwise continue the transition under way."""
        self._observe(view)
        if self._transition.can_continue(view):
            return self._with_reasons(view, self._transition.next_step(view))
        guarantee_missed = self._guarantees.observe_progress(view)
        requeued = bool(view.changes.requeued) and self._last_round < view.now
        if not (has_external_changes(view) or guarantee_missed or requeued) and view.now < self._wake_at:
            return self._with_reasons(view, NO_CHANGE) if view.changes.requeued else NO_CHANGE
        self._last_round = view.now
        assert self._estimator is not None
        round_ = _RefoldRound(
            self, view, self._estimator, self._options, self._guarantees, self._arrivals.arrival_gap(view.now)
        )
        if self._goal == "time":
            round_.place_waiting()
            round_.grow()
        else:
            round_.maximise_throughput()
        self._wake_at = min(round_.wake_at, round_.next_starvation())
        return self._with_reasons(view, self._transition.step_towards(view, round_.draft.target()))

    def _observe(self, view: View) -> None:
        if self._estimator is None:
            self._estimator = ProgressEstimator(
                view, self._knowledge, self.restart_seconds, trust_steps=self._trust_steps
            )
            self._options = OptionCache(self._estimator.speeds)
            self._guarantees = GuaranteeRules(self._estimator, self._options, self._safety_factor)
        changes = view.changes
        if changes.submitted:
            self._arrivals.record(view.now)
        for job in (*changes.submitted, *changes.requeued):
            self.waiting_since[job.id] = view.now
        for run in changes.started:
            self.waiting_since.pop(run.job, None)
        for job_id in ended_jobs(view):
            self.waiting_since.pop(job_id, None)
            self._options.forget(job_id)
            self._estimator.forget(job_id)

    def _with_reasons(self, view: View, decision: Decision) -> Decision:
        """Add the reasons why jobs wait, and the time of the next round."""
        waits = self._reasons.collect_all(view, decision.starts, self._transition.pending)
        wake_at = max(self._wake_at, view.now + OVERDUE_WAKE_SECONDS) if self._wake_at < inf else None
        if not (waits or wake_at or decision.starts or decision.stops or decision.reshapes):
            return NO_CHANGE
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)


class _Arrivals:
    """Arrival times of jobs, and the estimated gap until the next arrival."""

    def __init__(self) -> None:
        self.last: Seconds = -inf
        self._gaps: deque[Seconds] = deque(maxlen=ARRIVAL_GAPS)

    def record(self, now: Seconds) -> None:
        if self.last > -inf:
            self._gaps.append(now - self.last)
        self.last = now

    def arrival_gap(self, now: Seconds) -> tuple[Seconds, Seconds]:
        """Return the estimated gap (the mean gap, or the present one if it is longer) and the last arrival time."""
        mean = sum(self._gaps) / len(self._gaps) if self._gaps else 0.0
        return max(now - self.last, mean), self.last


class _Preemption(NamedTuple):
    """A draft in which a job has preempted others, and the total delay, in seconds at the preemptor's weight."""

    cost: Seconds
    draft: Any


class _Growth(NamedTuple):
    """A larger shape for a job. `rank` is minus the seconds saved per additional GPU, so the best sorts first."""

    rank: float
    job_id: str
    gpus: int
    option: Option
    why: str


class _RefoldRound:
    """One scheduling round on a draft."""

    def __init__(
        self,
        policy: Refold,
        view: View,
        estimator: ProgressEstimator,
        options: OptionCache,
        guarantees: GuaranteeRules,
        arrival_gap: tuple[Seconds, Seconds],
    ) -> None:
        self.draft = Draft(view)
        self.wake_at: Seconds = inf
        self._policy, self._view, self._estimator, self._guarantees = policy, view, estimator, guarantees
        self._arrival_gap, self._last_arrival = arrival_gap
        self._jobs: dict[str, Job] = {**view.waiting, **view.active}
        self._guaranteed = guarantees.guaranteed_jobs(view)
        self._options = {
            job.id: guarantees.safe_options(job) if job.id in self._guaranteed else options.for_job(job)
            for job in self._jobs.values()
        }
        self._guarantee_options = {
            job_id: guarantees.sufficient_options(self._jobs[job_id]) for job_id in self._guaranteed
        }
        self._remaining = {job.id: estimator.remaining_work(view, job) for job in self._jobs.values()}
        self._weight = {job.id: self._weight_of(job) for job in self._jobs.values()}
        self._weighted_work = {job_id: self._min_gpu_seconds(job_id) / self._weight[job_id] for job_id in self._jobs}
        self._unplaceable: set[tuple[Option, ...]] = set()
        self._preemptors_left = policy.max_preemptors
        self._estimated_ends: list[tuple[Seconds, str]] | None = None
        self._most_work_first: list[str] | None = None

    # Estimates.

    def _weight_of(self, job: Job) -> float:
        """Return 1 + (time in the system until completion at full speed) / `weight_doubling_seconds`."""
        fastest = max(option.speed for option in self._options[job.id])
        stay = self._view.now - job.submitted + self._remaining[job.id] / fastest
        return 1 + stay / self._policy.weight_doubling_seconds

    def _min_gpu_seconds(self, job_id: str) -> float:
        return self._remaining[job_id] * min(max(option.gpus, 1) / option.speed for option in self._options[job_id])

    def _run_time(self, job_id: str, option: Option) -> Seconds:
        return self._remaining[job_id] / option.speed

    def _remaining_time(self, job_id: str) -> Seconds:
        """Return the seconds until a job ends with the allocation it has on the draft."""
        held = self.draft.allocation_of(job_id)
        assert held is not None
        seconds = self._remaining[job_id] / self._estimator.speed(self._jobs[job_id], held)
        run = self._view.runs.get(job_id)
        is_unchanged = run is not None and run.allocation == held
        return seconds + (self._estimator.startup_seconds(self._view, run) if run and is_unchanged else 0.0)

    def _restart_cost(self, job_id: str) -> Seconds:
        """Return the cost of reshaping a job; 0 if it is not running."""
        return self._policy.restart_seconds if job_id in self._view.runs else 0.0

    def _can_reshape(self, job_id: str) -> bool:
        """Whether a job has more than one possible shape and may be changed now."""
        return self.draft.may_change(job_id) and len(self._guarantee_options.get(job_id) or self._options[job_id]) > 1

    # Steps 1 to 3: waiting jobs.

    def place_waiting(self) -> None:
        """Start waiting jobs in order: guaranteed, then starving, then by weighted remaining work."""
        self._restore_guarantees()
        waiting = sorted(
            (job_id for job_id in self._view.waiting if self.draft.allocation_of(job_id) is None),
            key=lambda job_id: (
                job_id not in self._guaranteed,
                not self._is_starving(job_id),
                self._weighted_work[job_id],
                job_id,
            ),
        )
        for position, job_id in enumerate(waiting):
            rate = self._policy.gpu_price * (len(waiting) - position - 1) / max(self._view.cluster.gpus, 1)
            self._start(job_id, rate)

    def _restore_guarantees(self) -> None:
        """Reshape guaranteed runs that are slower than guaranteed.

        They started before the guarantee applied, or reports show that the model overestimated their speed.
        """
        for job_id in sorted(self._guaranteed):
            held = self.draft.allocation_of(job_id)
            if held is None or not self.draft.may_change(job_id) or self._meets_guarantee(job_id, held):
                continue
            before = self.draft.snapshot()
            self.draft.release(job_id)
            if not self._start(job_id, 0.0):
                self.draft.restore(before)
            else:
                self.draft.changed[job_id] = "slower than guaranteed: reshaped to meet the guarantee"

    def _meets_guarantee(self, job_id: str, held: Allocation) -> bool:
        job = self._jobs[job_id]
        if self._guarantees.is_too_slow(job, (held.gpus_on_node, held.plan)):
            return False
        return self._estimator.speed(job, held) * MIN_SPEEDUP >= self._guarantees.guaranteed_speed(job)

    def next_starvation(self) -> Seconds:
        """Return when the next job that still waits will be starving."""
        unplaced = (job_id for job_id in self._view.waiting if self.draft.allocation_of(job_id) is None)
        ends = (self._policy.waiting_since.get(job_id, inf) + self._policy.starvation_seconds for job_id in unplaced)
        return min((end for end in ends if end > self._view.now), default=inf)

    def _is_starving(self, job_id: str) -> bool:
        since = self._policy.waiting_since.get(job_id, self._view.now)
        return self._view.now - since >= self._policy.starvation_seconds

    def _start(self, job_id: str, rate: float) -> bool:
        """Place a job; a guaranteed job without a safe shape gets any shape estimated to meet the guarantee."""
        if self._start_with(job_id, self._options[job_id], rate):
            return True
        return job_id in self._guaranteed and self._start_with(job_id, self._guarantee_options[job_id], rate)

    def _start_with(self, job_id: str, options: tuple[Option, ...], rate: float) -> bool:
        """Place a job on free GPUs or by preemption. `rate`: delay of waiting jobs per GPU-second, in seconds."""
        costs = {option: self._run_time(job_id, option) * (1 + rate * option.gpus) for option in options}
        ranked = sorted(costs, key=costs.__getitem__)
        placed = None if options in self._unplaceable else self._place_first_fitting(job_id, ranked)
        if placed is None:
            self._unplaceable.add(options)
        elif costs[placed] - costs[ranked[0]] <= self._policy.restart_seconds:
            return True
        if job_id not in self._guaranteed:
            if self._preemptors_left <= 0:
                return placed is not None
            self._preemptors_left -= 1
        return self._preempt_for(job_id, ranked, costs, placed)

    def _place_first_fitting(self, job_id: str, ranked: list[Option]) -> Option | None:
        placer = self._policy.placer
        return next((option for option in ranked if self.draft.place(job_id, placer, option.demand, option.plan)), None)

    def _preempt_for(
        self, job_id: str, ranked: list[Option], costs: Mapping[Option, Seconds], placed: Option | None
    ) -> bool:
        """Preempt other jobs if the total delay is smaller than without; return whether the job is placed."""
        victims = self._victims_for(job_id)
        if not victims:
            return placed is not None
        before = self.draft.snapshot()
        if placed is not None:
            self.draft.release(job_id)
        without_job = self.draft.snapshot()
        without_preemption = costs[placed] if placed is not None else self._cost_of_waiting(job_id, ranked, costs)
        best = _Preemption(without_preemption, None)
        guaranteed = job_id in self._guaranteed
        one_by_one = [[other] for other in victims]
        for groups in (one_by_one, *self._grouped_by_node(victims)) if guaranteed else (one_by_one,):
            for option in ranked if guaranteed else ranked[:MAX_SHAPES_TRIED]:
                self.draft.restore(without_job)
                harm = self._place_by_displacing(job_id, option, groups)
                cost = costs[option] + harm / self._weight[job_id]
                if cost < best.cost:
                    best = _Preemption(cost, self.draft.snapshot())
            if best.draft is not None:
                break
        self.draft.restore(best.draft or before)
        if best.draft is None:
            return placed is not None
        self._unplaceable.clear()
        self._estimated_ends = None
        return True

    def _grouped_by_node(self, victims: list[str]) -> Iterator[list[list[str]]]:
        """Yield the victims grouped by node, nodes with the most GPUs beyond guarantees first.

        Each further item leaves out the first node of the one before.
        """
        on_node: dict[int, list[str]] = {}
        spare: dict[int, int] = {}
        for other in victims:
            held = self.draft.allocation_of(other)
            minimum = self._guarantee_options[other][0].gpus if other in self._guaranteed else 0
            for share in held.placement if held is not None else ():
                on_node.setdefault(share.node, []).append(other)
                spare[share.node] = spare.get(share.node, 0) + max(0, len(share.gpus) - minimum)
        groups = [on_node[node] for node in sorted(on_node, key=lambda node: (-spare[node], node))]
        return (groups[first:] for first in range(min(len(groups), MAX_FIRST_NODES)))

    def _victims_for(self, job_id: str) -> list[str]:
        """Return the jobs that may be preempted for a job, most remaining work first."""
        preemptor_is_guaranteed, work = job_id in self._guaranteed, self._weighted_work[job_id]
        if self._most_work_first is None:
            runs = [other for other in self._view.runs if self.draft.allocation_of(other) is not None]
            movable = [
                o for o in runs if self.draft.may_change(o) and (o not in self._guaranteed or self._can_reshape(o))
            ]
            self._most_work_first = sorted(movable, key=lambda other: (-self._weighted_work[other], other))
        if not preemptor_is_guaranteed:
            starving = self._is_starving(job_id)
            longer = takewhile(lambda other: starving or self._weighted_work[other] > work, self._most_work_first)
            return [other for other in longer if self.draft.allocation_of(other) is not None]
        held = [
            other for other in self._most_work_first if other != job_id and self.draft.allocation_of(other) is not None
        ]
        return sorted(held, key=lambda other: other in self._guaranteed)  # other guaranteed jobs last

    def _cost_of_waiting(self, job_id: str, ranked: list[Option], costs: Mapping[Option, Seconds]) -> Seconds:
        """Return the cost of waiting until enough runs have ended; infinite for guaranteed and starving jobs."""
        if job_id in self._guaranteed or self._is_starving(job_id):
            return inf
        before = self.draft.snapshot()
        if self._estimated_ends is None:
            self._estimated_ends = sorted((self._remaining_time(other), other) for other, _ in self.draft.allocations())
        try:
            for seconds, other in self._estimated_ends:
                self.draft.release(other)
                placed = self._place_first_fitting(job_id, ranked)
                if placed is not None:
                    return seconds + costs[placed]
            return inf
        finally:
            self.draft.restore(before)

    def _place_by_displacing(self, job_id: str, option: Option, groups: list[list[str]]) -> Seconds:
        """Place a job by releasing groups of victims until it fits, then place the victims again.

        Returns the weighted delay of the victims; infinite if the job does not fit or a guarantee would be broken.
        """
        placer = self._policy.placer
        moved: dict[str, tuple[Allocation, Seconds]] = {}
        remaining_groups = iter(groups)
        while not self.draft.place(job_id, placer, option.demand, option.plan):
            group = next(remaining_groups, None)
            if group is None:
                return inf
            for other in group:
                held = self.draft.allocation_of(other)
                if held is not None:
                    moved[other] = held, self._remaining_time(other)
                    self.draft.release(other)
        guaranteed_first = sorted(moved, key=lambda other: other not in self._guaranteed)
        return sum(self._place_victim(other, *moved[other], job_id, option) for other in guaranteed_first)

    def _place_victim(
        self, job_id: str, held: Allocation, before: Seconds, preemptor: str, preemptor_option: Option
    ) -> Seconds:
        """Place a victim again and return its weighted delay.

        It keeps its allocation if possible. Otherwise it gets the fastest shape that fits, assumed to be permanent; if
        none fits, it waits until the preemptor has ended.
        """
        if self.draft.assign(job_id, held):
            return 0.0
        gpus, guaranteed = held.gpu_milli // WHOLE, job_id in self._guaranteed
        pause = self._run_time(preemptor, preemptor_option)
        for option in self._fallback_shapes(job_id):
            if not self.draft.place(job_id, self._policy.placer, option.demand, option.plan):
                continue
            later = max(0.0, self._run_time(job_id, option) - before) + self._restart_cost(job_id)
            slower = max(0.0, 1 - option.speed / self._estimator.speed(self._jobs[job_id], held))
            change = (
                f"gave {gpus - option.gpus} GPUs to {preemptor}" if option.gpus < gpus else f"moved for {preemptor}"
            )
            self.draft.changed[job_id] = f"{change}: −{slower:.0%} speed, ends {format_duration(later)} later"
            return later * self._weight[job_id] + self._idle_cost(job_id, option.gpus)
        if guaranteed:
            return inf
        wait = pause + self._restart_cost(job_id)
        resumes = format_duration(wait)
        reason = "is guaranteed" if preemptor in self._guaranteed else "has less work left"
        self.draft.changed[job_id] = f"gave all {gpus} GPUs to {preemptor}, which {reason}: resumes in about {resumes}"
        return wait * self._weight[job_id] + self._idle_cost(job_id, gpus)

    def _fallback_shapes(self, job_id: str) -> Sequence[Option]:
        """Return the shapes to try for a victim, in order; none for a run that cannot be reshaped, only stopped."""
        if job_id in self._view.runs and not self._jobs[job_id].reshapable:
            return ()
        # A guaranteed victim gets its smallest shape, to leave GPUs for other guaranteed victims.
        smallest_first = self._guarantee_options.get(job_id)
        return smallest_first or sorted(self._options[job_id], key=lambda option: -option.speed)

    def _idle_cost(self, job_id: str, gpus: int) -> Seconds:
        """Return the delay of waiting jobs caused by GPUs that restart a job and do not compute."""
        return self._restart_cost(job_id) * gpus * len(self._view.waiting) / max(self._view.cluster.gpus, 1)

    # The throughput goal.

    def maximise_throughput(self) -> None:
        """Choose the shapes with the largest sum of normalised speeds; keep the present ones if that does not pay."""
        before = self.draft.snapshot()
        held = dict(self.draft.allocations())
        movable = [job_id for job_id in self._jobs if self.draft.may_change(job_id) and self._has_speed_model(job_id)]
        requested_speed = {
            job_id: self._estimator.speeds.requested_speed(self._jobs[job_id]).steps_per_second for job_id in movable
        }
        now = sum(
            self._estimator.speed(self._jobs[job_id], held[job_id]) / requested_speed[job_id]
            for job_id in movable
            if job_id in held
        )
        for job_id in movable:
            self.draft.release(job_id)
        options = {job_id: self._options[job_id] for job_id in movable}
        first = frozenset(self._guaranteed & set(movable))
        then = ThroughputPacker(self.draft, self._policy.placer, options, requested_speed, first).fill()
        self._keep_placements(held)
        lost = sum(
            self._estimator.speed(self._jobs[job_id], held[job_id])
            / requested_speed[job_id]
            * self._policy.restart_seconds
            for job_id in self.draft.changed
            if job_id in held and job_id in requested_speed
        )
        for job_id in self.draft.changed:
            self.draft.changed[job_id] = f"total normalised throughput rises from {now:.2f} to {then:.2f}"
        if now and (then - now) * self._arrival_gap <= lost:
            self.draft.restore(before)
            if then > now:
                self.wake_at = self._last_arrival + lost / (then - now)
        self._preemptors_left = 0  # no preemption: jobs outside the optimisation get free GPUs only
        self.place_waiting()

    def _has_speed_model(self, job_id: str) -> bool:
        return self._estimator.speeds.can_model(self._jobs[job_id])

    def _keep_placements(self, held: Mapping[str, Allocation]) -> None:
        """Let jobs whose shape has not changed keep their placement, where that is still free."""
        for job_id, before in held.items():
            after = self.draft.allocation_of(job_id)
            if after is None or (after.gpus_on_node, after.plan) != (before.gpus_on_node, before.plan):
                continue
            self.draft.release(job_id)
            if not self.draft.assign(job_id, before):
                self.draft.assign(job_id, after)

    # Step 4: remaining free GPUs.

    def grow(self) -> None:
        """Give free GPUs to the jobs that save the most time per GPU."""
        waiting = sum(self.draft.allocation_of(job_id) is None for job_id in self._view.waiting)
        rate = self._policy.gpu_price * waiting / max(self._view.cluster.gpus, 1)
        rejected: set[tuple[str, Option]] = set()
        heap = [
            growth
            for job_id, held in self.draft.allocations()
            if self._can_reshape(job_id) and (growth := self._best_growth(job_id, held, rate, rejected))
        ]
        heapify(heap)
        while heap and self.draft.free.whole_gpus:
            growth = heappop(heap)
            job_id, option = growth.job_id, growth.option
            if not self.draft.move(job_id, self._policy.placer, option.demand, option.plan, growth.why):
                rejected.add((job_id, option))
            held = self.draft.allocation_of(job_id)
            assert held is not None
            following = self._best_growth(job_id, held, rate, rejected)
            if following is not None:
                heappush(heap, following)

    def _best_growth(
        self, job_id: str, held: Allocation, rate: float, rejected: set[tuple[str, Option]]
    ) -> _Growth | None:
        gpus, free = held.gpu_milli // WHOLE, self.draft.free.whole_gpus
        now, best = self._remaining_time(job_id), None
        for option in self._options[job_id]:
            if not gpus < option.gpus <= gpus + free or (job_id, option) in rejected:
                continue
            then = self._run_time(job_id, option) + self._restart_cost(job_id)
            saved = now - then - rate * max(0.0, then * option.gpus - now * gpus)
            if not self._is_worthwhile(job_id, held, option, saved, now):
                continue
            rank = -saved / (option.gpus - gpus)
            if best is None or rank < best.rank:
                best = _Growth(rank, job_id, option.gpus, option, self._growth_reason(job_id, option))
        return best

    def _is_worthwhile(self, job_id: str, held: Allocation, option: Option, saved: Seconds, now: Seconds) -> bool:
        """Whether a larger shape is worthwhile; for a run, it must pay back before it ends or the next job arrives."""
        restart = self._restart_cost(job_id)
        if not restart:
            return saved > MIN_SECONDS_SAVED
        run = self._view.runs.get(job_id)
        if saved <= restart:
            return False
        if run is not None and self._estimator.startup_seconds(self._view, run) > 0:
            self.wake_at = min(self.wake_at, self._view.now + self._estimator.startup_seconds(self._view, run))
            return False
        payback = self._payback_seconds(job_id, held, option)
        if min(now, self._arrival_gap) >= payback:
            return True
        if now > payback:
            self.wake_at = min(self.wake_at, self._last_arrival + payback)
        return False

    def _payback_seconds(self, job_id: str, held: Allocation, option: Option) -> Seconds:
        """Return the seconds after which a run on the new shape has caught up with the run that was not restarted."""
        gained = 1 - self._estimator.speed(self._jobs[job_id], held) / option.speed
        return self._policy.restart_seconds / gained if gained > 0 else inf

    def _growth_reason(self, job_id: str, option: Option) -> str:
        """Return the reason for reshaping a run, relative to its present allocation; empty if it is not running."""
        run = self._view.runs.get(job_id)
        if run is None:
            return ""
        faster = option.speed / self._estimator.speed(self._jobs[job_id], run.allocation) - 1
        more = option.gpus - run.allocation.gpu_milli // WHOLE
        if faster <= 0 or more <= 0:
            return f"moved for other jobs, now on {option.gpus} GPUs: {faster:+.0%} speed"
        payback = format_duration(self._payback_seconds(job_id, run.allocation, option))
        return f"took {more} free GPUs: {faster:+.0%} speed, pays back in {payback}"
