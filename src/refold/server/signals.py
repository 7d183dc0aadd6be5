"""Handle termination signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
