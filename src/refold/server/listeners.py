"""Sockets on which the daemon listens: TCP, and a Unix socket for the users of this machine."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from refold.client import MACHINE_SOCKET, SOCKET_NAME, reachable_path, shared_socket_folder
from refold.errors import BadInput
from refold.server.config import AUTO, OFF, Config


@dataclass(frozen=True)
class Listeners:
    """The sockets of the daemon: TCP, and the Unix socket at a path, if there is one."""

    tcp: socket.socket
    unix: socket.socket | None = None
    path: Path | None = None

    @property
    def all(self) -> list[socket.socket]:
        return [self.tcp] if self.unix is None else [self.tcp, self.unix]


@contextmanager
def open_listeners(config: Config, folder: Path) -> Iterator[Listeners]:
    """Bind the sockets; close them at the end."""
    path = find_socket_path(config, folder)
    with open_tcp_listener(config.serve.host, config.serve.port) as listener:
        if path is None:
            yield Listeners(listener)
        else:
            with unix_listener(path, bool(config.users.allow)) as local:
                yield Listeners(listener, local, path)


def open_tcp_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadInput(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --host or --port"
        ) from None
    return listener


def format_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_socket_path(config: Config, folder: Path) -> Path | None:
    """Return where the Unix socket is to be; None: there is none.

    By default in the state folder, which only the daemon's user can enter; if others are allowed, where they find it.
    """
    if config.serve.socket == OFF or not hasattr(socket, "SO_PEERCRED"):
        return None
    if config.serve.socket != AUTO:
        return Path(config.serve.socket).absolute()
    if not config.users.allow and not config.serve.user:
        return folder.absolute() / SOCKET_NAME
    if runtime_folder := os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]:  # of systemd
        return Path(runtime_folder) / SOCKET_NAME
    return (
        MACHINE_SOCKET if config.serve.user or os.geteuid() == 0 else shared_socket_folder(os.geteuid()) / SOCKET_NAME
    )


@contextmanager
def unix_listener(path: Path, for_all: bool) -> Iterator[socket.socket]:
    """Bind the Unix socket; remove its file at the end, and the folder that is made for it.

    `for_all`: every user of this machine may connect.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            _prepare_folder(path.parent, for_all)
            _remove_stale(path)
            with reachable_path(path) as short:
                listener.bind(short)
            path.chmod(0o666 if for_all else 0o600)
        except OSError as error:
            raise BadInput(f"cannot listen on {path}: {error.strerror or error}; set serve.socket") from None
        try:
            yield listener
        finally:
            with suppress(OSError):
                path.unlink()
                if path == MACHINE_SOCKET:
                    path.parent.rmdir()  # with `serve.user`, the helper of root does it


def _prepare_folder(folder: Path, for_all: bool) -> None:
    """Create the folder of the socket. Other users must not be able to replace the socket in it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if for_all:
            folder.chmod(0o755)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise BadInput(
            f"cannot listen in {folder}: expected a folder that belongs to uid {os.geteuid()} and that others cannot"
            " write; set serve.socket"
        )
    if for_all and not info.st_mode & 0o001:
        raise BadInput(f"{folder} cannot be entered by other users, who are allowed by users.allow; set serve.socket")


def _remove_stale(path: Path) -> None:
    """Remove the socket of a daemon that has died; refuse that of a living one, and other files."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise BadInput(f"cannot listen on {path}: there is another file; set serve.socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe, reachable_path(path) as short:
        probe.settimeout(1.0)
        try:
            probe.connect(short)
        except ConnectionRefusedError:
            path.unlink()
            return
    raise BadInput(f"another daemon listens on {path}; stop it, or set serve.socket")
