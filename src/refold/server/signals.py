"""Ctrl-C, and the other ways of asking a program to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ASKS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Which signal came first, if one has."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that was ended by a signal: 130 for Ctrl-C. 0 if it was not."""
        return 0 if self.by is None else 128 + self.by


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[Interruption]:
    """The first signal asks to `stop`; the second does not wait for that and cancels the current task."""
    loop, task, interruption = asyncio.get_running_loop(), asyncio.current_task(), Interruption()
    assert task is not None

    def interrupted(by: signal.Signals) -> None:
        if interruption.by is None:
            interruption.by = by
            stop()
        else:
            task.cancel()

    for number in ASKS_TO_END:
        loop.add_signal_handler(number, interrupted, number)
    try:
        yield interruption
    finally:
        for number in ASKS_TO_END:
            loop.remove_signal_handler(number)
