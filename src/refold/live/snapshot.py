"""The live journal, and the present as one, in the form that `refold replay` reads anywhere."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator

import msgspec

from refold.core import Entry
from refold.live.loop import Loop
from refold.live.reading import Reading
from refold.live.recovery import MOST_REMEMBERED

_ENCODER = msgspec.json.Encoder()


def snapshot_lines(loop: Loop, reading: Reading) -> bytes:
    """Who waits, who runs where, and how long those before them lasted: a journal of one entry."""
    header = msgspec.structs.replace(loop.header, snapshot=True)
    entry = Entry(loop.now(), loop.opening(reading.past(MOST_REMEMBERED)))
    return b"".join(_ENCODER.encode(line) + b"\n" for line in (header, entry))


async def journal_lines(reading: Reading) -> AsyncIterator[bytes]:
    """The chapter that is being written, some lines at a time."""
    chapter = reading.last_chapter()
    if chapter is None:
        return
    yield _ENCODER.encode(chapter.header) + b"\n"
    pieces = reading.lines(chapter.first)
    while piece := await to_thread(next, pieces, None):
        yield b"".join(line + b"\n" for line in piece[1])
