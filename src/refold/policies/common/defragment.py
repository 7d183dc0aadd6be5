"""Defragmentation: move runs so that a waiting job can start when enough resources are free, but scattered.

A moved run is stopped and restarted at once on other GPUs that are free now. The waiting job has its resources reserved
and starts when the moved runs have released them. Until then no other job is placed there.

A move costs the moved run `restart_seconds` on all its GPUs. What it saves the waiting job is unknown, since the end
of the other runs is. Moves therefore follow the ski-rental rule: they are made once the job has waited for as many
GPU-seconds as the moves cost. While the cost stays the same, waiting and moves together then cost at most twice the
optimum with known future.
"""

from __future__ import annotations

from math import inf

import msgspec
import numpy as np

from refold.core import View
from refold.errors import BadValue
from refold.model import Allocation, Demand, Job, Placement, Reshape, Seconds, Start, additional_shares
from refold.placement import CPU_FREE, MEMORY_FREE, UP, FreeResources, Placer
from refold.policies.common.moves import Moves, find_moves

MAX_MOVES = 8
"""Limit of runs being moved at once, so that a decision disturbs a small part of the cluster."""

MIN_STAY_FACTOR = 10
"""A run is not moved until it has been in place for this many times the cost of a move. It therefore never loses more
than a tenth of its time to moves, a run that has just started is left alone, and no run is moved back and forth."""

WAKE_TOLERANCE: Seconds = 1e-3
"""Tolerance for rounding: when the policy wakes at the time at which moves pay off, they must count as paying off."""


class _PlannedStart(msgspec.Struct, frozen=True):
    """The placement on which a job will start when the awaited runs, (job, run number), have stopped."""

    job: Job
    placement: Placement
    awaited: tuple[tuple[str, int], ...]


class _WaitState:
    """Start of a job's wait, thousandths of GPU-seconds spent on moves for it, and when to consider moves again."""

    __slots__ = ("pays_at", "retry_at", "since", "spent")

    def __init__(self, since: Seconds) -> None:
        self.since = since
        self.spent = 0.0
        self.retry_at = -inf
        self.pays_at = inf


