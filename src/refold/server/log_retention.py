"""Log retention: remove the files of runs some time after their job has ended.

First go the records by which a daemon finds its runs again; later the output. The job's checkpoint folder
(`checkpoint`) is removed only if it is empty.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import time

from refold.model import HOUR, MINUTE, Seconds
from refold.server.output import RunFiles
from refold.server.store import EndedRow, StoreReader

SWEEP_INTERVAL_SECONDS: Seconds = HOUR

KEEP_RECORDS_FOR: Seconds = 10 * MINUTE
"""How long the claim of a run is kept after its job has ended: a shim of a killed daemon that is late must find it."""

JOBS_PER_QUERY = 500
"""Ended jobs read from the store at once."""

log = logging.getLogger("refold")


class LogRetention:
    """Removes records and output of ended jobs in order of their end time. Each is visited twice per process."""

    def __init__(
        self, reader: StoreReader, logs: Path, keep_for: Seconds, wall_clock: Callable[[], float] = time
    ) -> None:
        self._reader = reader
        self._logs = logs
        self._keep_for = keep_for
        self._wall_clock = wall_clock
        self._last_without_records: EndedRow | None = None
        self._last_without_output: EndedRow | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop after the current job."""
        self._closed.set()

    def sweep(self) -> None:
        """Remove all records and output whose retention time has passed. Slow: call it in a thread."""
        now = self._wall_clock()
        for job in self._ended(now - KEEP_RECORDS_FOR, self._last_without_records):
            self._remove(job.id, RunFiles.is_record)
            self._last_without_records = job
        for job in self._ended(now - self._keep_for, self._last_without_output):
            self._remove(job.id)
            self._last_without_output = job

    def _ended(self, before: Seconds, last: EndedRow | None) -> Iterator[EndedRow]:
        """Yield the jobs that ended before a time, after the last one that was visited, until `close` is called."""
        while jobs := self._reader.ended_before(before, last, JOBS_PER_QUERY):
            for job in jobs:
                if self._closed.is_set():
                    return
                yield job
            last = jobs[-1]

    def _remove(self, job_id: str, should_remove: Callable[[Path], bool] = lambda _: True) -> None:
        files = RunFiles(self._logs, job_id, run=0)
        for path in filter(should_remove, (*files.records.glob("run-*"), *files.folder.glob("run-*"))):
            try:
                path.unlink()
            except OSError as error:  # the job's user may have given the file a name of several lines
                log.warning("cannot remove the output of %s: %r: %s", job_id, str(path), error.strerror)
        for folder in (files.records, files.checkpoint_folder, files.folder):
            with suppress(OSError):  # not empty, or missing
                folder.rmdir()
