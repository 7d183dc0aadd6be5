"""The files of a run on Ray, beside those that every run has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from zlib import crc32

from refold.core import RunFailed, RunFinished, RunStopped
from refold.server.output import (
    OWNER_ONLY_FOLDER,
    ResourceShortage,
    RunFiles,
    StartRecord,
    read_regular,
    write_atomically,
)

FIRST_PORT, PORTS = 20_000, 10_000
"""Where gangs meet: above the ports of Ray's workers, below those that the system gives to programs."""


class RayRunFiles:
    """The files of one run. `common`: those that every run has."""

    def __init__(self, out: Path, job: str, run: int) -> None:
        self.common = RunFiles(out, job, run)
        self.key = (job, run)
        self._prefix = self.common.folder / f"run-{run}"

    def record_start(self, mark: str, instances: int) -> StartRecord:
        """Write the start record before anything is created; if there is one already, return that."""
        first = FIRST_PORT + crc32(mark.encode()) % (PORTS - instances - 1)
        ports = range(first + 1, first + 1 + instances) if instances > 1 else ()
        return self.common.record_start(StartRecord(mark, first if instances > 1 else 0, tuple(ports)))

    def record_end(self, end: RunFinished | RunFailed | RunStopped) -> None:
        """Write how the run ends, unless that was written before."""
        with suppress(OSError):
            self.common.folder.mkdir(mode=OWNER_ONLY_FOLDER, parents=True, exist_ok=True)
            self.common.record_end(end)

    def has_begun(self) -> bool:
        """Whether all instances were started."""
        return self._path("ray.begun").exists()

    def note_begun(self) -> None:
        """Note that all instances were started."""
        write_atomically(self._path("ray.begun"), b"")

    def copied(self, instance: int) -> int:
        """Return how many bytes of an instance's output were copied."""
        with suppress(OSError, ResourceShortage, ValueError):
            return int(read_regular(self._path(f"{instance}.copied")))
        return 0

    def note_copied(self, instance: int, count: int) -> None:
        """Note how many bytes of an instance's output were copied."""
        write_atomically(self._path(f"{instance}.copied"), str(count).encode())

    def _path(self, suffix: str) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}.{suffix}")
