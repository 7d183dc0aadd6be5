"""Synergy-Tune (OSDI'22): GPUs and plan as requested, CPUs by each job's CPU sensitivity.

In every round, jobs are placed in order. A job is first tried with its best CPU demand, then with at most its
GPU-proportional share of a node's CPUs. If that does not fit either, runs on the same nodes that hold more than their
proportional share are reduced to it. So a job whose GPUs fit does not wait for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, inf, isfinite
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from refold.core import View
from refold.errors import BadValue
from refold.model import NO_CHANGE, WHOLE, Allocation, Decision, Demand, Job, Milli, Node, Plan, Seconds, Share
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge, Speeds, WorkloadKind, requested_layout, workload_kind
from refold.policies.common import Draft, Reasons, Transition

OrderName = Literal["fifo", "las"]

SATURATION = 0.95
"""A job's best CPU demand is the smallest that reaches this fraction of its speed with all CPUs of its nodes."""


class Synergy:
    """GPUs as requested, CPUs tuned: jobs get more than their proportional share while no other job needs it."""

    name = "synergy"

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        order: OrderName = "fifo",
        round_seconds: Seconds = 300.0,
        start_at_once: bool = False,
        restart_seconds: Seconds = 78.0,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """Create the policy.

        `start_at_once`: start waiting jobs that fit between rounds, instead of at the next round.
        `restart_seconds`: cost of giving a run more CPUs, which must be recovered within a round.
        """
        _check(order, round_seconds, restart_seconds)
        self._placer = Placer(placement, seed)
        self._by_attained_service = order == "las"
        self._start_at_once = start_at_once
        self._min_speedup = 1 + restart_seconds / round_seconds
        self._knowledge = Knowledge.from_settings(knowledge)
        self._tuning: CpuTuning | None = None
        self._round_times = _RoundTimes(round_seconds)
        self._transition = Transition()
        self._reasons = Reasons()
        self._short_of_cpus = False

    def decide(self, view: View) -> Decision:
        """Place all jobs again if a round is due; otherwise continue the last round."""
        if self._tuning is None:
            self._tuning = CpuTuning(Speeds(view.cluster, self._knowledge))
        self._placer.observe(view)
        changes = view.changes
        is_round = self._round_times.is_due(view)
        decision = NO_CHANGE
        if is_round:
            decision = self._run_round(view, self._tuning)
        elif changes.submitted or changes.requeued or changes.removed or changes.freed:
            decision = self._between_rounds(view, self._tuning)
        return self._with_reasons(view, decision, considered=is_round or self._start_at_once)

    def _run_round(self, view: View, tuning: CpuTuning) -> Decision:
        placements = _Placements(view, self._placer, tuning)
        queue = self._sorted(view, [*view.active.values(), *view.waiting.values()])
        placements.place_all(queue)
        self._short_of_cpus = placements.add_cpus(queue, self._min_speedup)
        return self._transition.step_towards(view, placements.draft.target())

    def _between_rounds(self, view: View, tuning: CpuTuning) -> Decision:
        placements = _Placements(view, self._placer, tuning)
        placements.apply_pending(self._transition.pending)
        if self._start_at_once:
            placements.place_on_free(self._sorted(view, [*view.waiting.values()]))
        return self._transition.step_towards(view, placements.draft.target())

    def _sorted(self, view: View, jobs: Sequence[Job]) -> list[Job]:
        """Sort jobs: runs that are not preemptible first, then by attained service (`las`), then by arrival."""

        def key(job: Job) -> tuple[bool, float, Seconds, str]:
            is_fixed = job.id in view.runs and not view.is_preemptible(job.id)
            return not is_fixed, view.gpu_seconds(job.id) if self._by_attained_service else 0.0, job.submitted, job.id

        return sorted(jobs, key=key)

    def _with_reasons(self, view: View, decision: Decision, *, considered: bool) -> Decision:
        not_considered = () if considered else view.waiting
        waits = self._reasons.collect_all(view, decision.starts, self._transition.pending, not_considered)
        jobs_wait = len(view.waiting) > len(decision.starts)
        needed = jobs_wait or (self._short_of_cpus and view.changes.freed)
        wake_at = self._round_times.next_if(view, needed)
        if decision is NO_CHANGE and not waits and wake_at is None:
            return NO_CHANGE
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)


