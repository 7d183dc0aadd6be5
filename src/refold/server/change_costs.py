"""Measure what it costs to change a run by restarting it: the time from the order to stop to the first new step.

Live changes are measured by the job itself, and reported by the back end.
"""

from __future__ import annotations

from refold.core import ChangeMeasured, RunProgressed, StopRun
from refold.model import Seconds
from refold.server.inbox import Inbox
from refold.server.subscribers import LoopStep, Subscriber


class ChangeCosts(Subscriber):
    """Reports the cost of each change that was not reported otherwise."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._stops: dict[tuple[str, int], Seconds] = {}
        """When a run was ordered to stop, by its job and the number of the next run."""

    def after_step(self, step: LoopStep) -> None:
        """Note stops of runs that will continue, and report the cost when the next run has done a step."""
        for order in step.entry.orders:
            if isinstance(order, StopRun) and order.next is not None:
                self._stops[order.job, order.run + 1] = step.entry.now
        if not self._stops:
            return
        for event in step.entry.events:
            if isinstance(event, ChangeMeasured):
                self._stops.pop((event.job, event.run), None)
            elif isinstance(event, RunProgressed) and (event.job, event.run) in self._stops:
                seconds = step.entry.now - self._stops.pop((event.job, event.run))
                self._inbox.report(ChangeMeasured(event.job, event.run, seconds, "cold"))
        for record in step.ended:
            self._stops.pop((record.job.id, record.runs + 1), None)
            self._stops.pop((record.job.id, record.runs), None)
