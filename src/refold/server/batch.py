"""Run a fixed list of jobs to their end: the live loop without a daemon, as `refold run` uses it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from refold.core import Event, Header, JobCancelled, JobSubmitted, Journal, Scheduler
from refold.journal import JobRecord, RecordState, Submitted
from refold.model import Allocation, Job, Seconds
from refold.server.backend import Backend
from refold.server.clock import Clock
from refold.server.http import EventStream
from refold.server.inbox import Inbox
from refold.server.job_table import JobTable
from refold.server.live_state import LiveState
from refold.server.loop import Loop
from refold.server.recovery import RecoveredState
from refold.server.store import Commit
from refold.server.subscribers import LoopStep, Subscriber
from refold.server.writer import Writer

KILL_INTERVAL_SECONDS: Seconds = 0.1
"""Pause before runs are killed again that started after the last time."""

StepCallback = Callable[[LoopStep], None]
"""Called after each step has been carried out."""

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


class JournalLog:
    """A commit log that writes the entries to a journal, and nothing else."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def commit(self, commit: Commit) -> None:
        """Write the entry of a step."""
        self._journal.write(commit.entry)


class BatchRun(Subscriber):
    """Jobs on a loop of their own, each submitted at its time. Create it inside a running event loop.

    Only the journal is kept: no later process continues the jobs.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        scheduler: Scheduler,
        header: Header,
        journal: Journal,
        clock: Clock,
        on_step: StepCallback,
    ) -> None:
        state = LiveState(RecoveredState(scheduler, JobTable(header.cluster)), header, clock)
        writer = Writer(JournalLog(journal))
        self._view = state.view
        self._records: dict[str, JobRecord | None] = {job.id: None for job in jobs}
        self._upcoming = deque(sorted(jobs, key=lambda job: job.submitted))
        self._on_step = on_step
        self._inbox = Inbox(writer)
        self._loop = Loop(state, self._inbox, writer, EventStream(), [self])

    def outcomes(self) -> dict[str, JobOutcome]:
        """Return the state of every job, in the order of the list."""
        return {job_id: self._outcome(job_id, record) for job_id, record in self._records.items()}

    def report(self, event: Event) -> None:
        """Queue an event. Thread-safe."""
        self._inbox.report(event)

    def cancel_all(self) -> None:
        """Cancel all jobs: stop every run and start nothing more."""
        self._upcoming.clear()
        for job_id in (*self._view.waiting, *self._view.runs):
            self.report(JobCancelled(job_id))
        self._stop_at_end()

    async def run(self, backend: Backend) -> None:
        """Run until every job has ended or can never start. Always closes the backend, so no run outlives it.

        If the caller is cancelled, all runs are killed and their ends are written to the journal.
        """
        running = asyncio.create_task(self._loop.run(backend))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self.cancel_all()
            while not running.done():  # the step in progress may still start a run
                await backend.close()
                await asyncio.wait((running,), timeout=KILL_INTERVAL_SECONDS)
            running.result()
            raise
        finally:
            await backend.close()

    # As a subscriber of the loop.

    def started(self) -> None:
        """Stop if there are no jobs."""
        self._stop_at_end()

    def next_step_at(self) -> Seconds | None:
        return self._upcoming[0].submitted if self._upcoming else None

    def before_step(self, now: Seconds) -> Sequence[Event]:
        """Submit the jobs that are due."""
        events: list[Event] = []
        while self._upcoming and self._upcoming[0].submitted <= now:
            events.append(JobSubmitted(self._upcoming.popleft()))
        return events

    def after_step(self, step: LoopStep) -> None:
        """Keep the records of new jobs; stop after the last step; pass the step on."""
        for change in step.changes:
            if isinstance(change, Submitted):
                self._records[change.record.job.id] = change.record
        self._stop_at_end()
        self._on_step(step)

    def _stop_at_end(self) -> None:
        """Stop the loop if every job has ended or can never start."""
        can_start = bool(self._view.waiting) and self._inbox.next_wake() is not None
        if not (self._upcoming or self._view.runs or can_start) and self._inbox.is_empty:
            self._inbox.stop()

    def _outcome(self, job_id: str, record: JobRecord | None) -> JobOutcome:
        if record is None:
            return JobOutcome(job_id)
        last = record.last
        return JobOutcome(
            job_id,
            state="infeasible" if job_id in self._view.infeasible else record.state,
            submitted=record.job.submitted,
            first_started=record.first_started,
            started=None if last is None else last.started,
            ended=None if last is None else last.end,
            runs=record.runs,
            why=record.why if record.ended is None else record.message,
            allocation=None if last is None else last.allocation,
        )
