"""Which of several daemons schedules the cluster: the one that holds the Lease, and the lock of its state folder."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from refold.engines.kubernetes.access import Access
from refold.engines.kubernetes.api_server import CONFLICT, NOT_FOUND, ApiError, ApiServer
from refold.engines.kubernetes.objects import Metadata
from refold.errors import BadInput, RefoldError
from refold.model import Seconds
from refold.server import load_daemon_id
from refold.server.store import FolderInUse, Store

DAEMON_KEY = "kubernetes-daemon"
"""Key in the store's `meta` table: what tells the runs of this daemon from those of others."""

LEASE_NAME = "refold"
ATTEMPT_PAUSE: Seconds = 0.5
RETRY_FOR: Seconds = 1.0
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


# A Lease: of several daemons, one schedules a cluster at a time. Its holder renews it several times per duration. A
# daemon that sees no renewal for the duration takes it over, unless it could not read the Lease meanwhile: then the
# holder could not renew it either. Clocks of different machines are not compared. A holder that cannot renew it in time
# sends no more requests that change something (`check`), well before another daemon may take over, and continues when
# it succeeds again.

DURATION: Seconds = 3.0
"""Without a renewal for this long, another daemon takes over. Short: a daemon that was slow only has to restart."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Who holds a Lease, and since when."""

    holder_identity: str = ""
    lease_duration_seconds: int = int(DURATION)
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class LeaseObject(msgspec.Struct, frozen=True, rename="camel"):
    """A coordination.k8s.io/v1 Lease."""

    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class Holder(NamedTuple):
    """Who holds the Lease: a process that uses a state folder on a machine."""

    place: str
    process: str

    def __str__(self) -> str:
        return f"{self.place}_{self.process}"


def this_process(folder: Path) -> Holder:
    """Return this process as a holder. In a pod, HOSTNAME is the name of the pod."""
    host = os.environ.get("HOSTNAME") or socket.gethostname()
    digest = sha256(str(folder.absolute()).encode()).hexdigest()[:8]
    return Holder(f"{host}_{digest}", f"{os.getpid()}-{os.urandom(4).hex()}")


class Lease:
    """A Lease that this process holds or waits for."""

    def __init__(
        self, api: ApiServer, namespace: str, name: str, holder: Holder, *, duration: Seconds = DURATION
    ) -> None:
        """`api`: a client without a guard, since the Lease is what permits other changes."""
        self._api = api
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._holder = holder
        self._duration = duration
        self._valid_until = 0.0
        self._observed: tuple[LeaseSpec, Seconds] | None = None
        """The Lease of another holder, and when it was first seen so."""
        self.is_other_alive = False
        """Whether another holder was seen to renew the Lease."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def text(self) -> str:
        return f"{self._folder.split('/')[-2]}/{self._name}"

    @property
    def is_held(self) -> bool:
        """Whether this process may change the cluster now."""
        return _now() < self._valid_until

    def check(self) -> None:
        """Raise a transient ApiError unless the Lease is held."""
        if not self.is_held:
            raise ApiError(0, "NotLeading", f"the Lease {self.text} is not held")

    def other_holder(self) -> str:
        """Return the other holder of the Lease, as it was last seen; '' if there is none."""
        return "" if self._observed is None else self._observed[0].holder_identity

    def try_acquire(self, is_dead: Callable[[], bool] = lambda: False) -> bool:
        """Take the Lease if it is free, or its holder has not renewed it in time. Blocks for one or two requests.

        `is_dead`: whether an earlier process with the same state folder on this machine has certainly ended.
        """
        began, found = _now(), self._read()
        if found is None:
            return self._write(None, began)
        holder = found.spec.holder_identity
        if holder in ("", str(self._holder)) or self._has_expired(found.spec):
            return self._write(found, began)
        if holder.startswith(f"{self._holder.place}_") and is_dead():
            return self._write(found, began)
        return False

    def hold(self, lost: Callable[[str], None]) -> None:
        """Renew the Lease from a thread until `release`. `lost` is called, from it, when another process holds it."""
        self._thread = threading.Thread(target=self._renew, args=(lost,), name="refold-lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop renewing the Lease, and let another process have it at once."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self.is_held:
            try:
                current = self._read()
                if current is not None and current.spec.holder_identity == str(self._holder):
                    self._put(current, LeaseSpec("", 1, lease_transitions=current.spec.lease_transitions))
            except ApiError as error:
                log.warning("the Lease %s cannot be released: %s", self.text, error)
        self._valid_until = 0.0
        self._api.close()

    def _renew(self, lost: Callable[[str], None]) -> None:
        told = False
        while not self._ended.wait(self._duration / 6):
            try:
                if (other := self._renew_once()) is not None:
                    self._valid_until = 0.0
                    lost(other)
                    return
                told = False
            except ApiError as error:
                if not told:
                    log.warning("the Lease %s cannot be renewed: %s; trying again", self.text, error)
                told = True

    def _renew_once(self) -> str | None:
        """Renew the Lease; return who else has or had it meanwhile. A conflict is no loss: the next attempt tells."""
        began, found = _now(), self._read()
        if found is not None and found.spec.holder_identity != str(self._holder):
            return found.spec.holder_identity
        self._write(found, began)
        return None

    def _read(self) -> LeaseObject | None:
        """Return the Lease as it is; None if it does not exist."""
        try:
            return self._api.get(f"{self._folder}/{self._name}", LeaseObject)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            if self._observed is not None:
                self._observed = (self._observed[0], _now())  # a renewal would not have been seen
            raise

    def _has_expired(self, spec: LeaseSpec) -> bool:
        """Whether the Lease was not renewed for its duration, since it was first seen as it is."""
        now = _now()
        if self._observed is None or self._observed[0] != spec:
            self.is_other_alive = self._observed is not None
            self._observed = (spec, now)
        return now >= self._observed[1] + max(spec.lease_duration_seconds, 1)

    def _write(self, found: LeaseObject | None, began: Seconds) -> bool:
        """Write this process as the holder; return whether no other was faster."""
        now, before = _timestamp(), LeaseSpec() if found is None else found.spec
        is_renewal = before.holder_identity == str(self._holder)
        spec = LeaseSpec(
            str(self._holder),
            max(1, round(self._duration)),
            before.acquire_time if is_renewal else now,
            now,
            before.lease_transitions + (not is_renewal and found is not None),
        )
        try:
            self._put(found, spec)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            return False
        self._observed = None
        self._valid_until = began + self._duration * 2 / 3
        return True

    def _put(self, found: LeaseObject | None, spec: LeaseSpec) -> None:
        version = {} if found is None else {"resourceVersion": found.metadata.resource_version}
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, **version},
            "spec": {key: value for key, value in msgspec.to_builtins(spec).items() if value is not None},
        }
        if found is None:
            self._api.call("POST", self._folder, body, retry=False)
        else:
            self._api.call("PUT", f"{self._folder}/{self._name}", body, retry=False)


def _now() -> Seconds:
    """Return the time since this machine was started, also while it was suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
