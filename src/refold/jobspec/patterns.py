"""Looking for other people's regular expressions: in another process, for one can be made to take for ever.

Python's own engine cannot be interrupted, and keeps everybody else waiting while it works. The one that can be given a
time limit unrolls `((a{1000}){1000}){1000}` when it compiles it, until there is no memory left.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO

from refold.errors import BadValue
from refold.jobspec.pattern_process import read_pattern
from refold.model import Seconds

PATIENCE: Seconds = 1.0
"""How long a pattern may take for one text."""

STARTING: Seconds = 10.0
"""How long the process may take to begin, on a machine that has much to do."""

MOST_KNOWN = 4096
"""Patterns that are known to be good and need not be read again."""

_PROGRAM = Path(__file__).with_name("pattern_process.py")


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

    def read(self, patterns: Sequence[str]) -> list[tuple[int, str]]:
        """How many groups each pattern has, and what is wrong with it; there is patience for all of them together."""
        process = self._ready()
        answers: list[tuple[int, str]] = []
        until = monotonic() + self._patience
        try:
            for pattern in patterns:  # one by one: a pipe holds only so many, and nobody reads the answers meanwhile
                _ask(process, [None, [pattern]])
                groups, problem = json.loads(_line(process, until - monotonic()))
                answers.append((groups, problem))
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


_known: dict[str, int] = {}
_checking = threading.Lock()


def check_patterns(patterns: Iterable[tuple[str, str]], patience: Seconds = PATIENCE) -> None:
    """Refuse what is no regular expression, or takes too long to read; each comes with the field that it is in.

    To read one can take minutes, so a process does it that is ended when patience is; whoever asks is a thread.
    """
    asked = list(patterns)
    with _checking:
        unknown = list(dict.fromkeys(pattern for _, pattern in asked if pattern not in _known))
        read = dict(zip(unknown, _read(unknown, asked, patience), strict=True))
        for field, pattern in asked:
            _refuse(field, pattern, *(read[pattern] if pattern in read else (_known[pattern], "")))
        if len(_known) + len(read) > MOST_KNOWN:
            _known.clear()
        _known.update({pattern: groups for pattern, (groups, _) in list(read.items())[:MOST_KNOWN]})


def check_patterns_here(patterns: Iterable[tuple[str, str]]) -> None:
    """The same without a process, for whoever wrote them: nobody else waits."""
    for field, pattern in patterns:
        _refuse(field, pattern, *read_pattern(pattern))


def _read(unknown: Sequence[str], asked: Sequence[tuple[str, str]], patience: Seconds) -> list[tuple[int, str]]:
    if not unknown:
        return []
    matcher = Matcher(patience)
    try:
        return matcher.read(unknown)
    except TooSlow as slow:
        field = next(field for field, pattern in asked if pattern == unknown[slow.at])
        raise BadValue(
            f"{field} is {unknown[slow.at]!r}, which takes too long to read, expected a simpler one"
        ) from None
    finally:
        matcher.close()


def _refuse(field: str, pattern: str, groups: int, problem: str) -> None:
    if problem:
        raise BadValue(f"{field} is {pattern!r}, which is not a regular expression: {problem}")
    if field == "progress" and not groups:
        raise BadValue(f"progress is {pattern!r}, expected a group, such as in 'step (\\d+)'")


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
