"""Logs of runs: rotated between two files of bounded size, and readable from any offset.

When a log reaches half of the limit, it replaces a second file, and a new one is begun. Where a process writes to its
log itself (Slurm), the last part is copied and the log is truncated in place (copytruncate); output written at that
very moment may be lost. Offsets count all bytes ever written, so they are unaffected by rotation: a third file stores
how many bytes were removed from the log.

Another process may rotate a log while it is read here (the local engine's log keeper): it renames the log, then the
third file, and creates the new log. Reads are repeated until the log was the same file before and after.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import sleep
from typing import IO, TypeVar
from weakref import WeakValueDictionary

import msgspec

from refold.model import Seconds
from refold.server.output.safe_files import (
    ResourceShortage,
    create_regular,
    is_regular,
    open_regular,
    read_regular,
    regular_size,
)

DEFAULT_MAX_OUTPUT_BYTES = 64 * 2**20
"""Maximum output that is stored per instance."""

CHUNK_BYTES = 64 * 2**10
COPY_BYTES = 2**20
MAX_UTF8_BYTES = 4
MAX_OFFSET_DIGITS = 18
"""Maximum digits of an offset in the third file; longer content was not written by the daemon."""

NOT_EXECUTABLE = 0o666
"""What a rotated file takes over of the mode of its log: a job may have put a program with set-user-id in its place."""

MAX_READS = 20
RETRY_PAUSE: Seconds = 0.005
"""Between reads of a log that is rotated."""

MAX_CHECK_INTERVAL: Seconds = 1.0
MIN_CHECK_INTERVAL: Seconds = 0.05

Result = TypeVar("Result")

_locks: WeakValueDictionary[Path, threading.RLock] = WeakValueDictionary()
_locks_lock = threading.Lock()


def _lock_of(path: Path) -> threading.RLock:
    """Return the lock that is held while the three files of a log are inconsistent; it is freed when unused."""
    with _locks_lock:
        key = path.absolute()
        lock = _locks.get(key)
        if lock is None:
            lock = _locks[key] = threading.RLock()
        return lock


class LogChunk(msgspec.Struct, frozen=True):
    """A part of a log, from offset `begin` up to `next`."""

    data: bytes
    begin: int
    next: int

    @property
    def text(self) -> str:
        """The data as text; invalid UTF-8 is replaced."""
        return self.data.decode(errors="replace")


def read_log(path: Path, offset: int, limit: int = CHUNK_BYTES) -> LogChunk:
    """Read from an offset, or from the oldest stored byte if that is later. Does not split a UTF-8 character."""
    begin, data = _while_unrotated(path, lambda: _read_bytes(path, offset, limit))
    complete = _complete_characters(data) if len(data) < limit else _complete_characters(data) or data
    return LogChunk(complete, begin, begin + len(complete))


def read_log_at(path: Path, offset: int, limit: int) -> tuple[LogChunk, bool] | None:
    """Read from an offset (negative: from the end), and whether the end was reached. None if there is no log."""
    if not is_regular(path) and not is_regular(_sibling(path, "1")):
        return None
    chunk = read_log(path, offset if offset >= 0 else max(0, log_size(path) + offset), limit)
    return chunk, chunk.next >= log_size(path)


def tail_log(path: Path, lines: int = 10) -> LogChunk:
    """Return the last lines, within the last CHUNK_BYTES."""
    end = log_size(path)
    chunk = read_log(path, end - CHUNK_BYTES)
    data = b"".join(chunk.data.splitlines(keepends=True)[-lines:] if lines > 0 else [])
    return LogChunk(data, chunk.next - len(data), chunk.next)


def log_size(path: Path) -> int:
    """Return the number of bytes ever written."""
    return _while_unrotated(path, lambda: _removed_bytes(path) + regular_size(path))


def _while_unrotated(path: Path, read: Callable[[], Result]) -> Result:
    """Read the three files of a log together. What decides is the inode: a kept file is not another one's."""
    for attempt in range(MAX_READS):
        with _lock_of(path), suppress(OSError), open_regular(path) as log:
            found = read()
            if os.path.samestat(os.fstat(log.fileno()), path.lstat()):
                return found
        if not is_regular(_sibling(path, "1")):
            break  # it was never rotated
        if attempt:
            sleep(RETRY_PAUSE)
    with _lock_of(path):
        return read()


def _read_bytes(path: Path, offset: int, limit: int) -> tuple[int, bytes]:
    removed, older = _removed_bytes(path), _sibling(path, "1")
    oldest = max(0, removed - regular_size(older))
    begin = max(offset, oldest)
    data = _read_file(older, begin - oldest, limit) if begin < removed else b""
    return begin, data + _read_file(path, begin + len(data) - removed, limit - len(data))


def _read_file(path: Path, begin: int, limit: int) -> bytes:
    try:
        with open_regular(path) as file:
            file.seek(begin)
            return file.read(limit)
    except OSError:
        return b""


