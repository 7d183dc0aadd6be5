"""Outcomes of a list of jobs, from their records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from refold.core import Entry, View
from refold.journal import Change, JobHistories, JobRecord, RecordState, Submitted
from refold.model import Allocation, Job, Seconds

OutcomeState = RecordState | Literal["not submitted", "infeasible"]


class JobOutcome(msgspec.Struct, frozen=True):
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
        self._histories = JobHistories()
        self._records: dict[str, JobRecord | None] = {job.id: None for job in jobs}
        self._infeasible: set[str] = set()

    def apply(self, entry: Entry, view: View) -> list[Change]:
        """Update the outcomes with a step; return what changed."""
        changes = self._histories.apply(entry)
        self._records |= {change.record.job.id: change.record for change in changes if isinstance(change, Submitted)}
        self._infeasible = set(view.infeasible)
        return changes

    @property
    def by_id(self) -> dict[str, JobOutcome]:
        """The current outcomes by job."""
        return {job_id: self._outcome(job_id, record) for job_id, record in self._records.items()}

    def all_finished(self) -> bool:
        """Whether every job has finished."""
        return all(record is not None and record.state == "finished" for record in self._records.values())

    def _outcome(self, job_id: str, record: JobRecord | None) -> JobOutcome:
        if record is None:
            return JobOutcome(job_id)
        last = record.last
        return JobOutcome(
            job_id,
            state="infeasible" if job_id in self._infeasible else record.state,
            submitted=record.job.submitted,
            first_started=record.first_started,
            started=None if last is None else last.started,
            ended=None if last is None else last.end,
            runs=record.runs,
            why=record.why if record.ended is None else record.message,
            allocation=None if last is None else last.allocation,
        )
