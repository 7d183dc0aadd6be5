"""The daemon's Unix socket: where it is, and whether the server behind it is the daemon.

Who can write a folder can replace the socket in it by one of their own.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refold.errors import NoDaemon

SOCKET_NAME = "refold.sock"
MACHINE_SOCKET = Path("/run/refold") / SOCKET_NAME
"""Socket of the daemon of this machine, in a folder that only root can create."""

MAX_PATH_BYTES = 107
"""Maximum length of the path of a Unix socket."""

_CREDENTIALS = struct.Struct("3i")
"""Linux' `struct ucred`: pid, uid, gid."""

_SHARED_FOLDER = re.compile(r"refold-([0-9]+)")


def shared_socket_folder(uid: int) -> Path:
    """Return the folder of the socket of a daemon that other users may use, if root did not start it."""
    return Path("/tmp") / f"refold-{uid}"


@contextmanager
def reachable_path(path: Path) -> Iterator[str]:
    """Yield a path that the kernel accepts for a Unix socket: through a descriptor of its folder, if it is long."""
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def peer_uid(connection: socket.socket) -> int:
    """Return the uid of the process at the other end of a Unix socket: the one that has connected, or that listens."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def connect(path: Path, timeout: float, uid: int | None) -> socket.socket:
    """Connect to the daemon. `uid`: that of the daemon; None: that of the socket's folder. Raises `NoDaemon`."""
    owner = _check_folders(path) if uid is None else uid
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        with reachable_path(path) as short:
            connection.connect(short)
        server = peer_uid(connection)
        if server != owner:
            raise NoDaemon(f"the server at {path} belongs to uid {server}, expected {owner}; nothing was sent")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_folders(path: Path) -> int:
    """Check that only the owner of the socket's folder, and root, can replace the socket; return that owner."""
    folder = path.parent
    owner = folder.stat().st_uid
    expected = _SHARED_FOLDER.fullmatch(folder.name)
    if expected and int(expected[1]) != owner:
        raise NoDaemon(f"{folder} belongs to uid {owner}: it is not the folder of that user's daemon; nothing was sent")
    for place in (folder.resolve(), *folder.resolve().parents):
        info = place.stat()
        others_may_write = info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX
        if others_may_write or info.st_uid not in (0, owner):
            raise NoDaemon(f"other users can replace {path}, because they can write {place}; nothing was sent")
    return owner
