"""Handle termination signals."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Let the kernel signal this process when its parent ends, also if that is killed. Linux only.

    `parent`: its pid, if that may have ended already.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent not in (None, os.getppid()):
        os.kill(os.getpid(), number)


class Interruption:
    """The first termination signal that was received, if any."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """Exit status by shell convention: 128 + signal (130 for Ctrl-C), 0 if not interrupted."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[Interruption]:
    """Call `stop` on the first termination signal; cancel the current task on the second."""
    loop, task, interruption = asyncio.get_running_loop(), asyncio.current_task(), Interruption()
    assert task is not None

    def interrupted(number: signal.Signals) -> None:
        if interruption.signal is None:
            interruption.signal = number
            stop()
        else:
            task.cancel()

    for number in TERMINATION_SIGNALS:
        loop.add_signal_handler(number, interrupted, number)
    try:
        yield interruption
    finally:
        for number in TERMINATION_SIGNALS:
            loop.remove_signal_handler(number)


# The limit of file descriptors: raised for the daemon, unchanged for jobs.

MAX_DESCRIPTORS = 65_536
"""To what the limit is raised at most: some programs close every descriptor that is allowed."""


def raise_descriptor_limit() -> int:
    """Raise the limit of this process as far as it may; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    job_descriptor_limit()  # remembered before the limit changes
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


@cache
def job_descriptor_limit() -> int:
    """Return the soft limit for jobs: that with which the daemon was started. Many programs use select()."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
