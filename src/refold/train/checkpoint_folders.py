"""Where checkpoints are: in a folder of this machine, or at any address that fsspec knows, such as `s3://bucket/run`.

PyTorch is imported when a checkpoint is written or read, not before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from refold.errors import BadFile, BadInput

if TYPE_CHECKING:
    from torch.distributed.checkpoint import FileSystemReader

    from refold.train.checkpoint_writer import CheckpointWriter

FACTS_FILE = "facts.json"
"""The file of a checkpoint that is written last: at an address, one without it is incomplete."""

PREFIX = "step-"
"""How the names of checkpoints begin."""

Result = TypeVar("Result")


class CheckpointFolder(Protocol):
    """A folder of checkpoints, by name."""

    def names(self) -> list[str]:
        """Return the names of complete checkpoints, and of others than checkpoints."""

    def facts(self, name: str) -> str:
        """Return the text of the facts of a checkpoint; raise an OSError if there is none."""

    def writer(self, name: str, texts: Mapping[str, str]) -> CheckpointWriter:
        """Return what writes a checkpoint, and further files by name."""

    def reader(self, name: str) -> FileSystemReader:
        """Return what reads a checkpoint."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint, if that is possible."""

    def path(self, name: str) -> str:
        """Return the path or address of a checkpoint."""


def checkpoint_folder(address: Path | str) -> CheckpointFolder:
    """Return the folder at a path or an address."""
    text = str(address).removeprefix("file://")
    return RemoteFolder(text) if "://" in text else LocalFolder(Path(text))


class LocalFolder:
    """A folder of this machine, or of a file system that it has mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def names(self) -> list[str]:
        try:
            return [entry.name for entry in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    def facts(self, name: str) -> str:
        return (self._folder / name / FACTS_FILE).read_text()

    def writer(self, name: str, texts: Mapping[str, str]) -> CheckpointWriter:
        from refold.train.checkpoint_writer import AtomicWriter

        return AtomicWriter(self._folder / name, texts)

    def reader(self, name: str) -> FileSystemReader:
        from torch.distributed.checkpoint import FileSystemReader

        return FileSystemReader(self._folder / name)

    def remove(self, name: str) -> None:
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def path(self, name: str) -> str:
        return str(self._folder / name)


class RemoteFolder:
    """An address of fsspec. It cannot rename folders: a checkpoint is complete when its facts are there."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def __str__(self) -> str:
        return self._address

    def names(self) -> list[str]:
        return self._ask(lambda: [path.split("/")[-2] for path in self._files.glob(f"{self._root}/*/{FACTS_FILE}")])

    def facts(self, name: str) -> str:
        text: str = self._ask(lambda: self._files.cat_file(f"{self._root}/{name}/{FACTS_FILE}").decode())
        return text

    def writer(self, name: str, texts: Mapping[str, str]) -> CheckpointWriter:
        from refold.train.checkpoint_writer import RemoteWriter

        return RemoteWriter(self.path(name), texts, self._remove_incomplete)

    def reader(self, name: str) -> FileSystemReader:
        from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader

        return FsspecReader(self.path(name), use_listings_cache=False)

    def remove(self, name: str) -> None:
        with suppress(Exception):  # a checkpoint too many does no harm
            self._files.rm(f"{self._root}/{name}/{FACTS_FILE}")  # first: then it is not complete
            self._files.rm(f"{self._root}/{name}", recursive=True)

    def _remove_incomplete(self) -> None:
        """Remove what runs have left that were killed while they wrote."""
        with suppress(Exception):
            complete = self.names()
            for path in self._files.ls(self._root, detail=False):
                if (name := path.rstrip("/").split("/")[-1]) not in complete and name.startswith(PREFIX):
                    self._files.rm(path, recursive=True)

    def path(self, name: str) -> str:
        return f"{self._address}/{name}"

    @cached_property
    def _files(self) -> Any:
        from fsspec.core import url_to_fs

        try:
            return url_to_fs(self._address, use_listings_cache=False)[0]
        except (ImportError, ValueError) as error:
            raise BadInput(f"checkpoints cannot be at {self._address}: {error}") from None

    @property
    def _root(self) -> str:
        root: str = self._files._strip_protocol(self._address)
        return root

    def _ask(self, question: Callable[[], Result]) -> Result:
        """Return the answer of a file system; its errors are of many kinds."""
        try:
            return question()
        except (BadInput, FileNotFoundError):
            raise
        except Exception as error:
            raise BadFile(self._address, f"cannot be read: {type(error).__name__}: {error}") from None
