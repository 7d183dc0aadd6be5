# cython: boundscheck=True, wraparound=True
"""A queue that starts jobs in a given order and never preempts; shared by fifo and sjf."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import cython

from refold.model import HOUR, NO_CHANGE, Allocation, Decision, Demand, Job, Seconds, Start
from refold.placement import Placer
from refold.policies.common import Defragment, QueueEntry

if not cython.compiled:
    from refold.core import View
    from refold.policies.common import QueueByDemand, Reasons

MAX_DEFERRAL: Seconds = HOUR
"""A job that has waited for longer is not left out of a window in favour of jobs that fit better."""


def arrival_order(job: Job) -> tuple[int, Seconds]:
    """Return the sort key of an order of arrival: jobs of higher priority come first."""
    return -job.priority, job.submitted


class Queue:
    """Start jobs in the order of `key`. If `strict`, no job overtakes one that does not fit yet.

    With `defragment`, running jobs are moved if that lets a waiting job start.
    """

    def __init__(
        self, placer: Placer, key: Callable[[Job], Any], strict: bool, defragment: Defragment | None = None
    ) -> None:
        self._placer = placer
        self._waiting = QueueByDemand(key)
        self._strict = strict
        self._defragment = defragment
        self._blocked: str | None = None
        """In strict order, the first job, which did not fit; it is not tried again until resources are released."""
        self._reasons = Reasons(self._placer)

    def decide(self, view: View) -> Decision:
        """Start the jobs that fit, in order."""
        changes = view.changes
        if changes.freed:
            self._blocked = None
            self._waiting.reopen_all()
        if self._blocked is not None and self._blocked in changes.removed:
            self._blocked = None  # it has left the queue, or may be placed on other nodes now
        if self._defragment is not None:
            for job in self._defragment.observe(view):
                self._blocked = None
                self._waiting.reopen_for(job)
        if not view.waiting:
            self._reasons.clear()
            return NO_CHANGE
        self._placer.observe(view)
        if len(view.waiting) == len(changes.submitted) == 1:
            only = changes.submitted[0]
            placement = view.trial().place(self._placer, only.demand)
            if placement is not None:  # fast path: no other job waits, and this one fits
                return Decision((Start(only.id, Allocation(placement)),))
        self._waiting.add_arrivals(view)
        starts = self._start_planned(view)
        starts += self._start_in_order(view)
        waits = self._reasons.collect(view, starts)
        if self._defragment is not None:
            moves, wake_at = tuple(self._defragment.reshapes), self._defragment.wake_at(view)
            return Decision(starts=tuple(starts), reshapes=moves, waits=waits, wake_at=wake_at)
        return Decision(starts=tuple(starts), waits=waits) if starts or waits else NO_CHANGE

    def _start_planned(self, view: View) -> list[Start]:
        """Start jobs for which runs were moved, if the GPUs are free; requeue jobs whose planned start failed."""
        if self._defragment is None:
            return []
        starts, failed = self._defragment.start_planned(view)
        for job in failed:
            self._waiting.add(job, requeued=True)
            self._waiting.reopen_for(job)
        return starts

    def _start_in_order(self, view: View) -> list[Start]:
        if self._strict and self._defragment is not None and self._defragment.has_planned_starts:
            return []  # the first job waits for moved runs to stop
        if self._placer.window == 1:
            return self._start_one_by_one(view)
        starts = self._start_windows(view)
        if starts or view.runs or self._placer.is_exhaustive:
            return starts
        # On an idle cluster no later event would repeat a randomised search that found nothing.
        self._blocked = None
        self._waiting.reopen_all()
        return self._start_one_by_one(view)

    def _start_one_by_one(self, view: View) -> list[Start]:
        waiting, trial = self._waiting, view.trial()
        starts: list[Start] = []
        while (job := waiting.first(view)) is not None and job.id != self._blocked:
            placement = trial.place(self._placer, job.demand)
            if placement is not None:
                waiting.remove_first(job)
                starts.append(Start(job.id, Allocation(placement)))
            elif self._leave_waiting(view, job):
                break
        return starts

    def _start_windows(self, view: View) -> list[Start]:
        """Place the first jobs together as a window, then the next window, until no more jobs may start."""
        starts: list[Start] = []
        while True:
            window, not_fitting = self._next_window(view)
            if not window and not not_fitting:
                break
            left_out = self._place_window(view, window, starts)
            unplaced = sorted([*left_out, *not_fitting], key=lambda entry: entry[:2])
            for _, _, job in unplaced:
                if self._leave_waiting(view, job):
                    return starts
        return starts

    def _next_window(self, view: View) -> tuple[list[QueueEntry], list[QueueEntry]]:
        """Remove the first jobs that would fit on their own from the queue; return them, and those that do not fit."""
        waiting, free = self._waiting, view.trial().free
        window: list[QueueEntry] = []
        not_fitting: list[QueueEntry] = []
        fitting: set[Demand] = set()
        while (
            len(window) < self._placer.window and (job := waiting.first(view)) is not None and job.id != self._blocked
        ):
            if job.demand in fitting or free.fits_one_instance(job.demand):
                fitting.add(job.demand)
                window.append(waiting.pop_first(job))
                continue
            not_fitting.append(waiting.first_entry(job))
            if self._strict:
                break
            waiting.close_for(job)
        return window, not_fitting

    def _place_window(self, view: View, window: list[QueueEntry], starts: list[Start]) -> list[QueueEntry]:
        """Start the jobs of a window that get a placement; return the first job of each demand that does not."""
        demands = [job.demand for _, _, job in window]
        placements = view.trial().place_all(self._placer, demands, self._strict, self._overdue_count(view, window))
        left_out: dict[Demand, QueueEntry] = {}
        for entry, placement in zip(window, placements, strict=True):
            job = entry[2]
            if placement is not None:
                starts.append(Start(job.id, Allocation(placement)))
            else:
                self._waiting.restore(entry)
                left_out.setdefault(job.demand, entry)
        return list(left_out.values())

    def _overdue_count(self, view: View, window: list[QueueEntry]) -> int:
        """Return how many jobs at the front of a window have waited too long to be left out for better fits."""
        return sum(1 for _ in takewhile(lambda entry: view.now - entry[2].submitted > MAX_DEFERRAL, window))

    def _leave_waiting(self, view: View, job: Job) -> bool:
        """Leave a job that does not fit in the queue, and with it all jobs of its demand.

        Return whether no other job may be started either.
        """
        if self._defragment is not None and self._defragment.plan_start(view, job, self._placer):
            self._waiting.remove_first(job)
            self._waiting.reopen_for(job)
            self._reasons.note_releasing(job)
            return self._strict
        self._reasons.note_resources(view, job)
        if self._strict:
            self._blocked = job.id
        else:
            self._waiting.close_for(job)
        return self._strict
