"""A program on a pseudo-terminal, as a user sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

TIMEOUT_SECONDS = 60.0


class Terminal:
    """Runs a program on a terminal of its own."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], rows: int = 24, columns: int = 80
    ) -> None:
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), dict(environment))
        self.resize(rows, columns)
        self.output = ""
        self._read_to = 0
        self._status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is None:
            self.signal(signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._close()

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Type text."""
        os.write(self._descriptor, text.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        os.kill(self.pid, number)

    def expect(self, text: str) -> None:
        """Wait until a text appears after what was expected before."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (found := self.output.find(text, self._read_to)) < 0:
            if time.monotonic() > deadline or not self._read():
                raise AssertionError(f"{text!r} did not appear in {self.output!r}")
        self._read_to = found + len(text)

    def wait(self) -> int:
        """Wait until the program has ended; return its exit status."""
        while self._read():
            pass
        _, status = os.waitpid(self.pid, 0)
        self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def close_window(self) -> None:
        """Close the terminal under the program, which gets SIGHUP."""
        self._close()

    def _close(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)

    def _read(self) -> bool:
        """Read what has been written; return False if nothing more will come."""
        if not select.select([self._descriptor], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return False
        self.output += data.decode(errors="replace")
        return bool(data)