class _RoundTimes:
    """Round times: the first when a job arrives at an idle cluster, then at fixed intervals."""

    def __init__(self, interval: Seconds) -> None:
        self._interval = interval
        self._first: Seconds = 0.0
        self._next_round: Seconds | None = None

    def is_due(self, view: View) -> bool:
        if self._next_round is None and not view.runs and view.waiting:
            self._first = view.now
            return True
        if self._next_round is not None and view.now >= self._next_round:
            self._next_round = None
            return True
        return False

    def next_if(self, view: View, needed: bool) -> Seconds | None:
        """Return the time of the next round if one is needed or was requested before; otherwise None."""
        if needed and self._next_round is None:
            self._next_round = self._first + (floor((view.now - self._first) / self._interval) + 1) * self._interval
            if self._next_round <= view.now:  # rounding error
                self._next_round += self._interval
        return self._next_round


class _Placements:
    """Placements of one decision, on a draft."""

    def __init__(self, view: View, placer: Placer, tuning: CpuTuning) -> None:
        self.draft = Draft(view)
        self._view = view
        self._placer = placer
        self._tuning = tuning
        self._jobs = {**view.waiting, **view.active}

    def place_all(self, queue: Sequence[Job]) -> None:
        """Place jobs in order, on free resources or by preempting later jobs; equal demands fail together."""
        unplaceable: set[Demand] = set()
        for position, job in enumerate(queue):
            wanted = self._tuning.for_job(job).proportional
            if self.draft.allocation_of(job.id) is not None or self._must_stop_first(job) or wanted in unplaceable:
                continue
            if self._place_or_reduce_peers(job):
                continue
            if self._place_by_preempting(job, queue[position + 1 :]):
                unplaceable.clear()
            else:
                unplaceable.add(wanted)

    def place_on_free(self, queue: Sequence[Job]) -> None:
        """Place jobs in order on free resources, without preemption."""
        unplaceable: set[Demand] = set()
        for job in queue:
            wanted = self._tuning.for_job(job).proportional
            if self.draft.allocation_of(job.id) is None and wanted not in unplaceable and not self._place(job):
                unplaceable.add(wanted)

    def apply_pending(self, pending: Mapping[str, tuple[Allocation | None, str]]) -> None:
        """Apply the part of the last round's target that was not possible at once."""
        for job_id, (wanted, why) in pending.items():
            if job_id not in self._jobs:
                continue
            held = self.draft.allocation_of(job_id)
            self.draft.release(job_id, why)
            if wanted is not None and not self.draft.assign(job_id, wanted, why) and held is not None:
                self.draft.assign(job_id, held, why)

    def add_cpus(self, queue: Sequence[Job], min_speedup: float) -> bool:
        """Give free CPUs to jobs that gain from them; return whether a job would gain but too few CPUs are free."""
        lacking = False
        for job in queue:
            held = self.draft.allocation_of(job.id)
            if held is None or not self._tuning.can_tune(job) or self._is_fixed(job):
                continue
            wanted = _with_cpus(held, self._tuning.for_job(job).best.cpu_milli, max)
            gain = self._tuning.speed(job, wanted.cpu_milli) / self._tuning.speed(job, held.cpu_milli)
            if wanted == held or gain <= (min_speedup if job.id in self._view.runs else 1.0):
                continue
            lacking |= not self._exchange(job.id, wanted, "took free CPUs")
        return lacking

    def _place_or_reduce_peers(self, job: Job) -> bool:
        """Place a job without preemption.

        Its own request is tried last: it is smaller than the proportional share if jobs that cannot be tuned hold more.
        """
        if self._place(job) or self._reduce_peers(job):
            return True
        return self.draft.place(job.id, self._placer, job.demand, None)

    def _place(self, job: Job) -> bool:
        tuned = self._tuning.for_job(job)
        for demand in dict.fromkeys((tuned.best, tuned.proportional)):
            if self.draft.place(job.id, self._placer, demand, None):
                return True
        return False

    def _reduce_peers(self, job: Job) -> bool:
        """Reduce runs above their proportional share on nodes with enough free GPUs until the job fits."""
        fair = self._tuning.for_job(job).proportional
        gpus_only = msgspec.structs.replace(fair, cpu_milli=0)
        placement = self._placer.place(self.draft.free.copy(), gpus_only)
        if placement is None or not fair.gpus:
            return False
        before = self.draft.snapshot()
        for peer, held in self._peers_on({share.node for share in placement}):
            less = _with_cpus(held, self._tuning.for_job(self._jobs[peer]).proportional.cpu_milli, min)
            self._exchange(peer, less, f"gave CPUs above its proportional share to {job.id}")
            if self.draft.place(job.id, self._placer, fair, None):
                return True
        self.draft.restore(before)
        return False

    def _peers_on(self, nodes: set[int]) -> list[tuple[str, Allocation]]:
        """Return jobs above their proportional share on these nodes: fewest nodes first, then most CPUs per GPU."""
        peers = []
        for job_id, held in self.draft.allocations():
            job = self._jobs[job_id]
            if held.nodes.isdisjoint(nodes) or not self._tuning.can_tune(job) or self._is_fixed(job):
                continue
            if any(share.cpu_milli > self._tuning.for_job(job).proportional.cpu_milli for share in held.placement):
                peers.append((len(held.nodes), -held.cpu_milli / held.gpu_milli, job_id, held))
        return [(job_id, held) for _, _, job_id, held in sorted(peers, key=lambda peer: peer[:3])]

    def _place_by_preempting(self, job: Job, later: Sequence[Job]) -> bool:
        """Preempt later jobs, last first, until the job fits; restore those whose resources were not needed."""
        holding = [(other.id, held) for other in later if (held := self._preemptible_allocation(other)) is not None]
        missing = job.demand.total_gpu_milli - self.draft.free.gpu_milli
        if missing > sum(held.gpu_milli for _, held in holding):
            return False
        before, preempted = self.draft.snapshot(), []
        for other, held in reversed(holding):
            self.draft.release(other, f"preempted by {job.id}, which is earlier in the order")
            preempted.append((other, held))
            missing -= held.gpu_milli
            if missing <= 0 and self._place(job):
                for stopped, allocation in reversed(preempted):
                    self.draft.assign(stopped, allocation)
                return True
        self.draft.restore(before)
        return False

    def _preemptible_allocation(self, job: Job) -> Allocation | None:
        held = self.draft.allocation_of(job.id)
        if held is None or self._is_fixed(job) or not self._view.is_placement_up(held.placement):
            return None
        return held

    def _exchange(self, job_id: str, wanted: Allocation, why: str) -> bool:
        """Replace a job's allocation if the new one is free; return whether it is."""
        before = self.draft.snapshot()
        self.draft.release(job_id, why)
        if self.draft.assign(job_id, wanted, why):
            return True
        self.draft.restore(before)
        return False

    def _is_fixed(self, job: Job) -> bool:
        """Whether a job is running and may not be changed: it is stopping or not preemptible."""
        run = self._view.runs.get(job.id)
        return run is not None and (run.stopping or not self._view.is_preemptible(job.id))

    def _must_stop_first(self, job: Job) -> bool:
        """Whether a run must stop before the job can be placed again: it is stopping or not reshapable."""
        run = self._view.runs.get(job.id)
        return run is not None and (run.stopping or not job.reshapable)


