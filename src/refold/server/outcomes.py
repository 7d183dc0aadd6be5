"""Outcomes of a list of jobs, derived from the steps of a scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from refold.core import (
    Entry,
    Event,
    JobCancelled,
    JobSubmitted,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    StartRun,
    View,
)
from refold.model import Allocation, Job, Seconds

OutcomeState = Literal["not submitted", "waiting", "running", "finished", "failed", "cancelled", "infeasible"]


class JobOutcome(msgspec.Struct):
    """State of one job. Times are seconds since the start of the journal.

    `started`, `ended`, `why` and `allocation` are those of the last run.
    """

    job: str
    state: OutcomeState = "not submitted"
    submitted: Seconds | None = None
    first_started: Seconds | None = None
    started: Seconds | None = None
    ended: Seconds | None = None
    runs: int = 0
    why: str = ""
    allocation: Allocation | None = None


class JobOutcomes:
    """One outcome per job, in the order of the list."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.by_id: dict[str, JobOutcome] = {job.id: JobOutcome(job.id) for job in jobs}
        self._cancelled: dict[str, str] = {}
        """Cancelled jobs with the reason, '' if a user cancelled them."""

    def apply(self, entry: Entry, view: View) -> list[Event]:
        """Update the outcomes with a step; return its events without late and duplicate reports."""
        changes = [event for event in entry.events if self._apply_event(entry.now, event, view)]
        self._cancelled |= {end.job: end.why for end in entry.ends}
        for order in entry.orders:
            if isinstance(order, StartRun):
                outcome = self.by_id[order.job]
                outcome.state, outcome.runs = "running", order.run
                outcome.allocation, outcome.started, outcome.ended = order.allocation, None, None
        return changes

    def all_finished(self) -> bool:
        """Whether every job has finished."""
        return all(outcome.state == "finished" for outcome in self.by_id.values())

    def _apply_event(self, now: Seconds, event: Event, view: View) -> bool:
        match event:
            case JobSubmitted(job):
                return self._submitted(now, job.id, view)
            case JobCancelled(job_id):
                return self._cancel(self.by_id[job_id])
            case RunStarted(job_id, number):
                outcome = self.by_id[job_id]
                if not _is_current_run(outcome, number) or outcome.started is not None:
                    return False
                outcome.started = now
                outcome.first_started = now if outcome.first_started is None else outcome.first_started
                return True
            case RunFinished(job_id, number):
                return self._end(now, job_id, number, "finished")
            case RunFailed(job_id, number, why, _, retry):
                return self._end(now, job_id, number, "waiting" if retry else "failed", why)
            case RunStopped(job_id, number):
                return self._end(now, job_id, number, "waiting")
            case _:
                return False

    def _submitted(self, now: Seconds, job_id: str, view: View) -> bool:
        outcome = self.by_id[job_id]
        if outcome.submitted is not None:
            return False
        outcome.submitted = now
        outcome.state = "infeasible" if job_id in view.infeasible else "waiting"
        return True

    def _cancel(self, outcome: JobOutcome) -> bool:
        self._cancelled.setdefault(outcome.job, "")
        if outcome.state != "waiting":
            return False
        outcome.state = "cancelled"
        return True

    def _end(self, now: Seconds, job_id: str, number: int, state: OutcomeState, why: str = "") -> bool:
        outcome = self.by_id[job_id]
        if not _is_current_run(outcome, number):
            return False
        if state == "waiting" and job_id in self._cancelled:
            state, why = "cancelled", self._cancelled[job_id] or why
        outcome.state, outcome.ended, outcome.why = state, now, why
        return True


def _is_current_run(outcome: JobOutcome, number: int) -> bool:
    return outcome.state == "running" and outcome.runs == number
