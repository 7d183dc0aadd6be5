"""The output of runs: kept in two files that do not grow beyond a limit, and read from any place on.

A process appends to its log. When that has half of what is allowed, its last part is copied to a second file and the
log is emptied under the process's hands; what it writes at that very moment may be lost. Places in the output count all
that was ever written, so they mean the same before and after: how much has gone from the log is in a third file.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from refold.backends.local.safe_files import OutOfFileHandles, make_plain, open_plain, plain_size, read_plain
from refold.model import Seconds

MOST_OUTPUT = 64 * 2**20
"""Bytes of output that are kept of an instance."""

MOST_AT_ONCE = 64 * 2**10
COPIED_AT_ONCE = 2**20
LONGEST_CHARACTER = 4
LONGEST_PLACE = 18
"""Digits of the largest number of bytes that an output is taken to have had."""

LOOK_EVERY: Seconds = 1.0
SOONEST_LOOK: Seconds = 0.05

_locks: WeakValueDictionary[Path, threading.RLock] = WeakValueDictionary()
_finding = threading.Lock()


def _rotating(path: Path) -> threading.RLock:
    """Held while the three files of a log do not agree with each other; gone when nobody holds it or waits for it."""
    with _finding:
        where = path.absolute()
        lock = _locks.get(where)
        if lock is None:
            lock = _locks[where] = threading.RLock()
        return lock


class LogChunk(msgspec.Struct, frozen=True):
    """A part of an output: it begins at a place and goes to the next."""

    data: bytes
    begin: int
    next: int

    @property
    def text(self) -> str:
        """As text, whatever it is."""
        return self.data.decode(errors="replace")


def read_from(path: Path, offset: int, most: int = MOST_AT_ONCE) -> LogChunk:
    """What was written from a place on, or from the oldest on that is still there. It ends with a whole character."""
    with _rotating(path):
        base, older = _gone(path), _beside(path, "1")
        oldest = max(0, base - plain_size(older))
        begin = max(offset, oldest)
        data = _bytes_of(older, begin - oldest, most) if begin < base else b""
        data += _bytes_of(path, begin + len(data) - base, most - len(data))
    whole = _whole_characters(data) if len(data) < most else _whole_characters(data) or data
    return LogChunk(whole, begin, begin + len(whole))


def read_piece(path: Path, offset: int, most: int) -> tuple[LogChunk, bool] | None:
    """What was written from a place on, or so many bytes from the end; whether that is all. None: there is no log."""
    if not path.exists():
        return None
    with _rotating(path):
        piece = read_from(path, offset if offset >= 0 else max(0, size(path) + offset), most)
        return piece, piece.next >= size(path)


def tail(path: Path, lines: int = 10, most: int = MOST_AT_ONCE) -> LogChunk:
    """The last lines, or as many of them as there is room for."""
    end = size(path)
    piece = read_from(path, end - most, most)
    data = b"".join(piece.data.splitlines(keepends=True)[-lines:] if lines > 0 else [])
    return LogChunk(data, piece.next - len(data), piece.next)


def size(path: Path) -> int:
    """How much was ever written."""
    with _rotating(path):
        return _gone(path) + plain_size(path)


def _bytes_of(path: Path, begin: int, most: int) -> bytes:
    try:
        with open_plain(path) as file:
            file.seek(begin)
            return file.read(most)
    except OSError:
        return b""


def _whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character whose rest is yet to come."""
    for length in range(1, min(LONGEST_CHARACTER, len(data) + 1)):
        byte = data[-length]
        if byte >= 0b1100_0000:  # the first byte of a character says how many there are
            wanted = 2 + (byte >= 0b1110_0000) + (byte >= 0b1111_0000)
            return data[:-length] if wanted > length else data
        if byte < 0b1000_0000:
            return data
    return data


def rotate(path: Path, keep: int) -> None:
    """Move the log's last `keep` bytes to the second file, and go on with an empty log."""
    fresh, note = _beside(path, "1.new"), _beside(path, "gone.new")
    with _rotating(path), open_plain(path, os.O_RDWR) as log, make_plain(fresh) as older:
        left = min(keep, os.fstat(log.fileno()).st_size)
        log.seek(-left, os.SEEK_END)
        while left > 0 and (piece := log.read(min(left, COPIED_AT_ONCE))):
            older.write(piece)
            left -= len(piece)
        older.write(log.read(MOST_AT_ONCE))  # what came meanwhile, but for a flood: one cannot be as fast as that
        older.flush()
        with make_plain(note) as gone:
            gone.write(b"%d\n" % (_gone(path) + log.tell()))
        fresh.replace(_beside(path, "1"))
        note.replace(_beside(path, "gone"))  # before the log is emptied: to be read twice is better than never
        log.truncate(0)


def _gone(path: Path) -> int:
    """How much was written before what the log has."""
    try:
        digits = read_plain(_beside(path, "gone"), LONGEST_PLACE + 2).strip()
    except (OSError, OutOfFileHandles):
        return 0
    return int(digits) if digits.isdigit() and len(digits) <= LONGEST_PLACE else 0


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")


class Rotation:
    """Sees to it that no log of a run grows beyond a limit, as long as the run is watched."""

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._sizes: dict[Path, int] = {}
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def of(self, logs: Sequence[Path]) -> AsyncIterator[None]:
        """Look after these logs meanwhile."""
        self._sizes.update((path, plain_size(path)) for path in logs)
        if self._task is None:
            self._task = asyncio.create_task(self._look_after())
        try:
            yield
        finally:
            await self._shorten_all(logs)
            for path in logs:
                del self._sizes[path]
            if not self._sizes and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _look_after(self) -> None:
        """The faster a log grows, the sooner it is looked at again."""
        pause = SOONEST_LOOK
        while True:
            await asyncio.sleep(pause)
            pauses = [await self._looked_at(path, pause) for path in list(self._sizes)]
            pause = min(pauses, default=LOOK_EVERY)

    async def _shorten_all(self, logs: Sequence[Path]) -> None:
        for path in logs:
            if plain_size(path) > self._half:
                await asyncio.to_thread(self._shorten, path)

    async def _looked_at(self, path: Path, since: Seconds) -> Seconds:
        """When it should be looked at again."""
        length = plain_size(path)
        grown = max(0, length - self._sizes.get(path, 0)) / since
        if length > self._half:
            await asyncio.to_thread(self._shorten, path)
            length = 0
        if path in self._sizes:
            self._sizes[path] = length
        left = max(1, self._half - length)
        return max(SOONEST_LOOK, min(LOOK_EVERY, left / grown if grown else LOOK_EVERY))

    def _shorten(self, path: Path) -> None:
        with _rotating(path), suppress(OSError):
            if plain_size(path) > self._half:  # somebody else may just have rotated it
                rotate(path, self._half)
