"""Files where jobs may put whatever they like: only plain ones are opened, and of these only so much is read.

To open a pipe would keep us waiting for its other end, to follow a link would touch what is not ours to touch. What we
write is for the owner of the daemon alone.
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

FOR_US_ALONE = 0o600
FOLDER_FOR_US_ALONE = 0o700

OUT_OF_SOMETHING = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""What the machine says when it lacks files, processes, memory or room: that is no fault of the job's."""

TRY_AGAIN_AFTER: Seconds = 0.1

MOST_READ = 64 * 2**10
"""Bytes of a note of ours: they are a few hundred, unless a job has made something else of them."""


Found = TypeVar("Found")


class OutOfFileHandles(Exception):
    """The machine can open no more files: what a file says is not known, which is not to say that it is not there."""


def open_plain(path: Path, flags: int = os.O_RDONLY) -> IO[bytes]:
    """A plain file, made if `flags` say so; what is read has no buffer. OSError: there is none, or something else."""
    waits_for_nobody = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags | waits_for_nobody, FOR_US_ALONE)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        os.set_blocking(descriptor, True)
        if flags & os.O_WRONLY:
            return os.fdopen(descriptor, "wb")
        return os.fdopen(descriptor, "r+b" if flags & os.O_RDWR else "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def make_plain(path: Path) -> IO[bytes]:
    """A new file to write to, in the place of whatever is there."""
    path.unlink(missing_ok=True)
    return open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def read_plain(path: Path, most: int = MOST_READ) -> bytes:
    """How a plain file begins; OSError: there is none."""
    try:
        with open_plain(path) as file:
            return file.read(most)
    except OSError as error:
        raise_if_not_now(error)
        raise


def raise_if_not_now(error: OSError) -> None:
    """Tell a machine that lacks something from a file that is not there."""
    if error.errno in OUT_OF_SOMETHING:
        raise OutOfFileHandles(error.strerror) from None


async def patiently(read: Callable[[], Found]) -> Found:
    """What somebody reads from files, as soon as the machine can open some."""
    while True:
        try:
            return read()
        except OutOfFileHandles:
            await asyncio.sleep(TRY_AGAIN_AFTER)


def write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing is there, even if we are killed meanwhile."""
    beside = path.with_name(path.name + ".new")
    with make_plain(beside) as file:
        file.write(content)
    beside.replace(path)


def plain_size(path: Path) -> int:
    """How long a plain file is; 0, if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
