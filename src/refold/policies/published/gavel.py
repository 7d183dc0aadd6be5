"""Gavel (OSDI'20): which part of the time each job should spend on each GPU type, by a linear program; then rounds.

The program says X[job][type], so that an objective is best that counts throughput on each type. Rounds make it true:
whoever has had little of a type against its X goes first. Jobs run as they asked, and are moved between types only.

A job that fits on no single type, or that needs no GPU, has no X: it is started before others where it fits, and
stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, hstack, vstack

from refold.core import View
from refold.errors import BadValue, RefoldError, UnknownName
from refold.model import KEEP, WHOLE, Allocation, Decision, Demand, Job, Seconds, Start
from refold.packing import MILLI_FREE, UP, Floats, Placer
from refold.plans import NOTHING_MORE, Knowledge, asked_cpus, asked_layout
from refold.policies.common import Draft, Outlook, Reasons, Transition

OBJECTIVES: dict[str, str] = {
    "max-min": "the least progress for its GPUs, against an equal share of every type, is as large as can be (LAS)",
    "throughput": "the sum of all jobs' progress, each against an equal share of every type",
    "makespan": "the last job to end ends as early as can be",
    "fifo": "earlier jobs count more",
}
"""What a division of time is good for."""

LEFTOVER = 1e-3
"""What is left when the least is as large as can be goes to progress in sum, which counts so little beside it."""

NEVER_RECEIVED = 1e9
"""X counts so many times for who has had nothing of a type (from Gavel's code)."""

NOTHING = 1e-9
"""Fractions and GPUs below this are rounding."""

Pair = tuple[str, str]
"""A job and a GPU type."""


class Gavel:
    """Time on GPU types is divided by a linear program, and given out in rounds."""

    name = "gavel"

    def __init__(
        self,
        objective: str = "max-min",
        round_seconds: Seconds = 360.0,
        reset_seconds: Seconds = 1920.0,
        restart_seconds: Seconds = 30.0,
        placement: str = "best-fit",
        seed: int = 0,
        knowledge: Knowledge | Mapping[str, Any] = NOTHING_MORE,
    ) -> None:
        if objective not in OBJECTIVES:
            raise UnknownName("objective", objective, OBJECTIVES)
        if not (0 < round_seconds < inf and reset_seconds >= 0):
            raise BadValue(f"a round lasts seconds > 0 and a reset ≥ 0, not {round_seconds} and {reset_seconds}")
        self._objective = objective
        self._round, self._restart = round_seconds, restart_seconds
        self._knowledge = Knowledge.of(knowledge)
        self._placer = Placer(placement, seed)
        self._steering, self._reasons = Transition(), Reasons()
        self._ledger = TimeShares(reset_seconds)
        self._outlook: Outlook | None = None
        self._next_round: Seconds = -inf
        self._order: dict[str, int] = {}
        """Who was before whom in the last round."""

    def decide(self, view: View) -> Decision:
        """Choose who runs in the next round, if one begins; in between, start who fits."""
        if self._outlook is None:
            self._outlook = Outlook(view, self._knowledge, self._restart)
        self._placer.observe(view)
        self._ledger.note(view)
        if view.now >= self._next_round and (view.waiting or view.runs):
            self._next_round = view.now + self._round
            decision = self._begin_round(view, self._outlook)
        else:
            decision = self._carry_on(view, self._outlook)
        wake_at = self._next_round if self._could_matter(view, decision) else None
        waits = self._reasons.collect(view, decision.starts)
        if decision == KEEP and not waits and wake_at is None:
            return KEEP
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)

    def _could_matter(self, view: View, decision: Decision) -> bool:
        """Another round changes nothing where everybody runs and all GPUs are alike."""
        if len(view.waiting) > len(decision.starts) or decision.stops:
            return True
        return len(view.cluster.type_names) > 1 and bool(view.runs or decision.starts)

    # Between rounds.

    def _carry_on(self, view: View, outlook: Outlook) -> Decision:
        """What has become free goes to who waits: newcomers first, then as in the last round."""
        decision = self._steering.go_on(view)
        if self._steering.awaited:
            return decision
        starting = {start.job for start in decision.starts}
        starts = list(decision.starts)
        for job in sorted(view.waiting.values(), key=lambda job: (self._order.get(job.id, -1), *_arrival(job))):
            if job.id in starting:
                continue
            placement = None
            for demand in _demands(job, _throughputs(view, outlook, job)):
                placement = placement or view.trial().place(self._placer, demand)
            if placement is None:
                self._reasons.no_place(view, job)
            else:
                starts.append(Start(job.id, Allocation(placement)))
        return msgspec.structs.replace(decision, starts=tuple(starts))

    # A round.

    def _begin_round(self, view: View, outlook: Outlook) -> Decision:
        """Divide the time, choose by what was received of it, and find places."""
        draft = Draft(view)
        jobs = sorted([*view.waiting.values(), *view.active.values()], key=_arrival)
        sharers = {job.id: sharer for job in jobs if (sharer := _sharer(view, outlook, job)) is not None}
        others = [job for job in jobs if job.id in view.waiting and job.id not in sharers]
        held = {job_id: allocation for job_id, allocation in draft.holders() if job_id in sharers}
        staying = {job_id: _type_of(view, held.pop(job_id)) for job_id in list(held) if not _may_move(view, job_id)}
        others = self._place_others(draft, others)
        for job_id in held:
            draft.release(job_id, "its turn is over")
        self._place_others(draft, others)

        free = _free_gpus(draft)
        workers = dict(free)
        for job_id, gpu_type in staying.items():
            workers[gpu_type] += sharers[job_id].scale
        shares = fractions(self._objective, list(sharers.values()), workers)
        self._ledger.begin_round(view.now, shares, sharers)
        turns = sorted(shares, key=lambda pair: (self._ledger.rank(pair), sharers[pair[0]].arrival, pair))
        chosen = _choose(turns, shares, sharers, free, staying)
        self._order = {job_id: place for place, job_id in enumerate(dict.fromkeys(job_id for job_id, _ in turns))}
        _GavelRound(view, draft, self._placer, sharers, held, self._order).find_places(chosen)
        decision = self._steering.towards(view, _without_moves(view, draft))
        self._reasons.note_everybody(view, decision.starts, self._steering.awaited)
        return decision

    def _place_others(self, draft: Draft, jobs: Sequence[Job]) -> list[Job]:
        """Give jobs that have no X a place, in order of arrival; returns those that found none."""
        return [job for job in jobs if not draft.place(job.id, self._placer, job.demand, None)]


