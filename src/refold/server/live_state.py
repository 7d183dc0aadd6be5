"""What the live scheduler knows now, which only the loop changes, and its export for `refold replay`."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator, Iterable
from time import time
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from refold.client.api import JobState, JobStatus
from refold.core import Entry, Event, Header, JobSubmitted, PastJob, Scheduler, View
from refold.model import Job, Seconds
from refold.server.clock import Clock
from refold.server.recovery import MAX_PAST_JOBS, RecoveredState
from refold.server.store import JournalReader, StoreReader


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


_ENCODER = msgspec.json.Encoder()


async def snapshot_lines(state: LiveState, reader: StoreReader, whole: bool) -> bytes:
    """Return a journal with one entry: queued jobs, runs, and the run times of past jobs.

    Snapshots are meant to be shared: commands, environments and addresses are removed unless `whole`.
    """
    past = await to_thread(reader.past_jobs, MAX_PAST_JOBS)
    header = replace(state.header, snapshot=True)
    entry = Entry(state.now(), tuple(state.as_events(past)))
    return await to_thread(encode_snapshot, header, entry, whole)


def encode_snapshot(header: Header, state: Entry, whole: bool) -> bytes:
    """Return a state as a journal with one entry, without what may be confidential unless `whole`."""
    entry = state if whole else replace(state, events=tuple(map(redacted, state.events)))
    return b"".join(_ENCODER.encode(line) + b"\n" for line in (header, entry))


def redacted(event: Event) -> Event:
    """Return an event without command, environment and notification addresses of a job, which may contain secrets."""
    if not isinstance(event, JobSubmitted | PastJob):
        return event
    launch = replace(event.job.launch, environment=(), exported="", notify=())
    return replace(event, job=replace(event.job, command=(), launch=launch))


async def journal_lines(journal: JournalReader) -> AsyncIterator[bytes]:
    """Yield all epochs in chunks of lines, each with its header."""
    last = journal.last_entry()
    epochs = await to_thread(journal.epochs)
    ends = [*(epoch.first_entry for epoch in epochs[1:]), last + 1]
    for epoch, end in zip(epochs, ends, strict=True):
        yield _ENCODER.encode(epoch.header) + b"\n"
        chunks = journal.encoded_entries(epoch.first_entry, end)
        while chunk := await to_thread(next, chunks, None):
            yield b"".join(line + b"\n" for line in chunk)
