"""The policy file that `refold tune` writes, and that names a policy wherever one is expected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from refold.errors import BadFile
from refold.simulator import PolicyFile


def write_policy_file(path: Path, file: PolicyFile) -> None:
    """Write a policy file. The path of a Python file in it becomes relative to its folder."""
    if file.name.endswith(".py"):
        file = msgspec.structs.replace(file, name=_relative(Path(file.name), path.parent))
    document: Mapping[str, Any] = msgspec.to_builtins(file)
    comment = f"# Settings of a policy, for example: refold serve --policy {path}\n"
    try:
        path.write_text(comment + yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None


def _relative(file: Path, folder: Path) -> str:
    from os.path import relpath

    return relpath(file.resolve(), folder.resolve())