class LpJob(NamedTuple):
    """A job as the linear program sees it."""

    job: Job
    arrival: tuple[Seconds, str]
    scale: float
    """GPUs."""
    throughput: dict[str, float]
    """By GPU type; types it cannot have are not there."""
    left: float
    """Work, in what its throughput counts by the second."""


def fractions(objective: str, sharers: Sequence[LpJob], workers: Mapping[str, float]) -> dict[Pair, float]:
    """X: the part of the time that each job should spend on each GPU type.

    X ≥ 0, no job has more than all the time, and no type is used by more GPUs than there are. `max-min` and
    `makespan` have one variable more, the least that anybody gets, which comes last.
    """
    all_gpus = sum(workers.values())
    pairs = [(row, name) for row, sharer in enumerate(sharers) for name in sharer.throughput if workers.get(name)]
    if not pairs or not all_gpus:
        return {}
    rows = np.array([row for row, _ in pairs])
    scales = np.array([sharers[row].scale for row, _ in pairs])
    speeds = np.array([sharers[row].throughput[name] for row, name in pairs])
    equal_share = np.bincount(rows, speeds * [workers[name] / all_gpus for _, name in pairs], len(sharers))
    progress = speeds / equal_share[rows]
    names = sorted({name for _, name in pairs})
    types = np.array([names.index(name) for _, name in pairs])
    limits = vstack([_matrix(rows, np.ones(len(pairs)), len(sharers)), _matrix(types, scales, len(names))])
    bounds = np.array([1.0] * len(sharers) + [workers[name] for name in names])
    left = np.array([sharer.left for sharer in sharers])
    match objective:
        case "max-min":
            found = _most_for_the_least(_matrix(rows, progress * scales, len(sharers)), progress, limits, bounds)
        case "makespan":
            part_of_work = speeds / left[rows] * left.mean()
            found = _most_for_the_least(_matrix(rows, part_of_work, len(sharers)), progress, limits, bounds)
        case "throughput":
            found = _most(progress, limits, bounds)
        case _:
            fastest = np.array([max(sharer.throughput.values()) for sharer in sharers])
            found = _most(speeds / fastest[rows] * _weights_by_arrival(sharers)[rows], limits, bounds)
    return {(sharers[row].job.id, name): float(part) for (row, name), part in zip(pairs, found, strict=True)}


def _matrix(rows: Floats, factors: Floats, height: int) -> Any:
    """Each variable stands in one row, with a factor."""
    return coo_matrix((factors, (rows, np.arange(len(rows)))), shape=(height, len(rows)))


def _weights_by_arrival(sharers: Sequence[LpJob]) -> Floats:
    """The first to come counts as many times as there are jobs, the last once."""
    weights = np.empty(len(sharers))
    weights[sorted(range(len(sharers)), key=lambda row: sharers[row].arrival)] = np.arange(len(sharers), 0, -1)
    return weights


