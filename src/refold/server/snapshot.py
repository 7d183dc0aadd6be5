"""The live journal, and the present as one, in the form that `refold replay` reads anywhere."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator, Iterable

import msgspec
from msgspec.structs import replace

from refold.core import Entry, Event, Header, JobSubmitted, PastJob
from refold.model import Seconds
from refold.server.loop import Loop
from refold.server.recovery import MOST_PAST_JOBS
from refold.server.store import StoreReader

_ENCODER = msgspec.json.Encoder()


async def snapshot_lines(loop: Loop, reading: StoreReader, whole: bool) -> bytes:
    """Who waits, who runs where, and how long those before them lasted: a journal of one entry.

    It is made to be handed around, so that what jobs consist of is left out, unless the `whole` is wanted.
    """
    past = await to_thread(reading.past, MOST_PAST_JOBS)
    header = replace(loop.header, snapshot=True)
    now, snapshot = loop.now(), loop.snapshot(past)
    return await to_thread(_lines, header, now, snapshot, whole)


def _lines(header: Header, now: Seconds, snapshot: Iterable[Event], whole: bool) -> bytes:
    entry = Entry(now, tuple(snapshot if whole else map(_for_everybody, snapshot)))
    return b"".join(_ENCODER.encode(line) + b"\n" for line in (header, entry))


def _for_everybody(event: Event) -> Event:
    """A fact without the command, the environment and the addresses of its job: passwords may be in them."""
    if not isinstance(event, JobSubmitted | PastJob):
        return event
    launch = replace(event.job.launch, environment=(), notify=())
    return replace(event, job=replace(event.job, command=(), launch=launch))


async def journal_lines(reading: StoreReader) -> AsyncIterator[bytes]:
    """The epoch that is being written, some lines at a time."""
    epoch = reading.last_epoch()
    if epoch is None:
        return
    yield _ENCODER.encode(epoch.header) + b"\n"
    pieces = reading.lines(epoch.first)
    while piece := await to_thread(next, pieces, None):
        yield b"".join(line + b"\n" for line in piece[1])
