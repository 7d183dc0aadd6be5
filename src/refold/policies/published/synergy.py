"""Synergy-Tune (OSDI'22): GPUs and plan as asked for; CPUs by how much a job gains from them.

Time goes in rounds. In each, jobs are seated in order. A job first tries with the CPUs that it is sensitive to, then
with no more than its proportional share of a node's CPUs, and then runs beside it that hold more than theirs are taken
down to it. So a job that has room by its GPUs does not wait for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, inf, isfinite
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from refold.core import View
from refold.errors import BadValue
from refold.model import KEEP, WHOLE, Allocation, Decision, Demand, Job, Milli, Node, Plan, Seconds, Share
from refold.packing import Placer
from refold.plans import NOTHING_MORE, Kind, Knowledge, Speeds, asked_layout, kind_of
from refold.policies.common import Draft, Reasons, Transition

OrderName = Literal["fifo", "las"]


class Synergy:
    """GPUs as asked for, CPUs tuned: who gains from more than its proportional share has it while nobody needs it."""

    name = "synergy"

    def __init__(
        self,
        placement: str = "best-fit",
        seed: int = 0,
        order: OrderName = "fifo",
        round_seconds: Seconds = 300.0,
        start_at_once: bool = False,
        saturation: float = 0.95,
        restart_seconds: Seconds = 78.0,
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
    ) -> None:
        """`start_at_once`: between rounds, who fits on what is free is started; else everybody waits for the round.

        `saturation`: a job wants the fewest CPUs that give it so much of the speed it has with all CPUs of its nodes.
        `restart_seconds`: what more CPUs cost a run, which they must gain within a round.
        """
        _check(order, round_seconds, saturation, restart_seconds)
        self._placer = Placer(placement, seed)
        self._by_service = order == "las"
        self._start_at_once = start_at_once
        self._saturation = saturation
        self._worth = 1 + restart_seconds / round_seconds
        self._knowledge = Knowledge.of(knowledge)
        self._tuning: Tuning | None = None
        self._rounds = _Rounds(round_seconds)
        self._steering = Transition()
        self._reasons = Reasons()
        self._short_of_cpus = False

    def decide(self, view: View) -> Decision:
        """Seat everybody anew if it is time for a round; otherwise go on with the last one."""
        if self._tuning is None:
            self._tuning = Tuning(Speeds(view.cluster, self._knowledge), self._saturation)
        self._placer.observe(view)
        changes = view.changes
        is_round = self._rounds.is_due(view)
        decision = KEEP
        if is_round:
            decision = self._round(view, self._tuning)
        elif changes.submitted or changes.returned or changes.gone or changes.freed:
            decision = self._between_rounds(view, self._tuning)
        return self._with_reasons(view, decision, looked=is_round or self._start_at_once)

    def _round(self, view: View, tuning: Tuning) -> Decision:
        table = _Placements(view, self._placer, tuning)
        queue = self._in_order(view, [*view.active.values(), *view.waiting.values()])
        table.seat_all(queue)
        self._short_of_cpus = table.raise_cpus(queue, self._worth)
        return self._steering.towards(view, table.draft.target())

    def _between_rounds(self, view: View, tuning: Tuning) -> Decision:
        table = _Placements(view, self._placer, tuning)
        table.seat_again(self._steering.awaited)
        if self._start_at_once:
            table.seat_on_free(self._in_order(view, [*view.waiting.values()]))
        return self._steering.towards(view, table.draft.target())

    def _in_order(self, view: View, jobs: Sequence[Job]) -> list[Job]:
        """Who may not be stopped goes first; then by arrival, or by what they have had."""

        def key(job: Job) -> tuple[bool, float, Seconds, str]:
            stays = job.id in view.runs and not job.preemptible
            return not stays, view.gpu_seconds(job.id) if self._by_service else 0.0, job.submitted, job.id

        return sorted(jobs, key=key)

    def _with_reasons(self, view: View, decision: Decision, *, looked: bool) -> Decision:
        behind = () if looked else view.waiting
        waits = self._reasons.of_everybody(view, decision.starts, self._steering.awaited, behind)
        somebody_waits = len(view.waiting) > len(decision.starts)
        matters = somebody_waits or (self._short_of_cpus and view.changes.freed)
        wake_at = self._rounds.next_if(view, matters)
        if decision is KEEP and not waits and wake_at is None:
            return KEEP
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)


class _Rounds:
    """When there is a round: when somebody comes to a cluster where nothing runs, and at even distances from then."""

    def __init__(self, every: Seconds) -> None:
        self._every = every
        self._first: Seconds = 0.0
        self._awaited: Seconds | None = None

    def is_due(self, view: View) -> bool:
        if self._awaited is None and not view.runs and view.waiting:
            self._first = view.now
            return True
        if self._awaited is not None and view.now >= self._awaited:
            self._awaited = None
            return True
        return False

    def next_if(self, view: View, matters: bool) -> Seconds | None:
        """When to be woken for the next round; a round that was asked for stays asked for."""
        if matters and self._awaited is None:
            self._awaited = self._first + (floor((view.now - self._first) / self._every) + 1) * self._every
            if self._awaited <= view.now:  # by rounding
                self._awaited += self._every
        return self._awaited


class _Placements:
    """Who sits where, in one look."""

    def __init__(self, view: View, placer: Placer, tuning: Tuning) -> None:
        self.draft = Draft(view)
        self._view = view
        self._placer = placer
        self._tuning = tuning
        self._jobs = {**view.waiting, **view.active}

    def seat_all(self, queue: Sequence[Job]) -> None:
        """Each in turn, on what is free or on what those behind it hold; where one has no place, its like have none."""
        without_place: set[Demand] = set()
        for position, job in enumerate(queue):
            wanted = self._tuning.of(job).fair
            if self.draft.holds(job.id) is not None or self._is_leaving(job) or wanted in without_place:
                continue
            if self._seat(job):
                continue
            if self._seat_instead_of(job, queue[position + 1 :]):
                without_place.clear()
            else:
                without_place.add(wanted)

    def seat_on_free(self, queue: Sequence[Job]) -> None:
        """Each in turn, if it fits on what is free; nobody has to move."""
        without_place: set[Demand] = set()
        for job in queue:
            wanted = self._tuning.of(job).fair
            if self.draft.holds(job.id) is None and wanted not in without_place and not self._place(job):
                without_place.add(wanted)

    def seat_again(self, awaited: Mapping[str, tuple[Allocation | None, str]]) -> None:
        """What the last round wanted and could not have at once."""
        for job_id, (wanted, why) in awaited.items():
            if job_id not in self._jobs:
                continue
            held = self.draft.holds(job_id)
            self.draft.release(job_id, why)
            if wanted is not None and not self.draft.put(job_id, wanted, why) and held is not None:
                self.draft.put(job_id, held, why)

    def raise_cpus(self, queue: Sequence[Job], worth: float) -> bool:
        """Give what is left to jobs that would gain from it; whether some would gain and there is not enough."""
        lacking = False
        for job in queue:
            held = self.draft.holds(job.id)
            if held is None or not self._tuning.knows(job) or self._is_fixed(job):
                continue
            wanted = _with_cpus(held, self._tuning.of(job).best.cpu_milli, max)
            gain = self._tuning.speed(job, wanted.cpu_milli) / self._tuning.speed(job, held.cpu_milli)
            if wanted == held or gain <= (worth if job.id in self._view.runs else 1.0):
                continue
            lacking |= not self._exchange(job.id, wanted, "more CPUs are free")
        return lacking

    def _seat(self, job: Job) -> bool:
        """The last resort, what it asked for, is less than its share where jobs that cannot be tuned hold more."""
        if self._place(job) or self._take_peers_down(job):
            return True
        return self.draft.place(job.id, self._placer, job.demand, None)

    def _place(self, job: Job) -> bool:
        tuned = self._tuning.of(job)
        for demand in dict.fromkeys((tuned.best, tuned.fair)):
            if self.draft.place(job.id, self._placer, demand, None):
                return True
        return False

    def _take_peers_down(self, job: Job) -> bool:
        """On nodes that have the GPUs: runs that hold more than their proportional share give the rest up."""
        fair = self._tuning.of(job).fair
        gpus_alone = msgspec.structs.replace(fair, cpu_milli=0)
        found = self._placer.place(self.draft.free.copy(), gpus_alone)
        if found is None or not fair.gpus:
            return False
        before = self.draft.snapshot()
        for peer, held in self._peers_on({share.node for share in found}):
            less = _with_cpus(held, self._tuning.of(self._jobs[peer]).fair.cpu_milli, min)
            self._exchange(peer, less, f"down to its share of CPUs for {job.id}")
            if self.draft.place(job.id, self._placer, fair, None):
                return True
        self.draft.restore(before)
        return False

    def _peers_on(self, nodes: set[int]) -> list[tuple[str, Allocation]]:
        """Who holds more than its share there: those on the fewest nodes first, then those with the most CPUs a GPU."""
        peers = []
        for job_id, held in self.draft.holders():
            job = self._jobs[job_id]
            if held.nodes.isdisjoint(nodes) or not self._tuning.knows(job) or self._is_fixed(job):
                continue
            if any(share.cpu_milli > self._tuning.of(job).fair.cpu_milli for share in held.placement):
                peers.append((len(held.nodes), -held.cpu_milli / held.gpu_milli, job_id, held))
        return [(job_id, held) for _, _, job_id, held in sorted(peers, key=lambda peer: peer[:3])]

    def _seat_instead_of(self, job: Job, later: Sequence[Job]) -> bool:
        """Stop the last in the order, as many as it takes; those whose place was not needed stay."""
        holding = [(other.id, held) for other in later if (held := self._may_give_way(other)) is not None]
        missing = job.demand.total_gpu_milli - self.draft.free.gpu_milli
        if missing > sum(held.gpu_milli for _, held in holding):
            return False
        before, left = self.draft.snapshot(), []
        for other, held in reversed(holding):
            self.draft.release(other, f"for {job.id}, which is before it")
            left.append((other, held))
            missing -= held.gpu_milli
            if missing <= 0 and self._place(job):
                for stopped, allocation in reversed(left):
                    self.draft.put(stopped, allocation)
                return True
        self.draft.restore(before)
        return False

    def _may_give_way(self, job: Job) -> Allocation | None:
        held = self.draft.holds(job.id)
        if held is None or self._is_fixed(job) or not all(self._view.is_up(node) for node in held.nodes):
            return None
        return held

    def _exchange(self, job_id: str, wanted: Allocation, why: str) -> bool:
        """Let a job hold something else, if that is free."""
        before = self.draft.snapshot()
        self.draft.release(job_id, why)
        if self.draft.put(job_id, wanted, why):
            return True
        self.draft.restore(before)
        return False

    def _is_fixed(self, job: Job) -> bool:
        """Whether it is running and may not be changed, or not now."""
        run = self._view.runs.get(job.id)
        return run is not None and (run.stopping or not job.preemptible)

    def _is_leaving(self, job: Job) -> bool:
        """Whether it has to stop before it can be seated again: it is stopping, or it may not change its shape."""
        run = self._view.runs.get(job.id)
        return run is not None and (run.stopping or not job.reshapable)


class Tuned(NamedTuple):
    """What a job would like to have, and what is never more than its proportional share."""

    best: Demand
    fair: Demand


class Tuning:
    """How many CPUs jobs want, by how their speed depends on them."""

    def __init__(self, speeds: Speeds, saturation: float) -> None:
        self._speeds = speeds
        self._saturation = saturation
        self._kept: dict[tuple[Kind, Demand, Plan | None], Tuned] = {}

    def knows(self, job: Job) -> bool:
        """Whether anything can be said of a job but what it asked for."""
        return self._speeds.knows(job) and self._speeds.cluster.cpus_known and self._share(job) >= WHOLE

    def of(self, job: Job) -> Tuned:
        """A job that is not known has what it asked for."""
        if not self.knows(job):
            return Tuned(job.demand, job.demand)
        key = (kind_of(job), job.demand, job.plan)
        if key not in self._kept:
            best = self._best(job)
            fair = min(best, self._share(job) * job.demand.gpus)
            self._kept[key] = Tuned(
                msgspec.structs.replace(job.demand, cpu_milli=best), msgspec.structs.replace(job.demand, cpu_milli=fair)
            )
        return self._kept[key]

    def speed(self, job: Job, cpu_milli: Milli) -> float:
        """Steps per second with so many CPUs in all, as asked for otherwise, on the slowest type that it accepts."""
        plan, layout = self._speeds.own_plan(job), asked_layout(job)
        speeds = (
            self._speeds.with_plan(job, gpu_type, layout, cpu_milli / WHOLE, plan).steps_per_second
            for gpu_type in self._speeds.types_for(job)
        )
        return min(speeds)

    def _best(self, job: Job) -> Milli:
        """The fewest whole CPUs a GPU that are near the most, and no slower than the proportional share."""
        demand, share = job.demand, self._share(job)
        most = max(share, min(node.cpu_milli for node in self._nodes(job)) // demand.gpus)
        by_gpu = [WHOLE * cpus for cpus in range(1, most // WHOLE + 1)]
        speeds = [self.speed(job, each * demand.gpus * demand.instances) for each in by_gpu]
        at_share = self.speed(job, share * demand.gpus * demand.instances)
        enough = max(at_share, self._saturation * speeds[-1])
        return next((each for each, speed in zip(by_gpu, speeds, strict=True) if speed >= enough), share) * demand.gpus

    def _share(self, job: Job) -> Milli:
        """CPUs a GPU, on the nodes with the fewest of those that an instance fits on."""
        return min((node.cpu_milli // node.gpus for node in self._nodes(job)), default=0)

    def _nodes(self, job: Job) -> list[Node]:
        accepted = job.demand.gpu_types
        return [
            node
            for node in self._speeds.cluster.nodes
            if node.gpus >= max(job.demand.gpus, 1) and (not accepted or node.gpu_type in accepted)
        ]


def _with_cpus(held: Allocation, cpu_milli: Milli, choose: Callable[[Milli, Milli], Milli]) -> Allocation:
    """The same with other CPUs for each instance: the larger or the smaller of what it has and this."""
    placement = tuple(
        Share(share.node, share.gpus, share.gpu_milli, choose(share.cpu_milli, cpu_milli), share.memory_mib)
        for share in held.placement
    )
    return Allocation(placement, held.plan)


def _check(order: str, round_seconds: Seconds, saturation: float, restart_seconds: Seconds) -> None:
    if order not in get_args(OrderName):
        raise BadValue(f"order is {order!r}, expected fifo or las")
    if not (isfinite(round_seconds) and round_seconds > 0):
        raise BadValue(f"round_seconds is {round_seconds}, expected > 0")
    if not 0 < saturation <= 1:
        raise BadValue(f"saturation is {saturation}, expected > 0 and at most 1")
    if not 0 <= restart_seconds < inf:
        raise BadValue(f"restart_seconds is {restart_seconds}, expected ≥ 0")
