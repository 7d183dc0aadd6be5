"""Jobs that have failed and are tried again: not at once, and less and less soon.

When each is due follows from its record, so a restart finds it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from heapq import heappop, heappush

from refold.core import Event, JobHeld, JobReleased, View, Woke
from refold.model import Reason, Seconds
from refold.server.loop import Loop, LoopStep


class Backoff:
    """Who pauses after a failure, until when."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._due: list[tuple[Seconds, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def attend(self) -> None:
        """Be told of the loop's steps, from its first one on."""
        self._loop.beginnings.append(self._begin)
        self._loop.gathers.append(self._gather)
        self._loop.watches.append(self._watch)

    def _begin(self) -> None:
        """Those who paused when the daemon before this one ended go on doing so, or have done so by now."""
        for job_id in self._loop.view.held:
            self._add(job_id)
        self._wake_for_the_first()

    def _watch(self, step: LoopStep) -> None:
        """Take note of who begins to pause."""
        for event in step.entry.events:
            if isinstance(event, JobHeld) and event.reason is Reason.BACKOFF:
                self._add(event.job)
        self._wake_for_the_first()

    def _gather(self, view: View) -> Sequence[Event]:
        """What each step adds: those who have paused for long enough wait like others."""
        now = self._loop.now()
        over: list[str] = []
        while self._due and self._due[0][0] <= now:
            over.append(heappop(self._due)[1])
        return [JobReleased(job_id) for job_id in dict.fromkeys(over) if self._has_paused(job_id, view, now)]

    def _add(self, job_id: str) -> None:
        if self._loop.view.held_for(job_id) is Reason.BACKOFF:
            heappush(self._due, (self._until(job_id), job_id))

    def _has_paused(self, job_id: str, view: View, now: Seconds) -> bool:
        """Not, if somebody holds it by now, or if it has failed once more since it was noted."""
        return view.held_for(job_id) is Reason.BACKOFF and self._until(job_id) <= now

    def _until(self, job_id: str) -> Seconds:
        record = self._loop.job_table.of[job_id]
        return (record.last_ended or 0.0) + record.pause

    def _wake_for_the_first(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._due:
            wait = max(0.0, self._due[0][0] - self._loop.now())
            self._timer = asyncio.get_running_loop().call_later(wait, self._loop.report, Woke())