def _complete_characters(data: bytes) -> bytes:
    """Return the data without an incomplete UTF-8 character at its end."""
    for length in range(1, min(MAX_UTF8_BYTES, len(data) + 1)):
        byte = data[-length]
        if byte >= 0b1100_0000:  # the first byte of a character determines its length
            expected = 2 + (byte >= 0b1110_0000) + (byte >= 0b1111_0000)
            return data[:-length] if expected > length else data
        if byte < 0b1000_0000:
            return data
    return data


def rotate_log(path: Path, keep: int) -> None:
    """Copy the last `keep` bytes of the log to the second file, and truncate the log."""
    copy, record = _sibling(path, "1.new"), _sibling(path, "gone.new")
    with _lock_of(path), open_regular(path, os.O_RDWR) as log, create_regular(copy) as older:
        os.fchmod(older.fileno(), os.fstat(log.fileno()).st_mode & NOT_EXECUTABLE)
        remaining = min(keep, os.fstat(log.fileno()).st_size)
        log.seek(-remaining, os.SEEK_END)
        _copy(log, older, remaining)
        with create_regular(record) as file:
            file.write(b"%d\n" % (_removed_bytes(path) + log.tell()))
        copy.replace(_sibling(path, "1"))
        record.replace(_sibling(path, "gone"))  # before truncation: after a crash, read twice rather than not at all
        log.truncate(0)


def append_log(path: Path, data: bytes, limit: int = DEFAULT_MAX_OUTPUT_BYTES) -> None:
    """Append output that does not come from a process of this machine; keep the log within a limit of bytes."""
    with _lock_of(path):
        with open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as log:
            log.write(data)
        if regular_size(path) > limit // 2:
            rotate_log(path, limit // 2)


def continue_log(path: Path, successor: Path) -> None:
    """Let the writers of a log continue in another file; the log keeps what was written so far."""
    with _lock_of(path), _lock_of(successor):
        path.rename(successor)  # a process writes to the file that it has opened, whatever its name
        with open_regular(successor, os.O_RDWR) as log, create_regular(path) as older:
            os.fchmod(older.fileno(), os.fstat(log.fileno()).st_mode & NOT_EXECUTABLE)
            _copy(log, older, os.fstat(log.fileno()).st_size)
            log.truncate(0)


def _copy(log: IO[bytes], older: IO[bytes], remaining: int) -> None:
    while remaining > 0 and (chunk := log.read(min(remaining, COPY_BYTES))):
        older.write(chunk)
        remaining -= len(chunk)
    older.write(log.read(CHUNK_BYTES))  # written meanwhile; bounded, since a fast writer would never let us finish
    older.flush()


def _removed_bytes(path: Path) -> int:
    try:
        digits = read_regular(_sibling(path, "gone"), MAX_OFFSET_DIGITS + 2).strip()
    except (OSError, ResourceShortage):
        return 0
    return int(digits) if digits.isdigit() and len(digits) <= MAX_OFFSET_DIGITS else 0


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


class LogRotator:
    """Keeps the logs of watched runs within a limit of bytes each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._halves: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watch(self, logs: Sequence[Path], limit: int | None = None) -> AsyncIterator[None]:
        """Rotate these logs while the context is open. `limit`: theirs, if it is lower than that of all."""
        half = max(1, (self._limit if limit is None else min(limit, self._limit)) // 2)
        self._halves.update((path, half) for path in logs)
        self._sizes.update((path, regular_size(path)) for path in logs)
        if self._task is None:
            self._task = asyncio.create_task(self._check_periodically())
        try:
            yield
        finally:
            await self._rotate_large(logs)
            for path in logs:
                del self._sizes[path], self._halves[path]
            if not self._sizes and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _check_periodically(self) -> None:
        """Check all logs; the faster a log grows, the sooner it is checked again."""
        pause = MIN_CHECK_INTERVAL
        while True:
            await asyncio.sleep(pause)
            pauses = [await self._check(path, pause) for path in list(self._sizes)]
            pause = min(pauses, default=MAX_CHECK_INTERVAL)

    async def _rotate_large(self, logs: Sequence[Path]) -> None:
        for path in logs:
            if regular_size(path) > self._halves[path]:
                await asyncio.to_thread(self._rotate_if_large, path)

    async def _check(self, path: Path, elapsed: Seconds) -> Seconds:
        """Rotate the log if it is too large, and return the seconds until the next check."""
        length, half = regular_size(path), self._halves.get(path, self._limit)
        growth = max(0, length - self._sizes.get(path, 0)) / elapsed
        if length > half:
            await asyncio.to_thread(self._rotate_if_large, path)
            length = 0
        if path in self._sizes:
            self._sizes[path] = length
        remaining = max(1, half - length)
        return max(MIN_CHECK_INTERVAL, min(MAX_CHECK_INTERVAL, remaining / growth if growth else MAX_CHECK_INTERVAL))

    def _rotate_if_large(self, path: Path) -> None:
        half = self._halves.get(path)  # None: no longer watched
        with _lock_of(path), suppress(OSError):
            if half is not None and regular_size(path) > half:  # another thread may have just rotated it
                rotate_log(path, half)
