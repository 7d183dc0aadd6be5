"""The writer: one thread that commits to the store in order and retries while the store cannot be written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from refold.errors import Unavailable
from refold.model import Seconds
from refold.server.store import Commit

RETRY_INTERVAL_SECONDS: Seconds = 1.0
"""Pause between attempts to write."""

log = logging.getLogger("refold")


class CommitLog(Protocol):
    """Where the steps of a loop are written."""

    def commit(self, commit: Commit) -> None:
        """Write a step; it is on disk when this returns. Raises Unavailable if nothing was written."""


class Writer:
    """Commits to a log from its own thread."""

    def __init__(self, commit_log: CommitLog) -> None:
        self.problem = ""
        """Why the store cannot be written at present; '' if it can."""
        self._commit_log = commit_log
        self._thread = ThreadPoolExecutor(1, "refold-writer")
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()

    async def commit(self, commit: Commit) -> None:
        """Write a commit, retrying until it is on disk: its orders must not be carried out before.

        Raises Unavailable if the daemon ends first.
        """
        while True:
            try:
                await self._loop.run_in_executor(self._thread, self._commit_log.commit, commit)
            except Unavailable as error:
                if not self.problem:
                    log.error("%s; retrying every %g s", error, RETRY_INTERVAL_SECONDS)
                self.problem = str(error)
                if self._stopping.is_set():
                    raise
                await self._pause()
            else:
                if self.problem:
                    log.warning("the journal is writable again")
                self.problem = ""
                return

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RETRY_INTERVAL_SECONDS):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def write(self, work: Callable[[], None]) -> None:
        """Run `work`, which writes to the store, on the writer's thread, in order with the commits."""
        await self._loop.run_in_executor(self._thread, work)

    def stop_retrying(self) -> None:
        """Make a failing commit give up after at most one more attempt."""
        self._stopping.set()

    def close(self) -> None:
        """Wait for the current write and end the thread."""
        self._thread.shutdown(wait=True)
