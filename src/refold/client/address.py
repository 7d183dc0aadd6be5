"""Where the daemon is, and the token that opens it: told by the environment, or by the file that it leaves."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from refold.api import ANYWHERE
from refold.errors import BadFile, BadValue, NoDaemon

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
