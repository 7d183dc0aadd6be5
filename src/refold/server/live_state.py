"""What the live scheduler knows now. Every part of the daemon may read it; only the loop changes it."""

from __future__ import annotations

from collections.abc import Iterable
from time import time

from refold.api import JobStatus
from refold.core import Event, Header, PastJob, Scheduler
from refold.model import Seconds
from refold.server.clock import Clock
from refold.server.recovery import RecoveredState
from refold.simulator import Fork


class LiveState:
    """The scheduler's view, the job table and the time.

    `entry`: number of the last journal entry. `snapshot`: events of the first step if a new epoch begins, else None.
    """

    def __init__(self, recovered: RecoveredState, header: Header, clock: Clock) -> None:
        self.header = header
        self.clock = clock
        self.scheduler = recovered.scheduler
        self.view = recovered.scheduler.view
        self.job_table = recovered.job_table
        self.entry = recovered.entry
        self.snapshot = recovered.snapshot
        self.uncommitted_ends: dict[str, JobStatus] = {}
        """Jobs that end in the step being committed: no longer in the job table, not yet in the store."""

    def now(self) -> Seconds:
        """Return seconds since the start of the journal."""
        return self.clock.now()

    def wall_time(self, moment: Seconds) -> float:
        """Convert journal seconds to Unix seconds."""
        return time() - self.clock.now() + moment

    def as_events(self, past: Iterable[PastJob] = ()) -> tuple[Event, ...]:
        """Return the current state as events."""
        return self.scheduler.snapshot(past)

    def copy_scheduler(self) -> Scheduler:
        """Return a copy of the scheduler; its decisions have no effect."""
        return Fork(self.scheduler).copy()
