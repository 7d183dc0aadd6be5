"""Run a fixed list of jobs to their end: the live loop without a daemon, as `refold run` uses it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from refold.api import EventStream
from refold.backends import Backend
from refold.core import Entry, Event, Header, JobCancelled, JobSubmitted, Journal, Scheduler, View
from refold.model import Job, Seconds
from refold.server.clock import Clock
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

StepCallback = Callable[[Entry, View], None]
"""Called after each step has been carried out."""


class JournalLog:
    """A commit log that writes the entries to a journal, and nothing else."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def commit(self, commit: Commit) -> None:
        """Write the entry of a step."""
        self._journal.write(commit.entry)


class Batch(Subscriber):
    """Jobs on a loop of their own, each submitted at its time. Create it inside a running event loop.

    Only the journal is kept: no later process continues the jobs.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        scheduler: Scheduler,
        header: Header,
        journal: Journal,
        clock: Clock,
        on_step: StepCallback,
    ) -> None:
        state = LiveState(RecoveredState(scheduler, JobTable(header.cluster)), header, clock)
        writer = Writer(JournalLog(journal))
        self._view = state.view
        self._upcoming = deque(sorted(jobs, key=lambda job: job.submitted))
        self._on_step = on_step
        self._inbox = Inbox(writer)
        self._loop = Loop(state, self._inbox, writer, EventStream(), [self])

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
        """Return when the next job is to be submitted."""
        return self._upcoming[0].submitted if self._upcoming else None

    def before_step(self, now: Seconds) -> Sequence[Event]:
        """Submit the jobs that are due."""
        events: list[Event] = []
        while self._upcoming and self._upcoming[0].submitted <= now:
            events.append(JobSubmitted(self._upcoming.popleft()))
        return events

    def after_step(self, step: LoopStep) -> None:
        """Stop after the last step; pass the step on."""
        self._stop_at_end()
        self._on_step(step.entry, self._view)

    def _stop_at_end(self) -> None:
        """Stop the loop if every job has ended or can never start."""
        can_start = bool(self._view.waiting) and self._inbox.next_wake() is not None
        if not (self._upcoming or self._view.runs or can_start) and self._inbox.is_empty:
            self._inbox.stop()
