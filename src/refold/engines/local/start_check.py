"""Whether a command can be started: checked first, since a shim cannot report why exec failed. Light to import."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OutputCopy:
    """A file that receives a copy of a stream. `replace`: whether to empty the file first."""

    stream: str
    path: Path | None = None
    replace: bool = False


NO_COPIES = (OutputCopy("output"), OutputCopy("error"))


def find_start_problem(
    program: str, folder: Path, environment: Mapping[str, str], copies: Sequence[OutputCopy] = NO_COPIES
) -> str:
    """Return why the program cannot be started, or ''."""
    if not folder.is_dir():
        return f"folder {str(folder)!r} does not exist"
    for file in filter(None, (copy.path for copy in copies)):
        if file.is_dir() or not file.parent.is_dir():
            return f"{file} cannot be written: {os.strerror(errno.EISDIR if file.is_dir() else errno.ENOENT)}"
    path = str(folder / program) if "/" in program else program
    if shutil.which(path, path=environment.get("PATH", os.defpath)):
        return ""
    exists = "/" in program and Path(path).exists()
    return f"cannot start {program!r}: {os.strerror(errno.EACCES if exists else errno.ENOENT)}"
