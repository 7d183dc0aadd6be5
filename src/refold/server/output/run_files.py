"""The files of a run, by which a restarted daemon adopts runs that are still running.

What the daemon records of a run is in a folder of its own, which users cannot change. Output, claims, exit statuses and
whatever else the processes of a run write is in the folder of its job, which may belong to the job's user.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import msgspec

from refold.core import RunFailed, RunFinished, RunStopped
from refold.model import Allocation
from refold.server.output.safe_files import (
    OWNER_ONLY_FOLDER,
    SHARED_FILE,
    ResourceShortage,
    read_regular,
    write_atomically,
)

MAX_FOLDER_NAME_CHARS = 200

RECORDS_FOLDER = ".records"
"""Folder of the daemon's records of runs, beside the jobs' folders, none of which has a name that begins with a dot."""

RECORD_SUFFIXES = (".start", ".claim", ".exit", ".end", ".progress", ".pipe", ".change", ".done", ".agent")

UNREADABLE = (OSError, msgspec.DecodeError, UnicodeError, RecursionError)

RunEnd = RunFinished | RunFailed | RunStopped
"""How a run ends. It is recorded before the processes of the run are signalled."""


def log_path(out: Path, job: str, run: int, instance: int) -> Path:
    """Return the path of an instance's log. Job ids are escaped: they may not be valid folder names."""
    return RunFiles(out, job, run).log(instance)


LOGS_FOLDER = "logs"
"""Folder of the output of runs, in the state folder."""


class StartRecord(msgspec.Struct, frozen=True):
    """What all instances of a run share, across restarts: the mark of their processes and the ports of a gang.

    `port` is that of the rendezvous; `worker_ports` has one per instance, for frameworks whose workers listen.
    After a live change, `origin` is the run that started the processes, and `prepared` the allocation that they were
    prepared for (see `live_change`).
    """

    mark: str
    port: int
    worker_ports: tuple[int, ...] = ()
    origin: int = 0
    prepared: Allocation | None = None


