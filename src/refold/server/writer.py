"""Writing down: one thread, one commit after the other, and patience where the disk has no room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from refold.errors import Unavailable
from refold.model import Seconds
from refold.server.store import Commit, Store

TRY_AGAIN_AFTER: Seconds = 1.0
"""Between two tries to write what could not be written."""

log = logging.getLogger("refold")


class Writer:
    """Commits to a store from a thread of its own."""

    def __init__(self, store: Store) -> None:
        self.problem = ""
        """Why nothing can be written at present."""
        self._store = store
        self._thread = ThreadPoolExecutor(1, "refold-writer")
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()

    async def commit(self, commit: Commit) -> None:
        """Until it is on disk. What cannot be written cannot be acted on, so there is nothing else to do meanwhile.

        Unavailable: the daemon ends, and it is not.
        """
        while True:
            try:
                await self._loop.run_in_executor(self._thread, self._store.commit, commit)
            except Unavailable as error:
                if not self.problem:
                    log.error("%s; trying again every %g s", error, TRY_AGAIN_AFTER)
                self.problem = str(error)
                if self._ending.is_set():
                    raise
                await self._pause()
            else:
                if self.problem:
                    log.warning("the journal can be written again")
                self.problem = ""
                return

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(TRY_AGAIN_AFTER):
                await self._ending.wait()
        except TimeoutError:
            pass

    async def write(self, work: Callable[[], None]) -> None:
        """Something else that is kept in the store, in turn with the journal."""
        await self._loop.run_in_executor(self._thread, work)

    def end(self) -> None:
        """Try once more what cannot be written, and then no more."""
        self._ending.set()

    def close(self) -> None:
        """When what is being written has been."""
        self._thread.shutdown(wait=True)
