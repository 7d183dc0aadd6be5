"""Job dependencies (`after`): release a job when all of them have finished; cancel it if one fails or is cancelled."""

from __future__ import annotations

from refold.core import JobCancelled, JobReleased
from refold.model import Job, Reason
from refold.server.inbox import Inbox
from refold.server.live_state import LiveState
from refold.server.store import StoreReader
from refold.server.subscribers import LoopStep, Subscriber


class Dependencies(Subscriber):
    """The dependency graph of active jobs. It is derived from the jobs alone, so a restarted daemon can rebuild it."""

    def __init__(self, state: LiveState, inbox: Inbox, reader: StoreReader) -> None:
        self._state = state
        self._inbox = inbox
        self._reader = reader
        self._dependencies: dict[str, set[str]] = {}
        self._dependents: dict[str, set[str]] = {}

    def started(self) -> None:
        """Build the graph of the jobs that the previous daemon left."""
        for record in list(self._state.job_table.records.values()):
            self._add(record.job)

    def after_step(self, step: LoopStep) -> None:
        """Update the graph with the jobs submitted and ended in a step."""
        for notice in step.notices:
            if notice.kind == "submitted" and notice.job is not None:
                self._add(notice.job)
        for ended in step.ended:
            self._remove(ended.job.id)
            for dependent in list(self._dependents.pop(ended.job.id, ())):
                self._dependency_ended(dependent, ended.job.id, ended.state)

    def _add(self, job: Job) -> None:
        if not job.launch.after:
            return
        self._dependencies[job.id] = set(job.launch.after)
        for dependency in job.launch.after:
            if dependency in self._state.job_table.records:
                self._dependents.setdefault(dependency, set()).add(job.id)
            else:
                ended = self._reader.ended_job(dependency)
                self._dependency_ended(job.id, dependency, "is unknown" if ended is None else ended.state)

    def _dependency_ended(self, job_id: str, dependency: str, state: str) -> None:
        remaining = self._dependencies.get(job_id)
        if remaining is None:
            return
        remaining.discard(dependency)
        if state != "finished":
            self._remove(job_id)
            self._inbox.report(
                JobCancelled(job_id, f"dependency {dependency!r} {'was cancelled' if state == 'cancelled' else state}")
            )
        elif not remaining:
            self._remove(job_id)
            if self._state.view.hold_reason(job_id) is Reason.DEPENDENCY:
                self._inbox.report(JobReleased(job_id))

    def _remove(self, job_id: str) -> None:
        for dependency in self._dependencies.pop(job_id, ()):
            self._dependents.get(dependency, set()).discard(job_id)
