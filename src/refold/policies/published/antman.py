"""AntMan (OSDI'20) as it is compared with in Rubick (MLSys'25): guaranteed jobs by amount, the others on what is left.

A guaranteed job runs on exactly the GPUs it asked for, and best-effort jobs are cut or stopped for it. A best-effort
job takes what is free and is grown when more is left over. Plans are fixed, but for the number of replicas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from refold.core import View
from refold.errors import BadValue
from refold.model import KEEP, WHOLE, Allocation, Decision, Demand, Job, Share
from refold.packing import Placer
from refold.plans import NOTHING_MORE, Knowledge, Speed, Speeds
from refold.policies.common import Draft, Reasons, Transition

SIZES = (1, 2, 4, 8)
"""By how many GPUs a best-effort job is cut, and how many it has on a node."""

WORTH_MORE = 1.01
"""A job is grown if that makes it so many times as fast."""


class AntMan:
    """Guaranteed jobs get the GPUs they asked for, at the expense of best-effort jobs, which use what is left."""

    name = "antman"

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        most_restarts: int = 5,
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
    ) -> None:
        """`most_restarts`: a best-effort job that was restarted so often is not grown or cut any more, only stopped."""
        if most_restarts < 0:
            raise BadValue(f"most_restarts is {most_restarts}, expected ≥ 0")
        self._placer = Placer(placement, seed)
        self._most_restarts = most_restarts
        self._knowledge = Knowledge.of(knowledge)
        self._speeds: Speeds | None = None
        self._steering = Transition()
        self._reasons = Reasons()

    def decide(self, view: View) -> Decision:
        """Guaranteed jobs first, then best-effort ones, then growth on what is left over."""
        if self._speeds is None:
            self._speeds = Speeds(view.cluster, self._knowledge)
        self._placer.observe(view)
        changes = view.changes
        if not (changes.submitted or changes.returned or changes.gone or changes.freed):
            return KEEP
        look = _AntManRound(view, self._placer, self._speeds, self._most_restarts)
        queue = sorted(view.waiting.values(), key=lambda job: (job.submitted, job.id))
        look.start_guaranteed([job for job in queue if job.job_class == "guaranteed"])
        look.start_best_effort([job for job in queue if job.job_class == "best-effort"])
        look.grow_on_what_is_left()
        decision = self._steering.towards(view, look.draft.target())
        return self._with_reasons(view, decision, look.over_quota)

    def _with_reasons(self, view: View, decision: Decision, over_quota: set[str]) -> Decision:
        """Who is beyond its tenant's quota stands behind those that use it."""
        waits = self._reasons.of_everybody(view, decision.starts, self._steering.awaited, over_quota)
        return msgspec.structs.replace(decision, waits=waits)


