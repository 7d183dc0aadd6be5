"""What has become of each job, as told by the steps of a scheduler."""

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

OutcomeState = Literal["to come", "waiting", "running", "finished", "failed", "cancelled", "infeasible"]


class JobOutcome(msgspec.Struct):
    """Where one job stands. Times are seconds since the start of the journal.

    `started`, `ended`, `why` and `allocation` are those of its last run.
    """

    job: str
    state: OutcomeState = "to come"
    submitted: Seconds | None = None
    first_started: Seconds | None = None
    started: Seconds | None = None
    ended: Seconds | None = None
    runs: int = 0
    why: str = ""
    allocation: Allocation | None = None


class JobOutcomes:
    """One outcome per job, in the order in which they were given."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.of: dict[str, JobOutcome] = {job.id: JobOutcome(job.id) for job in jobs}
        self._cancelled: dict[str, str] = {}
        """Whose jobs nobody wants any more, with the reason where a rule has ended them."""

    def note(self, entry: Entry, view: View) -> list[Event]:
        """Take note of a step. Returns what was news in it: reports that came late or twice are not."""
        news = [event for event in entry.events if self._is_news(entry.now, event, view)]
        self._cancelled |= {end.job: end.why for end in entry.ends}
        for order in entry.orders:
            if isinstance(order, StartRun):
                outcome = self.of[order.job]
                outcome.state, outcome.runs = "running", order.run
                outcome.allocation, outcome.started, outcome.ended = order.allocation, None, None
        return news

    def all_finished(self) -> bool:
        """Whether every job has done its work."""
        return all(outcome.state == "finished" for outcome in self.of.values())

    def _is_news(self, now: Seconds, event: Event, view: View) -> bool:
        match event:
            case JobSubmitted(job):
                return self._submitted(now, job.id, view)
            case JobCancelled(job_id):
                return self._cancel(self.of[job_id])
            case RunStarted(job_id, number):
                outcome = self.of[job_id]
                if not _is_of_current(outcome, number) or outcome.started is not None:
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
        outcome = self.of[job_id]
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
        outcome = self.of[job_id]
        if not _is_of_current(outcome, number):
            return False
        if state == "waiting" and job_id in self._cancelled:
            state, why = "cancelled", self._cancelled[job_id] or why
        outcome.state, outcome.ended, outcome.why = state, now, why
        return True


def _is_of_current(outcome: JobOutcome, number: int) -> bool:
    return outcome.state == "running" and outcome.runs == number