class Tuned(NamedTuple):
    """A job's best demand, and its demand with at most the proportional share of CPUs."""

    best: Demand
    proportional: Demand


class CpuTuning:
    """CPU demands of jobs, derived from their speed as a function of CPUs."""

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._cache: dict[tuple[WorkloadKind, Demand, Plan | None], Tuned] = {}

    def can_tune(self, job: Job) -> bool:
        """Whether a job's CPU demand can be tuned: it has a speed model, and the nodes' CPUs are known."""
        return (
            self._speeds.can_model(job) and self._speeds.cluster.cpus_known and self._proportional_share(job) >= WHOLE
        )

    def for_job(self, job: Job) -> Tuned:
        """Return a job's demands; both are its request if it cannot be tuned."""
        if not self.can_tune(job):
            return Tuned(job.demand, job.demand)
        key = (workload_kind(job), job.demand, job.plan)
        if key not in self._cache:
            best = self._best_cpu_milli(job)
            fair = min(best, self._proportional_share(job) * job.demand.gpus)
            self._cache[key] = Tuned(
                msgspec.structs.replace(job.demand, cpu_milli=best), msgspec.structs.replace(job.demand, cpu_milli=fair)
            )
        return self._cache[key]

    def speed(self, job: Job, cpu_milli: Milli) -> float:
        """Return steps per second with `cpu_milli` in total, otherwise as requested, on the slowest accepted type."""
        plan, layout = self._speeds.own_plan(job), requested_layout(job)
        speeds = (
            self._speeds.with_plan(job, gpu_type, layout, cpu_milli / WHOLE, plan).steps_per_second
            for gpu_type in self._speeds.types_for(job)
        )
        return min(speeds)

    def _best_cpu_milli(self, job: Job) -> Milli:
        """Return the fewest whole CPUs per GPU that reach saturation and are no slower than the proportional share."""
        demand, share = job.demand, self._proportional_share(job)
        most = max(share, min(node.cpu_milli for node in self._nodes(job)) // demand.gpus)
        per_gpu = [WHOLE * cpus for cpus in range(1, most // WHOLE + 1)]
        speeds = [self.speed(job, each * demand.gpus * demand.instances) for each in per_gpu]
        at_share = self.speed(job, share * demand.gpus * demand.instances)
        enough = max(at_share, SATURATION * speeds[-1])
        return next((each for each, speed in zip(per_gpu, speeds, strict=True) if speed >= enough), share) * demand.gpus

    def _proportional_share(self, job: Job) -> Milli:
        """Return the smallest CPUs per GPU over all nodes that an instance fits on."""
        return min((node.cpu_milli // node.gpus for node in self._nodes(job)), default=0)

    def _nodes(self, job: Job) -> list[Node]:
        return [
            node
            for index, node in enumerate(self._speeds.cluster.nodes)
            if node.gpus >= max(job.demand.gpus, 1) and job.demand.accepts(index, node)
        ]


def _with_cpus(held: Allocation, cpu_milli: Milli, choose: Callable[[Milli, Milli], Milli]) -> Allocation:
    """Return an allocation with `choose(current, cpu_milli)` CPUs per instance; `choose` is max or min."""
    placement = tuple(
        Share(share.node, share.gpus, share.gpu_milli, choose(share.cpu_milli, cpu_milli), share.memory_mib)
        for share in held.placement
    )
    return Allocation(placement, held.plan)


def _check(order: str, round_seconds: Seconds, restart_seconds: Seconds) -> None:
    if order not in get_args(OrderName):
        raise BadValue(f"order is {order!r}, expected 'fifo' or 'las'")
    if not (isfinite(round_seconds) and round_seconds > 0):
        raise BadValue(f"round_seconds is {round_seconds}, expected a number > 0")
    if not 0 <= restart_seconds < inf:
        raise BadValue(f"restart_seconds is {restart_seconds}, expected a number ≥ 0")