class _AntManRound:
    """One look: who gets what, on a draft."""

    def __init__(self, view: View, placer: Placer, speeds: Speeds, most_restarts: int) -> None:
        self.draft = Draft(view)
        self.over_quota: set[str] = set()
        self._view = view
        self._placer = placer
        self._speeds = speeds
        self._most_restarts = most_restarts
        self._jobs = {**view.waiting, **view.active}

    # Guaranteed jobs.

    def start_guaranteed(self, queue: Sequence[Job]) -> None:
        """In order, each within its tenant's quota, which counts the GPUs asked for."""
        used = self._quota_used()
        without_place: set[Demand] = set()
        for job in queue:
            asked = job.demand.total_gpus
            if used[job.tenant] + asked > self._view.cluster.quota_gpus(job.tenant):
                self.over_quota.add(job.id)
                continue
            if job.demand in without_place:
                continue
            if self.draft.place(job.id, self._placer, job.demand, None) or self._place_instead_of_others(job):
                used[job.tenant] += asked
            else:
                without_place.add(job.demand)

    def _quota_used(self) -> dict[str, float]:
        used: dict[str, float] = defaultdict(float)
        for job_id, _ in self.draft.holders():
            job = self._jobs[job_id]
            if job.job_class == "guaranteed":
                used[job.tenant] += job.demand.total_gpus
        return used

    def _place_instead_of_others(self, job: Job) -> bool:
        """Instance by instance on the node where the fewest GPUs are missing; all of them, or nobody is cut."""
        before = self.draft.snapshot()
        shares: list[Share] = []
        for _ in range(job.demand.instances):
            share = self._share_for(job)
            if share is None:
                self.draft.restore(before)
                return False
            self.draft.free.take((share,))
            shares.append(share)
        self.draft.free.give_back(shares)
        return self.draft.put(job.id, Allocation(tuple(shares)))

    def _share_for(self, job: Job) -> Share | None:
        for node in self._nodes_by_what_is_missing(job.demand):
            share = self._room_on(node, job.demand) or self._cut_on(node, job)
            if share is not None:
                return share
        return None

    def _nodes_by_what_is_missing(self, demand: Demand) -> list[int]:
        ranked = []
        for index, node in enumerate(self._view.cluster.nodes):
            fits = node.gpus >= demand.gpus and (not demand.gpu_types or node.gpu_type in demand.gpu_types)
            if self._view.is_up(index) and (fits or not demand.gpus):
                free = self.draft.free.gpu_milli_of(index).count(WHOLE)
                ranked.append((max(0, demand.gpus - free), free, index))
        return [index for _, _, index in sorted(ranked)]

    def _room_on(self, node: int, demand: Demand) -> Share | None:
        """One instance's share of a node, if it is free: of the GPUs with enough, those with the least."""
        milli = self.draft.free.gpu_milli_of(node)
        enough = sorted((free, gpu) for gpu, free in enumerate(milli) if free >= demand.gpu_milli)
        gpus = tuple(sorted(gpu for _, gpu in enough[: demand.gpus]))
        share = Share(node, gpus, demand.gpu_milli, demand.cpu_milli, demand.memory_mib)
        return share if len(gpus) == demand.gpus and self.draft.free.has((share,)) else None

    def _cut_on(self, node: int, job: Job) -> Share | None:
        """The smallest cut of one victim that is enough; where none is, victims leave the node one after another."""
        before, why = self.draft.snapshot(), f"for {job.id}, which is guaranteed"
        victims = self._victims_on(node)
        for size in SIZES:
            for victim in victims:
                if not self._cut(victim, node, size, why):
                    continue
                share = self._room_on(node, job.demand)
                if share is not None:
                    return share
                self.draft.restore(before)
        for victim in victims:
            self._cut(victim, node, _gpus_on(self.draft.holds(victim), node), why)
            share = self._room_on(node, job.demand)
            if share is not None:
                return share
        self.draft.restore(before)
        return None

    def _victims_on(self, node: int) -> list[str]:
        """Best-effort jobs there that may be changed, the last to come first."""
        there = [
            self._jobs[job_id]
            for job_id, held in self.draft.holders()
            if node in held.nodes and self._may_change(self._jobs[job_id])
        ]
        return [job.id for job in sorted(there, key=lambda job: (job.submitted, job.id), reverse=True)]

    def _cut(self, job_id: str, node: int, gpus: int, why: str) -> bool:
        """Take so many GPUs of a node away from a job; of one that cannot go on with the rest, take everything."""
        held = self.draft.holds(job_id)
        there = _gpus_on(held, node)
        if held is None or gpus > there:
            return False
        less = self._scaled(self._jobs[job_id], _without(held, node, gpus))
        if less is None and gpus < there:
            return False
        self.draft.release(job_id, why)
        if less is not None:
            self.draft.put(job_id, less, why)  # unless another of its nodes is down: then it stops
        return True

    # Best-effort jobs.

    def start_best_effort(self, queue: Sequence[Job]) -> None:
        """In order, each on what it asked for or on as much as is free."""
        without_place: set[Demand] = set()
        for job in queue:
            if job.demand in without_place or self._place_as_asked_or_smaller(job):
                continue
            if not self._speeds.knows(job):
                without_place.add(job.demand)

    def _place_as_asked_or_smaller(self, job: Job) -> bool:
        if self.draft.place(job.id, self._placer, job.demand, None):
            return True
        if not self._speeds.knows(job):
            return False
        before = self.draft.snapshot()
        for demand in _smaller(job.demand):
            if demand.total_gpu_milli > self.draft.free.gpu_milli:
                continue
            if self.draft.place(job.id, self._placer, demand, None):
                held = self.draft.holds(job.id)
                scaled = self._scaled(job, held.placement) if held else None
                self.draft.release(job.id)
                if scaled is not None and self.draft.put(job.id, scaled):
                    return True
                self.draft.restore(before)
        return False

    # Growth.

    def grow_on_what_is_left(self) -> None:
        """On each node, one best-effort job that lives there alone takes the free GPUs: the first to come that can."""
        for node in range(len(self._view.cluster.nodes)):
            if not self._view.is_up(node) or WHOLE not in self.draft.free.gpu_milli_of(node):
                continue
            for job_id in reversed(self._victims_on(node)):
                if self._grow(self._jobs[job_id], node):
                    break

    def _grow(self, job: Job, node: int) -> bool:
        held = self.draft.holds(job.id)
        if held is None or held.nodes != {node} or not self._may_be_scaled(job):
            return False
        now = self._speed(job, held)
        for wanted in self._larger(job, held, node):
            speed = self._speed_of(job, wanted.placement)
            if speed is None or speed.steps_per_second < now * WORTH_MORE:
                continue
            before = self.draft.snapshot()
            self.draft.release(job.id, "on what is left over")
            if self.draft.put(job.id, Allocation(wanted.placement, speed.plan), "on what is left over"):
                return True
            self.draft.restore(before)
        return False

    def _larger(self, job: Job, held: Allocation, node: int) -> Iterator[Allocation]:
        """The sizes that a job could grow to on its node, the largest first."""
        own = [gpu for share in held.placement for gpu in share.gpus]
        free = [gpu for gpu, milli in enumerate(self.draft.free.gpu_milli_of(node)) if milli == WHOLE]
        for size in reversed(SIZES):
            if len(own) < size <= len(own) + len(free):
                gpus = tuple(sorted(own + free[: size - len(own)]))
                yield Allocation((_share_of(job.demand, node, gpus),))

    # What can become of a job.

    def _may_change(self, job: Job) -> bool:
        """Whether it is best-effort, and not running or free to be stopped."""
        run = self._view.runs.get(job.id)
        return job.job_class == "best-effort" and (run is None or (job.preemptible and not run.stopping))

    def _may_be_scaled(self, job: Job) -> bool:
        starts_again = job.id in self._view.runs
        restarts = self._view.runs_so_far(job.id) - 1
        return self._speeds.knows(job) and (not starts_again or restarts < self._most_restarts)

    def _scaled(self, job: Job, placement: tuple[Share, ...]) -> Allocation | None:
        """The job there with its own plan and as many replicas as fit; None: it cannot be, or not any more."""
        if not placement or not self._may_be_scaled(job):
            return None
        speed = self._speed_of(job, placement)
        return Allocation(placement, speed.plan) if speed is not None else None

    def _speed_of(self, job: Job, placement: tuple[Share, ...]) -> Speed | None:
        there = Allocation(placement)
        types = {self._view.cluster.nodes[node].gpu_type for node in there.nodes}
        if len(types) > 1 or not types <= set(self._speeds.types_for(job)):
            return None
        return self._speeds.scaled(job, types.pop(), there.gpus_on_node, there.cpu_milli / WHOLE)

    def _speed(self, job: Job, held: Allocation) -> float:
        gpu_type = self._view.cluster.nodes[held.placement[0].node].gpu_type
        if gpu_type not in self._speeds.types_for(job):
            return float("inf")  # of which nothing is known: it stays as it is
        plan = held.plan or self._speeds.own_plan(job)
        cpus = held.cpu_milli / WHOLE
        return self._speeds.with_plan(job, gpu_type, held.gpus_on_node, cpus, plan).steps_per_second