class RunFiles:
    def __init__(self, out: Path, job: str, run: int) -> None:
        self.job = job
        self.run = run
        self._out = out
        self._origin: int | None = None
        self.folder = out / _folder_name(job)
        self.checkpoint_folder = self.folder / "checkpoint"
        """A folder that persists across the runs of the job."""
        self.records = out / RECORDS_FOLDER / self.folder.name
        """A folder that only the daemon can write."""
        self._name = f"run-{run}"
        self._start = self.records / f"{self._name}.start"
        self._end = self.records / f"{self._name}.end"
        self.end = self.folder / f"{self._name}.end"
        """A file that keeps instances from starting. It says nothing: the job's user may write it."""
        self.launch_folder = self.folder / f"{self._name}.launch"
        """A folder for configuration files of the training framework."""

    def log(self, instance: int) -> Path:
        """Return the file with the instance's standard output and error."""
        return self._path_of(instance, "log")

    def pipe(self, instance: int, stream: str) -> Path:
        """Return the pipe through which a stream is copied to a file of the job."""
        return self._path_of(instance, f"{stream}.pipe")

    def claim(self, instance: int) -> Path:
        return self._path_of(instance, "claim")

    def exit(self, instance: int) -> Path:
        """Return the file with the instance's exit status."""
        return self._origin_path_of(instance, "exit")

    def progress(self, instance: int) -> Path:
        """Return the file where the instance may write the number of steps done."""
        return self._origin_path_of(instance, "progress")

    @property
    def change(self) -> Path:
        """The file with the request for a live change. All instances have its path."""
        return self._origin_path_of(0, "change")

    @property
    def answer(self) -> Path:
        """The file with the answer to it."""
        return self._origin_path_of(0, "change.done")

    @property
    def agent(self) -> Path:
        """The file by which an agent announces that it answers requests."""
        return self._origin_path_of(0, "change.agent")

    def earlier_claim(self, instance: int) -> Path:
        """Return the claim of an instance by the run before this one."""
        return self.of_run(self.run - 1).claim(instance)

    @property
    def origin(self) -> int:
        """The run that started the processes: an earlier one after a live change."""
        if self._origin is None:
            with suppress(ResourceShortage):
                self.read_start()
        return self._origin or self.run

    @property
    def place(self) -> tuple[Path, str]:
        """Where the job's folder is, and its name there."""
        return self._out, self.folder.name

    @staticmethod
    def is_record(path: Path) -> bool:
        """Return whether a file of a run serves to find the run again, and is of no use once its job has ended."""
        return path.suffix in RECORD_SUFFIXES

    def of_run(self, run: int) -> RunFiles:
        return RunFiles(self._out, self.job, run)

    def _path_of(self, instance: int, kind: str) -> Path:
        return self.folder / f"{self._name}.{instance}.{kind}"

    def _origin_path_of(self, instance: int, kind: str) -> Path:
        """Return a file whose path the processes have in their environment or arguments."""
        return self.folder / f"run-{self.origin}.{instance}.{kind}"

    def record_start(self, record: StartRecord) -> StartRecord:
        """Write the start record before any process starts; if there is one already, return that."""
        self._out.mkdir(mode=OWNER_ONLY_FOLDER, parents=True, exist_ok=True)
        for folder in (self.folder, self.checkpoint_folder):
            folder.mkdir(mode=OWNER_ONLY_FOLDER, exist_ok=True)
        if earlier := self.read_start():
            return earlier
        return self.replace_start(record)

    def replace_start(self, record: StartRecord) -> StartRecord:
        self._make_records_folder()
        write_atomically(self._start, msgspec.json.encode(record))
        self._origin = record.origin or self.run
        return record

    def remove_start(self) -> None:
        """Remove the start record of a run that was prepared but not started."""
        self._start.unlink(missing_ok=True)
        self._origin = None

    def write_launch_files(self, files: Mapping[str, str]) -> None:
        """Write configuration files, given by path, into the launch folder, which must not be a link of a job."""
        if not files:
            return
        self.launch_folder.mkdir(mode=0o755, exist_ok=True)
        folder = os.open(self.launch_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            place = Path(f"/proc/self/fd/{folder}") if Path("/proc/self/fd").exists() else self.launch_folder
            for path, text in files.items():
                write_atomically(place / Path(path).relative_to(self.launch_folder), text.encode(), SHARED_FILE)
        finally:
            os.close(folder)

    def read_start(self) -> StartRecord | None:
        """Return the start record, or None."""
        try:
            record = msgspec.json.decode(read_regular(self._start), type=StartRecord)
        except UNREADABLE:
            return None
        self._origin = record.origin or self.run
        return record

    def record_end(self, end: RunEnd) -> None:
        """Write how the run ends before it is ended: from then on no instance starts, and the end is final."""
        write_atomically(self.end, b"")
        self._make_records_folder()
        write_atomically(self._end, msgspec.json.encode(end))

    def read_end(self) -> RunEnd | None:
        """Return how the run ends, if that is recorded."""
        try:
            end: RunEnd = msgspec.json.decode(read_regular(self._end), type=RunEnd)
        except UNREADABLE:
            return None
        return end

    def _make_records_folder(self) -> None:
        for folder in (self.records.parent, self.records):
            folder.mkdir(mode=OWNER_ONLY_FOLDER, exist_ok=True)


def mark_prefix(out: Path) -> str:
    """Return the prefix of the marks of all processes started with this folder."""
    return hashlib.sha256(os.fsencode(out.resolve())).hexdigest()[:16] + "-"


def new_mark(out: Path) -> str:
    return mark_prefix(out) + uuid4().hex


def run_secret(mark: str) -> str:
    """Return what only the instances of a run know, by which their agents recognise each other: they know its mark."""
    return hashlib.sha256(f"secret of {mark}".encode()).hexdigest()[:32]


def _folder_name(job: str) -> str:
    name = quote(job, safe=" ", errors="surrogatepass")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > MAX_FOLDER_NAME_CHARS:
        name = f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()}"
    return name
