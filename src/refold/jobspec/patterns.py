"""User-supplied regular expressions, evaluated in a separate process with a time limit.

A pattern can take exponential time. Python's `re` cannot be interrupted and holds the GIL; the third-party engine that
has timeouts expands `((a{1000}){1000}){1000}` while compiling until memory is exhausted.
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
from refold.jobspec.pattern_process import compile_pattern
from refold.model import Seconds

MATCH_TIMEOUT: Seconds = 1.0
"""Time limit of one pattern on one text."""

START_TIMEOUT: Seconds = 10.0
"""Time limit for starting the process on a busy machine."""

MAX_CACHED_PATTERNS = 4096
"""Maximum number of valid patterns that are cached, so that they are not compiled again."""

_PROGRAM = Path(__file__).with_name("pattern_process.py")


class PatternTimeout(Exception):
    """A pattern exceeded its time or memory limit. `index`: its index in the request."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Matcher:
    """A process that matches patterns, started on first use. For one thread at a time."""

    def __init__(self, timeout: Seconds = MATCH_TIMEOUT) -> None:
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    def find_last_matches(self, text: str, patterns: Sequence[str]) -> list[str | None]:
        """Return the last match of each pattern (its first group, or all of it without groups), or None."""
        process = self._ready()
        answers: list[str | None] = []
        try:
            _send(process, [text, list(patterns)])
            for _ in patterns:
                answers.append(json.loads(_read_line(process, self._timeout)))
        except (OSError, EOFError, TimeoutError):
            self.close()
            raise PatternTimeout(len(answers)) from None
        return answers

    def compile(self, patterns: Sequence[str]) -> list[tuple[int, str]]:
        """Return the number of groups and the syntax error ("" if none) of each pattern, within one time limit."""
        process = self._ready()
        answers: list[tuple[int, str]] = []
        deadline = monotonic() + self._timeout
        try:
            for pattern in patterns:  # one at a time: with all at once, both pipes could fill up and deadlock
                _send(process, [None, [pattern]])
                groups, problem = json.loads(_read_line(process, deadline - monotonic()))
                answers.append((groups, problem))
        except (OSError, EOFError, TimeoutError):
            self.close()
            raise PatternTimeout(len(answers)) from None
        return answers

    def close(self) -> None:
        """Kill the process."""
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
            with suppress(OSError, EOFError, TimeoutError):  # a failure shows again at the first request
                _send(self._process, ["", [""]])
                _read_line(self._process, START_TIMEOUT)
        return self._process


_group_counts: dict[str, int] = {}
_lock = threading.Lock()


def check_patterns(patterns: Iterable[tuple[str, str]], timeout: Seconds = MATCH_TIMEOUT) -> None:
    """Raise BadValue if a pattern is not a valid regular expression or takes too long to compile.

    Patterns come with their fields. Compiling can take minutes, so it is done in a process that is killed at the time
    limit. Blocks: call it from a thread.
    """
    pairs = list(patterns)
    with _lock:
        unknown = list(dict.fromkeys(pattern for _, pattern in pairs if pattern not in _group_counts))
        compiled = dict(zip(unknown, _compile_all(unknown, pairs, timeout), strict=True))
        for field, pattern in pairs:
            _check(field, pattern, *(compiled[pattern] if pattern in compiled else (_group_counts[pattern], "")))
        if len(_group_counts) + len(compiled) > MAX_CACHED_PATTERNS:
            _group_counts.clear()
        _group_counts.update({pattern: groups for pattern, (groups, _) in list(compiled.items())[:MAX_CACHED_PATTERNS]})


def check_patterns_in_process(patterns: Iterable[tuple[str, str]]) -> None:
    """Check patterns in this process, without a time limit: for the CLI, where only their author waits."""
    for field, pattern in patterns:
        _check(field, pattern, *compile_pattern(pattern))


def _compile_all(unknown: Sequence[str], pairs: Sequence[tuple[str, str]], timeout: Seconds) -> list[tuple[int, str]]:
    if not unknown:
        return []
    matcher = Matcher(timeout)
    try:
        return matcher.compile(unknown)
    except PatternTimeout as error:
        field = next(field for field, pattern in pairs if pattern == unknown[error.index])
        raise BadValue(
            f"{field} is {unknown[error.index]!r}, which takes too long to compile, expected a simpler pattern"
        ) from None
    finally:
        matcher.close()


def _check(field: str, pattern: str, groups: int, problem: str) -> None:
    if problem:
        raise BadValue(f"{field} is {pattern!r}, which is not a regular expression: {problem}")
    if field == "progress" and not groups:
        raise BadValue(f"progress is {pattern!r}, expected a pattern with a group such as 'step (\\d+)'")


def _send(process: subprocess.Popen[bytes], request: object) -> None:
    remaining = memoryview(json.dumps(request).encode() + b"\n")
    while remaining:
        remaining = remaining[_pipe(process.stdin).write(remaining) :]


def _read_line(process: subprocess.Popen[bytes], timeout: Seconds) -> bytes:
    """Read one line byte by byte, which is fast enough for short answers."""
    pipe, deadline, line = _pipe(process.stdout), monotonic() + timeout, b""
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while not line.endswith(b"\n"):
        if not poller.poll(1000 * max(0.0, deadline - monotonic())):
            raise TimeoutError
        if not (byte := pipe.read(1)):
            raise EOFError
        line += byte
    return line


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None
    return end
