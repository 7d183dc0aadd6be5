"""The files of a run that its jobs in Slurm read and write, beside those that every run has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from refold.core import RunFailed, RunStopped
from refold.engines.slurm.run_jobs import SlurmId
from refold.server.output import SHARED_FILE, ResourceShortage, RunFiles, StartRecord, read_regular, write_atomically

FIRST_PORT, PORTS = 20_000, 10_000
"""Where gangs meet: below the ports that the system gives to programs. Which ones a node uses is not known here."""

MAX_LINE_BYTES = 32
_ID = re.compile(r"[0-9]+(\.[0-9]+)?")


class SlurmRunFiles:
    """The files of one run. `common`: those that every run has."""

    def __init__(self, out: Path, job: str, run: int) -> None:
        self.common = RunFiles(out, job, run)
        self.prefix = self.common.folder / f"run-{run}"
        self.output = self._path("slurm.log")
        """What the batch script prints."""
        self.client = self._path("slurm.srun")
        """What srun prints, which starts a step."""

    def claim(self) -> SlurmId | None:
        """Return the job or the step of Slurm that has claimed the run, if there is one."""
        text = self._read_line("slurm.claim")
        return text if text and _ID.fullmatch(text) else None

    def status(self) -> int | None:
        """Return the exit status of the run, if it has ended by itself or was stopped."""
        text = self._read_line("slurm.status")
        return int(text) if text and text.isdecimal() else None

    def was_prepared(self) -> bool:
        """Whether a job may have been submitted for the run."""
        return self.common.read_start() is not None

    def record_start(self, mark: str, instances: int) -> StartRecord:
        """Write the start record before a job is submitted; if there is one already, return that."""
        first = FIRST_PORT + crc32(mark.encode()) % (PORTS - instances - 1)
        ports = range(first + 1, first + 1 + instances) if instances > 1 else ()
        return self.common.record_start(StartRecord(mark, first if instances > 1 else 0, tuple(ports)))

    def record_end(self, end: RunStopped | RunFailed) -> bool:
        """Write how the run ends, and whether that was possible: from then on no job starts it."""
        try:
            self.common.record_end(end)
        except OSError:
            return False
        return True

    def are_of(self, owner: int) -> bool:
        """Whether the folder of the job exists and belongs to a user."""
        try:
            return self.common.folder.lstat().st_uid == owner
        except OSError:
            return False

    def write_scripts(self, scripts: Sequence[str]) -> None:
        """Write the scripts of the instances. They contain their environment; the folder is private."""
        for instance, text in enumerate(scripts):
            write_atomically(self._path(f"{instance}.sh"), text.encode(errors="surrogateescape"), SHARED_FILE)

    def write_launcher(self, script: str) -> Path:
        """Write the script that a job or a step runs; return its path."""
        path = self._path("slurm.sh")
        write_atomically(path, script.encode(errors="surrogateescape"), SHARED_FILE)
        return path

    def _path(self, suffix: str) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.{suffix}")

    def _read_line(self, suffix: str) -> str | None:
        with suppress(OSError, ResourceShortage):
            text = read_regular(self._path(suffix), MAX_LINE_BYTES)
            if text.endswith(b"\n"):
                return text.decode("ascii", "replace").strip()
        return None
