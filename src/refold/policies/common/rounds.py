"""Rounds: now and then the whole cluster is shared out anew; in between, whoever comes and fits begins small.

What a policy of this kind decides is how much everybody gets. Where that is, is decided here: runs that keep their
share stay where they are; the others are placed, the largest first, on one node or on whole nodes; and where the free
GPUs are scattered, runs are moved together to make room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple, Protocol

import msgspec

from refold.core import View
from refold.errors import BadValue
from refold.model import KEEP, WHOLE, Allocation, Decision, Demand, Job, Milli, Run, Seconds
from refold.packing import WHOLE_FREE, Placer
from refold.policies.common.draft import Draft, Transition
from refold.policies.common.options import Option, as_asked
from refold.policies.common.outlook import Outlook
from refold.policies.common.reasons import Reasons

Wishes = Mapping[str, Sequence[Option]]
"""For each job that should run, what it should have; then what will do if there is no place for that."""


class Budget(NamedTuple):
    """How much GPU there is to share out, of each type, in thousandths."""

    by_type: Mapping[str, Milli]

    @property
    def total(self) -> Milli:
        """Of all types."""
        return sum(self.by_type.values())


def budget_beside(view: View, draft: Draft, fixed: Collection[str]) -> Budget:
    """All GPUs of nodes that are up, but for what is held by those who keep it."""
    nodes = view.cluster.nodes
    by_type = dict.fromkeys(view.cluster.type_names, 0)
    for index, node in enumerate(nodes):
        if node.gpus and view.is_up(index):
            by_type[node.gpu_type] += node.gpus * WHOLE
    for job_id in fixed:
        held = draft.holds(job_id)
        for share in held.placement if held is not None else ():
            if share.gpus and view.is_up(share.node):
                by_type[nodes[share.node].gpu_type] -= len(share.gpus) * share.gpu_milli
    return Budget(by_type)


class RoundPolicy(Protocol):
    """Who says how much everybody gets."""

    def options(self, job: Job) -> Sequence[Option]:
        """What a job could have now, from the fewest GPUs to the most."""
        ...

    def share_out(self, view: View, jobs: Mapping[str, Job], budget: Budget) -> Wishes:
        """Who of `jobs`, which wait or run, gets what."""
        ...


class Rounds:
    """Asks a sharer once a round, and leads to what it says."""

    def __init__(self, round_seconds: Seconds, placer: Placer) -> None:
        if not 0 < round_seconds < inf:
            raise BadValue(f"round_seconds is {round_seconds}, expected > 0")
        self._seconds = round_seconds
        self._next: Seconds = -inf
        self._placer = placer
        self._steering = Transition()
        self._reasons = Reasons()

    def decide(self, view: View, sharer: RoundPolicy, outlook: Outlook) -> Decision:
        """Share out anew if it is time; else see to those who came."""
        changes = view.changes
        self._placer.observe(view)
        if view.now >= self._next and _matters(view, sharer):
            self._next = view.now + self._seconds
            draft = self._shared_out(view, sharer, outlook)
        elif changes.submitted or changes.returned or changes.freed or changes.gone:
            draft = self._as_promised(view)
        else:
            return KEEP
        self._let_begin(view, draft, sharer)
        decision = self._steering.towards(view, draft.target())
        return self._explained(view, decision, sharer)

    def _shared_out(self, view: View, sharer: RoundPolicy, outlook: Outlook) -> Draft:
        draft = Draft(view)
        fixed = {run.job for run in view.runs.values() if is_fixed(view, run, outlook)}
        jobs = {job.id: job for job in view.waiting.values() if job.demand.gpus}
        jobs |= {job_id: job for job_id, job in view.active.items() if job_id not in fixed and job.demand.gpus}
        wishes = sharer.share_out(view, jobs, budget_beside(view, draft, fixed))
        RoundPlacement(view, draft, self._placer, frozenset(jobs)).seat(wishes)
        return draft

    def _as_promised(self, view: View) -> Draft:
        """What is held, with what is awaited, where that can still be had."""
        draft = Draft(view)
        for job_id, (wanted, why) in self._steering.awaited.items():
            if wanted is None or not (job_id in view.waiting or job_id in view.runs):
                continue
            held = draft.holds(job_id)
            draft.release(job_id, why)
            if not draft.put(job_id, wanted, why) and held is not None:
                draft.put(job_id, held, why)
        return draft

    def _let_begin(self, view: View, draft: Draft, sharer: RoundPolicy) -> None:
        """Who waits and fits as small as can be begins, in the order of waiting."""
        without_place: set[Demand] = set()
        for job in view.waiting.values():
            if draft.holds(job.id) is not None:
                continue
            options = sharer.options(job)
            for option in options:
                if option.gpus > options[0].gpus:
                    break
                if option.demand in without_place:
                    continue
                if draft.place(job.id, self._placer, option.demand, option.plan):
                    break
                without_place.add(option.demand)

    def _explained(self, view: View, decision: Decision, sharer: RoundPolicy) -> Decision:
        waits = self._reasons.of_everybody(view, decision.starts, self._steering.awaited)
        wake_at = self._next if self._next > view.now and _could_change(view, decision, sharer) else None
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)


def _matters(view: View, sharer: RoundPolicy) -> bool:
    """Whether sharing out could change anything now: somebody waits, or could have another share."""
    return bool(view.waiting) or any(len(sharer.options(job)) > 1 for job in view.active.values())


def _could_change(view: View, decision: Decision, sharer: RoundPolicy) -> bool:
    """Whether sharing out could change anything later, without anything having happened; where nothing runs, no."""
    if any(view.waiting[start.job].reshapable for start in decision.starts):
        return True
    waits = len(view.waiting) > len(decision.starts)
    runs = bool(view.runs or decision.starts)
    return (runs and waits) or any(len(sharer.options(job)) > 1 for job in view.active.values())


def is_fixed(view: View, run: Run, outlook: Outlook) -> bool:
    """Whether a run keeps what it has, or will have: it may not be stopped, or is stopping or starting up."""
    return run.stopping or not view.active[run.job].preemptible or outlook.starting_up(view, run) > 0


def is_held(view: View, option: Option, held: Allocation) -> bool:
    """Whether what is held is this option."""
    accepted = option.demand.gpu_types
    return (
        held.gpu_milli == option.demand.total_gpu_milli
        and held.plan in (None, option.plan)
        and (not accepted or all(view.cluster.nodes[node].gpu_type in accepted for node in held.nodes))
    )


def possible(view: View, job: Job, options: Sequence[Option]) -> Sequence[Option]:
    """Of a run that may be stopped but not reshaped: what it has. Of all others: what they could have."""
    run = view.runs.get(job.id)
    if run is None or job.reshapable:
        return options
    types = {view.cluster.nodes[share.node].gpu_type for share in run.allocation.placement if share.gpus}
    demand = msgspec.structs.replace(job.demand, gpu_types=tuple(sorted(types)))
    return (as_asked(job)._replace(demand=demand, plan=run.allocation.plan),)


class RoundPlacement:
    """Finds places for what was wished, on a draft."""

    def __init__(self, view: View, draft: Draft, placer: Placer, jobs: frozenset[str]) -> None:
        """`jobs` may be moved, the others not."""
        self._view, self._draft, self._placer, self._jobs = view, draft, placer, jobs
        self._seated: dict[str, Option] = {}
        self._before: dict[str, Allocation] = {}
        self._without_room: set[Demand] = set()

    def seat(self, wishes: Wishes) -> None:
        """Who keeps a share stays; who has none goes; the others are placed, the largest first."""
        for job_id, held in list(self._draft.holders()):
            if job_id not in self._jobs:
                continue
            wish = wishes.get(job_id, ())
            if wish and is_held(self._view, wish[0], held):
                self._seated[job_id] = wish[0]
                continue
            self._before[job_id] = held
            gpus = f"{held.gpu_milli / WHOLE:g}"
            self._draft.release(job_id, f"from {gpus} to {wish[0].gpus} GPUs" if wish else f"gives up {gpus} GPUs")
        for job_id in sorted(wishes, key=lambda job_id: -wishes[job_id][0].gpus):
            if job_id not in self._seated:
                self._seat_one(job_id, wishes[job_id])

    def _seat_one(self, job_id: str, wish: Sequence[Option]) -> None:
        why = self._draft.changed.get(job_id, "")
        wanted = wish[0]
        if self._place(job_id, wanted, why) or self._make_room(job_id, wanted, why):
            return
        if any(self._place(job_id, option, why) for option in wish[1:]):
            return
        before = self._before.get(job_id)
        if before is not None:
            self._draft.put(job_id, before, why)

    def _place(self, job_id: str, option: Option, why: str) -> bool:
        if not self._draft.place(job_id, self._placer, option.demand, option.plan, why):
            return False
        self._seated[job_id] = option
        return True

    def _make_room(self, job_id: str, option: Option, why: str) -> bool:
        """Move runs together until there is a place; if somebody is left without one, nothing is moved."""
        if option.demand in self._without_room or option.demand.gpu_milli < WHOLE:
            return False
        snapshot = self._draft.snapshot()
        moved = self._cleared(option.demand)
        if moved and self._place(job_id, option, why):
            moved.sort(key=lambda other: -self._seated[other].gpus)
            if all(self._place(other, self._seated[other], "moved to make room") for other in moved):
                return True
        self._draft.restore(snapshot)
        self._seated.pop(job_id, None)
        self._without_room.add(option.demand)
        return False

    def _cleared(self, demand: Demand) -> list[str]:
        """Take those off their nodes who stand in the way; nodes that lack least first. Returns who they are."""
        moved: list[str] = []
        free = self._draft.free
        on_node = self._movable()
        lacking = sorted(self._candidates(demand), key=lambda node: (-int(free.nodes[node, WHOLE_FREE]), node))
        wanted = demand.instances - sum(int(free.nodes[node, WHOLE_FREE]) >= demand.gpus for node in lacking)
        for node in lacking:
            if wanted <= 0:
                break
            missing = demand.gpus - int(free.nodes[node, WHOLE_FREE])
            others = _enough(on_node.get(node, ()), missing) if missing > 0 else []
            for job_id in others:
                self._draft.release(job_id, "moved to make room")
            moved += others
            wanted -= bool(others)
        return moved

    def _candidates(self, demand: Demand) -> Iterator[int]:
        for index, node in enumerate(self._view.cluster.nodes):
            accepted = not demand.gpu_types or node.gpu_type in demand.gpu_types
            if accepted and node.gpus >= demand.gpus and self._view.is_up(index):
                yield index

    def _movable(self) -> dict[int, list[tuple[int, str]]]:
        """Who could be moved off each node, the smallest first: jobs on a part of one node."""
        found: dict[int, list[tuple[int, str]]] = {}
        for job_id, held in self._draft.holders():
            job = self._view.active.get(job_id)
            if job is not None and not job.reshapable:
                continue
            if job_id in self._seated and len(held.placement) == 1 and held.gpu_milli % WHOLE == 0:
                share = held.placement[0]
                if len(share.gpus) < self._view.cluster.nodes[share.node].gpus:
                    found.setdefault(share.node, []).append((len(share.gpus), job_id))
        return {node: sorted(jobs) for node, jobs in found.items()}


def _enough(jobs: Sequence[tuple[int, str]], missing: int) -> list[str]:
    """As many jobs, the smallest first, as have the GPUs that are missing; none if all together have not."""
    chosen: list[str] = []
    for gpus, job_id in jobs:
        chosen.append(job_id)
        missing -= gpus
        if missing <= 0:
            return chosen
    return []
