"""Back-off: hold a job that failed before its next run, twice as long after each failure.

The release time is derived from the job record, so a restarted daemon can recompute it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from heapq import heappop, heappush

from refold.core import Event, JobHeld, JobReleased, View, Woke
from refold.model import Reason, Seconds
from refold.server.loop import Loop, LoopStep


class Backoff:
    """Releases jobs whose back-off has expired."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._due: list[tuple[Seconds, str]] = []
        self._timer: asyncio.TimerHandle | None = None

    def attach(self) -> None:
        """Register with the loop. Call before the loop starts."""
        self._loop.start_hooks.append(self._on_start)
        self._loop.event_sources.append(self._gather)
        self._loop.listeners.append(self._on_step)

    def _on_start(self) -> None:
        """Schedule the jobs that were in back-off when the previous daemon ended."""
        for job_id in self._loop.view.held:
            self._add(job_id)
        self._set_timer()

    def _on_step(self, step: LoopStep) -> None:
        """Schedule the jobs that entered back-off in this step."""
        for event in step.entry.events:
            if isinstance(event, JobHeld) and event.reason is Reason.BACKOFF:
                self._add(event.job)
        self._set_timer()

    def _gather(self, view: View) -> Sequence[Event]:
        """Return release events for jobs whose back-off has expired."""
        now = self._loop.now()
        due: list[str] = []
        while self._due and self._due[0][0] <= now:
            due.append(heappop(self._due)[1])
        return [JobReleased(job_id) for job_id in dict.fromkeys(due) if self._is_due(job_id, view, now)]

    def _add(self, job_id: str) -> None:
        if self._loop.view.hold_reason(job_id) is Reason.BACKOFF:
            heappush(self._due, (self._release_time(job_id), job_id))

    def _is_due(self, job_id: str, view: View, now: Seconds) -> bool:
        """Whether the job is still in back-off and due: a user may hold it, or it may have failed again since."""
        return view.hold_reason(job_id) is Reason.BACKOFF and self._release_time(job_id) <= now

    def _release_time(self, job_id: str) -> Seconds:
        record = self._loop.job_table.records[job_id]
        return (record.last_run_ended or 0.0) + record.backoff

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._due:
            wait = max(0.0, self._due[0][0] - self._loop.now())
            self._timer = asyncio.get_running_loop().call_later(wait, self._loop.report, Woke())
