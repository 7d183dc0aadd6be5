"""A forked process that tests one mutant: it replaces the code of one function in memory."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from tools.mutants import KILLED, SURVIVED, TIMEOUT, Mutant, function_codes, mutated_tree

MIN_TEST_SECONDS = 10.0
"""A test of a mutant is a timeout after this CPU time, plus `SLOWDOWN` times its normal duration."""

SLOWDOWN = 10.0

MAX_WAIT = 3.0
"""A test that waits instead is a timeout after this multiple of that time."""

TIMEOUTS = (signal.SIGPROF, signal.SIGALRM)
"""Signals of the timers for CPU time and for time."""


class Patchable(NamedTuple):
    """What a child replaces: functions by file, qualified name and first line; and caches that it clears."""

    functions: dict[tuple[str, str, int], list[FunctionType]]
    caches: list[Any]


class Child:
    """A forked process that tests one mutant. It writes `status<TAB>test` to a pipe; without that, a test hung."""

    def __init__(
        self, mutant: Mutant, tests: Sequence[tuple[pytest.Item, float]], patchable: Patchable, tree: Path
    ) -> None:
        self.mutant = mutant
        self.pipe, write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.close(self.pipe)
                os.setpgrp()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                for timer in TIMEOUTS:
                    signal.signal(timer, signal.SIG_DFL)
                os.write(write_end, self._test(tests, patchable, tree).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)

    def _test(self, tests: Sequence[tuple[pytest.Item, float]], patchable: Patchable, tree: Path) -> str:
        if not _patch(self.mutant, patchable, tree):
            return "\t"
        for item, duration in tests:
            limit = MIN_TEST_SECONDS + SLOWDOWN * duration
            signal.setitimer(signal.ITIMER_PROF, limit)
            signal.setitimer(signal.ITIMER_REAL, MAX_WAIT * limit)
            if outcome(item) != "passed":
                return f"{KILLED}\t{item.nodeid}"
        return f"{SURVIVED}\t"

    def finish(self) -> None:
        """Read the result. A child that died of a timer had a test that did not end."""
        with os.fdopen(self.pipe) as pipe:
            result = pipe.read()
        _, status = os.waitpid(self._pid, 0)
        self._end_processes()
        if result:
            self.mutant.status, self.mutant.by = result.split("\t")
        else:
            timeout = os.WIFSIGNALED(status) and os.WTERMSIG(status) in TIMEOUTS
            self.mutant.status = TIMEOUT if timeout else KILLED

    def kill(self) -> None:
        """End the child."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._end_processes()
        os.close(self.pipe)

    def _end_processes(self) -> None:
        """End what the tests have started and left."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)


def _patch(mutant: Mutant, patchable: Patchable, tree: Path) -> bool:
    """Replace the code of the function that a mutant changes; return whether there is such a function."""
    path = tree / mutant.path
    original = {code_key(code): code for code in function_codes(compile(path.read_text(), str(path), "exec"))}
    patched = False
    mutated = compile(mutated_tree(path, mutant), str(path), "exec", dont_inherit=True)
    for code in function_codes(mutated):
        if code != original[code_key(code)]:
            for function in patchable.functions.get(code_key(code), ()):
                if len(code.co_freevars) != len(function.__code__.co_freevars):
                    return False  # a closure with other variables cannot be replaced
                function.__code__ = code
                patched = True
    for each in patchable.caches:
        each.cache_clear()
    return patched


def caches() -> list[Any]:
    """Return the caches of functions of Refold."""
    found = [each for each in gc.get_objects() if type(each) is _lru_cache_wrapper]
    return [each for each in found if str(each.__module__).startswith("refold")]


def code_key(code: CodeType) -> tuple[str, str, int]:
    """Return what identifies a function: its file, its qualified name, and its first line."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def outcome(item: pytest.Item) -> str:
    """Run a test, also repeatedly, and return `passed`, `failed` or `skipped`."""
    item._initrequest()  # type: ignore[attr-defined]
    outcomes = {report.outcome for report in runtestprotocol(item, log=False, nextitem=None)}
    return next((outcome for outcome in ("failed", "skipped") if outcome in outcomes), "passed")
