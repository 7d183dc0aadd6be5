"""Where the daemon is, and the token that opens it: told by the environment, or by the file that it leaves."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from refold.errors import BadFile, BadValue, NoDaemon

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What stands for all addresses of a machine, and which of them is reached from here."""

NOBODY = "no Refold daemon is known here: start one with `refold serve`, or set REFOLD_ADDRESS and REFOLD_TOKEN"


class Address(msgspec.Struct, frozen=True):
    """A daemon's address, such as http://127.0.0.1:7170, and a token that it knows."""

    address: str
    token: str

    def __post_init__(self) -> None:
        if "\n" in self.token or "\r" in self.token or not self.token.isascii():
            raise BadValue("the token for the daemon has characters that no token has")
        try:
            parts = urlsplit(self.address)
            usable = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
        except ValueError:
            usable = False
        if not usable:
            raise BadValue(f"the daemon's address is {self.address!r}, expected one such as http://127.0.0.1:7170")


def state_folder() -> Path:
    """Where a daemon keeps what it knows: REFOLD_HOME, or ~/.refold."""
    named = os.environ.get("REFOLD_HOME")
    return Path(named).expanduser() if named else Path.home() / ".refold"


class Names:
    """By which names a daemon may be asked: a page of somebody else's cannot have it called by one of these.

    `host` is where it was told to listen, `bound` the address that this is; where that is every address of the machine,
    any address will do, since one that was written as numbers is nobody's to give away.
    """

    def __init__(self, host: str = "127.0.0.1", bound: str = "", named: Iterable[str] = ()) -> None:
        bound = bound or host
        known = [*LOOPBACK, host, bound, *named]
        if not _is_loopback(bound):
            known += [socket.gethostname(), socket.getfqdn()]
        self._known = {name.lower().strip("[]").rstrip(".") for name in known if name}
        self._any_address = bound in ANYWHERE

    def __contains__(self, name: str) -> bool:
        return name.lower().rstrip(".") in self._known or (self._any_address and _is_address(name))


def _is_loopback(address: str) -> bool:
    return address in LOOPBACK or (_is_address(address) and ip_address(address).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def write_address(folder: Path, address: str, token: str) -> Path | None:
    """Leave word of a daemon, for whoever may read this user's files, at once and wholly; without a token, none."""
    path, unfinished = folder / "client.json", folder / f".client.json.{os.getpid()}"
    unfinished.unlink(missing_ok=True)
    if not token:
        path.unlink(missing_ok=True)
        return None
    for everywhere, here in ANYWHERE.items():
        address = address.replace(f"//{everywhere}:", f"//{here}:").replace(f"//[{everywhere}]:", f"//[{here}]:")
    try:
        # Made by us and with mode 0600: there is no moment at which others could read the token.
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(Address(address, token)))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def find_address(address: str | None = None, token: str | None = None) -> Address:
    """What is given, else what the environment says, else what a daemon has left in the state folder."""
    address = address or os.environ.get("REFOLD_ADDRESS")
    token = token or os.environ.get("REFOLD_TOKEN")
    if address and token:
        return Address(address.rstrip("/"), token)
    left = left_address(state_folder())
    if left is None or (address and address.rstrip("/") != left.address):
        # A token is for the daemon that gave it: it is not sent to another address.
        raise NoDaemon(f"there is no token for {address}: set REFOLD_TOKEN" if address else NOBODY)
    return Address(left.address, token or left.token)


def left_address(folder: Path) -> Address | None:
    """Where the daemon was, or is, that keeps its state there; None: there was none."""
    path = folder / "client.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Address)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise BadFile(path, f"is not what a daemon leaves: {error}") from None
