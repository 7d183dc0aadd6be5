"""Upkeep of the store and of the files of runs: what is old is deleted, and backups are made."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import time

from refold.errors import RefoldError
from refold.model import DAY, HOUR, MINUTE, Seconds
from refold.server.config import ServeConfig
from refold.server.live_state import LiveState
from refold.server.output import RunFiles
from refold.server.store import (
    BACKUPS_FOLDER,
    EndedRow,
    Store,
    StoreReader,
    backup_name,
    list_backups,
    remove_old_backups,
)
from refold.server.writer import Writer

UPKEEP_INTERVAL_SECONDS: Seconds = HOUR

ENTRIES_PER_JOB = 10
"""Journal entries that are kept, for each job that is kept."""

EPOCHS = 10
"""The journal is deleted by whole epochs. A new one begins when the current one is this part of what is kept."""

FEW_JOBS = 1_000
"""A new epoch begins with a snapshot of all jobs, which is cheap up to this number of them."""

MAX_DELAY = 2.0
"""With more jobs, or runs that are being reshaped, it begins when the current epoch is this many times as long."""

BACKUP_INTERVAL: Seconds = DAY

log = logging.getLogger("refold")


class StoreUpkeep:
    """Prunes the store and backs it up, as configured. `begin_epoch` starts a new epoch of the journal."""

    def __init__(
        self,
        state: LiveState,
        writer: Writer,
        store: Store,
        config: ServeConfig,
        begin_epoch: Callable[[], Awaitable[None]],
    ) -> None:
        self._state, self._writer, self._store, self._config = state, writer, store, config
        self._begin_epoch = begin_epoch

    async def run(self) -> None:
        """Delete what is too old, then make a backup if it is due."""
        if await self._is_epoch_due():
            await self._begin_epoch()
        await self._prune()
        await self._back_up()

    @property
    def _kept_entries(self) -> int:
        return ENTRIES_PER_JOB * self._config.keep_jobs

    async def _is_epoch_due(self) -> bool:
        """Return whether the current epoch is so old or long that it would be kept for too long as a whole."""
        state, journal = self._state, self._store.reader.journal
        epoch = journal.last_epoch()
        if epoch is None:
            return False
        began_at = await asyncio.to_thread(journal.time_of, epoch.first_entry)
        age = (state.now() - began_at) / self._config.keep_jobs_for
        length = (state.entry - epoch.first_entry) / self._kept_entries
        is_cheap = len(state.job_table.records) <= FEW_JOBS
        is_calm = not any(run.stopping for run in state.view.runs.values())
        return EPOCHS * max(age, length) >= (1.0 if is_cheap and is_calm else MAX_DELAY)

    async def _prune(self) -> None:
        kept_for = self._config.keep_jobs_for
        wall_before, before = time() - kept_for, self._state.now() - kept_for
        store, config = self._store, self._config
        await self._until_none_is_left(lambda: store.prune(wall_before, config.keep_jobs))
        await self._writer.write(lambda: store.prune_epochs(before, self._kept_entries, wall_before))
        await self._until_none_is_left(store.prune_journal)

    async def _until_none_is_left(self, delete: Callable[[], int]) -> None:
        """Delete in steps, between which the daemon can write. `delete` returns how many were deleted."""
        deleted = -1

        def delete_some() -> None:
            nonlocal deleted
            deleted = delete()

        while deleted:
            await self._writer.write(delete_some)

    async def _back_up(self) -> None:
        folder, keep = self._store.folder, self._config.keep_backups
        newest = next(iter(list_backups(folder)), None)
        if not keep or (newest is not None and time() - newest.stat().st_mtime < BACKUP_INTERVAL):
            return
        target = folder / BACKUPS_FOLDER / backup_name(datetime.now(UTC))
        try:
            await asyncio.to_thread(self._store.back_up, target)
        except RefoldError as error:
            log.error("no backup was made: %s", error)
            return
        remove_old_backups(folder, keep)


SWEEP_INTERVAL_SECONDS: Seconds = HOUR

KEEP_RECORDS_FOR: Seconds = 10 * MINUTE
"""How long the claim of a run is kept after its job has ended: a shim of a killed daemon that is late must find it."""

JOBS_PER_QUERY = 500
"""Ended jobs read from the store at once."""


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
