"""A queue that starts jobs in a given order and preempts runs that come later in it; shared by srtf, las and tiresias.

A job that does not fit may claim the GPUs of runs that come after it in the order. It starts when these runs have
stopped and released their GPUs, which takes as long as the back end needs. Until then, no job behind it is started on
what it claims.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from refold.core import View
from refold.model import NO_CHANGE, Allocation, Decision, Job, Placement, Run, Start, Stop
from refold.placement import FreeResources, Placer
from refold.policies.common import QueueByDemand, Reasons

Order = Callable[[View, Job], Any]
"""Sort key of a job; lower is more urgent. The key of a waiting job does not change while it waits."""


class PreemptingQueue:
    """Run the jobs that come first by `order`.

    `rank` sorts runs as `order` does, but by a value that does not change while they run, so that runs stay sorted.
    """

    def __init__(self, name: str, placer: Placer, order: Order, rank: Callable[[View, Run], Any]) -> None:
        self._name = name
        self._placer = placer
        self._order = order
        self._view: View | None = None
        self._waiting = QueueByDemand(self._key)
        self._ranking = _VictimRanking(rank)
        self._claimers: list[Job] = []
        self._reasons = Reasons(self._placer)

    def decide(self, view: View) -> Decision:
        """Start the jobs that fit, in order; preempt later runs for those that do not."""
        self._view = view
        self._placer.observe(view)
        self._ranking.update(view)
        self._add_arrivals(view)
        this_round = _PreemptionRound(view, self._placer, self._order, self._ranking)
        while (job := self._waiting.first(view)) is not None:
            if this_round.start(job):
                self._waiting.remove_first(job)
            elif this_round.claim(job):
                self._waiting.remove_first(job)
                self._claimers.append(job)
                self._reasons.note_releasing(job)
            else:
                self._waiting.close_for(job)
                self._reasons.note_resources(view, job)
        starts = this_round.starts
        waits = self._reasons.collect(view, starts)
        if not (starts or this_round.stops or waits):
            return NO_CHANGE
        stops = tuple(
            Stop(job_id, f"{self._name}: preempted for {claimer}") for job_id, claimer in this_round.stops.items()
        )
        return Decision(starts=tuple(starts), stops=stops, waits=waits)

    def _add_arrivals(self, view: View) -> None:
        """Add new jobs, and put jobs that wait for runs to stop back in the queue.

        A job that becomes the first of its demand reopens the demand: it may preempt runs that are less urgent than
        itself but not less urgent than the job behind it.
        """
        self._waiting.reopen_if_freed(view)
        changes = view.changes
        claimers = [job for job in self._claimers if job.id in view.waiting]
        requeued = [*claimers, *changes.requeued]
        self._claimers = []
        for job in requeued:
            if self._waiting.add(job, requeued=True):
                self._waiting.reopen_for(job)
        for job in changes.submitted:
            if self._waiting.add(job):
                self._waiting.reopen_for(job)

    def rerank(self, view: View, run: Run) -> None:
        """Sort a run again whose rank has changed; waiting jobs may be able to preempt it now."""
        self._ranking.move(view, run)
        self._waiting.reopen_all()

    def resort(self, view: View) -> None:
        """Sort all waiting jobs and runs again, after the order itself has changed."""
        self._view = view
        self._waiting.resort(view)
        for run in view.runs.values():
            self._ranking.move(view, run)

    def _key(self, job: Job) -> Any:
        assert self._view is not None
        return self._order(self._view, job)


class _VictimRanking:
    """Runs, most urgent first."""

    def __init__(self, rank: Callable[[View, Run], Any]) -> None:
        self._rank = rank
        self._sorted: list[tuple[Any, float, str]] = []
        self._entry_of: dict[str, tuple[Any, float, str]] = {}

    def update(self, view: View) -> None:
        for run in view.changes.ended:
            self.remove(run.job)
        for run in view.changes.started:
            if view.runs.get(run.job) is run:
                self.add(view, run)
        for run in view.changes.progressed:
            if view.runs.get(run.job) is run:
                self.move(view, run)

    def move(self, view: View, run: Run) -> None:
        if run.job in self._entry_of:  # a run that has just started is ranked by its current state anyway
            self.remove(run.job)
            self.add(view, run)

    def add(self, view: View, run: Run) -> None:
        entry = self._entry_of[run.job] = (self._rank(view, run), run.since, run.job)
        insort(self._sorted, entry)

    def remove(self, job_id: str) -> None:
        entry = self._entry_of.pop(job_id, None)
        if entry is not None:
            del self._sorted[bisect_left(self._sorted, entry)]

    def least_urgent_first(self) -> Iterator[str]:
        return (job_id for _, _, job_id in reversed(self._sorted))


class _PreemptionRound:
    """One scheduling round: the jobs started, the runs stopped, the resources claimed.

    Three states are tracked: resources free now, resources free now and not claimed, and resources that will be free
    and not claimed once all stopping runs have stopped. The first two are the same until a job claims something.
    """

    def __init__(self, view: View, placer: Placer, order: Order, ranking: _VictimRanking) -> None:
        self.starts: list[Start] = []
        self.stops: dict[str, str] = {}
        """Preempted job -> job that it is preempted for."""
        self._view = view
        self._placer = placer
        self._order = order
        self._ranking = ranking
        self._trial = view.trial()
        self._unclaimed: FreeResources | None = None
        self._future: FreeResources | None = None

    def start(self, job: Job) -> bool:
        """Start a job on resources that are free and not claimed by a job before it; return whether it fits."""
        if self._unclaimed is None:
            placement = self._trial.place(self._placer, job.demand)
        else:
            placement = self._placer.place(self._unclaimed, job.demand)
            if placement is not None:
                self._trial.take(placement)
        if placement is None:
            return False
        if self._future is not None:
            self._future.take(placement)
        self.starts.append(Start(job.id, Allocation(placement)))
        return True

    def claim(self, job: Job) -> bool:
        """Preempt the last runs in the order so that the job fits; return whether that is possible."""
        future = self._future_free()
        placement = self._placer.place(future, job.demand)  # runs that are already stopping may suffice
        if placement is None:
            placement = self._place_without_later_runs(job, future)
        if placement is None:
            return False
        if self._unclaimed is None:
            self._unclaimed = self._trial.free.copy()
        self._unclaimed.take_available(placement)
        return True

    def _place_without_later_runs(self, job: Job, future: FreeResources) -> Placement | None:
        later = self._runs_after(job)
        victims = self._runs_with_gpus(later, job.demand.total_gpu_milli - future.gpu_milli)
        released, more = 0, 1
        while released < len(victims):
            for run in victims[released:]:
                future.release(run.allocation.placement)
            released = len(victims)
            placement = self._placer.place(future, job.demand)
            if placement is not None:
                self._stop_needed(victims, job, future)
                return placement
            victims += islice(later, more)
            more *= 2
        for run in victims:
            future.retake(run.allocation.placement)
        return None

    def _future_free(self) -> FreeResources:
        """Return what will be free and not claimed once all stopping runs have stopped."""
        if self._future is None:
            self._future = self._trial.free.copy()
            for run in self._view.runs.values():
                if run.stopping:
                    self._future.release(run.allocation.placement)
        return self._future

    def _runs_after(self, job: Job) -> Iterator[Run]:
        """Yield the runs that may be preempted for a job, the last in the order first."""
        view, own_key = self._view, self._order(self._view, job)
        for job_id in self._ranking.least_urgent_first():
            run, other = view.runs[job_id], view.active[job_id]
            if run.stopping or job_id in self.stops or not view.is_preemptible(job_id):
                continue
            if not view.is_placement_up(run.allocation.placement):
                continue  # what is down cannot be reused
            if self._order(view, other) <= own_key:
                return
            yield run

    def _runs_with_gpus(self, later: Iterator[Run], missing: int) -> list[Run]:
        """Return the first runs that together hold the missing GPUs; an empty list if all of them do not suffice."""
        victims: list[Run] = []
        for run in later:
            victims.append(run)
            missing -= run.allocation.gpu_milli
            if missing <= 0:
                return victims
        return []

    def _stop_needed(self, victims: list[Run], job: Job, future: FreeResources) -> None:
        """Stop the candidates whose resources the job needs; spare the others, the most urgent first."""
        for run in reversed(victims):
            placement = run.allocation.placement
            if not self._placer.allows(future, placement) or future.take(placement) is not None:
                self.stops[run.job] = job.id
