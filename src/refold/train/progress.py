"""How far a job is, told to the scheduler, and whether the scheduler wants it to stop. Needs nothing but Python.

    from refold.train import progress

    for step in range(first, steps):
        train(step)
        progress.report(step + 1)
        if progress.checkpoint_asked():
            save(os.environ["REFOLD_CHECKPOINT"])
            sys.exit()

Where nobody listens, outside of a run, both do nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic

WRITE_EVERY = 1.0
"""Seconds. A loop of a thousand steps per second is not to be kept waiting by a disk."""


class Reporter:
    """Writes the newest number of steps to a file: at once if it was long ago, else within a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._steps = 0
        self._written_at = -WRITE_EVERY
        self._timer: threading.Timer | None = None
        self._process = os.getpid()

    def report(self, steps: int) -> None:
        """So many steps are done."""
        with self._lock:
            self._steps = steps
            if self._timer is not None and self._process == os.getpid():
                return
            wait = self._written_at + WRITE_EVERY - monotonic()
            if wait <= 0:
                self._write()
                return
            self._process = os.getpid()
            self._timer = threading.Timer(wait, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Write what was not written yet."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._write()

    def _write(self) -> None:
        self._written_at = monotonic()
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):  # a job is not to fail because nobody can be told how far it is
            beside.write_text(f"{self._steps}\n")
            beside.replace(self._path)


class StopSignal:
    """Whether the signal has come that asks to save and end."""

    def __init__(self, name: str) -> None:
        self.asked = False
        signal.signal(signal.Signals[f"SIG{name}"], self._ask)

    def _ask(self, number: int, frame: object) -> None:
        del number, frame
        self.asked = True


def report(steps: int) -> None:
    """So many steps of the job are done in all, those of earlier runs included."""
    if reporter := _reporter():
        reporter.report(steps)


def checkpoint_asked() -> bool:
    """Whether the run was asked to save what it has and end; from the first call on, which is the main thread's.

    From then on the signal does nothing else: who asks this has to end by itself when the answer is yes.
    """
    stop_signal = _stop_signal()
    return stop_signal is not None and stop_signal.asked


@cache
def _reporter() -> Reporter | None:
    path = os.environ.get("REFOLD_PROGRESS")
    if not path:
        return None
    reporter = Reporter(Path(path))
    atexit.register(reporter.flush)
    return reporter


@cache
def _stop_signal() -> StopSignal | None:
    name = os.environ.get("REFOLD_STOP_SIGNAL")
    return StopSignal(name) if name else None
