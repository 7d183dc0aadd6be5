"""Which of several daemons schedules the cluster: the one that holds the Lease, and the lock of its state folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from refold.engines.kubernetes.access import Access
from refold.engines.kubernetes.api_server import ApiError, ApiServer
from refold.engines.kubernetes.engine import DAEMON_KEY
from refold.engines.kubernetes.lease import Lease, this_process
from refold.errors import BadInput, RefoldError
from refold.model import Seconds
from refold.server import load_daemon_id
from refold.server.store import FolderInUse, Store

LEASE_NAME = "refold"
ATTEMPT_PAUSE: Seconds = 1.0
RETRY_FOR: Seconds = 3.0
"""How long a request for the Lease is repeated: less than it lasts."""


log = logging.getLogger("refold")


class LeaseLost(RefoldError):
    """Another daemon schedules the cluster now."""


class Leadership:
    """The right to schedule a cluster with the state in a folder.

    `ended`: set when the daemon is to end; also set when the Lease is lost.
    """

    def __init__(self, access: Access, namespace: str, folder: Path, ended: asyncio.Event) -> None:
        self._folder = folder
        self._ended = ended
        self._lease = Lease(ApiServer(access, RETRY_FOR), namespace, LEASE_NAME, this_process(folder))
        self._lost = ""
        self._loop = asyncio.get_running_loop()

    async def acquire(self, standby: bool, say: Callable[[str], None]) -> str:
        """Wait until this daemon may schedule the cluster; return its id, or '' if it is to end before that.

        Without `standby`, raise BadInput if another daemon is alive. `say` tells what is waited for.
        """
        told = ""
        while not self._ended.is_set():
            if await self._try_lease(is_waiting=standby and bool(told)):
                self._lease.hold(self._lose)
                return await self._lock_folder(say)
            other = self._lease.other_holder()
            if not standby and self._lease.is_other_alive:
                raise BadInput(
                    f"the cluster is scheduled by another daemon: {other} holds the Lease {self._lease.text};"
                    " stop it, or start with --standby to take over when it ends"
                )
            if other != told:
                say(f"{other} schedules the cluster (Lease {self._lease.text}); waiting to take over")
                told = other
            await self._pause()
        return ""

    def check(self) -> None:
        """Raise ApiError unless this daemon may change the cluster now."""
        self._lease.check()

    async def release(self) -> None:
        """Let another daemon take over at once."""
        await asyncio.to_thread(self._lease.release)

    def raise_if_lost(self) -> None:
        """Raise LeaseLost if another daemon has taken over."""
        if self._lost:
            raise LeaseLost(f"{self._lost} schedules the cluster now (Lease {self._lease.text})")

    async def _try_lease(self, is_waiting: bool) -> bool:
        """Return whether the Lease is held now. A restart of the API server does not end a daemon that waits for it."""
        try:
            return await asyncio.to_thread(self._lease.try_acquire, self._is_folder_unused)
        except ApiError as error:
            if is_waiting and error.is_transient:
                log.warning("the Lease %s cannot be read: %s; trying again", self._lease.text, error)
                return False
            raise BadInput(f"the Lease {self._lease.text} cannot be acquired: {error}") from None

    async def _lock_folder(self, say: Callable[[str], None]) -> str:
        """Wait until no other process has locked the state folder; return the id of the daemon."""
        told = False
        while not self._ended.is_set():
            try:
                return await asyncio.to_thread(load_daemon_id, self._folder, DAEMON_KEY)
            except FolderInUse as error:
                if not told:
                    say(f"{error}; waiting until it is free")
                told = True
            await self._pause()
        return ""

    def _is_folder_unused(self) -> bool:
        try:
            Store(self._folder).close()
        except FolderInUse:
            return False
        return True

    def _lose(self, other: str) -> None:
        def end() -> None:
            self._lost = other or "another daemon"
            self._ended.set()

        self._loop.call_soon_threadsafe(end)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(ATTEMPT_PAUSE):
                await self._ended.wait()
        except TimeoutError:
            return
