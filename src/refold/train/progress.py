"""Report progress to the scheduler, and check whether the run should save a checkpoint. Standard library only.

    from refold.train import progress

    for step in range(first, steps):
        train(step)
        progress.report(step + 1, loss=loss)
        if progress.checkpoint_requested():
            save(os.environ["REFOLD_CHECKPOINT"])
            sys.exit()

Outside of a Refold run, both do nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic
from types import MappingProxyType

SPACE_IN_JSON = "\\u0020"
NOTHING_MORE: Mapping[str, str] = MappingProxyType({})

WRITE_INTERVAL_SECONDS = 1.0
"""Minimum time between two writes, so that fast training loops do not wait for the disk."""


class Reporter:
    """Writes the latest report to a file: immediately if the last write is long ago, else within a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._text = ""
        self._written_at = -WRITE_INTERVAL_SECONDS
        self._timer: threading.Timer | None = None
        self._process = os.getpid()

    def report(
        self,
        steps: int,
        loss: float | None = None,
        samples_per_second: float | None = None,
        more: Mapping[str, str] = NOTHING_MORE,
    ) -> None:
        """Report the number of finished steps, and the loss and speed of the last ones.

        `more`: compact JSON by name. `plan`: the plan in use, if it is not that of the scheduler; `slow`: a slow rank.
        """
        measures = {"loss": loss, "samples_per_second": samples_per_second}
        given = [f"{name}={value:.6g}" for name, value in measures.items() if value is not None]
        given += [f"{name}={text.replace(' ', SPACE_IN_JSON)}" for name, text in more.items()]
        with self._lock:
            self._text = " ".join([f"{steps}", *given])
            if self._timer is not None and self._process == os.getpid():
                return
            wait = self._written_at + WRITE_INTERVAL_SECONDS - monotonic()
            if wait <= 0:
                self._write()
                return
            self._process = os.getpid()
            self._timer = threading.Timer(wait, self.flush)
            self._timer.daemon = True
            self._timer.start()

    def flush(self) -> None:
        """Write a report that is still pending."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._write()

    def _write(self) -> None:
        self._written_at = monotonic()
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with suppress(OSError):  # a job must not fail because its progress cannot be written
            temporary.write_text(f"{self._text}\n")
            temporary.replace(self._path)


class StopSignalHandler:
    """Records whether the stop signal was received."""

    def __init__(self, name: str) -> None:
        self.received = False
        signal.signal(signal.Signals[f"SIG{name}"], self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self.received = True


def report(steps: int, loss: float | None = None, samples_per_second: float | None = None) -> None:
    """Report the total number of finished steps of the job, including those of earlier runs.

    The loss and the speed of the last steps are shown by the daemon; the speed also corrects its estimates.
    """
    if reporter := _reporter():
        reporter.report(steps, loss, samples_per_second)


def checkpoint_requested() -> bool:
    """Return whether the run has received the stop signal, and should save a checkpoint and exit.

    The first call, which must be in the main thread, installs a handler for the stop signal. From then on the signal no
    longer ends the process: the program must exit by itself when this returns True.
    """
    handler = _stop_signal_handler()
    return handler is not None and handler.received


@cache
def _reporter() -> Reporter | None:
    path = os.environ.get("REFOLD_PROGRESS")
    if not path:
        return None
    reporter = Reporter(Path(path))
    atexit.register(reporter.flush)
    return reporter


@cache
def _stop_signal_handler() -> StopSignalHandler | None:
    name = os.environ.get("REFOLD_STOP_SIGNAL")
    return StopSignalHandler(name) if name else None
