"""The lock of a state folder: one daemon at a time uses it."""

from __future__ import annotations

import fcntl
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import IO

from refold.errors import BadFile
from refold.server import MachineLocks

FILE_NAME = "refold.db"
ENTERED_BY_ALL = 0o711
"""Mode of the folder if jobs run as their users, who have their own folders in it and can read nothing else."""


class FolderInUse(BadFile):
    """Another process uses the state folder."""


class FolderLock:
    """The lock of a state folder. It ends with the process, even if it crashes.

    The lock file keeps daemons of other users and other machines away; the lock of the machine holds even if the folder
    is deleted and another one is created in its place.
    """

    def __init__(self, folder: Path) -> None:
        self._machine = MachineLocks("state")
        self._file = _open_lock_file(folder)
        in_use = FolderInUse(folder, "is in use by another daemon; stop it, or choose another folder with --state")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise in_use from None
        holder = self._machine.acquire(sha256(os.fsencode(folder.resolve())).hexdigest()[:32])
        if holder is not None and holder.uid == os.geteuid():  # others cannot lock us out
            self.close()
            raise in_use

    def close(self) -> None:
        self._file.close()
        self._machine.close()


def _check_permissions(folder: Path) -> None:
    """Reject a folder that other users can access: it holds secrets.

    Its mode is not changed, since the folder may have other uses.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077 and mode != ENTERED_BY_ALL:
        raise BadFile(
            folder,
            f"is accessible to other users (mode {mode:03o}) but holds tokens and job output; run `chmod 700` on it, or"
            " choose another folder with --state",
        )


def _open_lock_file(folder: Path) -> IO[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_permissions(folder)
        for name in (FILE_NAME, "lock"):
            os.close(os.open(folder / name, os.O_CREAT | os.O_RDWR, 0o600))
        return (folder / "lock").open("wb")
    except OSError as error:
        raise BadFile(folder, f"cannot be used as the state folder: {error.strerror}") from None
