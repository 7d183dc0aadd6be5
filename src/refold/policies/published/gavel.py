"""Gavel (OSDI'20): a linear program chooses the fraction of time of each job on each GPU type; rounds realise it.

The program maximises an objective over the time fractions X[job][type], given each job's throughput on each type. In
each round, jobs that have received little time on a type compared with their X go first. Jobs run as requested and are
moved between types only.

A job that fits on no single type, or requests no GPU, has no X: it starts before all others where it fits, and keeps
its placement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec
import numpy as np

from refold.core import View
from refold.errors import BadValue, RefoldError, UnknownName
from refold.model import NO_CHANGE, WHOLE, Allocation, Decision, Demand, Job, Seconds, Start
from refold.placement import MILLI_FREE, UP, Floats, Placer
from refold.planning.plans import CATALOGUE_ONLY, Knowledge, requested_cpus, requested_layout
from refold.policies.common import Draft, ProgressEstimator, Reasons, Transition

OBJECTIVES: dict[str, str] = {
    "max-min": "maximise the smallest throughput × GPUs, relative to an equal share of every type (LAS)",
    "throughput": "maximise the sum of throughputs, each relative to an equal share of every type",
    "makespan": "minimise the time at which the last job ends",
    "fifo": "weight jobs by order of arrival, earliest most",
}
"""Objectives of the linear program."""

TIE_BREAKER_WEIGHT = 1e-3
"""Weight of the sum of throughputs beside the minimum, so that time beyond the minimum is not left unused."""

UNSERVED_PRIORITY = 1e9
"""Priority per unit of X for a job that has received no time on a type (from Gavel's code)."""

RESET_SECONDS: Seconds = 1920.0
"""Minimum time over which received time is counted: shares are approached over several rounds."""

EPSILON = 1e-9
"""Time fractions and GPUs up to this count as zero: rounding error of the solver."""

Pair = tuple[str, str]
"""A job and a GPU type."""


class Gavel:
    """Time on each GPU type is divided by a linear program and granted in rounds."""

    name = "gavel"

    def __init__(
        self,
        objective: str = "max-min",
        round_seconds: Seconds = 360.0,
        restart_seconds: Seconds = 30.0,
        placement: str = "best-fit",
        seed: int = 0,
        knowledge: Knowledge | Mapping[str, Any] = CATALOGUE_ONLY,
    ) -> None:
        if objective not in OBJECTIVES:
            raise UnknownName("objective", objective, OBJECTIVES)
        if not 0 < round_seconds < inf:
            raise BadValue(f"round_seconds is {round_seconds}, expected a number > 0")
        self._objective = objective
        self._round_seconds, self._restart_seconds = round_seconds, restart_seconds
        self._knowledge = Knowledge.from_settings(knowledge)
        self._placer = Placer(placement, seed)
        self._transition, self._reasons = Transition(), Reasons()
        self._time_shares = TimeShares()
        self._estimator: ProgressEstimator | None = None
        self._next_round: Seconds = -inf
        self._order: dict[str, int] = {}
        """Rank of each job in the last round."""

    def decide(self, view: View) -> Decision:
        """Start a round if one is due; between rounds, start waiting jobs that fit."""
        if self._estimator is None:
            self._estimator = ProgressEstimator(view, self._knowledge, self._restart_seconds)
        self._estimator.learn(view)
        self._placer.observe(view)
        self._time_shares.record(view)
        if view.now >= self._next_round and (view.waiting or view.runs):
            self._next_round = view.now + self._round_seconds
            decision = self._begin_round(view, self._estimator)
        else:
            decision = self._between_rounds(view, self._estimator)
        wake_at = self._next_round if self._next_round_matters(view, decision) else None
        waits = self._reasons.collect(view, decision.starts)
        if decision == NO_CHANGE and not waits and wake_at is None:
            return NO_CHANGE
        return msgspec.structs.replace(decision, waits=waits, wake_at=wake_at)

    def _next_round_matters(self, view: View, decision: Decision) -> bool:
        """Whether another round could change anything: not if every job runs and there is only one GPU type."""
        if len(view.waiting) > len(decision.starts) or decision.stops:
            return True
        return len(view.cluster.type_names) > 1 and bool(view.runs or decision.starts)

    # Between rounds.

    def _between_rounds(self, view: View, estimator: ProgressEstimator) -> Decision:
        """Start waiting jobs that fit: new jobs first, then in the order of the last round."""
        decision = self._transition.next_step(view)
        if self._transition.pending:
            return decision
        starting = {start.job for start in decision.starts}
        starts = list(decision.starts)
        for job in sorted(view.waiting.values(), key=lambda job: (self._order.get(job.id, -1), *_arrival(job))):
            if job.id in starting:
                continue
            placement = None
            for demand in _demands(job, _throughputs(view, estimator, job)):
                placement = placement or view.trial().place(self._placer, demand)
            if placement is None:
                self._reasons.note_resources(view, job)
            else:
                starts.append(Start(job.id, Allocation(placement)))
        return msgspec.structs.replace(decision, starts=tuple(starts))

    # A round.

    def _begin_round(self, view: View, estimator: ProgressEstimator) -> Decision:
        """Solve for time fractions, choose jobs by the time received so far, and place them."""
        draft = Draft(view)
        jobs = sorted([*view.waiting.values(), *view.active.values()], key=_arrival)
        lp_jobs = {job.id: lp_job for job in jobs if (lp_job := _lp_job(view, estimator, job)) is not None}
        without_fractions = [job for job in jobs if job.id in view.waiting and job.id not in lp_jobs]
        held = {job_id: allocation for job_id, allocation in draft.allocations() if job_id in lp_jobs}
        fixed = {job_id: _type_of(view, held.pop(job_id)) for job_id in list(held) if not _may_move(view, job_id)}
        without_fractions = self._place_others(draft, without_fractions)
        for job_id in held:
            draft.release(job_id, "end of its time share in this round")
        self._place_others(draft, without_fractions)

        free = _free_gpus(draft)
        workers = dict(free)
        for job_id, gpu_type in fixed.items():
            workers[gpu_type] += lp_jobs[job_id].scale
        shares = time_fractions(self._objective, list(lp_jobs.values()), workers)
        self._time_shares.begin_round(view.now, shares, lp_jobs)
        ranked_pairs = sorted(
            shares, key=lambda pair: (self._time_shares.priority_key(pair), lp_jobs[pair[0]].arrival, pair)
        )
        chosen = _choose(ranked_pairs, shares, lp_jobs, free, fixed)
        self._order = {job_id: rank for rank, job_id in enumerate(dict.fromkeys(job_id for job_id, _ in ranked_pairs))}
        _GavelRound(view, draft, self._placer, lp_jobs, held, self._order).place(chosen)
        decision = self._transition.step_towards(view, _target_without_moves(view, draft))
        self._reasons.note_all(view, decision.starts, self._transition.pending)
        return decision

    def _place_others(self, draft: Draft, jobs: Sequence[Job]) -> list[Job]:
        """Place jobs without X in order of arrival; return those that do not fit."""
        return [job for job in jobs if not draft.place(job.id, self._placer, job.demand, None)]


class LpJob(NamedTuple):
    """A job of the linear program."""

    job: Job
    arrival: tuple[Seconds, str]
    scale: float
    """Number of GPUs (Gavel's scale factor)."""
    throughput: dict[str, float]
    """Throughput on each GPU type that the job can run on."""
    remaining: float
    """Remaining work, in the unit of throughput × seconds."""


def time_fractions(objective: str, lp_jobs: Sequence[LpJob], workers: Mapping[str, float]) -> dict[Pair, float]:
    """Solve for X, the fraction of time of each job on each GPU type.

    Constraints: X ≥ 0; the fractions of a job sum to at most 1; the GPUs used of a type do not exceed its `workers`.
    `max-min` and `makespan` have an additional last variable: the minimum over all jobs.
    """
    from scipy.sparse import vstack  # imported late: it takes long to load

    all_gpus = sum(workers.values())
    pairs = [(row, name) for row, lp_job in enumerate(lp_jobs) for name in lp_job.throughput if workers.get(name)]
    if not pairs or not all_gpus:
        return {}
    rows = np.array([row for row, _ in pairs])
    scales = np.array([lp_jobs[row].scale for row, _ in pairs])
    speeds = np.array([lp_jobs[row].throughput[name] for row, name in pairs])
    equal_share = np.bincount(rows, speeds * [workers[name] / all_gpus for _, name in pairs], len(lp_jobs))
    progress = speeds / equal_share[rows]
    names = sorted({name for _, name in pairs})
    types = np.array([names.index(name) for _, name in pairs])
    limits = vstack([_matrix(rows, np.ones(len(pairs)), len(lp_jobs)), _matrix(types, scales, len(names))])
    bounds = np.array([1.0] * len(lp_jobs) + [workers[name] for name in names])
    remaining = np.array([lp_job.remaining for lp_job in lp_jobs])
    match objective:
        case "max-min":
            solution = _maximise_minimum(_matrix(rows, progress * scales, len(lp_jobs)), progress, limits, bounds)
        case "makespan":
            part_of_work = speeds / remaining[rows] * remaining.mean()
            solution = _maximise_minimum(_matrix(rows, part_of_work, len(lp_jobs)), progress, limits, bounds)
        case "throughput":
            solution = _maximise(progress, limits, bounds)
        case _:
            fastest = np.array([max(lp_job.throughput.values()) for lp_job in lp_jobs])
            solution = _maximise(speeds / fastest[rows] * _weights_by_arrival(lp_jobs)[rows], limits, bounds)
    return {(lp_jobs[row].job.id, name): float(part) for (row, name), part in zip(pairs, solution, strict=True)}


def _matrix(rows: Floats, factors: Floats, height: int) -> Any:
    """Return a sparse matrix with one entry per variable: its factor, in its row."""
    from scipy.sparse import coo_matrix

    return coo_matrix((factors, (rows, np.arange(len(rows)))), shape=(height, len(rows)))


def _weights_by_arrival(lp_jobs: Sequence[LpJob]) -> Floats:
    """Return weights n, n-1, … 1 in order of arrival."""
    weights = np.empty(len(lp_jobs))
    weights[sorted(range(len(lp_jobs)), key=lambda row: lp_jobs[row].arrival)] = np.arange(len(lp_jobs), 0, -1)
    return weights


def _maximise_minimum(gains: Any, tie_breaker: Floats, limits: Any, bounds: Floats) -> Floats:
    """Maximise the smallest row of `gains`, which an additional variable represents."""
    from scipy.sparse import coo_matrix, hstack, vstack

    height = gains.shape[0]
    with_minimum = vstack(
        [hstack([limits, coo_matrix((limits.shape[0], 1))]), hstack([-gains, coo_matrix(np.ones((height, 1)))])]
    )
    weights = np.append(tie_breaker * TIE_BREAKER_WEIGHT / height, 1.0)
    return _maximise(weights, with_minimum, np.append(bounds, np.zeros(height)))[:-1]


def _maximise(weights: Floats, limits: Any, bounds: Floats) -> Floats:
    """Maximise the weighted sum of non-negative variables within the limits."""
    from scipy.optimize import linprog

    solved = linprog(-weights, A_ub=limits.tocsr(), b_ub=bounds, method="highs")
    if solved.x is None:
        raise RefoldError(f"gavel: the linear program has no solution: {solved.message}")
    solution: Floats = np.maximum(solved.x, 0.0)
    return solution


class TimeShares:
    """Time that each job has received on each GPU type, compared with its X.

    Time is counted from the last reset. Counts are reset when the set of jobs changes, but at most every
    `RESET_SECONDS`; deficits are carried over.
    """

    def __init__(self) -> None:
        self._last_update: Seconds = -inf
        self._reset_at: Seconds = -inf
        self._members: frozenset[str] = frozenset()
        self._received: dict[Pair, Seconds] = defaultdict(float)
        self._of_type: dict[str, Seconds] = defaultdict(float)
        self._deficit: dict[Pair, Seconds] = defaultdict(float)
        self._shares: Mapping[Pair, float] = {}

    def record(self, view: View) -> None:
        """Add the time since the last call."""
        for run in (*view.runs.values(), *view.changes.ended):
            seconds = view.now - max(run.since, self._last_update)
            if seconds > 0 and run.allocation.gpu_milli:
                gpu_type = _type_of(view, run.allocation)
                self._received[run.job, gpu_type] += seconds
                self._of_type[gpu_type] += seconds
        self._last_update = view.now

    def begin_round(self, now: Seconds, shares: Mapping[Pair, float], lp_jobs: Mapping[str, LpJob]) -> None:
        """Set the time fractions of the new round, and reset the counts if due."""
        members = frozenset(lp_jobs)
        if members != self._members and now - self._reset_at >= RESET_SECONDS:
            self._reset_counts(now, lp_jobs)
            self._members, self._reset_at = members, now
        self._shares = shares

    def _reset_counts(self, now: Seconds, lp_jobs: Mapping[str, LpJob]) -> None:
        for pair, share in self._shares.items():
            if pair[0] in lp_jobs:
                entitled = share * (now - max(self._reset_at, lp_jobs[pair[0]].arrival[0]))
                self._deficit[pair] += entitled - self._received.get(pair, 0.0)
        self._deficit = defaultdict(
            float, {pair: deficit for pair, deficit in self._deficit.items() if pair[0] in lp_jobs}
        )
        self._received.clear()
        self._of_type.clear()

    def priority_key(self, pair: Pair) -> tuple[float, float, float]:
        """Sort key: X / (fraction of the type's time received), then deficit, then X, all descending."""
        share, received = self._shares[pair], self._received.get(pair, 0.0)
        priority = share * self._of_type[pair[1]] / received if received > 0 else share * UNSERVED_PRIORITY
        return -priority, -self._deficit.get(pair, 0.0), -share


def _arrival(job: Job) -> tuple[Seconds, str]:
    return job.submitted, job.id


def _throughputs(view: View, estimator: ProgressEstimator, job: Job) -> dict[str, float]:
    """Return the job's throughput, as requested, on each GPU type that can hold the whole job when empty."""
    if not job.demand.gpus:
        return {}
    free, cluster = view.trial().free, view.cluster
    accepted = [name for name in cluster.type_names if not job.demand.gpu_types or name in job.demand.gpu_types]
    fitting = [name for name in accepted if free.fits_when_empty(_on_type(job, name))]
    if not estimator.speeds.can_model(job):
        return {name: cluster.gpu_type(name).speed for name in fitting}
    layout, cpus, plan = requested_layout(job), requested_cpus(job), estimator.speeds.own_plan(job)
    return {
        name: estimator.speeds.with_plan(job, name, layout, cpus, plan).steps_per_second
        for name in fitting
        if name in estimator.speeds.types_for(job)
    }


def _on_type(job: Job, gpu_type: str) -> Demand:
    return msgspec.structs.replace(job.demand, gpu_types=(gpu_type,))


def _demands(job: Job, throughputs: Mapping[str, float]) -> list[Demand]:
    """Return the job's demand restricted to each GPU type, fastest first; for a job without X, its own demand."""
    names = sorted(throughputs, key=lambda name: (-throughputs[name], name))
    return [_on_type(job, name) for name in names] or [job.demand]


def _lp_job(view: View, estimator: ProgressEstimator, job: Job) -> LpJob | None:
    throughputs = _throughputs(view, estimator, job)
    if not throughputs:
        return None
    return LpJob(job, _arrival(job), job.demand.total_gpus, throughputs, estimator.remaining_work(view, job))


def _type_of(view: View, allocation: Allocation) -> str:
    return next(view.cluster.nodes[share.node].gpu_type for share in allocation.placement if share.gpus)


def _may_move(view: View, job_id: str) -> bool:
    """Whether a run may be stopped or moved: it is preemptible and not stopping already."""
    return view.is_preemptible(job_id) and not view.runs[job_id].stopping


def _free_gpus(draft: Draft) -> dict[str, float]:
    """Return the free GPUs of each type, fractions included, on nodes that are up."""
    cluster = draft.free.cluster
    free = dict.fromkeys(cluster.type_names, 0.0)
    for node, row in zip(cluster.nodes, draft.free.nodes.tolist(), strict=False):  # the last row is the total
        if node.gpus and row[UP]:
            free[node.gpu_type] += row[MILLI_FREE] / WHOLE
    return free


def _choose(
    ranked_pairs: Iterable[Pair],
    shares: Mapping[Pair, float],
    lp_jobs: Mapping[str, LpJob],
    free: Mapping[str, float],
    fixed: Mapping[str, str],
) -> dict[str, str]:
    """Choose the GPU type of each job for this round, in order of priority; jobs that do not fit are skipped."""
    remaining, chosen = dict(free), {}
    for job_id, gpu_type in ranked_pairs:
        scale = lp_jobs[job_id].scale
        if job_id in chosen or job_id in fixed or shares[job_id, gpu_type] <= EPSILON:
            continue
        if scale <= remaining[gpu_type] + EPSILON:
            remaining[gpu_type] -= scale
            chosen[job_id] = gpu_type
    return chosen


class _GavelRound:
    """Places the chosen jobs on a draft from which all movable jobs have been released."""

    def __init__(
        self,
        view: View,
        draft: Draft,
        placer: Placer,
        lp_jobs: Mapping[str, LpJob],
        held: Mapping[str, Allocation],
        order: Mapping[str, int],
    ) -> None:
        self._view, self._draft, self._placer = view, draft, placer
        self._lp_jobs, self._held, self._order = lp_jobs, held, order

    def place(self, chosen: Mapping[str, str]) -> None:
        """Place the chosen jobs; jobs that stay on their type keep their GPUs if possible.

        If then some jobs do not fit, place all jobs largest first instead, if that leaves fewer GPUs unplaced.
        """
        largest_first = sorted(chosen, key=lambda job_id: (-self._lp_jobs[job_id].scale, self._order[job_id]))
        staying = [job_id for job_id in largest_first if self._keeps_type(job_id, chosen[job_id])]
        moving = [job_id for job_id in largest_first if job_id not in staying]
        before = self._draft.snapshot()
        unplaced = self._place_all(staying + moving, chosen)
        if unplaced:
            staying_first = self._draft.snapshot()
            self._draft.restore(before)
            if self._place_all(largest_first, chosen) >= unplaced:
                self._draft.restore(staying_first)
        self._fill_remaining()

    def _keeps_type(self, job_id: str, gpu_type: str) -> bool:
        return job_id in self._held and _type_of(self._view, self._held[job_id]) == gpu_type

    def _place_all(self, job_ids: Sequence[str], chosen: Mapping[str, str]) -> float:
        """Place jobs in order; return the total GPUs of jobs that do not fit."""
        unplaced = 0.0
        for job_id in job_ids:
            lp_job, gpu_type = self._lp_jobs[job_id], chosen[job_id]
            if self._keeps_type(job_id, gpu_type) and self._draft.assign(job_id, self._held[job_id]):
                continue
            demand = _on_type(lp_job.job, gpu_type)
            if not self._draft.place(job_id, self._placer, demand, None, f"time share on {gpu_type}"):
                unplaced += lp_job.scale
        return unplaced

    def _fill_remaining(self) -> None:
        """Place the other jobs on the remaining GPUs in order of priority; running jobs keep their GPUs if free."""
        for job_id in sorted(self._lp_jobs, key=lambda job_id: (self._order.get(job_id, inf), job_id)):
            lp_job = self._lp_jobs[job_id]
            if self._draft.allocation_of(job_id) is not None:
                continue
            if job_id in self._held and self._draft.assign(job_id, self._held[job_id]):
                continue
            for demand in _demands(lp_job.job, lp_job.throughput):
                if self._draft.place(job_id, self._placer, demand, None):
                    break


def _target_without_moves(view: View, draft: Draft) -> dict[str, tuple[Allocation | None, str]]:
    """Return the draft's target, with moves of jobs that are not reshapable replaced by stops."""
    target = draft.target()
    for job_id, (wanted, why) in target.items():
        run = view.runs.get(job_id)
        if run is not None and not view.active[job_id].reshapable and wanted != run.allocation:
            target[job_id] = (None, why)
    return target
