"""Starting jobs in some order and stopping others for them: what srtf and las have in common.

A job that has no place may claim one from runs that come after it in the order. It starts when these have
stopped and given their place back, which takes as long as the back end takes; until then nobody behind it is
started on what it claims.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from refold.core import View
from refold.model import KEEP, Allocation, Decision, Job, Placement, Run, Start, Stop
from refold.packing import Free, Placer
from refold.policies.common import QueueByDemand, Reasons

Order = Callable[[View, Job], Any]
"""How urgent a job is now; lower is more urgent. For a job that waits, it does not change while it waits."""


class PreemptingQueue:
    """Whoever is first by `order` runs.

    `rank` sorts runs as `order` does, by something that does not change while they run: so they are kept sorted.
    """

    def __init__(self, name: str, placer: Placer, order: Order, rank: Callable[[View, Run], Any]) -> None:
        self._name = name
        self._placer = placer
        self._order = order
        self._view: View | None = None
        self._lines = QueueByDemand(self._key)
        self._ranking = _Ranking(rank)
        self._claimers: list[Job] = []
        self._reasons = Reasons(self._placer)

    def decide(self, view: View) -> Decision:
        """Start whoever fits, in order; stop later ones for those that do not."""
        self._view = view
        self._placer.observe(view)
        self._ranking.update(view)
        self._line_up(view)
        look = _PreemptionRound(view, self._placer, self._order, self._ranking)
        while (job := self._lines.first(view)) is not None:
            if look.start(job):
                self._lines.remove_first(job)
            elif look.claim(job):
                self._lines.remove_first(job)
                self._claimers.append(job)
                self._reasons.releasing(job)
            else:
                self._lines.close(job)
                self._reasons.no_place(view, job)
        starts = look.starts
        waits = self._reasons.collect(view, starts)
        if not (starts or look.stops or waits):
            return KEEP
        stops = tuple(Stop(job_id, f"{self._name}: for {claimer}") for job_id, claimer in look.stops.items())
        return Decision(starts=tuple(starts), stops=stops, waits=waits)

    def _line_up(self, view: View) -> None:
        """Whoever has come, and whoever waits for runs to stop. In front of its line, a job may do what others cannot:
        claim the place of runs that are less urgent than it is, but not less than the one behind it."""
        self._lines.reopen(view)
        changes = view.changes
        claimers = [job for job in self._claimers if job.id in view.waiting]
        back_in_line = [*claimers, *changes.returned]
        self._claimers = []
        for job in back_in_line:
            if self._lines.add(job, returned=True):
                self._lines.reopen_line_of(job)
        for job in changes.submitted:
            if self._lines.add(job):
                self._lines.reopen_line_of(job)

    def rank_again(self, view: View, run: Run) -> None:
        """A run has changed its rank after all; somebody may claim its place now."""
        self._ranking.move(view, run)
        self._lines.reopen_all()

    def sort_again(self, view: View) -> None:
        """The order itself has changed, for jobs that wait and for runs."""
        self._view = view
        self._lines.sort_again(view)
        for run in view.runs.values():
            self._ranking.move(view, run)

    def _key(self, job: Job) -> Any:
        assert self._view is not None
        return self._order(self._view, job)


class _Ranking:
    """Runs, the most urgent first."""

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
        if run.job in self._entry_of:  # else it has just started, and is ranked as it is now
            self.remove(run.job)
            self.add(view, run)

    def add(self, view: View, run: Run) -> None:
        entry = self._entry_of[run.job] = (self._rank(view, run), run.since, run.job)
        insort(self._sorted, entry)

    def remove(self, job_id: str) -> None:
        entry = self._entry_of.pop(job_id, None)
        if entry is not None:
            del self._sorted[bisect_left(self._sorted, entry)]

    def last_first(self) -> Iterator[str]:
        return (job_id for _, _, job_id in reversed(self._sorted))


class _PreemptionRound:
    """One look at the queue: what is started, what is stopped, what is claimed.

    Three things are kept apart: what is free now, what is free now and not claimed, and what will be free and not
    claimed when every run that is stopping has stopped. The first two are one until somebody claims something.
    """

    def __init__(self, view: View, placer: Placer, order: Order, ranking: _Ranking) -> None:
        self.starts: list[Start] = []
        self.stops: dict[str, str] = {}
        self._view = view
        self._placer = placer
        self._order = order
        self._ranking = ranking
        self._trial = view.trial()
        self._unclaimed: Free | None = None
        self._future: Free | None = None

    def start(self, job: Job) -> bool:
        """Start a job on what is free and not claimed by one before it."""
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
        """Find the last runs in the order without which the job has a place; have them stopped."""
        future = self._soon_free()
        placement = self._placer.place(future, job.demand)  # runs that are stopping already may do
        if placement is None:
            placement = self._place_without_later_runs(job, future)
        if placement is None:
            return False
        if self._unclaimed is None:
            self._unclaimed = self._trial.free.copy()
        self._unclaimed.take_what_is_free(placement)
        return True

    def _place_without_later_runs(self, job: Job, future: Free) -> Placement | None:
        later = self._later_than(job)
        victims = self._enough_by_sum(later, job.demand.total_gpu_milli - future.gpu_milli)
        given_up, more = 0, 1
        while given_up < len(victims):
            for run in victims[given_up:]:
                future.give_back(run.allocation.placement)
            given_up = len(victims)
            placement = self._placer.place(future, job.demand)
            if placement is not None:
                self._stop_needed(victims, job, future)
                return placement
            victims += islice(later, more)
            more *= 2
        for run in victims:
            future.take_back(run.allocation.placement)
        return None

    def _soon_free(self) -> Free:
        """What will be free when every run that is stopping has stopped, less what is claimed."""
        if self._future is None:
            self._future = self._trial.free.copy()
            for run in self._view.runs.values():
                if run.stopping:
                    self._future.give_back(run.allocation.placement)
        return self._future

    def _later_than(self, job: Job) -> Iterator[Run]:
        """Runs that may be stopped for a job, the last in the order first."""
        view, mine = self._view, self._order(self._view, job)
        for job_id in self._ranking.last_first():
            run, other = view.runs[job_id], view.active[job_id]
            if run.stopping or job_id in self.stops or not other.preemptible:
                continue
            if not all(view.is_up(share.node) for share in run.allocation.placement):
                continue  # nobody can have its place
            if self._order(view, other) <= mine:
                return
            yield run

    def _enough_by_sum(self, later: Iterator[Run], missing: int) -> list[Run]:
        """As many runs as have the GPUs that are missing; none if all together have not."""
        victims: list[Run] = []
        for run in later:
            victims.append(run)
            missing -= run.allocation.gpu_milli
            if missing <= 0:
                return victims
        return []

    def _stop_needed(self, victims: list[Run], job: Job, future: Free) -> None:
        """Of the runs that were given up, keep those whose place was not needed, the most urgent first."""
        for run in reversed(victims):
            placement = run.allocation.placement
            if not self._placer.allows(future, placement) or future.take(placement) is not None:
                self.stops[run.job] = job.id
