"""Starting jobs in some order, never stopping any: what fifo and sjf have in common."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from refold.core import View
from refold.model import HOUR, KEEP, Allocation, Decision, Demand, Job, Seconds, Start
from refold.packing import Placer
from refold.policies.common import Defragment, Place, QueueByDemand, Reasons

PATIENCE: Seconds = HOUR
"""Who has waited for longer is not left out of a window for those that fit better."""


class Queue:
    """Jobs start in the order of `key`. If `strict`, nobody overtakes a job that has no place yet.

    With `defragment`, running jobs are moved where that lets one start.
    """

    def __init__(
        self, placer: Placer, key: Callable[[Job], Any], strict: bool, defragment: Defragment | None = None
    ) -> None:
        self._placer = placer
        self._lines = QueueByDemand(key)
        self._strict = strict
        self._defragment = defragment
        self._stuck: str | None = None
        self._reasons = Reasons(self._placer)

    def decide(self, view: View) -> Decision:
        """Start whoever is first and fits, and so on."""
        changes = view.changes
        if changes.freed:
            self._stuck = None
            self._lines.reopen_all()
        if self._defragment is not None:
            for job in self._defragment.observe(view):
                self._stuck = None
                self._lines.reopen_line_of(job)
        if not view.waiting:
            self._reasons.nobody_waits()
            return KEEP
        self._placer.observe(view)
        if len(view.waiting) == len(changes.submitted) == 1:
            only = changes.submitted[0]
            placement = view.trial().place(self._placer, only.demand)
            if placement is not None:  # nobody else waits, and it fits: the fast path
                return Decision((Start(only.id, Allocation(placement)),))
        self._lines.add_new(view)
        starts = self._start_promised(view)
        starts += self._start_in_order(view)
        waits = self._reasons.collect(view, starts)
        if self._defragment is not None:
            moves, wake_at = tuple(self._defragment.reshapes), self._defragment.wake_at(view)
            return Decision(starts=tuple(starts), reshapes=moves, waits=waits, wake_at=wake_at)
        return Decision(starts=tuple(starts), waits=waits) if starts or waits else KEEP

    def _start_promised(self, view: View) -> list[Start]:
        """Those for whom others were moved, when their room is free; who was promised it in vain stands in line."""
        if self._defragment is None:
            return []
        starts, in_vain = self._defragment.keep_promises(view)
        for job in in_vain:
            self._lines.add(job, returned=True)
            self._lines.reopen_line_of(job)
        return starts

    def _start_in_order(self, view: View) -> list[Start]:
        if self._strict and self._defragment is not None and self._defragment.promised:
            return []  # somebody before all others waits for moved runs to stop
        if self._placer.window == 1:
            return self._start_one_by_one(view)
        starts = self._start_windows(view)
        if starts or view.runs or self._placer.finds_all:
            return starts
        self._stuck = None
        self._lines.reopen_all()
        return self._start_one_by_one(view)  # what a search by lot has missed would wait for ever

    def _start_one_by_one(self, view: View) -> list[Start]:
        lines, trial = self._lines, view.trial()
        starts: list[Start] = []
        while (job := lines.first(view)) is not None and job.id != self._stuck:
            placement = trial.place(self._placer, job.demand)
            if placement is not None:
                lines.remove_first(job)
                starts.append(Start(job.id, Allocation(placement)))
            elif self._leave_waiting(view, job):
                break
        return starts

    def _start_windows(self, view: View) -> list[Start]:
        """The first that wait are placed together, and so on; then it is said who was left out."""
        starts: list[Start] = []
        while True:
            window, roomless = self._window(view)
            if not window and not roomless:
                break
            left_out = self._place_window(view, window, starts)
            without = sorted([*left_out, *roomless], key=lambda place: place[:2])
            if any(self._leave_waiting(view, job) for _, _, job in without):
                break
        return starts

    def _window(self, view: View) -> tuple[list[Place], list[Place]]:
        """The first that wait and for whom there is room while they are alone, out of their lines; and who has none."""
        lines, free = self._lines, view.trial().free
        window: list[Place] = []
        roomless: list[Place] = []
        roomy: set[Demand] = set()
        while len(window) < self._placer.window and (job := lines.first(view)) is not None and job.id != self._stuck:
            if job.demand in roomy or free.has_room_for_one(job.demand):
                roomy.add(job.demand)
                window.append(lines.take_first(job))
                continue
            roomless.append(lines.place_of_first(job))
            if self._strict:
                break
            lines.close(job)
        return window, roomless

    def _place_window(self, view: View, window: list[Place], starts: list[Start]) -> list[Place]:
        """Start those of a window that are given a place; returns the first of each demand that is not."""
        demands = [job.demand for _, _, job in window]
        found = view.trial().place_all(self._placer, demands, self._strict, self._urgent(view, window))
        left_out: dict[Demand, Place] = {}
        for place, placement in zip(window, found, strict=True):
            job = place[2]
            if placement is not None:
                starts.append(Start(job.id, Allocation(placement)))
            else:
                self._lines.put_back(place)
                left_out.setdefault(job.demand, place)
        return list(left_out.values())

    def _urgent(self, view: View, window: list[Place]) -> int:
        """How many at the front of a window have waited for too long to be left out for better fits."""
        return sum(1 for _ in takewhile(lambda place: view.now - place[2].submitted > PATIENCE, window))

    def _leave_waiting(self, view: View, job: Job) -> bool:
        """A job has no place, and so nobody of its line has; True: nor may anybody else be started."""
        if self._defragment is not None and self._defragment.make_room(view, job, self._placer):
            self._lines.remove_first(job)
            self._lines.reopen_line_of(job)
            self._reasons.releasing(job)
            return self._strict
        self._reasons.no_place(view, job)
        if self._strict:
            self._stuck = job.id
        else:
            self._lines.close(job)
        return self._strict
