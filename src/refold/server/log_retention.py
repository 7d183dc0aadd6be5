"""Output does not stay for ever: some time after a job has ended, what its runs have written is removed.

What a job has kept for itself (its folder `kept`) is its owner's, and stays; an empty one goes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import time

from refold.backends.local import RunFiles
from refold.model import HOUR, Seconds
from refold.server.store import EndedRow, StoreReader

SWEEP_EVERY: Seconds = HOUR

PIECE = 500
"""Jobs that are looked up at once."""

log = logging.getLogger("refold")


class LogRetention:
    """Goes through the jobs that are over in the order of their ends, each once, when its time has come."""

    def __init__(
        self, reading: StoreReader, logs: Path, keep_for: Seconds, wall_clock: Callable[[], float] = time
    ) -> None:
        self._reading = reading
        self._logs = logs
        self._keep_for = keep_for
        self._wall_clock = wall_clock
        self._last: EndedRow | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Leave the rest for another time."""
        self._closed.set()

    def sweep(self) -> None:
        """Remove the output of all whose time has come. It takes its time: call it where nobody waits."""
        until = self._wall_clock() - self._keep_for
        while not self._closed.is_set() and (jobs := self._reading.ended_until(until, self._last, PIECE)):
            for job in jobs:
                if self._closed.is_set():
                    return
                self._remove_output(job.id)
                self._last = job

    def _remove_output(self, job_id: str) -> None:
        files = RunFiles(self._logs, job_id, run=0)
        for path in files.folder.glob("run-*"):
            try:
                path.unlink()
            except OSError as error:
                log.warning("the output of %s stays: %s cannot be removed: %s", job_id, path, error.strerror)
        for folder in (files.kept, files.folder):
            with suppress(OSError):  # there is something in it
                folder.rmdir()
