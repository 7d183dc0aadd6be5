"""Messages between the daemon and its privileged helper, over a socket pair: requests with descriptors, and replies."""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import Any

import msgspec

from refold.engines.local.run_groups import GroupPlace, InstanceUsage
from refold.model import Seconds

_LENGTH = struct.Struct("!I")
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_DESCRIPTORS = 1

CHECK_SECONDS: Seconds = 10.0
"""How long a check may take, in a process that its user may stop, on a file system that may not answer."""

MAX_ANSWER_BYTES = select.PIPE_BUF
"""Maximum length of the answer to a check, which is then written at once."""

ANSWERED = b"\n"
"""The end of the answer to a check. Without it, the process was stopped or killed."""


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Create the folder of a job, for a user."""

    user: str
    name: str


class Check(msgspec.Struct, frozen=True, tag=True):
    """Find out, as a user, why a program cannot be started. `files`: those that receive a copy of its output.

    The answer is written to the descriptor that comes with the message, later than the reply.
    """

    user: str
    program: str
    folder: str
    environment: dict[str, str]
    files: list[str]


class StartShim(msgspec.Struct, frozen=True, tag=True):
    """Start a process as a user. Its output goes to the descriptor that comes with the message.

    `place`: the cgroup in which it runs.
    """

    user: str
    words: list[str]
    environment: dict[str, str]
    place: GroupPlace | None = None


class ListProcesses(msgspec.Struct, frozen=True, tag=True):
    """List all processes."""


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Signal process groups, as the user with this uid."""

    uid: int
    groups: list[int]
    number: int


class KillRun(msgspec.Struct, frozen=True, tag=True):
    """Kill all processes in the cgroups of a run."""

    run: str


class LimitInstance(msgspec.Struct, frozen=True, tag=True):
    place: GroupPlace


class ReadRun(msgspec.Struct, frozen=True, tag=True):
    """Return the pids in the cgroups of a run and, with `usage`, what its instances have used."""

    run: str
    usage: bool = False


class RemoveRun(msgspec.Struct, frozen=True, tag=True):
    run: str


class ListRuns(msgspec.Struct, frozen=True, tag=True):
    """Return all runs that have cgroups."""


GroupRequest = KillRun | LimitInstance | ReadRun | RemoveRun | ListRuns
Request = Prepare | Check | StartShim | ListProcesses | Signal | GroupRequest


class HelperReply(msgspec.Struct, frozen=True):
    """The answer to a request. `error` and `errno`: why it was refused or failed; else what the request asks for."""

    error: str = ""
    errno: int = 0
    pid: int = 0
    text: str = ""
    processes: list[tuple[int, int, int, int, bool, str, int | None, int, int]] = []
    pids: list[int] = []
    runs: list[str] = []
    usage: list[InstanceUsage] = []


def send(connection: socket.socket, message: Any, *descriptors: int) -> None:
    """Send a message, with descriptors."""
    content = msgspec.json.encode(message)
    socket.send_fds(connection, [_LENGTH.pack(len(content))], descriptors)
    connection.sendall(content)


def receive_request(connection: socket.socket) -> tuple[Request, list[int]]:
    """Receive a request with its descriptors. Raises EOFError at the end of the connection."""
    content, descriptors = _receive(connection)
    try:
        request: Request = msgspec.json.decode(content, type=Request)
    except msgspec.DecodeError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise EOFError from None
    return request, descriptors


def receive_reply(connection: socket.socket) -> HelperReply:
    return msgspec.json.decode(_receive(connection)[0], type=HelperReply)


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    header, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, MAX_DESCRIPTORS)
    if not header:
        raise EOFError
    (length,) = _LENGTH.unpack(header + _read(connection, _LENGTH.size - len(header)))
    if length > MAX_MESSAGE_BYTES:
        raise EOFError
    return _read(connection, length), descriptors


def _read(connection: socket.socket, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        part = connection.recv(min(length, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
