"""Preemption for the first job of a lane that has not started by its reserved time.

Runs that overtook it are preempted: without them it would have started by now, so in the end they have not delayed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from refold.core import View
from refold.model import Placement, Run
from refold.placement import FreeResources, Placer
from refold.policies.backfill.queue import QueuedJob, QueuePosition
from refold.policies.backfill.schedule import Schedule

Preempt = Literal["never", "whole-node", "always"]


class OverdueClaim(NamedTuple):
    """An overdue job, and the placement that is free once the runs that overtook it have stopped."""

    queued: QueuedJob
    placement: Placement


class Preemption:
    """Which jobs may preempt which runs."""

    def __init__(self, preempt: Preempt, placer: Placer) -> None:
        self._preempt, self._placer = preempt, placer
        self._overtakers: dict[str, tuple[QueuePosition, int]] = {}
        """Runs that may have overtaken jobs: their queue position, and the number of arrivals before their start."""

    def note_start(self, queued: QueuedJob, arrivals: int) -> None:
        """Record a job that starts while others wait, and the number of jobs that have arrived so far."""
        self._overtakers[queued.job.id] = queued.position, arrivals

    def forget(self, job_id: str) -> None:
        """Drop a run that has ended."""
        self._overtakers.pop(job_id, None)

    def delays(self, view: View, schedule: Schedule, run: Run, queued: QueuedJob) -> bool:
        """Return whether a run delays a reservation that it conflicts with.

        If not, it continues until the reserved start and is preempted then.
        """
        return not (self._may_preempt(view, schedule, queued) and self._may_be_stopped(view, run, queued))

    def find_claim(self, view: View, schedule: Schedule) -> OverdueClaim | None:
        """Return the first overdue job that fits without its overtakers; the other lane follows in later rounds."""
        for first in schedule.queue.first(1):
            if view.now < first.reserved_start or not self._may_preempt(view, schedule, first):
                continue
            reserved = schedule.reservations.get(first.job.id)
            if reserved is not None and reserved.start <= view.now and _will_be_free(view, reserved.placement):
                continue  # its GPUs are being released
            placement = self._place_without_overtakers(view, schedule, first)
            if placement is not None:
                return OverdueClaim(first, placement)
        return None

    def _place_without_overtakers(self, view: View, schedule: Schedule, first: QueuedJob) -> Placement | None:
        """Place the first job of a lane as if its overtakers had stopped, beside due reservations of the other lane."""
        free = _free_without(view, self._overtakers_of(view, first))
        for other in schedule.queue.first(1):
            reserved = schedule.reservations.get(other.job.id)
            if other is not first and reserved is not None and reserved.start <= view.now:
                free.take_available(reserved.placement)
        return self._placer.place(free, first.demand)

    def runs_to_stop(self, view: View, claim: OverdueClaim) -> list[Run]:
        """Return those of the overtakers that must stop so that the placement is free."""
        runs = self._overtakers_of(view, claim.queued)
        free = _free_without(view, runs)
        return [run for run in runs if not _can_stay(free, run.allocation.placement, claim.placement)]

    def _may_preempt(self, view: View, schedule: Schedule, queued: QueuedJob) -> bool:
        """Return whether a waiting job may preempt runs that overtook it when its reserved start has come."""
        if self._preempt == "never":
            return False
        if self._preempt == "whole-node" and queued.demand.gpus < view.cluster.max_node_gpus:
            return False
        return any(queued is first for first in schedule.queue.first(1))

    def _may_be_stopped(self, view: View, run: Run, queued: QueuedJob) -> bool:
        """Return whether a run overtook a waiting job and is preemptible."""
        position, arrivals = self._overtakers.get(run.job, (queued.position, 0))
        was_waiting = queued.position[1] <= arrivals
        return was_waiting and position > queued.position and view.is_preemptible(run.job)

    def _overtakers_of(self, view: View, queued: QueuedJob) -> list[Run]:
        """Return the runs that overtook a waiting job and may be preempted."""
        return [run for run in view.runs.values() if not run.stopping and self._may_be_stopped(view, run, queued)]


def _free_without(view: View, runs: Iterable[Run]) -> FreeResources:
    """Return what would be free without these runs and without those that are stopping."""
    free = view.trial().free.copy()
    for job_id in view.stopping:
        free.release(view.runs[job_id].allocation.placement)
    for run in runs:
        free.release(run.allocation.placement)
    return free


def _will_be_free(view: View, placement: Placement) -> bool:
    """Return whether a placement will be free when the runs that are stopping have stopped."""
    return _free_without(view, ()).has(placement)


def _can_stay(free: FreeResources, held: Placement, placement: Placement) -> bool:
    """Return whether a placement is free beside what a run holds; if so, mark the latter as taken."""
    free.retake(held)  # which may be on a node that is drained
    if free.has(placement):
        return True
    free.release(held)
    return False
