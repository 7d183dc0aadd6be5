"""Files and folders of an agent that exist as long as it does: those of agents that were killed are removed later.

The owner of a path, whose pid is in the name, holds a lock on it, which the kernel releases when the owner ends in
whatever way. The pid alone would not do: agents in other containers may share the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Protocol

from refold.errors import BadFile
from refold.model import Seconds

SHARED_MEMORY = Path("/dev/shm")

_PREFIX = f"refold-train-{os.getuid()}-"
_STATE_SUFFIX = ".state"
_SCHEDULED = "scheduled"
_MAX_SOCKET_PATH = 100
_SPARE = 1.1
"""Free space that must be available, as a multiple of what is needed."""


class AgentFolder:
    """The folder of an agent, for its sockets and requests. Its name contains the agent's pid."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = folder_of(os.getpid())
        self.path.mkdir(mode=0o700)
        self._lock = _lock(self.path)
        self._state: Path | None = None
        self._state_file = -1
        self._sockets = 0

    def mark_as_scheduled(self) -> None:
        """Let others know that requests to the agent come from a back end only."""
        (self.path / _SCHEDULED).touch()

    def new_socket(self) -> Path:
        """Return a path for a socket, which does not exist."""
        self._sockets += 1
        return self.path / f"{self._sockets}.socket"

    def shared_state(self, size: int) -> Path:
        """Return a file for the state of a model, in shared memory if there is enough for this size."""
        if self._state is None:
            fits = SHARED_MEMORY.is_dir() and _free_bytes(SHARED_MEMORY) >= size * _SPARE
            self._state = (SHARED_MEMORY if fits else self.path) / f"{_PREFIX}{os.getpid()}{_STATE_SUFFIX}"
            self._state_file = os.open(self._state, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._state_file, fcntl.LOCK_EX)
        return self._state

    def reserve(self, size: int) -> None:
        """Let the file for the state have this size."""
        try:
            if os.fstat(self._state_file).st_size < size:
                os.posix_fallocate(self._state_file, 0, size)
        except OSError as error:
            raise BadFile(self._state, f"cannot hold {size} bytes of model state: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the files."""
        if self._state is not None:
            _remove_with_companions(self._state)
            os.close(self._state_file)
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def folder_of(agent: int) -> Path:
    """Return the folder of the agent with this pid."""
    return _parent() / f"{_PREFIX}{agent}"


def is_scheduled(agent: int) -> bool:
    """Whether a back end has started the agent with this pid."""
    return (folder_of(agent) / _SCHEDULED).exists()


def running_agents() -> list[int]:
    """Return the pids of this user's agents."""
    folders = [path for path in _parent().glob(f"{_PREFIX}*") if path.is_dir() and _has_owner(path)]
    return sorted(map(_owner, folders))


def remove_abandoned() -> None:
    """Remove what agents of this user that were killed have left."""
    for path in (*_parent().glob(f"{_PREFIX}*"), *SHARED_MEMORY.glob(f"{_PREFIX}*{_STATE_SUFFIX}")):
        with suppress(OSError):
            if _is_running(_owner(path)) or _has_owner(path):
                continue  # an agent that has just started may not hold the lock yet
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                _remove_with_companions(path)


def _remove_with_companions(state: Path) -> None:
    """Remove a file and those that the ranks have created beside it."""
    for path in state.parent.glob(f"{state.name}*"):
        path.unlink(missing_ok=True)


def _parent() -> Path:
    """Return the folder for temporary files; paths of sockets must be short."""
    folder = Path(tempfile.gettempdir())
    return folder if len(str(folder)) + len(_PREFIX) + 30 < _MAX_SOCKET_PATH else Path("/tmp")


def _owner(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX).removesuffix(_STATE_SUFFIX))


def _is_running(pid: int) -> bool:
    """Whether a process other than this one has this pid."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _has_owner(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _free_bytes(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


# The machine of an agent, as far as its supervisor needs it: a clock, and shared memory.


class SupervisedMachine(Protocol):
    """What the supervisor needs to know of the machine."""

    def now(self) -> Seconds:
        """Return the time of a monotonic clock."""

    def shared_state(self, size: int) -> str:
        """Return the path of a file in shared memory, which may grow to this size."""

    def reserve(self, size: int) -> None:
        """Let the file have this size, or raise an error."""


class LocalMachine:
    """This machine."""

    def __init__(self, folder: AgentFolder) -> None:
        self._folder = folder

    def now(self) -> Seconds:
        return monotonic()

    def shared_state(self, size: int) -> str:
        return str(self._folder.shared_state(size))

    def reserve(self, size: int) -> None:
        self._folder.reserve(size)
