"""AntMan (OSDI'20) as in Rubick's comparison (MLSys'25): guaranteed resource amounts, best-effort jobs on free GPUs.

A guaranteed job runs on exactly the GPUs it requested; best-effort jobs are shrunk or stopped for it. A best-effort job
starts on the GPUs that are free and grows when GPUs are left over. Plans are fixed except for the number of replicas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from refold.core import View
from refold.errors import BadValue
from refold.model import NO_CHANGE, WHOLE, Allocation, Decision, Demand, Job, Share
from refold.placement import Placer
from refold.planning.plans import CATALOGUE_ONLY, MIN_SPEEDUP, Knowledge, Speed, Speeds
from refold.policies.common import Draft, Reasons, Transition

SIZES = (1, 2, 4, 8)
"""Numbers of GPUs by which a best-effort job is shrunk, and to which it grows on a node."""


class AntMan:
    """Guaranteed jobs get the GPUs they requested; best-effort jobs use the rest and are shrunk or stopped."""

    name = "antman"

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        max_restarts: int = 5,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        """`max_restarts`: after this many restarts a best-effort job is not grown or shrunk any more, only stopped."""
        if max_restarts < 0:
            raise BadValue(f"max_restarts is {max_restarts}, expected a number ≥ 0")
        self._placer = Placer(placement, seed)
        self._max_restarts = max_restarts
        self._knowledge = Knowledge.from_settings(knowledge)
        self._speeds: Speeds | None = None
        self._transition = Transition()
        self._reasons = Reasons()

    def decide(self, view: View) -> Decision:
        """Start guaranteed jobs, then best-effort jobs, then grow best-effort jobs on the GPUs left over."""
        if self._speeds is None:
            self._speeds = Speeds(view.cluster, self._knowledge)
        self._placer.observe(view)
        changes = view.changes
        if not (changes.submitted or changes.requeued or changes.removed or changes.freed):
            return NO_CHANGE
        round_ = _AntManRound(view, self._placer, self._speeds, self._max_restarts)
        queue = sorted(view.waiting.values(), key=lambda job: (job.submitted, job.id))
        round_.start_guaranteed([job for job in queue if job.job_class == "guaranteed"])
        round_.start_best_effort([job for job in queue if job.job_class == "best-effort"])
        round_.grow_on_free_gpus()
        decision = self._transition.step_towards(view, round_.draft.target())
        return self._with_reasons(view, decision, round_.over_quota)

    def _with_reasons(self, view: View, decision: Decision, over_quota: set[str]) -> Decision:
        """Add the reasons why jobs wait; jobs over quota wait for jobs of the same tenant, not for resources."""
        waits = self._reasons.collect_all(view, decision.starts, self._transition.pending, over_quota)
        return msgspec.structs.replace(decision, waits=waits)


class _AntManRound:
    """One scheduling round on a draft."""

    def __init__(self, view: View, placer: Placer, speeds: Speeds, max_restarts: int) -> None:
        self.draft = Draft(view)
        self.over_quota: set[str] = set()
        self._view = view
        self._placer = placer
        self._speeds = speeds
        self._scaling = _Scaling(view, speeds, max_restarts)
        self._jobs = {**view.waiting, **view.active}

    # Guaranteed jobs.

    def start_guaranteed(self, queue: Sequence[Job]) -> None:
        """Start jobs in order within their tenants' quotas, which count requested GPUs."""
        used = self._quota_used()
        unplaceable: set[Demand] = set()
        for job in queue:
            requested = job.demand.total_gpus
            if used[job.tenant] + requested > self._view.cluster.quota_gpus(job.tenant):
                self.over_quota.add(job.id)
                continue
            if job.demand in unplaceable:
                continue
            if self.draft.place(job.id, self._placer, job.demand, None) or self._place_by_shrinking_others(job):
                used[job.tenant] += requested
            else:
                unplaceable.add(job.demand)

    def _quota_used(self) -> dict[str, float]:
        used: dict[str, float] = defaultdict(float)
        for job_id, _ in self.draft.allocations():
            job = self._jobs[job_id]
            if job.job_class == "guaranteed":
                used[job.tenant] += job.demand.total_gpus
        return used

    def _place_by_shrinking_others(self, job: Job) -> bool:
        """Place every instance on the node that lacks the fewest GPUs, shrinking victims; all instances or none."""
        before = self.draft.snapshot()
        shares: list[Share] = []
        for _ in range(job.demand.instances):
            share = self._share_for(job)
            if share is None:
                self.draft.free.release(shares)
                self.draft.restore(before)
                return False
            self.draft.free.take((share,))
            shares.append(share)
        self.draft.free.release(shares)
        return self.draft.assign(job.id, Allocation(tuple(shares)))

    def _share_for(self, job: Job) -> Share | None:
        for node in self._nodes_by_missing_gpus(job.demand):
            share = self._free_share(node, job.demand) or self._shrink_victims_on(node, job)
            if share is not None:
                return share
        return None

    def _nodes_by_missing_gpus(self, demand: Demand) -> list[int]:
        ranked = []
        for index, node in enumerate(self._view.cluster.nodes):
            if self._view.is_up(index) and node.gpus >= demand.gpus and demand.accepts(index, node):
                free = self.draft.free.gpu_milli_of(index).count(WHOLE)
                ranked.append((max(0, demand.gpus - free), free, index))
        return [index for _, _, index in sorted(ranked)]

    def _free_share(self, node: int, demand: Demand) -> Share | None:
        """Return one instance's share of a node, on the GPUs with the least sufficient free capacity; None if full."""
        milli = self.draft.free.gpu_milli_of(node)
        enough = sorted((free, gpu) for gpu, free in enumerate(milli) if free >= demand.gpu_milli)
        gpus = tuple(sorted(gpu for _, gpu in enough[: demand.gpus]))
        share = Share(node, gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
        return share if len(gpus) == demand.gpus and self.draft.free.has((share,)) else None

    def _shrink_victims_on(self, node: int, job: Job) -> Share | None:
        """Shrink one victim by the smallest sufficient size; if none suffices, remove victims from the node in turn."""
        before, why = self.draft.snapshot(), f"gave GPUs to {job.id}, which is guaranteed"
        victims = self._victims_on(node)
        for size in SIZES:
            for victim in victims:
                if not self._shrink(victim, node, size, why):
                    continue
                share = self._free_share(node, job.demand)
                if share is not None:
                    return share
                self.draft.restore(before)
        for victim in victims:
            self._shrink(victim, node, _gpus_on(self.draft.allocation_of(victim), node), why)
            share = self._free_share(node, job.demand)
            if share is not None:
                return share
        self.draft.restore(before)
        return None

    def _victims_on(self, node: int) -> list[str]:
        """Return the best-effort jobs on a node that may be changed, latest submission first."""
        on_node = [
            self._jobs[job_id]
            for job_id, held in self.draft.allocations()
            if node in held.nodes and self._scaling.may_change(self._jobs[job_id])
        ]
        return [job.id for job in sorted(on_node, key=lambda job: (job.submitted, job.id), reverse=True)]

    def _shrink(self, job_id: str, node: int, gpus: int, why: str) -> bool:
        """Take GPUs of a node from a job; stop the job if it loses all GPUs there and cannot run on the rest."""
        held = self.draft.allocation_of(job_id)
        on_node = _gpus_on(held, node)
        if held is None or gpus > on_node:
            return False
        less = self._scaling.scaled(self._jobs[job_id], _without_gpus(held, node, gpus))
        if less is None and gpus < on_node:
            return False
        self.draft.release(job_id, why)
        if less is not None:
            self.draft.assign(job_id, less, why)  # fails if another of its nodes is down: then the job stops
        return True

    # Best-effort jobs.

    def start_best_effort(self, queue: Sequence[Job]) -> None:
        """Start jobs in order, each as requested or on as many GPUs as are free."""
        unplaceable: set[Demand] = set()
        for job in queue:
            if job.demand in unplaceable or self._place_as_requested_or_smaller(job):
                continue
            if not self._speeds.can_model(job):
                unplaceable.add(job.demand)

    def _place_as_requested_or_smaller(self, job: Job) -> bool:
        if self.draft.place(job.id, self._placer, job.demand, None):
            return True
        if not self._speeds.can_model(job):
            return False
        before = self.draft.snapshot()
        for demand in _smaller_demands(job.demand):
            if demand.total_gpu_milli > self.draft.free.gpu_milli:
                continue
            if self.draft.place(job.id, self._placer, demand, None):
                held = self.draft.allocation_of(job.id)
                scaled = self._scaling.scaled(job, held.placement) if held else None
                self.draft.release(job.id)
                if scaled is not None and self.draft.assign(job.id, scaled):
                    return True
                self.draft.restore(before)
        return False

    # Growth.

    def grow_on_free_gpus(self) -> None:
        """On each node, grow one best-effort job that runs on this node only: the earliest submitted that can grow."""
        for node in range(len(self._view.cluster.nodes)):
            if not self._view.is_up(node) or WHOLE not in self.draft.free.gpu_milli_of(node):
                continue
            for job_id in reversed(self._victims_on(node)):
                if self._grow(self._jobs[job_id], node):
                    break

    def _grow(self, job: Job, node: int) -> bool:
        held = self.draft.allocation_of(job.id)
        if held is None or held.nodes != {node} or not self._scaling.may_scale(job):
            return False
        now = self._scaling.speed(job, held)
        for wanted in self._larger_allocations(job, held, node):
            speed = self._scaling.scaled_speed(job, wanted.placement)
            if speed is None or speed.steps_per_second < now * MIN_SPEEDUP:
                continue
            before = self.draft.snapshot()
            self.draft.release(job.id, "grows on free GPUs")
            if self.draft.assign(job.id, Allocation(wanted.placement, speed.plan), "grows on free GPUs"):
                return True
            self.draft.restore(before)
        return False

    def _larger_allocations(self, job: Job, held: Allocation, node: int) -> Iterator[Allocation]:
        """Yield the allocations that a job could grow to on its node, largest first."""
        own = [gpu for share in held.placement for gpu in share.gpus]
        free = [gpu for gpu, milli in enumerate(self.draft.free.gpu_milli_of(node)) if milli == WHOLE]
        for size in reversed(SIZES):
            if len(own) < size <= len(own) + len(free):
                gpus = tuple(sorted(own + free[: size - len(own)]))
                yield Allocation((_share_of(job.demand, node, gpus),))


class _Scaling:
    """Which jobs may be changed and scaled, and their speeds."""

    def __init__(self, view: View, speeds: Speeds, max_restarts: int) -> None:
        self._view, self._speeds, self._max_restarts = view, speeds, max_restarts

    def may_change(self, job: Job) -> bool:
        """Whether a job is best-effort, and either not running or preemptible and not stopping."""
        run = self._view.runs.get(job.id)
        return job.job_class == "best-effort" and (
            run is None or (self._view.is_preemptible(job.id) and not run.stopping)
        )

    def may_scale(self, job: Job) -> bool:
        """Whether the number of replicas of a job may change."""
        is_running = job.id in self._view.runs
        restarts = self._view.run_count(job.id) - 1
        return self._speeds.can_model(job) and (not is_running or restarts < self._max_restarts)

    def scaled(self, job: Job, placement: tuple[Share, ...]) -> Allocation | None:
        """Return the job's allocation with its own plan and the replicas that fit; None if it cannot be scaled."""
        if not placement or not self.may_scale(job):
            return None
        speed = self.scaled_speed(job, placement)
        return Allocation(placement, speed.plan) if speed is not None else None

    def scaled_speed(self, job: Job, placement: tuple[Share, ...]) -> Speed | None:
        """Return the speed with the job's own plan and the replicas that fit; None if there is no such plan."""
        allocation = Allocation(placement)
        types = {self._view.cluster.nodes[node].gpu_type for node in allocation.nodes}
        if len(types) > 1 or not types <= set(self._speeds.types_for(job)):
            return None
        return self._speeds.scaled(job, types.pop(), allocation.gpus_on_node, allocation.cpu_milli / WHOLE)

    def speed(self, job: Job, held: Allocation) -> float:
        """Return the steps per second with an allocation; infinity if the GPU type is not modelled: never grow."""
        gpu_type = self._view.cluster.nodes[held.placement[0].node].gpu_type
        if gpu_type not in self._speeds.types_for(job):
            return inf
        plan = held.plan or self._speeds.own_plan(job)
        cpus = held.cpu_milli / WHOLE
        return self._speeds.with_plan(job, gpu_type, held.gpus_on_node, cpus, plan).steps_per_second


def _smaller_demands(demand: Demand) -> list[Demand]:
    """Return smaller demands: fewer instances, then one instance of 8, 4, 2 or 1 GPUs, CPUs and memory scaled."""
    fewer = [msgspec.structs.replace(demand, instances=count) for count in range(demand.instances - 1, 0, -1)]
    return fewer + [_single_node_demand(demand, size) for size in reversed(SIZES) if size < demand.gpus]


def _single_node_demand(demand: Demand, gpus: int) -> Demand:
    cpus, memory = _proportional(demand, gpus)
    return Demand(1, gpus, WHOLE, cpus, memory, demand.gpu_types, demand.allowed_nodes)


def _proportional(demand: Demand, gpus: int) -> tuple[int, int]:
    return demand.cpu_milli * gpus // demand.gpus, demand.memory_mib * gpus // demand.gpus


def _share_of(demand: Demand, node: int, gpus: tuple[int, ...]) -> Share:
    cpus, memory = _proportional(demand, len(gpus))
    return Share(node, gpus, WHOLE, cpus, memory)


def _gpus_on(held: Allocation | None, node: int) -> int:
    return sum(len(share.gpus) for share in held.placement if share.node == node) if held else 0


def _without_gpus(held: Allocation, node: int, gpus: int) -> tuple[Share, ...]:
    """Return a placement without `gpus` GPUs of a node, and without their CPUs and memory."""
    remaining: list[Share] = []
    for share in reversed(held.placement):
        count = len(share.gpus)
        removed = min(gpus, count) if share.node == node else 0
        gpus -= removed
        if removed == count:
            continue
        remaining_gpus = count - removed
        cpus, memory = share.cpu_milli * remaining_gpus // count, share.memory_mib * remaining_gpus // count
        remaining.append(Share(share.node, share.gpus[:remaining_gpus], share.gpu_milli, cpus, memory))
    return tuple(reversed(remaining))