class Defragment:
    """Moves runs to make waiting jobs fit. Keeps track of planned starts and of how long each job has waited."""

    def __init__(self, restart_seconds: Seconds = 78.0, retry_seconds: Seconds = 60.0) -> None:
        """`retry_seconds`: pause between searches for one job."""
        if not 0 <= restart_seconds < inf:
            raise BadValue(f"restart_seconds is {restart_seconds}, expected seconds ≥ 0")
        if not 0 < retry_seconds < inf:
            raise BadValue(f"retry_seconds is {retry_seconds}, expected seconds > 0")
        self._restart_seconds = restart_seconds
        self._retry_seconds = retry_seconds
        self._planned: list[_PlannedStart] = []
        self._waits: dict[str, _WaitState] = {}
        self._moved_at = -inf
        self._just_moved = False
        self.reshapes: list[Reshape] = []
        """The moves of this round."""

    @property
    def has_planned_starts(self) -> bool:
        """Whether any job waits for moved runs to stop."""
        return bool(self._planned)

    def observe(self, view: View) -> list[Job]:
        """Begin a round: update how long jobs have waited; return the jobs for which moves pay off by now."""
        changes = view.changes
        for run in changes.started:
            self._waits.pop(run.job, None)
        for job_id in changes.removed:
            self._waits.pop(job_id, None)
        for job in changes.requeued:
            self._waits[job.id] = _WaitState(view.now)
        self.reshapes = []
        self._just_moved = self._moved_at == view.now  # runs stopped by own moves must not trigger more moves
        return self._jobs_to_reconsider(view)

    def _jobs_to_reconsider(self, view: View) -> list[Job]:
        jobs: list[Job] = []
        for job_id, wait in self._waits.items():
            if wait.pays_at <= view.now:
                wait.pays_at = inf
                if job_id in view.waiting:
                    jobs.append(view.waiting[job_id])
        return jobs

    def start_planned(self, view: View) -> tuple[list[Start], list[Job]]:
        """Start planned jobs whose resources are free, and keep other jobs off the resources of the rest.

        Return the starts, and the jobs whose planned start is no longer possible.
        """
        trial, planned = view.trial(), self._planned
        starts: list[Start] = []
        failed: list[Job] = []
        self._planned = []
        for plan in planned:
            if plan.job.id not in view.waiting:
                continue
            if trial.take(plan.placement):
                starts.append(Start(plan.job.id, Allocation(plan.placement)))
            elif _is_still_possible(view, plan):
                trial.take_available(plan.placement)
                self._planned.append(plan)
            else:
                failed.append(plan.job)
        return starts, failed

    def plan_start(self, view: View, job: Job, placer: Placer) -> bool:
        """Plan a start for a job that does not fit, if runs can be moved out of its way and the moves pay off."""
        wait = self._waits.get(job.id)
        if wait is None:
            wait = self._waits[job.id] = _WaitState(job.submitted)
        moves_left = MAX_MOVES - sum(len(plan.awaited) for plan in self._planned)
        if view.now < wait.retry_at or moves_left < 1 or not _enough_in_total(view.trial().free, job.demand):
            return False
        if self._just_moved:
            self._reconsider_at(wait, view.now, view.now + self._retry_seconds)
            return False
        moving = {reshape.job for reshape in self.reshapes}
        moves = find_moves(view, job, placer, self._restart_seconds * MIN_STAY_FACTOR, moves_left, moving)
        if moves is None:
            next_movable = self._next_movable_at(view)
            self._reconsider_at(wait, view.now, max(next_movable, view.now + self._retry_seconds))
            return False
        pays_at = self._pays_at(job, wait, moves)
        if view.now < pays_at - WAKE_TOLERANCE:
            self._reconsider_at(wait, view.now, pays_at)
            return False
        self._plan(view, job, wait, moves)
        return True

    def wake_at(self, view: View) -> Seconds | None:
        """Return when moves for the next job may pay off; None if for no job."""
        at = min((wait.pays_at for wait in self._waits.values()), default=inf)
        return at if view.now < at < inf else None

    def _next_movable_at(self, view: View) -> Seconds:
        """Return when the next run will have been in place for long enough to be moved."""
        movable_at = (run.since + self._restart_seconds * MIN_STAY_FACTOR for run in view.runs.values())
        return min((at for at in movable_at if at > view.now), default=inf)

    def _reconsider_at(self, wait: _WaitState, now: Seconds, at: Seconds) -> None:
        wait.pays_at = at
        wait.retry_at = min(at, now + self._retry_seconds)

    def _pays_at(self, job: Job, wait: _WaitState, moves: Moves) -> Seconds:
        """Return when the job will have waited for as many GPU-seconds as all moves for it cost."""
        spent = wait.spent + moves.gpu_milli * self._restart_seconds
        return wait.since + spent / job.demand.total_gpu_milli

    def _plan(self, view: View, job: Job, wait: _WaitState, moves: Moves) -> None:
        trial, runs = view.trial(), view.runs
        wait.spent += moves.gpu_milli * self._restart_seconds
        wait.pays_at = inf
        self._moved_at = view.now
        for reshape in moves.reshapes:
            trial.take(additional_shares(reshape.allocation.placement, runs[reshape.job].allocation.placement))
        trial.take_available(moves.placement)
        self.reshapes += moves.reshapes
        awaited = tuple((reshape.job, runs[reshape.job].number) for reshape in moves.reshapes)
        self._planned.append(_PlannedStart(job, moves.placement, awaited))


def _is_still_possible(view: View, plan: _PlannedStart) -> bool:
    """Return whether an awaited run is still stopping and all nodes and GPUs of the placement are up."""
    if not view.is_placement_up(plan.placement):
        return False
    for job_id, number in plan.awaited:
        run = view.runs.get(job_id)
        if run is not None and run.number == number and run.stopping:
            return True
    return False


def _enough_in_total(free: FreeResources, demand: Demand) -> bool:
    """Return whether the free GPUs, CPUs and memory would suffice if they were in one place.

    GPU types are ignored: a moved run may change its type.
    """
    if not demand.gpus:
        return False  # the cost of moves is compared in GPU-seconds, of which such a job never waits any
    nodes = free.nodes[:-1][free.nodes[:-1, UP] == 1]
    cpu, memory = demand.instances * demand.cpu_milli, demand.instances * demand.memory_mib
    return bool(
        free.gpu_milli >= demand.total_gpu_milli
        and np.minimum(nodes[:, CPU_FREE], cpu).sum() >= cpu  # unknown amounts are unlimited, and would overflow a sum
        and np.minimum(nodes[:, MEMORY_FREE], memory).sum() >= memory
    )
