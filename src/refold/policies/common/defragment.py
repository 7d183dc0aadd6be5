"""Moving runs so that a waiting job can start: for when enough is free in sum, but in pieces.

A moved run is stopped and started again, at once, on another place that is free now; the job that waits is promised
the room and starts when the moved runs have given it back. Until then nobody else is put there.

A move costs the moved run `restart_seconds` of all its GPUs. What it spares the waiting job is not known, since nobody
knows when somebody else would have ended. So it is done as one rents before one buys (the ski-rental rule): when the
GPU-seconds that the job has waited are as many as those the moves cost. As long as the price stays the same, waiting
and moves together then cost at most twice what somebody would have paid who knows the future.
"""

from __future__ import annotations

from math import inf

import msgspec
import numpy as np

from refold.core import View
from refold.errors import BadValue
from refold.model import Allocation, Demand, Job, Placement, Reshape, Seconds, Start, beyond
from refold.packing import CPU_FREE, MEMORY_FREE, UP, Free, Placer
from refold.policies.common.moves import Moves, find_moves

REST = 10
"""A run is not moved before it has been where it is for so many times what a move costs: so it never loses more than
a tenth of its time to moves, a run that has just started is left alone, and nobody is moved to and fro."""

SLACK: Seconds = 1e-3
"""For rounding: who is woken at the moment when moves pay must find that they do."""


class _PlannedStart(msgspec.Struct, frozen=True):
    """Where a job will start when these runs, by job and number, have stopped."""

    job: Job
    placement: Placement
    awaited: tuple[tuple[str, int], ...]


class _WaitingSince:
    """Since when a job waits, what was spent for it, when to think of it again and when moves for it will pay."""

    __slots__ = ("again_at", "pays_at", "since", "spent")

    def __init__(self, since: Seconds) -> None:
        self.since = since
        self.spent = 0.0
        self.again_at = -inf
        self.pays_at = inf


