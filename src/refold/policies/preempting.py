"""Starting jobs in some order and stopping others for them: what srtf and las have in common.

A job that has no place may claim one from runs that come after it in the order. It starts when these have
stopped and given their place back, which takes as long as the back end takes; until then nobody behind it is
started on what it claims.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from refold.core import View
from refold.model import KEEP, Allocation, Decision, Job, Run, Start, Stop
from refold.model.units import WHOLE
from refold.packing import Free, Placer
from refold.policies.lines import Lines
from refold.policies.reasons import Reasons


class PreemptingQueue:
    """Whoever is first by `order(view, job)` runs; a lower value is more urgent.

    The order of a waiting job must not change while it waits.
    """

    def __init__(self, name: str, placer: Placer, order: Callable[[View, Job], Any]) -> None:
        self._name = name
        self._placer = placer
        self._order = order
        self._view: View | None = None
        self._lines = Lines(self._key)
        self._reasons = Reasons()

    def _key(self, job: Job) -> Any:
        assert self._view is not None
        return self._order(self._view, job)

    def decide(self, view: View) -> Decision:
        """Start whoever fits, in order; stop later ones for those that do not."""
        self._view = view
        self._placer.observe(view)
        self._lines.update(view)
        if view.changes.woke:
            self._lines.reopen_all()
        look = _Look(view, self._placer, self._order)
        while (job := self._lines.first(view)) is not None:
            if look.start(job):
                self._lines.remove_first(job)
                continue
            if look.claim(job):
                self._reasons.releasing(job)
            else:
                self._reasons.no_place(view, job)
            self._lines.close(job)
        starts = look.starts
        waits = self._reasons.collect(view, starts)
        if not (starts or look.stops or waits):
            return KEEP
        stops = tuple(Stop(job_id, f"{self._name}: for {claimer}") for job_id, claimer in look.stops.items())
        return Decision(starts=tuple(starts), stops=stops, waits=waits)


class _Look:
    """One look at the queue: what is started, what is stopped, what is claimed."""

    def __init__(self, view: View, placer: Placer, order: Callable[[View, Job], Any]) -> None:
        self.starts: list[Start] = []
        self.stops: dict[str, str] = {}
        self._view = view
        self._placer = placer
        self._order = order
        self._trial = view.trial()
        self._future: Free | None = None
        self._victims: list[tuple[Any, Run]] | None = None

    def start(self, job: Job) -> bool:
        """Start a job on what is free and not claimed by one before it."""
        if self._future is None:
            placement = self._trial.place(self._placer, job.demand)
        else:
            placement = self._placer.place(self._future, job.demand)
            if placement is not None and not self._trial.take(placement):
                self._future.give_back(placement)
                placement = None
        if placement is None:
            return False
        self.starts.append(Start(job.id, Allocation(placement)))
        return True

    def claim(self, job: Job) -> bool:
        """Find the last runs in the order without which the job has a place; have them stopped."""
        future = self._soon_free()
        if self._placer.place(future, job.demand) is not None:
            return True  # runs that are stopping already will do
        victims = self._later_than(job)
        enough = self._enough(victims, job, future.gpu_milli)
        tried, step = 0, 1
        while enough <= len(victims):
            for run in victims[tried:enough]:
                future.give_back(run.allocation.placement)
            tried = enough
            if self._placer.place(future, job.demand) is not None:
                self._stop_needed(victims[:tried], job, future)
                return True
            if enough == len(victims):
                break
            enough, step = min(len(victims), enough + step), step * 2
        for run in victims[:tried]:
            future.take_back(run.allocation.placement)
        return False

    def _stop_needed(self, victims: list[Run], job: Job, future: Free) -> None:
        """Of the runs that were given up, keep those whose place was not needed, the most urgent first."""
        for run in reversed(victims):
            if future.take(run.allocation.placement) is not None:
                self.stops[run.job] = job.id
        self._victims = [(key, run) for key, run in self._victims or [] if run.job not in self.stops]

    def _soon_free(self) -> Free:
        """What will be free when every run that is stopping has stopped, less what is claimed."""
        if self._future is None:
            self._future = self._trial.free.copy()
            for run in self._view.runs.values():
                if run.stopping:
                    self._future.give_back(run.allocation.placement)
        return self._future

    def _later_than(self, job: Job) -> list[Run]:
        """Runs that may be stopped for a job, the last in the order first."""
        if self._victims is None:
            view = self._view
            self._victims = sorted(
                (
                    (self._order(view, view.active[job_id]), run)
                    for job_id, run in view.runs.items()
                    if not run.stopping and view.active[job_id].preemptible
                ),
                key=lambda victim: (victim[0], victim[1].since, victim[1].job),
                reverse=True,
            )
        mine = self._order(self._view, job)
        return [run for key, run in self._victims if key > mine]

    def _enough(self, victims: list[Run], job: Job, free_milli: int) -> int:
        """How many victims it takes at least, going by the sum of their GPUs."""
        missing = round(job.demand.total_gpus * WHOLE) - free_milli
        sums = list(accumulate(run.allocation.gpu_milli for run in victims))
        return max(1, bisect_left(sums, missing) + 1)
