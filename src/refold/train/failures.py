"""Failures of ranks: how they are described, and how often a run is restarted after them."""

from __future__ import annotations

import signal

MAX_FAILURES = 3
"""How many times in a row a run is restarted without having come further than before."""


class RestartLimit:
    """Allows `MAX_FAILURES` restarts in a row in which the training gets no further than before."""

    def __init__(self) -> None:
        self._furthest = -1
        self._furthest_at_failure = -1
        self._failures = 0

    def reached(self, step: int) -> None:
        """Record progress."""
        self._furthest = max(self._furthest, step)

    def may_restart(self) -> bool:
        """Record a failure, and return whether the run may be restarted."""
        if self._furthest > self._furthest_at_failure:
            self._furthest_at_failure = self._furthest
            self._failures = 0
        self._failures += 1
        return self._failures <= MAX_FAILURES


def exit_code(status: int) -> int:
    """Return the exit code that stands for a status, as a shell does."""
    return status if status >= 0 else 128 - status


def describe_exit(status: int) -> str:
    """Return what a process has done that ended with a status."""
    return f"has exited with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