def _smaller(demand: Demand) -> list[Demand]:
    """Fewer whole instances, and then one of 8, 4, 2 or 1 GPUs, with CPUs and memory in proportion."""
    fewer = [msgspec.structs.replace(demand, instances=count) for count in range(demand.instances - 1, 0, -1)]
    return fewer + [_of_one_node(demand, size) for size in reversed(SIZES) if size < demand.gpus]


def _of_one_node(demand: Demand, gpus: int) -> Demand:
    cpus, memory = _proportional(demand, gpus)
    return Demand(1, gpus, WHOLE, cpus, memory, demand.gpu_types)


def _proportional(demand: Demand, gpus: int) -> tuple[int, int]:
    return demand.cpu_milli * gpus // demand.gpus, demand.memory_mib * gpus // demand.gpus


def _share_of(demand: Demand, node: int, gpus: tuple[int, ...]) -> Share:
    cpus, memory = _proportional(demand, len(gpus))
    return Share(node, gpus, WHOLE, cpus, memory)


def _gpus_on(held: Allocation | None, node: int) -> int:
    return sum(len(share.gpus) for share in held.placement if share.node == node) if held else 0


def _without(held: Allocation, node: int, gpus: int) -> tuple[Share, ...]:
    """What is left of a placement without so many GPUs of a node, CPUs and memory going with them."""
    left: list[Share] = []
    for share in reversed(held.placement):
        there = len(share.gpus)
        taken = min(gpus, there) if share.node == node else 0
        gpus -= taken
        if taken == there:
            continue
        keep = there - taken
        cpus, memory = share.cpu_milli * keep // there, share.memory_mib * keep // there
        left.append(Share(share.node, share.gpus[:keep], share.gpu_milli, cpus, memory))
    return tuple(reversed(left))
