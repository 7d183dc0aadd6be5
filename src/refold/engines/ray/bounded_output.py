"""The output of an instance on its node: the last part of it, in files that have no name and end with the actor."""

from __future__ import annotations

import os
import tempfile
import threading


class BoundedOutput:
    """Keeps the last `limit` bytes, or at least half of them. Offsets count all bytes that were ever written."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._lock = threading.Lock()
        self._older = tempfile.TemporaryFile(prefix="refold-")  # noqa: SIM115 - as long as the actor lives
        self._newer = tempfile.TemporaryFile(prefix="refold-")  # noqa: SIM115
        self._first = 0
        """The offset of the first byte that is kept."""
        self._begin = 0
        """The offset of the first byte in the newer file."""
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append output; forget what was written long ago."""
        with self._lock:
            while data:
                room = self._half - (self.size - self._begin)
                if not room:
                    self._older, self._newer = self._newer, self._older
                    self._first, self._begin, room = self._begin, self.size, self._half
                    self._newer.truncate(0)
                part, data = data[:room], data[room:]
                os.pwrite(self._newer.fileno(), part, self.size - self._begin)
                self.size += len(part)

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """Return what was written from an offset on, or from the first byte that is kept, and where that begins."""
        with self._lock:
            begin = min(max(offset, self._first), self.size)
            data = b""
            if begin < self._begin:
                data = os.pread(self._older.fileno(), min(limit, self._begin - begin), begin - self._first)
            position = begin + len(data)
            if position >= self._begin and len(data) < limit:
                data += os.pread(self._newer.fileno(), limit - len(data), position - self._begin)
            return begin, data

    def close(self) -> None:
        """Delete the files."""
        with self._lock:
            self._older.close()
            self._newer.close()
