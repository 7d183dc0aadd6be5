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

The paper leaves three rules open; they are settings, described in docs/policies/rubick.md: the smallest gain for which
a job takes more GPUs (`min_gain_per_gpu`), the reconfiguration penalty (`require_payback`), and ageing
(`ageing_seconds`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import msgspec

from refold.core import View
from refold.errors import BadValue
from refold.model import NO_CHANGE, WHOLE, Decision, Job, Milli, Plan, Run, Seconds, format_duration
from refold.packing import Placer
from refold.plans import CATALOGUE_ONLY, Curve, CurvePoint, Knowledge, Speed, requested_layout
from refold.policies.common import (
    MIN_SPEEDUP,
    Draft,
    GuaranteeRules,
    Option,
    OptionCache,
    ProgressEstimator,
    Reasons,
    Transition,
    ended_jobs,
    has_external_changes,
)
from refold.policies.reshaping.ledger import NO_SHARE, Ledger, NodeShare

Choice = tuple[Plan | None, str]
"""A plan, and the reason for the change."""


class Rubick:
    """The best plan for every allocation; GPUs and CPUs go to the jobs that gain most from them."""

    name = "rubick"
    plans = True
    resources = True

    def __init__(
        self,
        restart_seconds: float = 78.0,
        min_gain_per_gpu: float = 0.01,
        require_payback: bool = True,
        ageing_seconds: float = 200_000.0,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """Create the policy.

        `restart_seconds`: assumed cost of reshaping a run. `min_gain_per_gpu`: smallest gain per additional GPU that
        counts, as a fraction of the speed of the job's request. `require_payback`: reshape a run only if that saves
        more time than the restarts cost. `ageing_seconds`: jobs that have waited this long go first.
        """
        if not (0 <= restart_seconds < inf and min_gain_per_gpu >= 0):
            raise BadValue(
                f"restart_seconds is {restart_seconds}, min_gain_per_gpu is {min_gain_per_gpu}, expected numbers ≥ 0"
            )
        if not ageing_seconds > 0:
            raise BadValue(f"ageing_seconds is {ageing_seconds}, expected a number > 0")
        self.restart_seconds = restart_seconds
        self.min_gain_per_gpu = min_gain_per_gpu
        self.require_payback = require_payback
        self.ageing_seconds = ageing_seconds
        self.placer = Placer("best-fit")
        self._knowledge = Knowledge.from_settings(knowledge)
        self._transition = Transition()
        self._reasons = Reasons()
        self._estimator: ProgressEstimator | None = None
        self._last_round: Seconds = -inf
        self._wake_at: Seconds = inf

    def decide(self, view: View) -> Decision:
        """Run a round if anything relevant has changed; otherwise continue the transition under way."""
        if self._estimator is None:
            self._estimator = ProgressEstimator(view, self._knowledge, self.restart_seconds)
            self._curves = _SensitivityCurves(
                self._estimator, OptionCache(self._estimator.speeds, self.plans, self.resources), self.min_gain_per_gpu
            )
        for job_id in ended_jobs(view):
            self._curves.forget(job_id)
        if self._transition.can_continue(view):
            return self._with_reasons(view, self._transition.next_step(view))
        requeued = bool(view.changes.requeued) and self._last_round < view.now
        if not (has_external_changes(view) or requeued) and view.now < self._wake_at:
            return self._with_reasons(view, NO_CHANGE) if view.changes.requeued else NO_CHANGE
        self._last_round, self._wake_at = view.now, self._next_ageing(view)
        round_ = _RubickRound(self, view, self._estimator, self._curves)
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
        """Return when the next waiting job reaches `ageing_seconds`."""
        ends = (job.submitted + self.ageing_seconds for job in view.waiting.values())
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


class _GpuCurve(NamedTuple):
    """GPU sensitivity curve of a job on one GPU type: gain from one more GPU and loss from one fewer, by GPU count.

    The curve is a step function. Between two steps, each GPU gains an equal part of the next step.
    """

    points: tuple[CurvePoint, ...]
    gpu_type: str
    gains: list[float]
    losses: list[float]

    @staticmethod
    def from_points(points: Sequence[CurvePoint], gpu_type: str) -> _GpuCurve:
        curve = Curve(tuple(points))
        reached = [0, *(int(point.amount) for point in points)]
        gains = [curve.slope(lower) for lower, upper in pairwise(reached) for _ in range(lower, upper)]
        losses = [curve.slope_below(gpus) for gpus in range(reached[-1] + 1)]
        return _GpuCurve(curve.points, gpu_type, gains, losses)

    @property
    def max_gpus(self) -> int:
        """Largest useful number of GPUs."""
        return int(self.points[-1].amount)

    def gain(self, gpus: int) -> float:
        return self.gains[gpus] if gpus < len(self.gains) else 0.0

    def loss(self, gpus: int) -> float:
        return self.losses[gpus] if gpus < len(self.losses) else 0.0


class _SensitivityCurves:
    """Resource sensitivity curves, normalised by the speed of the request, cached by job and by kind of job."""

    def __init__(self, estimator: ProgressEstimator, options: OptionCache, min_gain_per_gpu: float) -> None:
        self._estimator, self.options, self._min_gain_per_gpu = estimator, options, min_gain_per_gpu
        self.guarantees = GuaranteeRules(estimator, options)
        self._by_kind: dict[tuple[object, ...], _GpuCurve] = {}
        self._by_job: dict[str, _GpuCurve] = {}

    def for_job(self, job: Job) -> _GpuCurve:
        """Return the curve on the job's fastest GPU type, without points that gain less than `min_gain_per_gpu`."""
        curve = self._by_job.get(job.id)
        if curve is None:
            curve = self._by_job[job.id] = self._find_curve(job)
        return curve

    def forget(self, job_id: str) -> None:
        """Drop everything cached for a job that has ended."""
        self._by_job.pop(job_id, None)
        self.options.forget(job_id)
        self._estimator.forget(job_id)

    def _find_curve(self, job: Job) -> _GpuCurve:
        options = self.options.for_job(job)
        key = (id(options), job.demand, job.plan)
        if key not in self._by_kind:
            speeds = self._estimator.speeds
            requested_speed = speeds.requested_speed(job).steps_per_second
            best = max(options, key=lambda option: option.speed)
            gpu_type = best.demand.gpu_types[0] if len(best.demand.gpu_types) == 1 else speeds.types_for(job)[0]
            points: list[CurvePoint] = []
            for option in options:
                speed = option.speed / requested_speed
                gain = speed - points[-1].samples_per_second if points else inf
                more = option.gpus - points[-1].amount if points else 1
                same_type = option.demand.gpu_types == best.demand.gpu_types
                if same_type and gain > 0 and gain >= self._min_gain_per_gpu * more:
                    points.append(CurvePoint(option.gpus, speed, option.plan or speeds.own_plan(job)))
            self._by_kind[key] = _GpuCurve.from_points(points, gpu_type)
        return self._by_kind[key]

    def speed_on(self, job: Job, gpu_type: str, layout: tuple[int, ...], cpus: float) -> Speed | None:
        """Return the job's best speed on a layout with the plans that this variant may choose, and with its own."""
        speeds = self._estimator.speeds
        best = (speeds.fastest if self.options.plans else speeds.scaled)(job, gpu_type, layout, cpus)
        if layout == requested_layout(job):
            own = speeds.with_plan(job, gpu_type, layout, cpus, speeds.own_plan(job))
            return max((best, own), key=lambda speed: speed.steps_per_second) if best else own
        return best


class _RubickRound:
    """One scheduling round on a draft."""

    def __init__(self, policy: Rubick, view: View, estimator: ProgressEstimator, curves: _SensitivityCurves) -> None:
        self.draft = Draft(view)
        self._policy, self._view, self._estimator, self._curves = policy, view, estimator, curves
        self._jobs: dict[str, Job] = {**view.waiting, **view.active}
        self._guaranteed = curves.guarantees.guaranteed_jobs(view)
        self._aged = {job.id for job in view.waiting.values() if view.now - job.submitted >= policy.ageing_seconds}
        self._waiting = [job_id for job_id in view.waiting if self.draft.allocation_of(job_id) is None]
        self._place_unmodelled()
        self._waiting += [run.job for run in view.runs.values() if self._lost_allocation(run)]
        modelled = [
            job_id
            for job_id, _ in self.draft.allocations()
            if estimator.speeds.can_model(self._jobs[job_id]) and self.draft.may_change(job_id)
        ]
        self._ledger = Ledger(view, self.draft, modelled)
        self._plans: dict[str, Plan | None] = {job_id: self._current_plan(job_id) for job_id in modelled}
        self._change_reasons: dict[str, str] = {}
        self._victims = _VictimsByLoss()
        for job_id in modelled:
            self._update_victim(job_id)

    def _lost_allocation(self, run: Run) -> bool:
        return not run.stopping and self.draft.allocation_of(run.job) is None

    def _current_plan(self, job_id: str) -> Plan | None:
        held = self.draft.allocation_of(job_id)
        return held.plan if held is not None else None

    # The round.

    def schedule_all(self) -> None:
        """Schedule waiting guaranteed jobs, then all other jobs by slope."""
        waiting = [job_id for job_id in self._waiting if self._estimator.speeds.can_model(self._jobs[job_id])]
        first = [job_id for job_id in waiting if job_id in self._guaranteed]
        others = [job_id for job_id in waiting if job_id not in self._guaranteed]
        running = list(self._ledger.shares)
        for job_id in first:
            self._schedule(job_id)
        for job_id in sorted([*others, *running], key=self._slope_order):
            self._schedule(job_id)
        self._ledger.apply(self._plans, self._change_reasons)
        for job_id in (*first, *others):
            if self.draft.allocation_of(job_id) is None:  # too few CPUs per GPU, or a guarantee
                self._place_by_option(self._jobs[job_id])

    def _place_unmodelled(self) -> None:
        """Place waiting jobs without a speed model as requested, guaranteed jobs first."""
        unmodelled = [job_id for job_id in self._waiting if not self._estimator.speeds.can_model(self._jobs[job_id])]
        for job_id in sorted(unmodelled, key=lambda job_id: job_id not in self._guaranteed):
            self._place_by_option(self._jobs[job_id])

    def _slope_on_draft(self, job_id: str) -> tuple[float, str]:
        """Sort key by descending slope, with the allocations on the draft."""
        held, job = self.draft.allocation_of(job_id), self._jobs[job_id]
        if held is None or not self._estimator.speeds.can_model(job):
            return -inf, job_id
        return -self._curve(job_id).gain(held.gpu_milli // WHOLE), job_id

    def _slope_order(self, job_id: str) -> tuple[float, float, str]:
        """Sort key by descending slope: GPUs, then CPUs."""
        return -self._gain(job_id), -self._cpu_gain(job_id), job_id

    def _place_by_option(self, job: Job) -> None:
        """Place a job by a complete option instead of unit by unit; for a guaranteed job, stop runs if necessary."""
        guaranteed = job.id in self._guaranteed
        for option in self._curves.guarantees.sufficient_options(job):
            if self.draft.place(job.id, self._policy.placer, option.demand, option.plan):
                return
        for option in self._curves.guarantees.sufficient_options(job) if guaranteed else ():
            if self._place_by_stopping(job, option):
                return

    def _place_by_stopping(self, job: Job, option: Option) -> bool:
        """Stop runs without a guarantee until a guaranteed job fits, smallest slope first."""
        before = self.draft.snapshot()
        held = [
            other
            for other, _ in self.draft.allocations()
            if other not in self._guaranteed and self.draft.may_change(other)
        ]
        for other in sorted(held, key=self._slope_on_draft, reverse=True):
            self.draft.release(other, f"preempted by {job.id}, which is guaranteed")
            if self.draft.place(job.id, self._policy.placer, option.demand, option.plan):
                return True
        self.draft.restore(before)
        return False

    # One job.

    def _schedule(self, job_id: str) -> None:
        """Gather resources and choose plans; if there is no acceptable plan, roll back."""
        job, ledger = self._jobs[job_id], self._ledger
        if not self._estimator.speeds.can_model(job):
            return
        if not (self._could_gain(job_id) or self._cpu_gain(job_id)):
            return
        savepoint = ledger.savepoint()
        self._taken: list[tuple[str, int]] = []
        self._gather(job_id)
        changed = ledger.changed_since(savepoint)
        if not changed:
            return
        chosen = self._choose_plans(job_id, savepoint)
        if chosen is None:
            ledger.roll_back(savepoint)
        else:
            for each, (plan, why) in chosen.items():
                self._plans[each] = plan
                self._change_reasons[each] = why
        for each in changed:
            self._update_victim(each)

    def _return_unused(self) -> None:
        """Return GPUs that were taken but not used, because the next step of the curve was not reached."""
        for victim, node in reversed(self._taken):
            self._take_free(victim, node, 1)

    def _could_gain(self, job_id: str) -> bool:
        """Whether the job is below its minimum, or can take a free GPU or one from a job that loses less."""
        if self._is_below_minimum(job_id):
            return True
        first_victim = next(self._victims.in_order(), None)
        could_take = first_victim is not None and self._victims.loss_of(first_victim) < self._gain(job_id)
        wants_more = self._ledger.gpus(job_id) < self._curve(job_id).max_gpus
        return wants_more and (could_take or bool(self._ledger.nodes_with_free_gpus))

    def _choose_plans(self, job_id: str, savepoint: int) -> dict[str, Choice] | None:
        """Return plans for a job and its victims; None if not worthwhile or if a guarantee would be broken."""
        before, chosen_speed = self._current_speed(job_id), self._choose_plan(job_id)
        if chosen_speed is None or not self._is_worthwhile(job_id, before, chosen_speed.steps_per_second, savepoint):
            return None
        self._return_unused()
        why = self._growth_reason(job_id, before, chosen_speed.steps_per_second) if before else ""
        chosen: dict[str, Choice] = {job_id: (chosen_speed.plan, why)}
        for victim in self._ledger.changed_since(savepoint):
            if victim != job_id:
                choice = self._replan_victim(victim, job_id)
                if choice is None:
                    return None
                chosen[victim] = choice
        return chosen

    def _gather(self, job_id: str) -> None:
        """Gather GPUs node by node: free ones first, then one by one from victims that lose less; then CPUs."""
        max_gpus = max(self._curve(job_id).max_gpus, self._minimum(job_id))
        for node in self._nodes_for(job_id) if self._ledger.gpus(job_id) < max_gpus else ():
            self._take_free(job_id, node, max_gpus - self._ledger.gpus(job_id))
            while self._ledger.gpus(job_id) < max_gpus and self._take_from_victim(job_id, node):
                pass
            if self._ledger.gpus(job_id) >= max_gpus:
                break
        self._gather_cpus(job_id)

    def _nodes_for(self, job_id: str) -> Iterator[int]:
        """Yield nodes to visit: the job's own, then by free GPUs, then those of victims by ascending loss."""
        gpu_type = self._curve(job_id).gpu_type
        nodes, free = self._view.cluster.nodes, self._ledger.free
        own = sorted(self._ledger.shares.get(job_id, {}))
        yield from own
        nodes_with_free_gpus = [
            n for n in self._ledger.nodes_with_free_gpus if nodes[n].gpu_type == gpu_type and n not in own
        ]
        yield from sorted(nodes_with_free_gpus, key=lambda node: (-free[node].gpus, node))
        seen = {*own, *nodes_with_free_gpus}
        for victim in self._victims.in_order():
            if self._victims.loss_of(victim) >= self._gain(job_id) and not self._is_below_minimum(job_id):
                return
            for node in sorted(self._ledger.shares.get(victim, {})):
                if node not in seen and nodes[node].gpu_type == gpu_type and self._view.is_up(node):
                    seen.add(node)
                    yield node

    def _take_free(self, job_id: str, node: int, wanted: int) -> bool:
        """Take up to `wanted` free GPUs of a node, with their CPUs and memory; return False if there are none."""
        free, unit = self._ledger.free[node], self._unit(job_id)
        if self._gpu_type_of(node) != self._curve(job_id).gpu_type or not self._view.is_up(node):
            return False
        limits = [wanted, free.gpus]
        limits += [free.cpu_milli // unit.cpu_milli] if unit.cpu_milli else []
        limits += [free.memory_mib // unit.memory_mib] if unit.memory_mib else []
        more = min(limits)
        if more < 1:
            return False
        have = self._ledger.shares.get(job_id, {}).get(node, NO_SHARE)
        larger = NodeShare(
            have.gpus + more, have.cpu_milli + more * unit.cpu_milli, have.memory_mib + more * unit.memory_mib
        )
        self._ledger.set_share(job_id, node, larger)
        return True

    def _take_from_victim(self, job_id: str, node: int) -> bool:
        """Take one GPU from the job on this node with the smallest loss, if Algorithm 1 allows it."""
        candidates = [
            other for other in self._ledger.jobs_on_node.get(node, ()) if other != job_id and self._can_lose(other)
        ]
        if not candidates or not self._view.is_up(node):
            return False
        victim = min(candidates, key=lambda other: (self._loss(other), other))
        if not (self._loss(victim) < self._gain(job_id) or self._is_below_minimum(job_id)):
            return False
        share = self._ledger.shares[victim][node]
        self._ledger.set_share(victim, node, _scale_share(share, share.gpus - 1))
        if self._take_free(job_id, node, 1):
            self._taken.append((victim, node))
            return True
        self._ledger.set_share(victim, node, share)  # its CPUs or memory did not suffice
        return False

    def _choose_plan(self, job_id: str) -> Speed | None:
        """Choose the best plan for the resources gathered, and release nodes and GPUs that do not make it faster."""
        ledger, job = self._ledger, self._jobs[job_id]
        if self._is_below_minimum(job_id):
            return None
        gpu_type = self._curve(job_id).gpu_type
        best: tuple[float, Speed, list[tuple[int, NodeShare]]] | None = None
        shares = sorted(ledger.shares.get(job_id, {}).items(), key=lambda item: (-item[1].gpus, item[0]))
        for wanted in self._useful_gpu_counts(job_id):
            chosen = _take_from_fewest_nodes(shares, wanted)
            layout = tuple(sorted((share.gpus for _, share in chosen), reverse=True))
            cpus = sum(share.cpu_milli for _, share in chosen) / WHOLE
            speed = self._curves.speed_on(job, gpu_type, layout, cpus)
            if speed is not None and (best is None or speed.steps_per_second > best[0]):
                best = speed.steps_per_second, speed, chosen
        if best is None or best[0] * MIN_SPEEDUP < self._guaranteed_speed(job_id):
            return None
        return best[1] if self._allocate_memory(job_id, best[1], best[2]) else None

    def _useful_gpu_counts(self, job_id: str) -> list[int]:
        max_gpus = self._ledger.gpus(job_id)
        steps = {int(point.amount) for point in self._curve(job_id).points} | {self._minimum(job_id)}
        return sorted(amount for amount in steps if 0 < amount <= max_gpus)

    def _allocate_memory(self, job_id: str, speed: Speed, chosen: list[tuple[int, NodeShare]]) -> bool:
        """Allocate host memory for a plan; return False if a node has too little. More memory gains no speed."""
        ledger, gpus = self._ledger, sum(share.gpus for _, share in chosen)
        wanted = dict(chosen)
        for node in list(ledger.shares[job_id]):
            if node not in wanted:
                ledger.set_share(job_id, node, NO_SHARE)
        for node, share in chosen:
            need = max(share.gpus * self._unit(job_id).memory_mib, -(-speed.host_mib * share.gpus // gpus))
            if need > ledger.free[node].memory_mib + ledger.shares[job_id][node].memory_mib:
                return False
            ledger.set_share(job_id, node, share._replace(memory_mib=need))
        return True

    def _is_worthwhile(self, job_id: str, before: float, after: float, savepoint: int) -> bool:
        """Whether a run saves more time than its own restart and those of its victims cost; True for waiting jobs."""
        if not before:
            return True
        if after <= before or job_id not in self._ledger.changed_since(savepoint):
            return False
        if not self._policy.require_payback or job_id not in self._view.runs:
            return True
        remaining = self._estimator.remaining_work(self._view, self._jobs[job_id])
        changed = sum(other in self._view.runs for other in self._ledger.changed_since(savepoint))
        return remaining / before - remaining / after > changed * self._policy.restart_seconds

    def _replan_victim(self, victim: str, preemptor: str) -> Choice | None:
        """Choose a plan for a victim on its remaining resources, or stop it; None if that breaks its guarantee."""
        ledger, speed_before = self._ledger, self._current_speed(victim)
        chosen_speed = self._choose_plan(victim) if ledger.gpus(victim) else None
        if chosen_speed is None:
            for node in list(ledger.shares.get(victim, {})):
                ledger.set_share(victim, node, NO_SHARE)
            stopped = f"gave all GPUs to {preemptor}, which gains more from them"
            return None if victim in self._guaranteed else (None, stopped)
        held = self.draft.allocation_of(victim)
        lost = (held.gpu_milli // WHOLE if held is not None else 0) - ledger.gpus(victim)
        change = chosen_speed.steps_per_second / speed_before - 1 if speed_before else 0.0
        what_it_gave = f"{lost} GPUs" if lost > 0 else "CPUs"
        return chosen_speed.plan, f"gave {what_it_gave} to {preemptor}, which gains more from them: {change:+.0%} speed"

    def _growth_reason(self, job_id: str, before: float, after: float) -> str:
        payback = format_duration(self._policy.restart_seconds / (1 - before / after))
        return f"now {self._ledger.gpus(job_id)} GPUs: {after / before - 1:+.0%} speed, pays back in {payback}"

    # CPUs.

    def _gather_cpus(self, job_id: str) -> None:
        """Gather CPUs for an offloading plan while they make it faster: free ones, then spare ones of other jobs."""
        for node in sorted(self._ledger.shares.get(job_id, {})):
            while self._cpu_gain(job_id) > 0 and self._take_cpu(job_id, node):
                pass

    def _take_cpu(self, job_id: str, node: int) -> bool:
        if self._ledger.free[node].cpu_milli < WHOLE and not self._free_cpu(job_id, node):
            return False
        share = self._ledger.shares[job_id][node]
        self._ledger.set_share(job_id, node, share._replace(cpu_milli=share.cpu_milli + WHOLE))
        return True

    def _free_cpu(self, job_id: str, node: int) -> bool:
        """Free a CPU of the job on a node with the smallest CPU loss; jobs keep the CPUs requested per GPU."""
        others = self._ledger.jobs_on_node.get(node, set()) - {job_id}
        candidates = [other for other in others if self._spare_cpu_milli(other, node) >= WHOLE]
        victim = min(candidates, key=lambda other: (self._cpu_loss(other), other), default=None)
        if victim is None or self._cpu_loss(victim) >= self._cpu_gain(job_id):
            return False
        share = self._ledger.shares[victim][node]
        self._ledger.set_share(victim, node, share._replace(cpu_milli=share.cpu_milli - WHOLE))
        return True

    def _spare_cpu_milli(self, job_id: str, node: int) -> Milli:
        share = self._ledger.shares[job_id][node]
        return share.cpu_milli - share.gpus * self._unit(job_id).cpu_milli

    def _cpu_loss(self, job_id: str) -> float:
        """Return the loss from one CPU fewer, normalised by the speed of the request."""
        layout, cpus, job = self._ledger.layout(job_id), self._ledger.cpus(job_id), self._jobs[job_id]
        gpu_type = self._curve(job_id).gpu_type
        now, then = (self._curves.speed_on(job, gpu_type, layout, amount) for amount in (cpus, cpus - 1))
        if now is None or then is None:
            return inf
        return (now.steps_per_second - then.steps_per_second) / self._estimator.speeds.requested_speed(
            job
        ).steps_per_second

    def _cpu_gain(self, job_id: str) -> float:
        """Return the gain from one more CPU, normalised by the speed of the request; 0 if it is too small to count."""
        ledger, job = self._ledger, self._jobs[job_id]
        plan = self._plans.get(job_id)
        if not self._policy.resources or (plan is not None and not plan.offload):
            return 0.0
        layout, cpus = ledger.layout(job_id), ledger.cpus(job_id)
        if not layout or not cpus:
            return 0.0
        gpu_type = self._curve(job_id).gpu_type
        now, then = (self._curves.speed_on(job, gpu_type, layout, amount) for amount in (cpus, cpus + 1))
        if now is None or then is None or not then.plan.offload:
            return 0.0
        gain = (then.steps_per_second - now.steps_per_second) / self._estimator.speeds.requested_speed(
            job
        ).steps_per_second
        return gain if gain >= self._policy.min_gain_per_gpu / 10 else 0.0

    # Gains and losses.

    def _curve(self, job_id: str) -> _GpuCurve:
        return self._curves.for_job(self._jobs[job_id])

    def _gain(self, job_id: str) -> float:
        """Return the normalised gain from one more GPU; infinite for aged jobs."""
        if job_id in self._aged:
            return inf
        return self._curve(job_id).gain(self._ledger.gpus(job_id))

    def _loss(self, job_id: str) -> float:
        """Return the normalised loss from one GPU fewer; infinite for aged jobs."""
        if job_id in self._aged:
            return inf
        return self._curve(job_id).loss(self._ledger.gpus(job_id))

    def _can_lose(self, job_id: str) -> bool:
        """Whether a job has more than its minimum resource demand, which is 0 without a guarantee."""
        if job_id not in self._guaranteed:
            return self._policy.resources
        return self._policy.resources and self._ledger.gpus(job_id) > self._minimum(job_id)

    def _minimum(self, job_id: str) -> int:
        return self._curves.guarantees.minimum_option(self._jobs[job_id]).gpus if job_id in self._guaranteed else 0

    def _guaranteed_speed(self, job_id: str) -> float:
        """Return the guaranteed speed; 0 for jobs without a guarantee."""
        return self._curves.guarantees.guaranteed_speed(self._jobs[job_id]) if job_id in self._guaranteed else 0.0

    def _is_below_minimum(self, job_id: str) -> bool:
        return self._ledger.gpus(job_id) < self._minimum(job_id)

    def _current_speed(self, job_id: str) -> float:
        """Return a job's speed with its allocation on the draft; 0 if it has none."""
        held = self.draft.allocation_of(job_id)
        return self._estimator.speed(self._jobs[job_id], held) if held is not None else 0.0

    def _unit(self, job_id: str) -> NodeShare:
        """Return one GPU with the CPUs and memory requested per GPU."""
        demand = self._jobs[job_id].demand
        return NodeShare(1, demand.cpu_milli // demand.gpus, demand.memory_mib // demand.gpus)

    def _gpu_type_of(self, node: int) -> str:
        return self._view.cluster.nodes[node].gpu_type

    def _update_victim(self, job_id: str) -> None:
        can_lose = self._ledger.gpus(job_id) and self._can_lose(job_id)
        self._victims.update(job_id, self._loss(job_id) if can_lose else None)


class _VictimsByLoss:
    """Jobs that may lose a GPU, ordered by ascending loss."""

    def __init__(self) -> None:
        self._sorted: list[tuple[float, str]] = []
        self._loss_by_job: dict[str, float] = {}

    def update(self, job_id: str, loss: float | None) -> None:
        """Set a job's loss; None removes the job."""
        before = self._loss_by_job.pop(job_id, None)
        if before is not None:
            del self._sorted[bisect_left(self._sorted, (before, job_id))]
        if loss is not None:
            self._loss_by_job[job_id] = loss
            insort(self._sorted, (loss, job_id))

    def loss_of(self, job_id: str) -> float:
        return self._loss_by_job[job_id]

    def in_order(self) -> Iterator[str]:
        """Iterate by ascending loss; `update` must not be called meanwhile."""
        return (job_id for _, job_id in self._sorted)


def _scale_share(share: NodeShare, gpus: int) -> NodeShare:
    """Scale a share to `gpus` GPUs, with CPUs and memory in proportion."""
    if not gpus:
        return NO_SHARE
    return NodeShare(gpus, share.cpu_milli * gpus // share.gpus, share.memory_mib * gpus // share.gpus)


def _take_from_fewest_nodes(shares: list[tuple[int, NodeShare]], wanted: int) -> list[tuple[int, NodeShare]]:
    """Take `wanted` GPUs from the fewest nodes, with CPUs and memory in proportion."""
    chosen: list[tuple[int, NodeShare]] = []
    single = [item for item in shares if item[1].gpus >= wanted]
    for node, share in single[-1:] or shares:
        take = min(share.gpus, wanted)
        chosen.append((node, _scale_share(share, take)))
        wanted -= take
        if not wanted:
            break
    return chosen
