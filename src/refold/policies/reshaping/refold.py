"""Refold's own policy: what is nearly done goes first, at the size that pays, and changes are charged what they cost.

One look is four steps, on paper (`draft`):

1. Jobs that wait are looked at in the order of their work left, in GPU-seconds at their most efficient size, the less
   the earlier; a job that has been in the system for long counts for more (`patience_seconds`).
2. Each gets the shape with which it ends soonest, where GPUs cost something while others wait behind it
   (`price`): each second on a GPU keeps all of these waiting for a G-th of a second, if there are G GPUs.
3. If there is no place for it, or only a poor one, it may claim one: jobs with more work left are shrunk, or stopped.
   Everybody's delay is counted in seconds, with restarts, and compared with waiting until others end by themselves.
4. What is then free is given to whoever saves the most time for each GPU. A run is changed only for more than a restart
   costs, and only if things have been quiet for long enough that the change will pay before the next job arrives.

A guaranteed job within its quota is looked at before all others, is never stopped, never gets less than the
performance of what it asked for, and may claim whatever others hold beyond what they are promised.
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
from refold.model import KEEP, WHOLE, Allocation, Decision, Job, Seconds, text_from_seconds
from refold.packing import Placer
from refold.plans import NOTHING_MORE, Knowledge
from refold.policies.common import (
    WORTH_MORE,
    Draft,
    GuaranteeRules,
    Option,
    OptionCache,
    Outlook,
    Reasons,
    Throughput,
    Transition,
    jobs_over,
    something_happened,
)

GOALS = ("time", "throughput")
"""What counts: that jobs end soon, or the sum of their speeds against what each asked for."""

LAST_GAPS = 10
"""How many of the last times between arrivals say how long things stay quiet."""

BEST_SHAPES = 6
"""How many of a job's best shapes are tried where place has to be made for it."""

NODES_TO_CLEAR = 8
"""From how many nodes on it is tried to make place for a promised job, one node after another."""

MISSED: Seconds = 1.0
"""When to look again, if the time to do so passed while a target was being led to."""

WORTH_STARTING_LARGER: Seconds = 1.0
"""A job that starts anyway is started on more GPUs if that saves more than this."""


class Refold:
    """Least work left first, each at the size that pays."""

    name = "refold"

    def __init__(
        self,
        restart_seconds: float = 78.0,
        price: float = 4.0,
        patience_seconds: float = 3600.0,
        starving_seconds: float = 12 * 3600.0,
        safety: float = 1.1,
        claims: int = 16,
        trust_steps: bool = True,
        goal: str = "time",
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
    ) -> None:
        """`restart_seconds`: what a change of a running job costs, as far as the policy knows. `claims`: for how many
        jobs in one look others may be moved. `starving_seconds`: a job that has waited for so long goes first.
        `safety`: how much faster than promised another shape is believed to be before it is chosen."""
        if goal not in GOALS:
            raise UnknownName("goal of refold", goal, GOALS)
        if not (
            0 <= restart_seconds < inf and price >= 0 and patience_seconds > 0 and starving_seconds > 0 and claims >= 0
        ):
            raise BadValue("restart_seconds, price and claims are ≥ 0; patience_seconds and starving_seconds are > 0")
        self.restart_seconds = restart_seconds
        self.price = price
        self.patience_seconds = patience_seconds
        self.starving_seconds = starving_seconds
        self.claims = claims
        self._goal = goal
        self.placer = Placer("best-fit")
        self.since: dict[str, Seconds] = {}
        """Since when each waiting job has been waiting."""
        self._safety, self._trust_steps = safety, trust_steps
        self._knowledge = Knowledge.of(knowledge)
        self._steering = Transition()
        self._reasons = Reasons()
        self._arrivals = _Arrivals()
        self._wake: Seconds = inf
        self._looked_at: Seconds = -inf
        self._outlook: Outlook | None = None

    def decide(self, view: View) -> Decision:
        """Think anew if anything has happened that matters; else go on with what was begun."""
        self._observe(view)
        if self._steering.goes_on(view):
            return self._said(view, self._steering.go_on(view))
        too_slow = self._promises.watch(view)
        back = bool(view.changes.returned) and self._looked_at < view.now
        if not (something_happened(view) or too_slow or back) and view.now < self._wake:
            return self._said(view, KEEP) if view.changes.returned else KEEP
        self._looked_at = view.now
        assert self._outlook is not None
        look = _RefoldRound(self, view, self._outlook, self._options, self._promises, self._arrivals.quiet(view.now))
        if self._goal == "time":
            look.place_waiting()
            look.grow()
        else:
            look.fill()
        self._wake = min(look.wake_at, look.first_to_starve())
        return self._said(view, self._steering.towards(view, look.draft.target()))

    def _observe(self, view: View) -> None:
        if self._outlook is None:
            self._outlook = Outlook(view, self._knowledge, self.restart_seconds, trust_steps=self._trust_steps)
            self._options = OptionCache(self._outlook.speeds)
            self._promises = GuaranteeRules(self._outlook, self._options, self._safety)
        changes = view.changes
        if changes.submitted:
            self._arrivals.note(view.now)
        for job in (*changes.submitted, *changes.returned):
            self.since[job.id] = view.now
        for run in changes.started:
            self.since.pop(run.job, None)
        for job_id in jobs_over(view):
            self.since.pop(job_id, None)
            self._options.forget(job_id)
            self._outlook.forget(job_id)

    def _said(self, view: View, decision: Decision) -> Decision:
        """The decision with the reasons of those who wait, and when to look again."""
        waits = self._reasons.of_everybody(view, decision.starts, self._steering.awaited)
        wake_at = max(self._wake, view.now + MISSED) if self._wake < inf else None  # it may have passed on the way
        if not (waits or wake_at or decision.starts or decision.stops or decision.reshapes):
            return KEEP
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)


