"""Upkeep of the store: old jobs and epochs are deleted, and backups are made."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from time import time

from refold.errors import RefoldError
from refold.model import HOUR, Seconds
from refold.server.config import ServeConfig
from refold.server.live_state import LiveState
from refold.server.store import BACKUPS_FOLDER, Store, backup_name, list_backups, remove_old_backups
from refold.server.writer import Writer

UPKEEP_INTERVAL_SECONDS: Seconds = HOUR

log = logging.getLogger("refold")


class StoreUpkeep:
    """Prunes the store and backs it up, as configured."""

    def __init__(self, state: LiveState, writer: Writer, store: Store, config: ServeConfig) -> None:
        self._state, self._writer, self._store, self._config = state, writer, store, config

    async def run(self) -> None:
        """Delete what is too old, then make a backup if it is due."""
        await self._prune()
        await self._back_up()

    async def _prune(self) -> None:
        kept_for, deleted = self._config.keep_jobs_for, -1
        wall_before = time() - kept_for

        def delete_jobs() -> None:
            nonlocal deleted
            deleted = self._store.prune(wall_before, self._config.keep_jobs)

        while deleted:
            await self._writer.write(delete_jobs)
        before = self._state.now() - kept_for
        await self._writer.write(lambda: self._store.prune_journal(before, wall_before))

    async def _back_up(self) -> None:
        folder, keep = self._store.folder, self._config.keep_backups
        newest = next(iter(list_backups(folder)), None)
        if not keep or (newest is not None and time() - newest.stat().st_mtime < self._config.backup_every):
            return
        target = folder / BACKUPS_FOLDER / backup_name(datetime.now(UTC))
        try:
            await asyncio.to_thread(self._store.back_up, target)
        except RefoldError as error:
            log.error("no backup was made: %s", error)
            return
        remove_old_backups(folder, keep)
