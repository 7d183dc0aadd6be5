"""Files that a command writes for a later one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_atomically(path: Path, contents: bytes) -> None:
    """Write a file that has the old or the new contents if the command is interrupted. Raises `BadFile`."""
    from refold.errors import BadFile

    unfinished = path.with_name(path.name + ".new")
    try:
        unfinished.write_bytes(contents)
        unfinished.replace(path)
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None
