"""Back-off: hold a job that failed before its next run, twice as long after each failure.

The release time is derived from the job record, so a restarted daemon can recompute it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from refold.core import Event, JobHeld, JobReleased
from refold.model import Reason, Seconds
from refold.server.job_table import backoff_seconds
from refold.server.live_state import LiveState
from refold.server.subscribers import LoopStep, Subscriber


def no_delay(job: str) -> Seconds:
    """Return 0."""
    del job
    return 0.0


class Backoff(Subscriber):
    """Releases jobs whose back-off has expired. `retry_delay`: how long the engine wants a job to wait at least."""

    def __init__(self, state: LiveState, retry_delay: Callable[[str], Seconds] = no_delay) -> None:
        self._state = state
        self._retry_delay = retry_delay
        self._due: list[tuple[Seconds, str]] = []

    def started(self) -> None:
        """Schedule the jobs that were in back-off when the previous daemon ended."""
        for job_id in self._state.view.held:
            self._add(job_id)

    def next_step_at(self) -> Seconds | None:
        """Return when the next back-off expires."""
        return self._due[0][0] if self._due else None

    def before_step(self, now: Seconds) -> Sequence[Event]:
        """Return release events for jobs whose back-off has expired."""
        due: list[str] = []
        while self._due and self._due[0][0] <= now:
            due.append(heappop(self._due)[1])
        return [JobReleased(job_id) for job_id in dict.fromkeys(due) if self._is_due(job_id, now)]

    def after_step(self, step: LoopStep) -> None:
        """Schedule the jobs that entered back-off in this step."""
        for event in step.entry.events:
            if isinstance(event, JobHeld) and event.reason is Reason.BACKOFF:
                self._add(event.job)

    def _add(self, job_id: str) -> None:
        if self._state.view.hold_reason(job_id) is Reason.BACKOFF:
            heappush(self._due, (self._release_time(job_id), job_id))

    def _is_due(self, job_id: str, now: Seconds) -> bool:
        """Whether the job is still in back-off and due: a user may hold it, or it may have failed again since."""
        return self._state.view.hold_reason(job_id) is Reason.BACKOFF and self._release_time(job_id) <= now

    def _release_time(self, job_id: str) -> Seconds:
        record = self._state.job_table.records[job_id]
        delay = max(backoff_seconds(record.failures), self._retry_delay(job_id))
        return (record.last_run_ended or 0.0) + delay
