"""Several Unix users in one test: functions run in processes of other uids. Needs root, but no accounts."""

from __future__ import annotations

import os
import pickle
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

ANN, BEN = 60_001, 60_002
"""Uids without accounts."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as several Unix users")

Result = TypeVar("Result")


def as_user(uid: int, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a forked process with this uid and gid, and return or raise what it returns or raises."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        answer: tuple[bool, Any]
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            answer = True, function(*arguments)
        except BaseException as error:
            answer = False, error
        with os.fdopen(writing, "wb") as file:
            pickle.dump(answer, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    os.waitpid(pid, 0)
    succeeded, result = pickle.loads(content)
    if not succeeded:
        raise result
    return result  # type: ignore[no-any-return]


@contextmanager
def public_folder(uid: int = 0) -> Iterator[Path]:
    """Make a folder of a user that others can enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="refold-test-", dir="/tmp"))
    folder.chmod(0o755)
    os.chown(folder, uid, uid)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


ENTER = """\
set -e
mkdir -p "$2"
mount --bind "$1" "$2"
mount -t tmpfs -o mode=755 tmpfs "$3"
mkdir -p "$1"
mount --bind "$2" "$1"
shift 3
exec "$@"
"""


def with_readable_interpreter(words: Sequence[str], folder: Path) -> list[str]:
    """Return a command with which every user can run this interpreter, also if it is in the home folder of root.

    In a mount namespace of its own, the home folder is replaced by one that has nothing but the interpreter. `folder`:
    an empty one, which serves as a mount point.
    """
    prefix = Path(sys.base_prefix).resolve()
    closed = [place for place in prefix.parents if not place.stat().st_mode & 0o001]
    if not closed:
        return list(words)
    return ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(prefix), str(folder), str(closed[-1]), *words]


@contextmanager
def made_accounts(home: Path, *names: str) -> Iterator[list[int]]:
    """Create accounts of this machine, with home folders in `home`, and return their uids; remove them at the end."""
    made: list[str] = []
    try:
        for name in (f"{name}-{os.getpid()}" for name in names):
            folder = home / name
            subprocess.run(["useradd", "--create-home", "--home-dir", str(folder), name], check=True)
            made.append(name)
        yield [pwd.getpwnam(name).pw_uid for name in made]
    finally:
        for name in made:
            subprocess.run(["userdel", "--force", name], check=True)
