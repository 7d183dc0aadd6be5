"""Round-based scheduling: the cluster is reallocated once per round; in between, new jobs that fit start small.

A policy of this kind decides how much each job gets. Placement is decided here: runs whose amount does not change
stay in place; the others are placed, the largest first, on one node or on whole nodes; and where free GPUs are
scattered, runs are moved together so that a job fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

import msgspec

from refold.core import View
from refold.errors import BadValue
from refold.model import NO_CHANGE, WHOLE, Allocation, Decision, Demand, Job, Milli, Run, Seconds
from refold.placement import WHOLE_FREE, Placer
from refold.policies.common.draft import Draft, Transition
from refold.policies.common.options import Option, requested_option
from refold.policies.common.progress_estimator import ProgressEstimator
from refold.policies.common.reasons import Reasons

PreferredOptions = Mapping[str, Sequence[Option]]
"""Job -> options in order of preference, for each job that should run; later ones are for when earlier do not fit."""


class GpuBudget(NamedTuple):
    """GPU capacity to allocate, per GPU type, in thousandths of a GPU."""

    by_type: Mapping[str, Milli]

    @property
    def total(self) -> Milli:
        """The sum over all types."""
        return sum(self.by_type.values())


def remaining_budget(view: View, draft: Draft, fixed: Collection[str]) -> GpuBudget:
    """Return the GPUs that are up, less those of the `fixed` jobs, which keep what they have."""
    nodes = view.cluster.nodes
    by_type = dict.fromkeys(view.cluster.type_names, 0)
    for index, node in enumerate(nodes):
        if node.gpus and view.is_up(index):
            by_type[node.gpu_type] += sum(view.is_gpu_up(index, gpu) for gpu in range(node.gpus)) * WHOLE
    for job_id in fixed:
        held = draft.allocation_of(job_id)
        for share in held.placement if held is not None else ():
            if share.gpus and view.is_up(share.node):
                gpus = sum(view.is_gpu_up(share.node, gpu) for gpu in share.gpus)
                by_type[nodes[share.node].gpu_type] -= gpus * share.gpu_milli
    return GpuBudget(by_type)


class RoundPolicy(Protocol):
    """Decides how much each job gets."""

    def options(self, job: Job) -> Sequence[Option]:
        """Return what a job could have now, by increasing number of GPUs."""

    def allocate_gpus(self, view: View, jobs: Mapping[str, Job], budget: GpuBudget) -> PreferredOptions:
        """Decide which of `jobs`, waiting or running, get which options."""


class Rounds:
    """Calls a round policy once per round and carries out its allocation."""

    def __init__(self, round_seconds: Seconds, placer: Placer) -> None:
        if not 0 < round_seconds < inf:
            raise BadValue(f"round_seconds is {round_seconds}, expected > 0")
        self._seconds = round_seconds
        self._next: Seconds = -inf
        self._placer = placer
        self._transition = Transition()
        self._reasons = Reasons()

    def decide(self, view: View, policy: RoundPolicy, estimator: ProgressEstimator) -> Decision:
        """Reallocate if a round is due; otherwise continue the transition and start new jobs that fit."""
        changes = view.changes
        self._placer.observe(view)
        if view.now >= self._next and _is_useful_now(view, policy):
            self._next = view.now + self._seconds
            draft = self._reallocate(view, policy, estimator)
        elif changes.submitted or changes.requeued or changes.freed or changes.removed:
            draft = self._pending_draft(view)
        else:
            return NO_CHANGE
        self._start_small(view, draft, policy)
        decision = self._transition.step_towards(view, draft.target())
        return self._with_reasons(view, decision, policy)

    def _reallocate(self, view: View, policy: RoundPolicy, estimator: ProgressEstimator) -> Draft:
        draft = Draft(view)
        fixed = {run.job for run in view.runs.values() if is_fixed(view, run, estimator)}
        jobs = {job.id: job for job in view.waiting.values() if job.demand.gpus}
        jobs |= {job_id: job for job_id, job in view.active.items() if job_id not in fixed and job.demand.gpus}
        preferred = policy.allocate_gpus(view, jobs, remaining_budget(view, draft, fixed))
        RoundPlacement(view, draft, self._placer, frozenset(jobs)).place_all(preferred)
        return draft

    def _pending_draft(self, view: View) -> Draft:
        """Return the current allocations with the pending ones, as far as these are still free."""
        draft = Draft(view)
        for job_id, (wanted, why) in self._transition.pending.items():
            if wanted is None or not (job_id in view.waiting or job_id in view.runs):
                continue
            held = draft.allocation_of(job_id)
            draft.release(job_id, why)
            if not draft.assign(job_id, wanted, why) and held is not None:
                draft.assign(job_id, held, why)
        return draft

    def _start_small(self, view: View, draft: Draft, policy: RoundPolicy) -> None:
        """Start waiting jobs that fit at their smallest size, in queue order."""
        not_fitting: set[Demand] = set()
        for job in view.waiting.values():
            if draft.allocation_of(job.id) is not None:
                continue
            options = policy.options(job)
            for option in options:
                if option.gpus > options[0].gpus:
                    break
                if option.demand in not_fitting:
                    continue
                if draft.place(job.id, self._placer, option.demand, option.plan):
                    break
                not_fitting.add(option.demand)

    def _with_reasons(self, view: View, decision: Decision, policy: RoundPolicy) -> Decision:
        waits = self._reasons.collect_all(view, decision.starts, self._transition.pending)
        wake_at = self._next if self._next > view.now and _may_be_useful_later(view, decision, policy) else None
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)


def _is_useful_now(view: View, policy: RoundPolicy) -> bool:
    """Return whether reallocation could change anything now: a job waits, or could have another size."""
    return bool(view.waiting) or any(len(policy.options(job)) > 1 for job in view.active.values())


def _may_be_useful_later(view: View, decision: Decision, policy: RoundPolicy) -> bool:
    """Return whether reallocation could change anything in the next round without a new event in between."""
    if any(view.waiting[start.job].reshapable for start in decision.starts):
        return True
    waits = len(view.waiting) > len(decision.starts)
    runs = bool(view.runs or decision.starts)
    return (runs and waits) or any(len(policy.options(job)) > 1 for job in view.active.values())


def is_fixed(view: View, run: Run, estimator: ProgressEstimator) -> bool:
    """Return whether a run keeps its current or next allocation: it is not preemptible, is stopping or starting up."""
    return run.stopping or not view.is_preemptible(run.job) or estimator.startup_seconds(view, run) > 0


def matches_option(view: View, option: Option, held: Allocation) -> bool:
    """Return whether an allocation has the amount, plan and GPU types of an option."""
    return (
        held.gpu_milli == option.demand.total_gpu_milli
        and held.plan in (None, option.plan)
        and all(option.demand.accepts(node, view.cluster.nodes[node]) for node in held.nodes)
    )


def feasible_options(view: View, job: Job, options: Sequence[Option]) -> Sequence[Option]:
    """Return `options`; but for a run that may not be reshaped, only what it has."""
    run = view.runs.get(job.id)
    if run is None or job.reshapable:
        return options
    types = {view.cluster.nodes[share.node].gpu_type for share in run.allocation.placement if share.gpus}
    demand = msgspec.structs.replace(job.demand, gpu_types=tuple(sorted(types)))
    return (requested_option(job)._replace(demand=demand, plan=run.allocation.plan),)


class RoundPlacement:
    """Places preferred options on a draft."""

    def __init__(self, view: View, draft: Draft, placer: Placer, jobs: frozenset[str]) -> None:
        """`jobs`: those that may be moved."""
        self._view, self._draft, self._placer, self._jobs = view, draft, placer, jobs
        self._placed: dict[str, Option] = {}
        self._before: dict[str, Allocation] = {}
        self._not_fitting: set[Demand] = set()

    def place_all(self, preferred: PreferredOptions) -> None:
        """Keep runs whose option does not change, stop those without one, and place the others, the largest first."""
        for job_id, held in list(self._draft.allocations()):
            if job_id not in self._jobs:
                continue
            options = preferred.get(job_id, ())
            if options and matches_option(self._view, options[0], held):
                self._placed[job_id] = options[0]
                continue
            self._before[job_id] = held
            gpus = f"{held.gpu_milli / WHOLE:g}"
            self._draft.release(
                job_id, f"from {gpus} to {options[0].gpus} GPUs" if options else f"releases {gpus} GPUs"
            )
        for job_id in sorted(preferred, key=lambda job_id: -preferred[job_id][0].gpus):
            if job_id not in self._placed:
                self._place_one(job_id, preferred[job_id])

    def _place_one(self, job_id: str, options: Sequence[Option]) -> None:
        why = self._draft.changed.get(job_id, "")
        wanted = options[0]
        if self._place(job_id, wanted, why) or self._move_and_place(job_id, wanted, why):
            return
        if any(self._place(job_id, option, why) for option in options[1:]):
            return
        before = self._before.get(job_id)
        if before is not None:
            self._draft.assign(job_id, before, why)

    def _place(self, job_id: str, option: Option, why: str) -> bool:
        if not self._draft.place(job_id, self._placer, option.demand, option.plan, why):
            return False
        self._placed[job_id] = option
        return True

    def _move_and_place(self, job_id: str, option: Option, why: str) -> bool:
        """Move runs until the option fits; if a moved run does not fit anywhere, change nothing."""
        if option.demand in self._not_fitting or option.demand.gpu_milli < WHOLE:
            return False
        snapshot = self._draft.snapshot()
        moved = self._release_blockers(option.demand)
        if moved and self._place(job_id, option, why):
            moved.sort(key=lambda other: -self._placed[other].gpus)
            if all(self._place(other, self._placed[other], "moved to reduce fragmentation") for other in moved):
                return True
        self._draft.restore(snapshot)
        self._placed.pop(job_id, None)
        self._not_fitting.add(option.demand)
        return False

    def _release_blockers(self, demand: Demand) -> list[str]:
        """Release jobs that block the demand, on the nodes with the most free GPUs first; return the released jobs."""
        moved: list[str] = []
        free = self._draft.free
        on_node = self._movable()
        nodes = sorted(self._candidates(demand), key=lambda node: (-int(free.nodes[node, WHOLE_FREE]), node))
        wanted = demand.instances - sum(int(free.nodes[node, WHOLE_FREE]) >= demand.gpus for node in nodes)
        for node in nodes:
            if wanted <= 0:
                break
            missing = demand.gpus - int(free.nodes[node, WHOLE_FREE])
            others = _jobs_with_gpus(on_node.get(node, ()), missing) if missing > 0 else []
            for job_id in others:
                self._draft.release(job_id, "moved to reduce fragmentation")
            moved += others
            wanted -= bool(others)
        return moved

    def _candidates(self, demand: Demand) -> Iterator[int]:
        for index, node in enumerate(self._view.cluster.nodes):
            if node.gpus >= demand.gpus and self._view.is_up(index) and demand.accepts(index, node):
                yield index

    def _movable(self) -> dict[int, list[tuple[int, str]]]:
        """Return node -> (GPUs, job) of the jobs on part of that node only, which may be moved, the smallest first."""
        on_node: dict[int, list[tuple[int, str]]] = {}
        for job_id, held in self._draft.allocations():
            job = self._view.active.get(job_id)
            if job is not None and not job.reshapable:
                continue
            if job_id in self._placed and len(held.placement) == 1 and held.gpu_milli % WHOLE == 0:
                share = held.placement[0]
                if len(share.gpus) < self._view.cluster.nodes[share.node].gpus:
                    on_node.setdefault(share.node, []).append((len(share.gpus), job_id))
        return {node: sorted(jobs) for node, jobs in on_node.items()}


def _jobs_with_gpus(jobs: Sequence[tuple[int, str]], missing: int) -> list[str]:
    """Return the first jobs that together hold the missing GPUs; an empty list if all of them do not suffice."""
    chosen: list[str] = []
    for gpus, job_id in jobs:
        chosen.append(job_id)
        missing -= gpus
        if missing <= 0:
            return chosen
    return []
