"""Rubick (MLSys 2025): Algorithm 1 of the paper, and its three variants.

A round, whenever something was submitted or has ended:

1. Guaranteed jobs that wait and fit into what is left of their tenants' quotas are scheduled first, in their order.
2. Then all others that wait, and all runs, by descending slope: by how much each would gain from one GPU more,
   against the speed of what it asked for; of equal ones, from one CPU more.

To schedule a job, nodes are visited one after another. On a node it takes what is free; then, unit by unit, GPUs from
the job there that would lose least by giving one up, among those with more than their minimum: as long as that one
loses less than this one gains, or this one is still below its own minimum. CPUs then go the same way. After the nodes
the job gets the best plan for what it has gathered, and host memory for that plan. If it has not reached its minimum,
or there is no such plan, everything is as it was before.

What the paper leaves open is a setting, each told of in docs/policies/rubick.md: nobody takes more than pays
(`flat`), a run is changed only if that saves more than it costs (`gate`), and nobody waits for ever
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
from refold.model import KEEP, WHOLE, Decision, Job, Milli, Plan, Run, Seconds, text_from_seconds
from refold.packing import Placer
from refold.plans import NOTHING_MORE, Curve, CurvePoint, Knowledge, Speed, asked_layout
from refold.policies.common import (
    WORTH_MORE,
    Draft,
    GuaranteeRules,
    Option,
    OptionCache,
    Outlook,
    Reasons,
    Transition,
    jobs_over,
    something_happened,
)
from refold.policies.reshaping.ledger import NOTHING, Ledger, NodeShare

Choice = tuple[Plan | None, str]
"""A plan, and why a job gets it."""


class Rubick:
    """The best plan for every allocation, and GPUs and CPUs for whoever gains most."""

    name = "rubick"
    plans = True
    resources = True

    def __init__(
        self,
        restart_seconds: float = 78.0,
        flat: float = 0.01,
        gate: bool = True,
        ageing_seconds: float = 200_000.0,
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
    ) -> None:
        """`flat`: to gain less than this share of the speed asked for, with each GPU more, is to gain nothing."""
        if not (0 <= restart_seconds < inf and flat >= 0 and ageing_seconds > 0):
            raise BadValue("restart_seconds and flat are ≥ 0, and ageing_seconds is > 0")
        self.restart_seconds = restart_seconds
        self.flat, self.gate, self.ageing_seconds = flat, gate, ageing_seconds
        self.placer = Placer("best-fit")
        self._knowledge = Knowledge.of(knowledge)
        self._steering = Transition()
        self._reasons = Reasons()
        self._outlook: Outlook | None = None
        self._looked_at: Seconds = -inf
        self._wake: Seconds = inf

    def decide(self, view: View) -> Decision:
        """A round, if anything has happened that matters; else go on with what was begun."""
        if self._outlook is None:
            self._outlook = Outlook(view, self._knowledge, self.restart_seconds)
            self._curves = _Curves(
                self._outlook, OptionCache(self._outlook.speeds, self.plans, self.resources), self.flat
            )
        for job_id in jobs_over(view):
            self._curves.forget(job_id)
        if self._steering.goes_on(view):
            return self._said(view, self._steering.go_on(view))
        back = bool(view.changes.returned) and self._looked_at < view.now
        if not (something_happened(view) or back) and view.now < self._wake:
            return self._said(view, KEEP) if view.changes.returned else KEEP
        self._looked_at, self._wake = view.now, self._next_to_age(view)
        this_round = _RubickRound(self, view, self._outlook, self._curves)
        this_round.schedule_all()
        return self._said(view, self._steering.towards(view, this_round.draft.target()))

    def _said(self, view: View, decision: Decision) -> Decision:
        """The decision, with the reasons of those who wait."""
        waits = self._reasons.of_everybody(view, decision.starts, self._steering.awaited)
        wake_at = self._wake if view.now < self._wake < inf else None
        if not (waits or wake_at or decision.starts or decision.stops or decision.reshapes):
            return KEEP
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)

    def _next_to_age(self, view: View) -> Seconds:
        """When the next of those who wait will have waited for too long."""
        ends = (job.submitted + self.ageing_seconds for job in view.waiting.values())
        return min((end for end in ends if end > view.now), default=inf)


class RubickE(Rubick):
    """Rubick that chooses plans only: everybody gets the amounts that were asked for."""

    name = "rubick-e"
    resources = False


class RubickR(Rubick):
    """Rubick that chooses amounts only: everybody keeps its own plan, with more or fewer replicas."""

    name = "rubick-r"
    plans = False


class RubickN(Rubick):
    """Rubick that chooses neither."""

    name = "rubick-n"
    plans = False
    resources = False


class _Curve(NamedTuple):
    """What a job gains from one GPU more, and loses with one less, by how many it has, on one type of GPU.

    Between two steps of the stair a GPU is worth its part of the next step, however near that is.
    """

    points: tuple[CurvePoint, ...]
    gpu_type: str
    gains: list[float]
    losses: list[float]

    @staticmethod
    def of(points: Sequence[CurvePoint], gpu_type: str) -> _Curve:
        curve = Curve(tuple(points))
        reached = [0, *(int(point.amount) for point in points)]
        gains = [curve.slope(lower) for lower, upper in pairwise(reached) for _ in range(lower, upper)]
        losses = [curve.slope_below(gpus) for gpus in range(reached[-1] + 1)]
        return _Curve(curve.points, gpu_type, gains, losses)

    @property
    def most(self) -> int:
        """Nobody takes more."""
        return int(self.points[-1].amount)

    def gain(self, gpus: int) -> float:
        return self.gains[gpus] if gpus < len(self.gains) else 0.0

    def loss(self, gpus: int) -> float:
        return self.losses[gpus] if gpus < len(self.losses) else 0.0


class _Curves:
    """Resource sensitivity: speeds by GPUs, against the speed of what was asked for."""

    def __init__(self, outlook: Outlook, options: OptionCache, flat: float) -> None:
        self._outlook, self.options, self._flat = outlook, options, flat
        self.promises = GuaranteeRules(outlook, options)
        self._kept: dict[tuple[object, ...], _Curve] = {}
        self._of_job: dict[str, _Curve] = {}

    def of(self, job: Job) -> _Curve:
        """The curve on the type of GPU that a job is fastest on, without its flat end."""
        found = self._of_job.get(job.id)
        if found is None:
            found = self._of_job[job.id] = self._of_kind(job)
        return found

    def forget(self, job_id: str) -> None:
        """A job has ended: nobody will ask for it again."""
        self._of_job.pop(job_id, None)
        self.options.forget(job_id)
        self._outlook.forget(job_id)

    def _of_kind(self, job: Job) -> _Curve:
        options = self.options.of(job)
        key = (id(options), job.demand, job.plan)
        if key not in self._kept:
            speeds = self._outlook.speeds
            asked = speeds.asked(job).steps_per_second
            best = max(options, key=lambda option: option.speed)
            gpu_type = best.demand.gpu_types[0] if len(best.demand.gpu_types) == 1 else speeds.types_for(job)[0]
            points: list[CurvePoint] = []
            for option in options:
                speed = option.speed / asked
                worth = speed - points[-1].samples_per_second if points else inf
                more = option.gpus - points[-1].amount if points else 1
                if option.demand.gpu_types == best.demand.gpu_types and worth > 0 and worth >= self._flat * more:
                    points.append(CurvePoint(option.gpus, speed, option.plan or speeds.own_plan(job)))
            self._kept[key] = _Curve.of(points, gpu_type)
        return self._kept[key]

    def on(self, job: Job, gpu_type: str, layout: tuple[int, ...], cpus: float) -> Speed | None:
        """How a job runs on a layout, with the plans that this variant may choose, and as it asked for."""
        speeds = self._outlook.speeds
        found = (speeds.fastest if self.options.plans else speeds.scaled)(job, gpu_type, layout, cpus)
        if layout == asked_layout(job):
            own = speeds.with_plan(job, gpu_type, layout, cpus, speeds.own_plan(job))
            return max((found, own), key=lambda speed: speed.steps_per_second) if found else own
        return found


class _RubickRound:
    """One round, on paper."""

    def __init__(self, policy: Rubick, view: View, outlook: Outlook, curves: _Curves) -> None:
        self.draft = Draft(view)
        self._policy, self._view, self._outlook, self._curves = policy, view, outlook, curves
        self._jobs: dict[str, Job] = {**view.waiting, **view.active}
        self._promised = curves.promises.promised(view)
        self._aged = {job.id for job in view.waiting.values() if view.now - job.submitted >= policy.ageing_seconds}
        self._waiting = [job_id for job_id in view.waiting if self.draft.holds(job_id) is None]
        self._place_unknown()
        self._waiting += [run.job for run in view.runs.values() if self._lost_its_place(run)]
        known = [
            job_id
            for job_id, _ in self.draft.holders()
            if outlook.speeds.knows(self._jobs[job_id]) and self.draft.may_change(job_id)
        ]
        self._ledger = Ledger(view, self.draft, known)
        self._plans: dict[str, Plan | None] = {job_id: self._plan_held(job_id) for job_id in known}
        self._whys: dict[str, str] = {}
        self._losers = _Losers()
        for job_id in known:
            self._rank_loser(job_id)

    def _lost_its_place(self, run: Run) -> bool:
        return not run.stopping and self.draft.holds(run.job) is None

    def _plan_held(self, job_id: str) -> Plan | None:
        held = self.draft.holds(job_id)
        return held.plan if held is not None else None

    # The round.

    def schedule_all(self) -> None:
        """Guaranteed jobs that wait, then everybody else by slope."""
        waiting = [job_id for job_id in self._waiting if self._outlook.speeds.knows(self._jobs[job_id])]
        first = [job_id for job_id in waiting if job_id in self._promised]
        others = [job_id for job_id in waiting if job_id not in self._promised]
        running = list(self._ledger.parts)
        for job_id in first:
            self._schedule(job_id)
        for job_id in sorted([*others, *running], key=self._slope_order):
            self._schedule(job_id)
        self._ledger.settle(self._plans, self._whys)
        for job_id in (*first, *others):
            if self.draft.holds(job_id) is None:  # units do not do: too few CPUs with each, or a promise
                self._place_whole(self._jobs[job_id])

    def _place_unknown(self) -> None:
        """Jobs that can only be run as asked, those that are promised first."""
        unknown = [job_id for job_id in self._waiting if not self._outlook.speeds.knows(self._jobs[job_id])]
        for job_id in sorted(unknown, key=lambda job_id: job_id not in self._promised):
            self._place_whole(self._jobs[job_id])

    def _slope_held(self, job_id: str) -> tuple[float, str]:
        """By descending slope, as jobs stand on the draft."""
        held, job = self.draft.holds(job_id), self._jobs[job_id]
        if held is None or not self._outlook.speeds.knows(job):
            return -inf, job_id
        return -self._curve(job_id).gain(held.gpu_milli // WHOLE), job_id

    def _slope_order(self, job_id: str) -> tuple[float, float, str]:
        """By descending slope: GPUs, then CPUs."""
        return -self._gain(job_id), -self._cpu_gain(job_id), job_id

    def _place_whole(self, job: Job) -> None:
        """A job that units do not help: where it fits whole, or, if it is promised, where others are stopped."""
        promised = job.id in self._promised
        for option in self._curves.promises.keeping(job):
            if self.draft.place(job.id, self._policy.placer, option.demand, option.plan):
                return
        for option in self._curves.promises.keeping(job) if promised else ():
            if self._place_by_stopping(job, option):
                return

    def _place_by_stopping(self, job: Job, option: Option) -> bool:
        """Runs that are promised nothing are stopped for one that is, those that gain most from more GPUs last."""
        before = self.draft.snapshot()
        held = [
            other for other, _ in self.draft.holders() if other not in self._promised and self.draft.may_change(other)
        ]
        for other in sorted(held, key=self._slope_held, reverse=True):
            self.draft.release(other, f"its place is promised to {job.id}")
            if self.draft.place(job.id, self._policy.placer, option.demand, option.plan):
                return True
        self.draft.restore(before)
        return False

    # One job.

    def _schedule(self, job_id: str) -> None:
        """Gather, choose a plan, and keep it all or nothing of it."""
        job, ledger = self._jobs[job_id], self._ledger
        if not self._outlook.speeds.knows(job):
            return
        if not (self._could_gain(job_id) or self._cpu_gain(job_id)):
            return
        mark = ledger.mark()
        self._taken: list[tuple[str, int]] = []
        self._gather(job_id)
        touched = ledger.touched_since(mark)
        if not touched:
            return
        chosen = self._chosen(job_id, mark)
        if chosen is None:
            ledger.roll_back(mark)
        else:
            for each, (plan, why) in chosen.items():
                self._plans[each] = plan
                self._whys[each] = why
        for each in touched:
            self._rank_loser(each)

    def _give_back_unused(self) -> None:
        """Units that were taken on the way to a step that was not reached go back to whom they were taken from."""
        for victim, node in reversed(self._taken):
            self._take_free(victim, node, 1)

    def _could_gain(self, job_id: str) -> bool:
        """Whether there is anything to gather at all: a free GPU, or somebody who loses less than this one gains."""
        if self._is_below_minimum(job_id):
            return True
        weakest = next(self._losers.weakest_first(), None)
        could_take = weakest is not None and self._losers.slope_of(weakest) < self._gain(job_id)
        wants_more = self._ledger.gpus(job_id) < self._curve(job_id).most
        return wants_more and (could_take or bool(self._ledger.with_free))

    def _chosen(self, job_id: str, mark: int) -> dict[str, Choice] | None:
        """Plans for a job and for those who gave something; None: it is not worth it, or breaks a promise."""
        before, found = self._speed_held(job_id), self._choose(job_id)
        if found is None or not self._is_worth(job_id, before, found.steps_per_second, mark):
            return None
        self._give_back_unused()
        why = self._why_grown(job_id, before, found.steps_per_second) if before else ""
        chosen: dict[str, Choice] = {job_id: (found.plan, why)}
        for victim in self._ledger.touched_since(mark):
            if victim != job_id:
                choice = self._trimmed(victim, job_id)
                if choice is None:
                    return None
                chosen[victim] = choice
        return chosen

    def _gather(self, job_id: str) -> None:
        """Node after node: what is free, then unit by unit what others lose less by giving up."""
        most = max(self._curve(job_id).most, self._minimum(job_id))
        for node in self._nodes_for(job_id) if self._ledger.gpus(job_id) < most else ():
            self._take_free(job_id, node, most - self._ledger.gpus(job_id))
            while self._ledger.gpus(job_id) < most and self._take_from_others(job_id, node):
                pass
            if self._ledger.gpus(job_id) >= most:
                break
        self._gather_cpus(job_id)

    def _nodes_for(self, job_id: str) -> Iterator[int]:
        """Where it is, where most is free, and where somebody loses least: as long as something can be had there."""
        gpu_type = self._curve(job_id).gpu_type
        nodes, free = self._view.cluster.nodes, self._ledger.free
        own = sorted(self._ledger.parts.get(job_id, {}))
        yield from own
        with_free = [n for n in self._ledger.with_free if nodes[n].gpu_type == gpu_type and n not in own]
        yield from sorted(with_free, key=lambda node: (-free[node].gpus, node))
        seen = {*own, *with_free}
        for loser in self._losers.weakest_first():
            if self._losers.slope_of(loser) >= self._gain(job_id) and not self._is_below_minimum(job_id):
                return
            for node in sorted(self._ledger.parts.get(loser, {})):
                if node not in seen and nodes[node].gpu_type == gpu_type and self._view.is_up(node):
                    seen.add(node)
                    yield node

    def _take_free(self, job_id: str, node: int, wanted: int) -> bool:
        """Up to so many GPUs that are free on a node, each with its CPUs and memory; False: there is none."""
        free, unit = self._ledger.free[node], self._unit(job_id)
        if self._type_of(node) != self._curve(job_id).gpu_type or not self._view.is_up(node):
            return False
        limits = [wanted, free.gpus]
        limits += [free.cpu_milli // unit.cpu_milli] if unit.cpu_milli else []
        limits += [free.memory_mib // unit.memory_mib] if unit.memory_mib else []
        more = min(limits)
        if more < 1:
            return False
        have = self._ledger.parts.get(job_id, {}).get(node, NOTHING)
        with_more = NodeShare(
            have.gpus + more, have.cpu_milli + more * unit.cpu_milli, have.memory_mib + more * unit.memory_mib
        )
        self._ledger.give(job_id, node, with_more)
        return True

    def _take_from_others(self, job_id: str, node: int) -> bool:
        """One unit from the job on this node that loses least, if that is right."""
        losers = [other for other in self._ledger.residents.get(node, ()) if other != job_id and self._can_lose(other)]
        if not losers or not self._view.is_up(node):
            return False
        victim = min(losers, key=lambda other: (self._loss(other), other))
        if not (self._loss(victim) < self._gain(job_id) or self._is_below_minimum(job_id)):
            return False
        had = self._ledger.parts[victim][node]
        self._ledger.give(victim, node, _in_proportion(had, had.gpus - 1))
        if self._take_free(job_id, node, 1):
            self._taken.append((victim, node))
            return True
        self._ledger.give(victim, node, had)  # its CPUs and memory were not enough
        return False

    def _choose(self, job_id: str) -> Speed | None:
        """The best plan for what was gathered, giving back nodes and GPUs that it is no faster with."""
        ledger, job = self._ledger, self._jobs[job_id]
        if self._is_below_minimum(job_id):
            return None
        gpu_type = self._curve(job_id).gpu_type
        best: tuple[float, Speed, list[tuple[int, NodeShare]]] | None = None
        parts = sorted(ledger.parts.get(job_id, {}).items(), key=lambda item: (-item[1].gpus, item[0]))
        for wanted in self._amounts_up_to(job_id):
            chosen = _fewest_nodes(parts, wanted)
            layout = tuple(sorted((part.gpus for _, part in chosen), reverse=True))
            cpus = sum(part.cpu_milli for _, part in chosen) / WHOLE
            speed = self._curves.on(job, gpu_type, layout, cpus)
            if speed is not None and (best is None or speed.steps_per_second > best[0]):
                best = speed.steps_per_second, speed, chosen
        if best is None or best[0] * WORTH_MORE < self._floor(job_id):
            return None
        return best[1] if self._give_memory(job_id, best[1], best[2]) else None

    def _amounts_up_to(self, job_id: str) -> list[int]:
        most = self._ledger.gpus(job_id)
        steps = {int(point.amount) for point in self._curve(job_id).points} | {self._minimum(job_id)}
        return sorted(amount for amount in steps if 0 < amount <= most)

    def _give_memory(self, job_id: str, speed: Speed, chosen: list[tuple[int, NodeShare]]) -> bool:
        """Host memory for a plan, last of all: more of it makes nothing faster."""
        ledger, gpus = self._ledger, sum(part.gpus for _, part in chosen)
        wanted = dict(chosen)
        for node in list(ledger.parts[job_id]):
            if node not in wanted:
                ledger.give(job_id, node, NOTHING)
        for node, part in chosen:
            need = max(part.gpus * self._unit(job_id).memory_mib, -(-speed.host_mib * part.gpus // gpus))
            if need > ledger.free[node].memory_mib + ledger.parts[job_id][node].memory_mib:
                return False
            ledger.give(job_id, node, part._replace(memory_mib=need))
        return True

    def _is_worth(self, job_id: str, before: float, after: float, mark: int) -> bool:
        """For a run, whether it saves more time than its change, and those of its victims, cost."""
        if not before:
            return True
        if after <= before or job_id not in self._ledger.touched_since(mark):
            return False
        if not self._policy.gate or job_id not in self._view.runs:
            return True
        left = self._outlook.left(self._view, self._jobs[job_id])
        changed = sum(other in self._view.runs for other in self._ledger.touched_since(mark))
        return left / before - left / after > changed * self._policy.restart_seconds

    def _trimmed(self, victim: str, winner: str) -> Choice | None:
        """A job that has lost something runs with what is left of use to it, or not at all; None: that may not be."""
        ledger, had = self._ledger, self._speed_held(victim)
        found = self._choose(victim) if ledger.gpus(victim) else None
        if found is None:
            for node in list(ledger.parts.get(victim, {})):
                ledger.give(victim, node, NOTHING)
            stopped = f"gave all its GPUs to {winner}, which gains more from them"
            return None if victim in self._promised else (None, stopped)
        held = self.draft.holds(victim)
        lost = (held.gpu_milli // WHOLE if held is not None else 0) - ledger.gpus(victim)
        change = found.steps_per_second / had - 1 if had else 0.0
        given = f"{lost} GPUs" if lost > 0 else "CPUs"
        return found.plan, f"gave {given} to {winner}, which gains more from them: {change:+.0%} here"

    def _why_grown(self, job_id: str, before: float, after: float) -> str:
        back = text_from_seconds(self._policy.restart_seconds / (1 - before / after))
        return f"now {self._ledger.gpus(job_id)} GPUs: {after / before - 1:+.0%} here, pays back in {back}"

    # CPUs.

    def _gather_cpus(self, job_id: str) -> None:
        """CPUs for a plan that computes on them, as long as they make it faster: free ones, then others' spare ones."""
        for node in sorted(self._ledger.parts.get(job_id, {})):
            while self._cpu_gain(job_id) > 0 and self._take_cpu(job_id, node):
                pass

    def _take_cpu(self, job_id: str, node: int) -> bool:
        if self._ledger.free[node].cpu_milli < WHOLE and not self._free_cpu(job_id, node):
            return False
        part = self._ledger.parts[job_id][node]
        self._ledger.give(job_id, node, part._replace(cpu_milli=part.cpu_milli + WHOLE))
        return True

    def _free_cpu(self, job_id: str, node: int) -> bool:
        """Take a CPU from the job on a node that misses it least, of those with more than came with their GPUs."""
        others = self._ledger.residents.get(node, set()) - {job_id}
        losers = [other for other in others if self._spare_cpu_milli(other, node) >= WHOLE]
        victim = min(losers, key=lambda other: (self._cpu_loss(other), other), default=None)
        if victim is None or self._cpu_loss(victim) >= self._cpu_gain(job_id):
            return False
        part = self._ledger.parts[victim][node]
        self._ledger.give(victim, node, part._replace(cpu_milli=part.cpu_milli - WHOLE))
        return True

    def _spare_cpu_milli(self, job_id: str, node: int) -> Milli:
        part = self._ledger.parts[job_id][node]
        return part.cpu_milli - part.gpus * self._unit(job_id).cpu_milli

    def _cpu_loss(self, job_id: str) -> float:
        """What one CPU less would cost, against the speed of what was asked for."""
        layout, cpus, job = self._ledger.layout(job_id), self._ledger.cpus(job_id), self._jobs[job_id]
        gpu_type = self._curve(job_id).gpu_type
        now, then = (self._curves.on(job, gpu_type, layout, amount) for amount in (cpus, cpus - 1))
        if now is None or then is None:
            return inf
        return (now.steps_per_second - then.steps_per_second) / self._outlook.speeds.asked(job).steps_per_second

    def _cpu_gain(self, job_id: str) -> float:
        """What one CPU more would bring, against the speed of what was asked for; too little is nothing."""
        ledger, job = self._ledger, self._jobs[job_id]
        plan = self._plans.get(job_id)
        if not self._policy.resources or (plan is not None and not plan.offload):
            return 0.0
        layout, cpus = ledger.layout(job_id), ledger.cpus(job_id)
        if not layout or not cpus:
            return 0.0
        gpu_type = self._curve(job_id).gpu_type
        now, then = (self._curves.on(job, gpu_type, layout, amount) for amount in (cpus, cpus + 1))
        if now is None or then is None or not then.plan.offload:
            return 0.0
        gain = (then.steps_per_second - now.steps_per_second) / self._outlook.speeds.asked(job).steps_per_second
        return gain if gain >= self._policy.flat / 10 else 0.0

    # What jobs gain and lose.

    def _curve(self, job_id: str) -> _Curve:
        return self._curves.of(self._jobs[job_id])

    def _gain(self, job_id: str) -> float:
        """What a GPU more would bring, against the speed of what was asked for; to who has waited too long, all."""
        if job_id in self._aged:
            return inf
        return self._curve(job_id).gain(self._ledger.gpus(job_id))

    def _loss(self, job_id: str) -> float:
        """What a GPU less would cost."""
        if job_id in self._aged:
            return inf
        return self._curve(job_id).loss(self._ledger.gpus(job_id))

    def _can_lose(self, job_id: str) -> bool:
        """Whether a job has more than its minimum; one that is promised nothing may lose everything."""
        if job_id not in self._promised:
            return self._policy.resources
        return self._policy.resources and self._ledger.gpus(job_id) > self._minimum(job_id)

    def _minimum(self, job_id: str) -> int:
        return self._curves.promises.minimum(self._jobs[job_id]).gpus if job_id in self._promised else 0

    def _floor(self, job_id: str) -> float:
        """The speed that a job is promised."""
        return self._curves.promises.floor(self._jobs[job_id]) if job_id in self._promised else 0.0

    def _is_below_minimum(self, job_id: str) -> bool:
        return self._ledger.gpus(job_id) < self._minimum(job_id)

    def _speed_held(self, job_id: str) -> float:
        """How fast a job is where it is now; 0 if it does not run."""
        held = self.draft.holds(job_id)
        return self._outlook.speed(self._jobs[job_id], held) if held is not None else 0.0

    def _unit(self, job_id: str) -> NodeShare:
        """A GPU, with the CPUs and the memory that its job asked for with each."""
        demand = self._jobs[job_id].demand
        return NodeShare(1, demand.cpu_milli // demand.gpus, demand.memory_mib // demand.gpus)

    def _type_of(self, node: int) -> str:
        return self._view.cluster.nodes[node].gpu_type

    def _rank_loser(self, job_id: str) -> None:
        holds = self._ledger.gpus(job_id) and self._can_lose(job_id)
        self._losers.rank(job_id, self._loss(job_id) if holds else None)


class _Losers:
    """Jobs that could lose something, by what a GPU less would cost them."""

    def __init__(self) -> None:
        self._sorted: list[tuple[float, str]] = []
        self._slope: dict[str, float] = {}

    def rank(self, job_id: str, slope: float | None) -> None:
        """A job would lose so much from now on; None: it has nothing to lose."""
        before = self._slope.pop(job_id, None)
        if before is not None:
            del self._sorted[bisect_left(self._sorted, (before, job_id))]
        if slope is not None:
            self._slope[job_id] = slope
            insort(self._sorted, (slope, job_id))

    def slope_of(self, job_id: str) -> float:
        return self._slope[job_id]

    def weakest_first(self) -> Iterator[str]:
        """Nobody may be ranked while somebody goes through them."""
        return (job_id for _, job_id in self._sorted)


def _in_proportion(part: NodeShare, gpus: int) -> NodeShare:
    """So many of its GPUs, with their CPUs and memory."""
    return NodeShare(gpus, part.cpu_milli * gpus // part.gpus, part.memory_mib * gpus // part.gpus) if gpus else NOTHING


def _fewest_nodes(parts: list[tuple[int, NodeShare]], wanted: int) -> list[tuple[int, NodeShare]]:
    """So many GPUs of what there is, on the fewest nodes: CPUs and memory in proportion."""
    chosen: list[tuple[int, NodeShare]] = []
    alone = [item for item in parts if item[1].gpus >= wanted]
    for node, part in alone[-1:] or parts:
        take = min(part.gpus, wanted)
        chosen.append((node, _in_proportion(part, take)))
        wanted -= take
        if not wanted:
            break
    return chosen
