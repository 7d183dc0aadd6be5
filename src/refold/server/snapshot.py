"""Export the live journal, and the current state as a one-entry journal, for `refold replay`."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace

from refold.core import Entry, Event, Header, JobSubmitted, PastJob
from refold.server.live_state import LiveState
from refold.server.recovery import MAX_PAST_JOBS
from refold.server.store import JournalReader, StoreReader

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
