"""Locks of this machine, each of which ends with its process: one daemon per GPU, and per state folder.

A lock is an abstract Unix socket, whose name contains what is locked. The kernel lets only one process bind it (in a
network namespace), no file is left behind that others could tamper with, and a later process learns which one holds it.
"""

from __future__ import annotations

import socket
import struct
import sys

import msgspec

_CREDENTIALS = struct.Struct("3i")
_TIMEOUT_SECONDS = 1.0


class LockHolder(msgspec.Struct, frozen=True):
    """The process that holds a lock; pid 0: unknown."""

    pid: int = 0
    uid: int = -1


class MachineLocks:
    """Locks of one kind, by name."""

    def __init__(self, kind: str) -> None:
        self._prefix = f"\0refold-{kind}-"
        self._held: dict[str, socket.socket] = {}

    def acquire(self, name: str) -> LockHolder | None:
        """Acquire a lock. Return who holds it instead; None: it is ours."""
        if name in self._held or sys.platform != "linux":
            return None
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(self._prefix + name)
        except OSError:
            lock.close()
            return _holder(self._prefix + name)
        lock.listen()  # so that others can connect, and learn who holds it
        self._held[name] = lock
        return None

    def close(self) -> None:
        for lock in self._held.values():
            lock.close()
        self._held.clear()


class GpuLocks(MachineLocks):
    """Locks by UUID of the GPU, or of the MIG instance."""

    def __init__(self) -> None:
        super().__init__("gpu")


def _holder(address: str) -> LockHolder:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        try:
            connection.connect(address)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return LockHolder()
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        return LockHolder(pid, uid)
