"""Requests for changes of the plan, and their answers, in files beside each other. No PyTorch.

The agent of a run that trains creates the file `$REFOLD_CHANGE.agent`. The back end writes a `ChangeRequest` as JSON to
$REFOLD_CHANGE. The agent writes a `ChangeAnswer` to `$REFOLD_CHANGE.done` when only ranks of the new plan are left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from refold.model import ChangeAnswer, ChangeRequest


class ChangeFile:
    """The agent's side."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def poll(self) -> ChangeRequest | None:
        """Return a request that has not been returned before."""
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._seen:
                return None
            self._seen = version
            return msgspec.json.decode(self._path.read_bytes(), type=ChangeRequest)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            _print(f"cannot read the request in {self._path}: {error}")
            return None

    def announce(self) -> None:
        """Let the back end know that requests are answered."""
        self._write(self._announcement(), b"")

    def was_announced(self) -> bool:
        """Whether an agent of the run has announced that, on this host or another one that shares the folder."""
        return self._announcement().exists()

    def _announcement(self) -> Path:
        return self._path.with_name(f"{self._path.name}.agent")

    def answer(self, answer: ChangeAnswer) -> None:
        """Answer a request."""
        self._write(_answer_path(self._path), msgspec.json.encode(answer))

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_atomically(path, content)
        except OSError as error:
            _print(f"cannot write {path}: {error}")


def write_request(path: Path, request: ChangeRequest) -> None:
    """Request a change."""
    write_atomically(path, msgspec.json.encode(request))


def read_answer(path: Path, run: int) -> ChangeAnswer | None:
    """Return the answer to the request for a run, if there is one."""
    try:
        answer = msgspec.json.decode(_answer_path(path).read_bytes(), type=ChangeAnswer)
    except FileNotFoundError:
        return None
    return answer if answer.run == run else None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that never exists in part, and that others cannot read."""
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")  # agents of several hosts may write
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)


def _answer_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.done")


def _print(text: str) -> None:
    print(f"refold.train: {text}", file=sys.stderr, flush=True)