def _most_for_the_least(gains: Any, otherwise: Floats, limits: Any, bounds: Floats) -> Floats:
    """The row of `gains` that comes out least is as large as can be. A variable more stands for it."""
    height = gains.shape[0]
    with_least = vstack(
        [hstack([limits, coo_matrix((limits.shape[0], 1))]), hstack([-gains, coo_matrix(np.ones((height, 1)))])]
    )
    worth = np.append(otherwise * LEFTOVER / height, 1.0)
    return _most(worth, with_least, np.append(bounds, np.zeros(height)))[:-1]


def _most(worth: Floats, limits: Any, bounds: Floats) -> Floats:
    """The variables ≥ 0 within the limits that are worth most."""
    solved = linprog(-worth, A_ub=limits.tocsr(), b_ub=bounds, method="highs")
    if solved.x is None:
        raise RefoldError(f"no division of time was found: {solved.message}")
    found: Floats = np.maximum(solved.x, 0.0)
    return found


class TimeShares:
    """What each job has received of each GPU type, against what it should have.

    Time is counted from the last reset. A reset is made when jobs have come or gone, but not too often; what somebody
    had too little by then is remembered.
    """

    def __init__(self, reset_seconds: Seconds) -> None:
        self._reset = reset_seconds
        self._looked: Seconds = -inf
        self._since: Seconds = -inf
        self._members: frozenset[str] = frozenset()
        self._received: dict[Pair, Seconds] = defaultdict(float)
        self._of_type: dict[str, Seconds] = defaultdict(float)
        self._deficit: dict[Pair, Seconds] = defaultdict(float)
        self._shares: Mapping[Pair, float] = {}

    def note(self, view: View) -> None:
        """Count the time since the last look."""
        for run in (*view.runs.values(), *view.changes.ended):
            seconds = view.now - max(run.since, self._looked)
            if seconds > 0 and run.allocation.gpu_milli:
                gpu_type = _type_of(view, run.allocation)
                self._received[run.job, gpu_type] += seconds
                self._of_type[gpu_type] += seconds
        self._looked = view.now

    def begin_round(self, now: Seconds, shares: Mapping[Pair, float], sharers: Mapping[str, LpJob]) -> None:
        """From now on these are the shares to be had."""
        members = frozenset(sharers)
        if members != self._members and now - self._since >= self._reset:
            self._settle(now, sharers)
            self._members, self._since = members, now
        self._shares = shares

    def _settle(self, now: Seconds, sharers: Mapping[str, LpJob]) -> None:
        for pair, share in self._shares.items():
            if pair[0] in sharers:
                should = share * (now - max(self._since, sharers[pair[0]].arrival[0]))
                self._deficit[pair] += should - self._received.get(pair, 0.0)
        self._deficit = defaultdict(float, {pair: owed for pair, owed in self._deficit.items() if pair[0] in sharers})
        self._received.clear()
        self._of_type.clear()

    def rank(self, pair: Pair) -> tuple[float, float, float]:
        """Smaller is sooner: by X against the fraction of the type's time received, then by what is owed, then by X."""
        share, received = self._shares[pair], self._received.get(pair, 0.0)
        priority = share * self._of_type[pair[1]] / received if received > 0 else share * NEVER_RECEIVED
        return -priority, -self._deficit.get(pair, 0.0), -share


def _arrival(job: Job) -> tuple[Seconds, str]:
    return job.submitted, job.id


def _throughputs(view: View, outlook: Outlook, job: Job) -> dict[str, float]:
    """As the job asked to run, on each GPU type that has room for all of it."""
    if not job.demand.gpus:
        return {}
    free, cluster = view.trial().free, view.cluster
    accepted = [name for name in cluster.type_names if not job.demand.gpu_types or name in job.demand.gpu_types]
    fitting = [name for name in accepted if free.fits_when_empty(_on_type(job, name))]
    if not outlook.speeds.knows(job):
        return {name: cluster.gpu_type(name).speed for name in fitting}
    layout, cpus, plan = asked_layout(job), asked_cpus(job), outlook.speeds.own_plan(job)
    return {
        name: outlook.speeds.with_plan(job, name, layout, cpus, plan).steps_per_second
        for name in fitting
        if name in outlook.speeds.types_for(job)
    }


def _on_type(job: Job, gpu_type: str) -> Demand:
    return msgspec.structs.replace(job.demand, gpu_types=(gpu_type,))


def _demands(job: Job, throughputs: Mapping[str, float]) -> list[Demand]:
    """What to look for, one GPU type after the other, the fastest first; of a job without X, what it asked for."""
    names = sorted(throughputs, key=lambda name: (-throughputs[name], name))
    return [_on_type(job, name) for name in names] or [job.demand]


