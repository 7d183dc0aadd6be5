"""Writes a checkpoint so that it is complete or does not count."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from torch.distributed.checkpoint import FileSystemWriter, Metadata, SavePlan
from torch.distributed.checkpoint.fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.storage import WriteResult

PARTIAL_SUFFIX = ".partial"

NO_CACHE = {"use_listings_cache": False}
"""Options of file systems of fsspec: other ranks and runs write to the same folder."""


class AtomicWriter(FileSystemWriter):
    """Writes to `folder` with the suffix '.partial', which the coordinator renames when every rank has written.

    `texts` are further files of the checkpoint by name.
    `prepare_global_plan` and `finish` run on the coordinator only, and PyTorch reports their errors to every rank.
    """

    def __init__(self, folder: Path, texts: Mapping[str, str]) -> None:
        self._folder = folder
        self._partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
        self._texts = texts
        super().__init__(self._partial)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is: the coordinator creates the folder."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Remove what earlier attempts have left before any rank writes."""
        for leftover in self._folder.parent.glob(f"*{PARTIAL_SUFFIX}"):
            shutil.rmtree(leftover)
        self._partial.mkdir(parents=True)
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the checkpoint: its files are on disk before it gets its name."""
        super().finish(metadata, results)
        for name, text in self._texts.items():
            with (self._partial / name).open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        _sync_folder(self._partial)
        replaced = self._partial.with_name(f"replaced-{self._partial.name}")
        if self._folder.exists():  # the same step again, after a restart from an older checkpoint
            self._folder.rename(replaced)
        self._partial.rename(self._folder)
        _sync_folder(self._folder.parent)
        shutil.rmtree(replaced, ignore_errors=True)

    def remove_partial(self) -> None:
        """Remove what was written: after an error, so that the space can be used again."""
        shutil.rmtree(self._partial, ignore_errors=True)


class RemoteWriter(FsspecWriter):
    """Writes to an address of fsspec. `texts` are further files, written last: they make the checkpoint complete.

    `clean` removes incomplete checkpoints.
    """

    def __init__(self, address: str, texts: Mapping[str, str], clean: Callable[[], None]) -> None:
        self._texts = texts
        self._clean = clean
        super().__init__(address, sync_files=False, **NO_CACHE)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is: the coordinator makes room."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Remove what earlier attempts have left before any rank writes."""
        if self.fs.exists(self.path):
            self.remove_partial()
        self._clean()
        self.fs.mkdir(self.path)
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the checkpoint."""
        super().finish(metadata, results)
        for name, text in self._texts.items():
            with self.fs.create_stream(f"{self.path}/{name}", "wb") as file:
                file.write(text.encode())

    def remove_partial(self) -> None:
        """Remove what was written, first what makes it complete."""
        with suppress(Exception):  # errors of file systems are of many kinds
            for name in self._texts:
                if self.fs.exists(f"{self.path}/{name}"):
                    self.fs.rm_file(f"{self.path}/{name}")
            self.fs.fs.rm(self.path, recursive=True)


CheckpointWriter = AtomicWriter | RemoteWriter


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
