"""Looking for other people's regular expressions: in another process, for one can be made to take for ever.

Python's own engine cannot be interrupted, and keeps everybody else waiting while it works. The one that can be given a
time limit unrolls `((a{1000}){1000}){1000}` when it compiles it, until there is no memory left.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO

from refold.model.units import Seconds

PATIENCE: Seconds = 1.0
"""How long a pattern may take for one text."""

STARTING: Seconds = 10.0
"""How long the process may take to begin, on a machine that has much to do."""

_PROGRAM = Path(__file__).with_name("matching_process.py")


class TooSlow(Exception):
    """A pattern takes too long, or too much memory. `at` is which of those that were asked for."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class Matcher:
    """A process that looks for patterns; it is started when it is first needed. For one thread at a time."""

    def __init__(self, patience: Seconds = PATIENCE) -> None:
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None

    def last_found(self, text: str, patterns: Sequence[str]) -> list[str | None]:
        """What the first group of each pattern (or all of it) has where it was last found; None: it is nowhere."""
        process = self._ready()
        answers: list[str | None] = []
        try:
            _ask(process, [text, list(patterns)])
            for _ in patterns:
                answers.append(json.loads(_line(process, self._patience)))
        except (OSError, EOFError, TimeoutError):
            self.close()
            raise TooSlow(len(answers)) from None
        return answers

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            with self._process:
                pass
            self._process = None

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
            with suppress(OSError, EOFError, TimeoutError):  # what goes wrong now goes wrong once more when it is asked
                _ask(self._process, ["", [""]])
                _line(self._process, STARTING)
        return self._process


def _ask(process: subprocess.Popen[bytes], request: object) -> None:
    left = memoryview(json.dumps(request).encode() + b"\n")
    while left:
        left = left[_pipe(process.stdin).write(left) :]


def _line(process: subprocess.Popen[bytes], within: Seconds) -> bytes:
    """One line of the answer, byte after byte: answers are short."""
    pipe, until, line = _pipe(process.stdout), monotonic() + within, b""
    readable = select.poll()
    readable.register(pipe, select.POLLIN)
    while not line.endswith(b"\n"):
        if not readable.poll(1000 * max(0.0, until - monotonic())):
            raise TimeoutError
        if not (more := pipe.read(1)):
            raise EOFError
        line += more
    return line


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None
    return end