def _sharer(view: View, outlook: Outlook, job: Job) -> LpJob | None:
    throughputs = _throughputs(view, outlook, job)
    if not throughputs:
        return None
    return LpJob(job, _arrival(job), job.demand.total_gpus, throughputs, outlook.left(view, job))


def _type_of(view: View, allocation: Allocation) -> str:
    return next(view.cluster.nodes[share.node].gpu_type for share in allocation.placement if share.gpus)


def _may_move(view: View, job_id: str) -> bool:
    """A run that is being moved has just been decided about."""
    return view.active[job_id].preemptible and not view.runs[job_id].stopping


def _free_gpus(draft: Draft) -> dict[str, float]:
    """Free GPUs of each type, fractions counted as such, on nodes that are up."""
    cluster = draft.free.cluster
    free = dict.fromkeys(cluster.type_names, 0.0)
    for node, row in zip(cluster.nodes, draft.free.nodes.tolist(), strict=False):  # the last row is a sum
        if node.gpus and row[UP]:
            free[node.gpu_type] += row[MILLI_FREE] / WHOLE
    return free


def _choose(
    turns: Iterable[Pair],
    shares: Mapping[Pair, float],
    sharers: Mapping[str, LpJob],
    free: Mapping[str, float],
    staying: Mapping[str, str],
) -> dict[str, str]:
    """Who runs where in this round: in order of their turns; who does not fit any more is passed over."""
    left, chosen = dict(free), {}
    for job_id, gpu_type in turns:
        scale = sharers[job_id].scale
        if job_id in chosen or job_id in staying or shares[job_id, gpu_type] <= NOTHING:
            continue
        if scale <= left[gpu_type] + NOTHING:
            left[gpu_type] -= scale
            chosen[job_id] = gpu_type
    return chosen


class _GavelRound:
    """Finding places for those who were chosen, on a draft that they have all left."""

    def __init__(
        self,
        view: View,
        draft: Draft,
        placer: Placer,
        sharers: Mapping[str, LpJob],
        held: Mapping[str, Allocation],
        order: Mapping[str, int],
    ) -> None:
        self._view, self._draft, self._placer = view, draft, placer
        self._sharers, self._held, self._order = sharers, held, order

    def find_places(self, chosen: Mapping[str, str]) -> None:
        """Jobs keep their workers; if then somebody finds no place, only larger jobs keep theirs before it."""
        largest_first = sorted(chosen, key=lambda job_id: (-self._sharers[job_id].scale, self._order[job_id]))
        keeping = [job_id for job_id in largest_first if self._keeps(job_id, chosen[job_id])]
        coming = [job_id for job_id in largest_first if job_id not in keeping]
        before = self._draft.snapshot()
        missing = self._put(keeping + coming, chosen)
        if missing:
            kept = self._draft.snapshot()
            self._draft.restore(before)
            if self._put(largest_first, chosen) >= missing:
                self._draft.restore(kept)
        self._let_others_in()

    def _keeps(self, job_id: str, gpu_type: str) -> bool:
        return job_id in self._held and _type_of(self._view, self._held[job_id]) == gpu_type

    def _put(self, job_ids: Sequence[str], chosen: Mapping[str, str]) -> float:
        """Place jobs one after the other; returns how many GPUs of them found no place."""
        missing = 0.0
        for job_id in job_ids:
            sharer, gpu_type = self._sharers[job_id], chosen[job_id]
            if self._keeps(job_id, gpu_type) and self._draft.put(job_id, self._held[job_id]):
                continue
            demand = _on_type(sharer.job, gpu_type)
            if not self._draft.place(job_id, self._placer, demand, None, f"its turn on {gpu_type}"):
                missing += sharer.scale
        return missing

    def _let_others_in(self) -> None:
        """What nobody chosen needs goes to the others, as their turns come; who is there may stay."""
        for job_id in sorted(self._sharers, key=lambda job_id: (self._order.get(job_id, inf), job_id)):
            sharer = self._sharers[job_id]
            if self._draft.holds(job_id) is not None:
                continue
            if job_id in self._held and self._draft.put(job_id, self._held[job_id]):
                continue
            for demand in _demands(sharer.job, sharer.throughput):
                if self._draft.place(job_id, self._placer, demand, None):
                    break


def _without_moves(view: View, draft: Draft) -> dict[str, tuple[Allocation | None, str]]:
    """A job that may not be reshaped cannot move in one go: it is stopped, and starts where there is room."""
    target = draft.target()
    for job_id, (wanted, why) in target.items():
        run = view.runs.get(job_id)
        if run is not None and not view.active[job_id].reshapable and wanted != run.allocation:
            target[job_id] = (None, why)
    return target
