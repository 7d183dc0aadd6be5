"""Starting jobs in some order, never stopping any: what fifo and sjf have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold.core import View
from refold.model import KEEP, Allocation, Decision, Job, Start
from refold.packing import Placer
from refold.policies.lines import Lines
from refold.policies.reasons import Reasons


class Queue:
    """Jobs start in the order of `key`. If `strict`, nobody overtakes a job that has no place yet."""

    def __init__(self, placer: Placer, key: Callable[[Job], Any], strict: bool) -> None:
        self._placer = placer
        self._lines = Lines(key)
        self._strict = strict
        self._stuck: str | None = None
        self._reasons = Reasons()

    def decide(self, view: View) -> Decision:
        """Start whoever is first and fits, and so on."""
        changes = view.changes
        if changes.freed:
            self._stuck = None
            self._lines.reopen_all()
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
        starts = self._start_in_order(view)
        waits = self._reasons.collect(view, starts)
        return Decision(starts=tuple(starts), waits=waits) if starts or waits else KEEP

    def _start_in_order(self, view: View) -> list[Start]:
        lines, trial = self._lines, view.trial()
        starts: list[Start] = []
        while (job := lines.first(view)) is not None and job.id != self._stuck:
            placement = trial.place(self._placer, job.demand)
            if placement is not None:
                lines.remove_first(job)
                starts.append(Start(job.id, Allocation(placement)))
                continue
            self._reasons.no_place(view, job)
            if self._strict:
                self._stuck = job.id
                break
            lines.close(job)
        return starts
