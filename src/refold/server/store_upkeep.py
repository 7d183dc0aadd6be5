"""Upkeep of the store: old jobs and epochs are deleted, and backups are made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from time import time

from refold.errors import RefoldError
from refold.model import DAY, HOUR, Seconds
from refold.server.config import ServeConfig
from refold.server.live_state import LiveState
from refold.server.store import BACKUPS_FOLDER, Store, backup_name, list_backups, remove_old_backups
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