class _Arrivals:
    """When jobs come, and so for how long nobody will."""

    def __init__(self) -> None:
        self.last: Seconds = -inf
        self._gaps: deque[Seconds] = deque(maxlen=LAST_GAPS)

    def note(self, now: Seconds) -> None:
        if self.last > -inf:
            self._gaps.append(now - self.last)
        self.last = now

    def quiet(self, now: Seconds) -> tuple[Seconds, Seconds]:
        """How long it will be quiet, as long as it usually is or has been until now; and since when it is."""
        usual = sum(self._gaps) / len(self._gaps) if self._gaps else 0.0
        return max(now - self.last, usual), self.last


class _Claim(NamedTuple):
    """A way to make place for a job: what it costs everybody, in seconds of the claimer's weight."""

    cost: Seconds
    draft: Any


class _Growth(NamedTuple):
    """A larger shape for a job; the more seconds it saves for each GPU, the less it sorts."""

    rank: float
    job_id: str
    gpus: int
    option: Option
    why: str


class _RefoldRound:
    """One look at everybody."""

    def __init__(
        self,
        policy: Refold,
        view: View,
        outlook: Outlook,
        options: OptionCache,
        promises: GuaranteeRules,
        quiet: tuple[Seconds, Seconds],
    ) -> None:
        self.draft = Draft(view)
        self.wake_at: Seconds = inf
        self._policy, self._view, self._outlook, self._promises = policy, view, outlook, promises
        self._quiet, self._quiet_since = quiet
        self._jobs: dict[str, Job] = {**view.waiting, **view.active}
        self._promised = promises.promised(view)
        self._options = {
            job.id: promises.safe(job) if job.id in self._promised else options.of(job) for job in self._jobs.values()
        }
        self._at_least = {job_id: promises.keeping(self._jobs[job_id]) for job_id in self._promised}
        self._left = {job.id: outlook.left(view, job) for job in self._jobs.values()}
        self._weight = {job.id: self._weight_of(job) for job in self._jobs.values()}
        self._work = {job_id: self._least_gpu_seconds(job_id) / self._weight[job_id] for job_id in self._jobs}
        self._hopeless: set[tuple[Option, ...]] = set()
        self._claims_left = policy.claims
        self._ends: list[tuple[Seconds, str]] | None = None
        self._most_work_first: list[str] | None = None

    # Who they are.

    def _weight_of(self, job: Job) -> float:
        """A second of delay counts double for a job that is in the system for as long as patience lasts."""
        fastest = max(option.speed for option in self._options[job.id])
        stay = self._view.now - job.submitted + self._left[job.id] / fastest
        return 1 + stay / self._policy.patience_seconds

    def _least_gpu_seconds(self, job_id: str) -> float:
        return self._left[job_id] * min(max(option.gpus, 1) / option.speed for option in self._options[job_id])

    def _seconds(self, job_id: str, option: Option) -> Seconds:
        return self._left[job_id] / option.speed

    def _seconds_as_held(self, job_id: str) -> Seconds:
        """Until a job ends where it is on the draft."""
        held = self.draft.holds(job_id)
        assert held is not None
        seconds = self._left[job_id] / self._outlook.speed(self._jobs[job_id], held)
        run = self._view.runs.get(job_id)
        as_now = run is not None and run.allocation == held
        return seconds + (self._outlook.starting_up(self._view, run) if run and as_now else 0.0)

    def _restart(self, job_id: str) -> Seconds:
        """What a change of a job costs: nothing, if it does not run yet."""
        return self._policy.restart_seconds if job_id in self._view.runs else 0.0

    def _may_move(self, job_id: str) -> bool:
        """Whether a job can have another shape at all; one that cannot be reshaped could only be stopped."""
        return self.draft.may_change(job_id) and len(self._at_least.get(job_id) or self._options[job_id]) > 1

    # 1 to 3: those who wait.

    def place_waiting(self) -> None:
        """Start whoever can be, in order."""
        self._lift_promised()
        waiting = sorted(
            (job_id for job_id in self._view.waiting if self.draft.holds(job_id) is None),
            key=lambda job_id: (
                job_id not in self._promised,
                not self._is_starving(job_id),
                self._work[job_id],
                job_id,
            ),
        )
        for position, job_id in enumerate(waiting):
            rate = self._policy.price * (len(waiting) - position - 1) / max(self._view.cluster.gpus, 1)
            self._start(job_id, rate)

    def _lift_promised(self) -> None:
        """A run that is slower than promised gets another shape: it was promised nothing when it began, or is seen to
        be slower than was believed."""
        for job_id in sorted(self._promised):
            held = self.draft.holds(job_id)
            if held is None or not self.draft.may_change(job_id) or self._is_kept(job_id, held):
                continue
            before = self.draft.snapshot()
            self.draft.release(job_id)
            if not self._start(job_id, 0.0):
                self.draft.restore(before)
            else:
                self.draft.changed[job_id] = "was slower than promised: gets a shape that keeps the promise"

    def _is_kept(self, job_id: str, held: Allocation) -> bool:
        job = self._jobs[job_id]
        if self._promises.is_refuted(job, (held.gpus_on_node, held.plan)):
            return False
        return self._outlook.speed(job, held) * WORTH_MORE >= self._promises.floor(job)

    def first_to_starve(self) -> Seconds:
        """When the next of those who still wait will have waited for too long."""
        left = (job_id for job_id in self._view.waiting if self.draft.holds(job_id) is None)
        ends = (self._policy.since.get(job_id, inf) + self._policy.starving_seconds for job_id in left)
        return min((end for end in ends if end > self._view.now), default=inf)

    def _is_starving(self, job_id: str) -> bool:
        since = self._policy.since.get(job_id, self._view.now)
        return self._view.now - since >= self._policy.starving_seconds

    def _start(self, job_id: str, rate: float) -> bool:
        """A place for a job; for one that is promised, if there is no safe one, any that keeps the promise."""
        if self._start_with(job_id, self._options[job_id], rate):
            return True
        return job_id in self._promised and self._start_with(job_id, self._at_least[job_id], rate)

    def _start_with(self, job_id: str, options: tuple[Option, ...], rate: float) -> bool:
        """A free place, or one that others make; `rate` is what a second on a GPU costs in seconds of others."""
        costs = {option: self._seconds(job_id, option) * (1 + rate * option.gpus) for option in options}
        ranked = sorted(costs, key=costs.__getitem__)
        found = None if options in self._hopeless else self._place_first(job_id, ranked)
        if found is None:
            self._hopeless.add(options)
        elif costs[found] - costs[ranked[0]] <= self._policy.restart_seconds:
            return True
        if job_id not in self._promised:
            if self._claims_left <= 0:
                return found is not None
            self._claims_left -= 1
        return self._claim(job_id, ranked, costs, found)

    def _place_first(self, job_id: str, ranked: list[Option]) -> Option | None:
        placer = self._policy.placer
        return next((one for one in ranked if self.draft.place(job_id, placer, one.demand, one.plan)), None)

    def _claim(self, job_id: str, ranked: list[Option], costs: Mapping[Option, Seconds], found: Option | None) -> bool:
        """Have others make place, if that delays everybody together less than it speeds this job up."""
        victims = self._victims_of(job_id)
        if not victims:
            return found is not None
        as_it_was = self.draft.snapshot()
        if found is not None:
            self.draft.release(job_id)
        without = self.draft.snapshot()
        patience = costs[found] if found is not None else self._cost_of_waiting(job_id, ranked, costs)
        best = _Claim(patience, None)
        promised = job_id in self._promised
        one_by_one = [[other] for other in victims]
        for groups in (one_by_one, *self._by_node(victims)) if promised else (one_by_one,):
            for option in ranked if promised else ranked[:BEST_SHAPES]:
                self.draft.restore(without)
                harm = self._make_place(job_id, option, groups)
                cost = costs[option] + harm / self._weight[job_id]
                if cost < best.cost:
                    best = _Claim(cost, self.draft.snapshot())
            if best.draft is not None:
                break
        self.draft.restore(best.draft or as_it_was)
        if best.draft is None:
            return found is not None
        self._hopeless.clear()
        self._ends = None
        return True

    def _by_node(self, victims: list[str]) -> Iterator[list[list[str]]]:
        """Who holds something on each node, the nodes on which most is held beyond promises first; and so on."""
        on_node: dict[int, list[str]] = {}
        spare: dict[int, int] = {}
        for other in victims:
            held = self.draft.holds(other)
            least = self._at_least[other][0].gpus if other in self._promised else 0
            for share in held.placement if held is not None else ():
                on_node.setdefault(share.node, []).append(other)
                spare[share.node] = spare.get(share.node, 0) + max(0, len(share.gpus) - least)
        groups = [on_node[node] for node in sorted(on_node, key=lambda node: (-spare[node], node))]
        return (groups[first:] for first in range(min(len(groups), NODES_TO_CLEAR)))

    def _victims_of(self, job_id: str) -> list[str]:
        """Who may be moved for a job, the one with the most work left first."""
        claimer_is_promised, work = job_id in self._promised, self._work[job_id]
        if self._most_work_first is None:
            runs = [other for other in self._view.runs if self.draft.holds(other) is not None]
            movable = [o for o in runs if self.draft.may_change(o) and (o not in self._promised or self._may_move(o))]
            self._most_work_first = sorted(movable, key=lambda other: (-self._work[other], other))
        if not claimer_is_promised:
            starving = self._is_starving(job_id)
            longer = takewhile(lambda other: starving or self._work[other] > work, self._most_work_first)
            return [other for other in longer if self.draft.holds(other) is not None]
        held = [other for other in self._most_work_first if other != job_id and self.draft.holds(other) is not None]
        return sorted(held, key=lambda other: other in self._promised)  # what is promised to others is touched last

    def _cost_of_waiting(self, job_id: str, ranked: list[Option], costs: Mapping[Option, Seconds]) -> Seconds:
        """Until so many others have ended that there is a place; a promise does not wait for that."""
        if job_id in self._promised or self._is_starving(job_id):
            return inf
        before = self.draft.snapshot()
        if self._ends is None:
            self._ends = sorted((self._seconds_as_held(other), other) for other, _ in self.draft.holders())
        try:
            for seconds, other in self._ends:
                self.draft.release(other)
                found = self._place_first(job_id, ranked)
                if found is not None:
                    return seconds + costs[found]
            return inf
        finally:
            self.draft.restore(before)

    def _make_place(self, job_id: str, option: Option, groups: list[list[str]]) -> Seconds:
        """Place a job where others were, and these where they still can be; the delay that this causes, weighted."""
        placer = self._policy.placer
        moved: dict[str, tuple[Allocation, Seconds]] = {}
        left = iter(groups)
        while not self.draft.place(job_id, placer, option.demand, option.plan):
            group = next(left, None)
            if group is None:
                return inf
            for other in group:
                held = self.draft.holds(other)
                if held is not None:
                    moved[other] = held, self._seconds_as_held(other)
                    self.draft.release(other)
        promised_first = sorted(moved, key=lambda other: other not in self._promised)
        return sum(self._put_back(other, *moved[other], job_id, option) for other in promised_first)

    def _put_back(self, job_id: str, held: Allocation, before: Seconds, claimer: str, taken: Option) -> Seconds:
        """Where it was; or as fast as can be on what is left, as if for good; or else, after the claimer."""
        if self.draft.put(job_id, held):
            return 0.0
        gpus, promised = held.gpu_milli // WHOLE, job_id in self._promised
        pause = self._seconds(claimer, taken)
        for option in self._shapes_to_move_to(job_id):
            if not self.draft.place(job_id, self._policy.placer, option.demand, option.plan):
                continue
            later = max(0.0, self._seconds(job_id, option) - before) + self._restart(job_id)
            slower = max(0.0, 1 - option.speed / self._outlook.speed(self._jobs[job_id], held))
            given = f"gave {gpus - option.gpus} GPUs to {claimer}" if option.gpus < gpus else f"moved for {claimer}"
            self.draft.changed[job_id] = f"{given}: −{slower:.0%} here, ends {text_from_seconds(later)} later"
            return later * self._weight[job_id] + self._idle_cost(job_id, option.gpus)
        if promised:
            return inf
        wait = pause + self._restart(job_id)
        back = text_from_seconds(wait)
        reason = "is promised them" if claimer in self._promised else "has less left"
        self.draft.changed[job_id] = f"gave all {gpus} GPUs to {claimer}, which {reason}: back in about {back}"
        return wait * self._weight[job_id] + self._idle_cost(job_id, gpus)

    def _shapes_to_move_to(self, job_id: str) -> Sequence[Option]:
        """Other shapes for a job, or other places: a run that cannot be reshaped can only be stopped."""
        if job_id in self._view.runs and not self._jobs[job_id].reshapable:
            return ()
        # Who is promised something makes do with the least, so that there is place for others who are.
        least_first = self._at_least.get(job_id)
        return least_first or sorted(self._options[job_id], key=lambda option: -option.speed)

    def _idle_cost(self, job_id: str, gpus: int) -> Seconds:
        """What those who wait lose while GPUs restart a job and compute nothing."""
        return self._restart(job_id) * gpus * len(self._view.waiting) / max(self._view.cluster.gpus, 1)

    # Instead of all that, where the sum of speeds is what counts.

    def fill(self) -> None:
        """The shapes with which the sum of all speeds is largest; or what is, if a change would not pay."""
        before = self.draft.snapshot()
        held = dict(self.draft.holders())
        movable = [job_id for job_id in self._jobs if self.draft.may_change(job_id) and self._knows(job_id)]
        asked = {job_id: self._outlook.speeds.asked(self._jobs[job_id]).steps_per_second for job_id in movable}
        now = sum(
            self._outlook.speed(self._jobs[job_id], held[job_id]) / asked[job_id]
            for job_id in movable
            if job_id in held
        )
        for job_id in movable:
            self.draft.release(job_id)
        options = {job_id: self._options[job_id] for job_id in movable}
        first = frozenset(self._promised & set(movable))
        then = Throughput(self.draft, self._policy.placer, options, asked, first).fill()
        self._keep_places(held)
        lost = sum(
            self._outlook.speed(self._jobs[job_id], held[job_id]) / asked[job_id] * self._policy.restart_seconds
            for job_id in self.draft.changed
            if job_id in held and job_id in asked
        )
        for job_id in self.draft.changed:
            self.draft.changed[job_id] = f"the sum of all speeds grows from {now:.2f} to {then:.2f}"
        if now and (then - now) * self._quiet <= lost:
            self.draft.restore(before)
            if then > now:
                self.wake_at = self._quiet_since + lost / (then - now)
        self._claims_left = 0  # what is filled is not undone; who could not be moved gets what is free
        self.place_waiting()

    def _knows(self, job_id: str) -> bool:
        return self._outlook.speeds.knows(self._jobs[job_id])

    def _keep_places(self, held: Mapping[str, Allocation]) -> None:
        """Who gets the same shape again stays where it was, if that is still possible."""
        for job_id, before in held.items():
            after = self.draft.holds(job_id)
            if after is None or (after.gpus_on_node, after.plan) != (before.gpus_on_node, before.plan):
                continue
            self.draft.release(job_id)
            if not self.draft.put(job_id, before):
                self.draft.put(job_id, after)

    # 4: what is left.

    def grow(self) -> None:
        """Give what is free to whoever saves the most time for each GPU."""
        waiting = sum(self.draft.holds(job_id) is None for job_id in self._view.waiting)
        rate = self._policy.price * waiting / max(self._view.cluster.gpus, 1)
        refused: set[tuple[str, Option]] = set()
        heap = [
            growth
            for job_id, held in self.draft.holders()
            if self._may_move(job_id) and (growth := self._best_growth(job_id, held, rate, refused))
        ]
        heapify(heap)
        while heap and self.draft.free.whole_gpus:
            growth = heappop(heap)
            job_id, option = growth.job_id, growth.option
            if not self.draft.move(job_id, self._policy.placer, option.demand, option.plan, growth.why):
                refused.add((job_id, option))
            held = self.draft.holds(job_id)
            assert held is not None
            following = self._best_growth(job_id, held, rate, refused)
            if following is not None:
                heappush(heap, following)

    def _best_growth(
        self, job_id: str, held: Allocation, rate: float, refused: set[tuple[str, Option]]
    ) -> _Growth | None:
        gpus, free = held.gpu_milli // WHOLE, self.draft.free.whole_gpus
        now, best = self._seconds_as_held(job_id), None
        for option in self._options[job_id]:
            if not gpus < option.gpus <= gpus + free or (job_id, option) in refused:
                continue
            then = self._seconds(job_id, option) + self._restart(job_id)
            saved = now - then - rate * max(0.0, then * option.gpus - now * gpus)
            if not self._pays(job_id, held, option, saved, now):
                continue
            rank = -saved / (option.gpus - gpus)
            if best is None or rank < best.rank:
                best = _Growth(rank, job_id, option.gpus, option, self._why_grown(job_id, option))
        return best

    def _pays(self, job_id: str, held: Allocation, option: Option, saved: Seconds, now: Seconds) -> bool:
        """Whether a larger shape is worth it: for a run, before it will be disturbed again."""
        restart = self._restart(job_id)
        if not restart:
            return saved > WORTH_STARTING_LARGER
        run = self._view.runs.get(job_id)
        if saved <= restart:
            return False
        if run is not None and self._outlook.starting_up(self._view, run) > 0:
            self.wake_at = min(self.wake_at, self._view.now + self._outlook.starting_up(self._view, run))
            return False
        back = self._pays_back_in(job_id, held, option)
        if min(now, self._quiet) >= back:
            return True
        if now > back:
            self.wake_at = min(self.wake_at, self._quiet_since + back)
        return False

    def _pays_back_in(self, job_id: str, held: Allocation, option: Option) -> Seconds:
        """When a run that restarts faster has done as much as it would have without."""
        gained = 1 - self._outlook.speed(self._jobs[job_id], held) / option.speed
        return self._policy.restart_seconds / gained if gained > 0 else inf

    def _why_grown(self, job_id: str, option: Option) -> str:
        """Against what it runs on now; a job that does not run yet needs no reason."""
        run = self._view.runs.get(job_id)
        if run is None:
            return ""
        faster = option.speed / self._outlook.speed(self._jobs[job_id], run.allocation) - 1
        more = option.gpus - run.allocation.gpu_milli // WHOLE
        if faster <= 0 or more <= 0:
            return f"made room for others, and now has {option.gpus} GPUs: {faster:+.0%} here"
        back = text_from_seconds(self._pays_back_in(job_id, run.allocation, option))
        return f"took {more} free GPUs: {faster:+.0%} here, pays back in {back}"
