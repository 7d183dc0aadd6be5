"""The daemon's address and access token: from arguments, the environment, or the file that the daemon writes."""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from refold.client.api import MAX_TOKEN_CHARS
from refold.errors import BadFile, BadValue, NoDaemon

# The daemon's Unix socket: where it is, and whether the server behind it is the daemon. Who can write a folder can
# replace the socket in it by one of their own.

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


# The daemon's address and access token: from arguments, the environment, or the file that the daemon writes.

NO_DAEMON_MESSAGE = (
    "no Refold daemon found: start one with `refold serve`, or set REFOLD_HOME to its state folder, "
    "or REFOLD_ADDRESS and REFOLD_TOKEN"
)

LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Wildcard addresses, and the loopback address that reaches a daemon bound to them."""

UNIX_SCHEME = "unix:"
"""Prefix of addresses that are paths of Unix sockets."""


class Address(msgspec.Struct, frozen=True, omit_defaults=True):
    """A daemon's address, such as http://127.0.0.1:7170 or unix:/run/refold/refold.sock, and an access token for it.

    A Unix socket needs no token. In the address file, `socket` is the path of the daemon's socket. `uid`: the daemon's,
    if it is known.
    """

    address: str
    token: str = ""
    socket: str = ""
    uid: int | None = None

    def __post_init__(self) -> None:
        if "\n" in self.token or "\r" in self.token or not self.token.isascii():
            raise BadValue("the daemon's token contains invalid characters, expected ASCII without line breaks")
        if len(self.token) > MAX_TOKEN_CHARS:
            raise BadValue(f"the daemon's token has {len(self.token)} characters, expected at most {MAX_TOKEN_CHARS}")
        try:
            parts = urlsplit(self.address)
            usable = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
        except ValueError:
            usable = False
        if not (usable or (self.socket_path is not None and self.socket_path.is_absolute())):
            raise BadValue(
                f"the daemon's address is {self.address!r}, expected one such as http://127.0.0.1:7170 or"
                " unix:/run/refold/refold.sock"
            )

    @property
    def socket_path(self) -> Path | None:
        """The path of the Unix socket, if this is the address of one."""
        is_unix = self.address.startswith(UNIX_SCHEME)
        return Path(self.address.removeprefix(UNIX_SCHEME)) if is_unix else None


def state_folder() -> Path:
    """Return the daemon's state folder: REFOLD_HOME, or ~/.refold."""
    configured = os.environ.get("REFOLD_HOME")
    return Path(configured).expanduser() if configured else Path.home() / ".refold"


def local_url(address: str) -> str:
    """Return the URL by which this machine reaches a daemon that may listen on all addresses."""
    for wildcard, loopback in LOOPBACK_OF_WILDCARD.items():
        address = address.replace(f"//{wildcard}:", f"//{loopback}:").replace(f"//[{wildcard}]:", f"//[{loopback}]:")
    return address


def write_address(folder: Path, address: str, token: str, socket: Path | None = None) -> Path | None:
    """Write the address file atomically, readable by its owner only; without a token and a socket, remove it."""
    path, unfinished = folder / "client.json", folder / f".client.json.{os.getpid()}"
    unfinished.unlink(missing_ok=True)
    if not token and socket is None:
        path.unlink(missing_ok=True)
        return None
    content = Address(local_url(address), token, *(() if socket is None else (str(socket), os.geteuid())))
    try:
        # Created exclusively with mode 0600: at no moment can other users read the token.
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(content))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def find_address(address: str | None = None, token: str | None = None) -> Address:
    """Return the given address and token, else those of the environment, else those of the address file.

    Without any, that of the daemon of this machine. If the address file names a Unix socket, no token is needed.
    """
    address = address or os.environ.get("REFOLD_ADDRESS")
    token = token or os.environ.get("REFOLD_TOKEN")
    if address and (token or address.startswith(UNIX_SCHEME)):
        return Address(address.rstrip("/"), token or "")
    stored = read_address(state_folder())
    if stored is None and not address and not token and MACHINE_SOCKET.exists():
        return Address(f"{UNIX_SCHEME}{MACHINE_SOCKET}")
    if stored is None or (address and address.rstrip("/") != stored.address):
        # A stored token must not be used for any other daemon than its own.
        raise NoDaemon(f"no token for {address}: set REFOLD_TOKEN" if address else NO_DAEMON_MESSAGE)
    if stored.socket and not address and not token:
        return Address(f"{UNIX_SCHEME}{stored.socket}", uid=stored.uid)
    if not (token or stored.token):
        raise NoDaemon(f"no token for {stored.address}: set REFOLD_TOKEN")
    return Address(stored.address, token or stored.token)


def read_address(folder: Path) -> Address | None:
    """Read the address file of a state folder; None if there is none. The daemon may have ended since."""
    path = folder / "client.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Address)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise BadFile(path, f"is not an address file: {error}") from None
