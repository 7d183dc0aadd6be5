"""What the live scheduler knows now. Every part of the daemon may read it; only the loop changes it."""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import NamedTuple

from refold.client.api import JobState, JobStatus
from refold.core import Event, Header, PastJob, Scheduler, View
from refold.model import Job, Seconds
from refold.server.clock import Clock
from refold.server.recovery import RecoveredState


class JobBefore(NamedTuple):
    """An active job and its state before a step."""

    state: JobState
    job: Job


class LiveState:
    """The scheduler's view, the job table and the time.

    `entry`: number of the last journal entry. `snapshot`: events of the first step if a new epoch begins, else None.
    """

    def __init__(self, recovered: RecoveredState, header: Header, clock: Clock) -> None:
        self.header = header
        self.clock = clock
        self.scheduler = recovered.scheduler
        self.job_table = recovered.job_table
        self.entry = recovered.entry
        self.snapshot = recovered.snapshot
        self.uncommitted_ends: dict[str, JobStatus] = {}
        """Jobs that end in the step being committed: no longer in the job table, not yet in the store."""
        self.uncommitted: dict[str, JobBefore | None] = {}
        """Jobs that requests or orders of the step being committed change, as they are on disk; None: they are not."""

    @property
    def view(self) -> View:
        """The view of the scheduler. It is another one after `begin_epoch`."""
        return self.scheduler.view

    def begin_epoch(self, header: Header, scheduler: Scheduler, past: Iterable[PastJob]) -> tuple[Event, ...]:
        """Continue with a new scheduler; return the events that bring it to the current state, for its first step."""
        snapshot = self.as_events(past)
        self.header, self.scheduler = header, scheduler
        return snapshot

    def now(self) -> Seconds:
        """Return seconds since the start of the journal."""
        return self.clock.now()

    def wall_time(self, moment: Seconds) -> float:
        """Convert journal seconds to Unix seconds."""
        return time() - self.clock.now() + moment

    def journal_time(self, moment: float) -> Seconds:
        """Convert Unix seconds to journal seconds."""
        return self.clock.now() + moment - time()

    def as_events(self, past: Iterable[PastJob] = ()) -> tuple[Event, ...]:
        return self.scheduler.snapshot(past)