class Defragment:
    """Makes room by moving runs. It remembers what it has promised, and how long each job has waited in vain."""

    def __init__(self, restart_seconds: Seconds = 78.0, most_moves: int = 8, patience_seconds: Seconds = 60.0) -> None:
        if not 0 <= restart_seconds < inf:
            raise BadValue(f"restart_seconds is {restart_seconds}, expected seconds ≥ 0")
        if most_moves < 1:
            raise BadValue(f"most_moves is {most_moves}, expected ≥ 1")
        if not 0 < patience_seconds < inf:
            raise BadValue(f"patience_seconds is {patience_seconds}, expected seconds > 0")
        self._restart_seconds = restart_seconds
        self._most_moves = most_moves
        self._patience_seconds = patience_seconds
        self._promises: list[_PlannedStart] = []
        self._waits: dict[str, _WaitingSince] = {}
        self._moved_at = -inf
        self._rests = False
        self.reshapes: list[Reshape] = []
        """The moves of this look."""

    @property
    def promised(self) -> bool:
        """Whether anybody waits for moved runs to stop."""
        return bool(self._promises)

    def observe(self, view: View) -> list[Job]:
        """A new look: note who waits since when; returns those for whom moves pay by now."""
        changes = view.changes
        for run in changes.started:
            self._waits.pop(run.job, None)
        for job_id in changes.gone:
            self._waits.pop(job_id, None)
        for job in changes.returned:
            self._waits[job.id] = _WaitingSince(view.now)
        self.reshapes = []
        self._rests = self._moved_at == view.now  # own moves have just stopped: that is no reason for others
        return self._ripe(view)

    def _ripe(self, view: View) -> list[Job]:
        ripe: list[Job] = []
        for job_id, patience in self._waits.items():
            if patience.pays_at <= view.now:
                patience.pays_at = inf
                if job_id in view.waiting:
                    ripe.append(view.waiting[job_id])
        return ripe

    def keep_promises(self, view: View) -> tuple[list[Start], list[Job]]:
        """Start whoever has its room now, and keep others out of the rest; also who has been promised in vain."""
        trial, promises = view.trial(), self._promises
        starts: list[Start] = []
        in_vain: list[Job] = []
        self._promises = []
        for promise in promises:
            if promise.job.id not in view.waiting:
                continue
            if trial.take(promise.placement):
                starts.append(Start(promise.job.id, Allocation(promise.placement)))
            elif _can_be_kept(view, promise):
                trial.take_what_is_free(promise.placement)
                self._promises.append(promise)
            else:
                in_vain.append(promise.job)
        return starts, in_vain

    def make_room(self, view: View, job: Job, placer: Placer) -> bool:
        """Promise a place to a job that has none, if runs can be moved out of it and that pays."""
        patience = self._waits.get(job.id)
        if patience is None:
            patience = self._waits[job.id] = _WaitingSince(job.submitted)
        room_for_moves = self._most_moves - sum(len(promise.awaited) for promise in self._promises)
        if view.now < patience.again_at or room_for_moves < 1 or not _enough_in_sum(view.trial().free, job.demand):
            return False
        if self._rests:
            self._look_again(patience, view.now, view.now + self._patience_seconds)
            return False
        moving = {reshape.job for reshape in self.reshapes}
        moves = find_moves(view, job, placer, self._restart_seconds * REST, room_for_moves, moving)
        if moves is None:
            more_may_move = self._next_rested(view)
            self._look_again(patience, view.now, max(more_may_move, view.now + self._patience_seconds))
            return False
        pays_at = self._pays_at(job, patience, moves)
        if view.now < pays_at - SLACK:
            self._look_again(patience, view.now, pays_at)
            return False
        self._promise(view, job, patience, moves)
        return True

    def wake_at(self, view: View) -> Seconds | None:
        """When moves for somebody will pay; None: for nobody."""
        at = min((patience.pays_at for patience in self._waits.values()), default=inf)
        return at if view.now < at < inf else None

    def _next_rested(self, view: View) -> Seconds:
        """When the next run will have been where it is for long enough to be moved."""
        rested = (run.since + self._restart_seconds * REST for run in view.runs.values())
        return min((at for at in rested if at > view.now), default=inf)

    def _look_again(self, patience: _WaitingSince, now: Seconds, at: Seconds) -> None:
        patience.pays_at = at
        patience.again_at = min(at, now + self._patience_seconds)

    def _pays_at(self, job: Job, patience: _WaitingSince, moves: Moves) -> Seconds:
        """When the job will have waited for as many GPU-seconds as all moves for it cost."""
        spent = patience.spent + moves.gpu_milli * self._restart_seconds
        return patience.since + spent / job.demand.total_gpu_milli

    def _promise(self, view: View, job: Job, patience: _WaitingSince, moves: Moves) -> None:
        trial, runs = view.trial(), view.runs
        patience.spent += moves.gpu_milli * self._restart_seconds
        patience.pays_at = inf
        self._moved_at = view.now
        for reshape in moves.reshapes:
            trial.take(beyond(reshape.allocation.placement, runs[reshape.job].allocation.placement))
        trial.take_what_is_free(moves.placement)
        self.reshapes += moves.reshapes
        awaited = tuple((reshape.job, runs[reshape.job].number) for reshape in moves.reshapes)
        self._promises.append(_PlannedStart(job, moves.placement, awaited))


def _can_be_kept(view: View, promise: _PlannedStart) -> bool:
    """Whether somebody is still on the way out, and no node was lost."""
    if not all(view.is_up(share.node) for share in promise.placement):
        return False
    for job_id, number in promise.awaited:
        run = view.runs.get(job_id)
        if run is not None and run.number == number and run.stopping:
            return True
    return False


def _enough_in_sum(free: Free, demand: Demand) -> bool:
    """Whether GPUs, CPUs and memory would do if they lay together, of whatever type: runs may change theirs."""
    if not demand.gpus:
        return False  # it waits for CPUs or memory: in GPU-seconds, which moves cost, it has nothing to gain
    nodes = free.nodes[:-1][free.nodes[:-1, UP] == 1]
    cpu, memory = demand.instances * demand.cpu_milli, demand.instances * demand.memory_mib
    return bool(
        free.gpu_milli >= demand.total_gpu_milli
        and np.minimum(nodes[:, CPU_FREE], cpu).sum() >= cpu  # what is not known is without limit: no sum of these
        and np.minimum(nodes[:, MEMORY_FREE], memory).sum() >= memory
    )
