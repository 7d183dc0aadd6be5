# cython: boundscheck=True, wraparound=True
"""Reasons why jobs wait. Each is reported once, and again only when it changes."""

from __future__ import annotations

from collections.abc import Container, Sequence

import cython

from refold.model import Demand, DomainWait, Job, Reason, Shortage, Start, Wait
from refold.placement import Placer

if not cython.compiled:
    from refold.core import View


class Reasons:
    """Collect the reasons that a decision reports. With a `placer` that limits rack power, also shortages of power."""

    def __init__(self, placer: Placer | None = None) -> None:
        self._placer = placer if placer is not None and placer.respects_power_limits else None
        self._lacks_power: dict[str, bool] = {}
        self._reported: dict[str, Reason] = {}
        self._waits: list[Wait] = []
        self._shortages: dict[Demand, Shortage] = {}
        """Shortages in this round, which are the same for jobs with the same demand."""

    def note_resources(self, view: View, job: Job) -> None:
        """Note that the job was considered and does not fit."""
        if self._placer is not None:
            self._note_resources_or_power(self._placer, view, job)
        elif self._is_new(job, Reason.RESOURCES):
            shortage = self._shortages.get(job.demand)
            if shortage is None:
                shortage = self._shortages[job.demand] = view.shortage(job.demand)
            self._waits.append(Wait(job.id, Reason.RESOURCES, shortage=shortage))

    def _note_resources_or_power(self, placer: Placer, view: View, job: Job) -> None:
        """Note a shortage; report it again when it becomes, or ceases to be, one of power, which the view ignores."""
        free = view.trial().free
        lacks_power = free.fits_one_instance(job.demand)  # the nodes have the resources, so the power limit rejects it
        if self._is_new(job, Reason.RESOURCES) or self._lacks_power.get(job.id) != lacks_power:
            self._lacks_power[job.id] = lacks_power
            self._waits.append(Wait(job.id, Reason.RESOURCES, shortage=placer.shortage(free, job.demand)))

    def note_reserved(self, job: Job) -> None:
        """Note that the job fits now, but not for as long as it will run: jobs ahead of it have reservations there."""
        if self._is_new(job, Reason.RESERVED):
            self._waits.append(Wait(job.id, Reason.RESERVED))

    def note_fair_share(self, job: Job, ahead: int) -> None:
        """Note that jobs of users that have used less of their share have started before the job."""
        if self._is_new(job, Reason.FAIR_SHARE):
            self._waits.append(Wait(job.id, Reason.FAIR_SHARE, ahead=ahead))

    def note_topology(self, job: Job, domains: DomainWait) -> None:
        """Note that the job would be slower across the domains that have room now."""
        if self._is_new(job, Reason.TOPOLOGY):
            self._waits.append(Wait(job.id, Reason.TOPOLOGY, domains=domains))

    def note_releasing(self, job: Job) -> None:
        """Note that runs are stopping to release the resources for the job."""
        if self._is_new(job, Reason.RELEASING):
            self._waits.append(Wait(job.id, Reason.RELEASING))

    def collect_all(
        self, view: View, starts: Sequence[Start], awaited: Container[str], behind: Container[str] = ()
    ) -> tuple[Wait, ...]:
        """Note reasons for all jobs that are not started, as `note_all` does, and return those that are new."""
        self.note_all(view, starts, awaited, behind)
        return self.collect(view, starts)

    def note_all(
        self, view: View, starts: Sequence[Start], awaited: Container[str], behind: Container[str] = ()
    ) -> None:
        """Note reasons for all jobs that are not started.

        `awaited`: jobs for which resources are being released. `behind`: jobs that were not considered.
        """
        started = {start.job for start in starts}
        reported = self._reported if self._placer is None else {}
        known = Reason.RESOURCES
        unexplained = [job_id for job_id in view.waiting if reported.get(job_id) is not known or job_id in awaited]
        for job_id in unexplained:
            if job_id in awaited:
                self.note_releasing(view.waiting[job_id])
            elif job_id not in started and job_id not in behind:
                self.note_resources(view, view.waiting[job_id])

    def clear(self) -> None:
        """Forget all reported reasons, when no job waits."""
        self._reported.clear()
        self._lacks_power.clear()

    def collect(self, view: View, starts: Sequence[Start]) -> tuple[Wait, ...]:
        """Return the reasons noted in this round, except for jobs that are started.

        New jobs that were not considered wait behind the others.
        """
        changes = view.changes
        for start in starts:
            self._lacks_power.pop(start.job, None)
            if self._reported.pop(start.job, None) is not None and self._waits:
                self._waits = [wait for wait in self._waits if wait.job != start.job]
        for job_id in changes.removed:
            self._reported.pop(job_id, None)
            self._lacks_power.pop(job_id, None)
        if len(starts) < len(view.waiting):
            self._note_priority(view, starts)
        waits, self._waits = tuple(self._waits), []
        self._shortages.clear()
        return waits

    def _note_priority(self, view: View, starts: Sequence[Start]) -> None:
        started = {start.job for start in starts}
        unexplained = [
            job
            for job in (*view.changes.requeued, *view.changes.submitted)
            if job.id not in self._reported and job.id not in started
        ]
        ahead = len(view.waiting) - len(starts) - len(unexplained)
        if unexplained and not ahead and not view.trial().free.fits_one_instance(unexplained[0].demand):
            self.note_resources(view, unexplained.pop(0))  # nothing is ahead of it: its nodes may be down
            ahead = 1
        for position, job in enumerate(unexplained):
            self._reported[job.id] = Reason.PRIORITY
            self._waits.append(Wait(job.id, Reason.PRIORITY, ahead=ahead + position))

    def _is_new(self, job: Job, reason: Reason) -> bool:
        if self._reported.get(job.id) is reason:
            return False
        self._reported[job.id] = reason
        return True
