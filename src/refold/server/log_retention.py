"""Log retention: remove the output of runs some time after their job has ended.

The job's checkpoint folder (`checkpoint`) is removed only if it is empty.
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

SWEEP_INTERVAL_SECONDS: Seconds = HOUR

JOBS_PER_QUERY = 500
"""Ended jobs read from the store at once."""

log = logging.getLogger("refold")


class LogRetention:
    """Removes the output of ended jobs in order of their end time. Each is visited once per daemon process."""

    def __init__(
        self, reader: StoreReader, logs: Path, keep_for: Seconds, wall_clock: Callable[[], float] = time
    ) -> None:
        self._reader = reader
        self._logs = logs
        self._keep_for = keep_for
        self._wall_clock = wall_clock
        self._last: EndedRow | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop after the current job."""
        self._closed.set()

    def sweep(self) -> None:
        """Remove all output whose retention time has passed. Slow: call it in a thread."""
        cutoff = self._wall_clock() - self._keep_for
        while not self._closed.is_set() and (jobs := self._reader.ended_before(cutoff, self._last, JOBS_PER_QUERY)):
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
                log.warning("cannot remove the output of %s: %s: %s", job_id, path, error.strerror)
        for folder in (files.checkpoint_folder, files.folder):
            with suppress(OSError):  # not empty, or missing
                folder.rmdir()
