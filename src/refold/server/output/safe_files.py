"""Access to files in folders where jobs may write: only regular files are opened, and reads are bounded.

Opening a FIFO would block until its other end is opened, and following a symlink would access files elsewhere. Files
created here are readable by their owner only.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

from refold.model import Seconds

OWNER_ONLY_FILE = 0o600
OWNER_ONLY_FOLDER = 0o700
SHARED_FILE = 0o644
"""Mode of files in a job's folder that the job reads. The folder is private; the job's user may be another one."""

SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""Errors of a machine short of file descriptors, processes, memory or disk space: not the job's fault."""

FOR_ALL = 0o666
"""Mode of pipes and logs in a job's folder, which is private. The job's user may be another one."""

RETRY_SECONDS: Seconds = 0.1

MAX_READ_BYTES = 64 * 2**10
"""Maximum bytes read of a record file. Records have a few hundred, unless a job has overwritten them."""

Result = TypeVar("Result")


class ResourceShortage(Exception):
    """A file could not be opened because of a resource shortage: its content is unknown, but it may exist."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> IO[bytes]:
    """Open a regular file; reading is unbuffered. OSError if it does not exist or is not a regular file."""
    safe_flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags | safe_flags, OWNER_ONLY_FILE)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        os.set_blocking(descriptor, True)
        if flags & os.O_WRONLY:
            return os.fdopen(descriptor, "wb")
        return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def create_regular(path: Path) -> IO[bytes]:
    """Create a file for writing, replacing whatever is at its path."""
    path.unlink(missing_ok=True)
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def read_regular(path: Path, limit: int = MAX_READ_BYTES) -> bytes:
    """Read up to `limit` bytes of a regular file. Raises OSError or `ResourceShortage`."""
    try:
        with open_regular(path) as file:
            return file.read(limit)
    except OSError as error:
        raise_if_shortage(error)
        raise


def raise_if_shortage(error: OSError) -> None:
    """Raise `ResourceShortage` if that is the cause of an OSError."""
    if error.errno in SHORTAGE_ERRNOS:
        raise ResourceShortage(error.strerror) from None


async def retry_on_shortage(read: Callable[[], Result]) -> Result:
    """Call `read` until there is no resource shortage, and return its result."""
    while True:
        try:
            return read()
        except ResourceShortage:
            await asyncio.sleep(RETRY_SECONDS)


def write_atomically(path: Path, content: bytes, mode: int = OWNER_ONLY_FILE) -> None:
    """Write a file atomically: after a crash it has the old or the new content."""
    temporary = path.with_name(path.name + ".new")
    with create_regular(temporary) as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
    temporary.replace(path)


def share_pipe(path: Path) -> None:
    """Let every user who can reach a new pipe of this user use it. Whatever a job puts in its place is left alone."""
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(pipe)
        if not stat.S_ISFIFO(info.st_mode) or info.st_uid != os.geteuid():
            raise OSError(errno.EINVAL, "not a pipe of this user", str(path))
        os.fchmod(pipe, FOR_ALL)
    finally:
        os.close(pipe)


def is_regular(path: Path) -> bool:
    """Whether there is a regular file; a link to one is none, wherever it points."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def regular_size(path: Path) -> int:
    """Return the size of a regular file; 0 if there is none."""
    try:
        info = path.lstat()
    except OSError:
        return 0
    return info.st_size if stat.S_ISREG(info.st_mode) else 0
