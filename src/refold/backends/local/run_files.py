"""The files that a run leaves in its job's folder: what a daemon knows of runs that an earlier one has started."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import msgspec

from refold.backends.local.safe_files import FOLDER_FOR_US_ALONE, read_plain, write_whole
from refold.core import RunFailed, RunFinished, RunStopped

LONGEST_FOLDER_NAME = 200

_UNREADABLE = (OSError, msgspec.DecodeError, UnicodeError, RecursionError)

Ending = RunFinished | RunFailed | RunStopped
"""How a run has ended, or is about to."""


def log_path(out: Path, job: str, run: int, instance: int) -> Path:
    """Where an instance's output goes. A job's id is not trusted to be a name for a folder."""
    return RunFiles(out, job, run).log(instance)


class StartNote(msgspec.Struct, frozen=True):
    """What all instances of a run share, whoever starts them: the mark of their processes, and a port to meet at."""

    mark: str
    port: int


class RunFiles:
    """Where one run's files are."""

    def __init__(self, out: Path, job: str, run: int) -> None:
        self._whose = (job, run)
        self._out = out
        self.folder = out / _folder_name(job)
        self.kept = self.folder / "kept"
        """A folder that every run of the job finds as the one before has left it."""
        self.end = self.folder / f"run-{run}.end"
        self._name = f"run-{run}"
        self._start = self.folder / f"{self._name}.start"

    def log(self, instance: int) -> Path:
        """What it has written to its standard output and error."""
        return self._of(instance, "log")

    def claim(self, instance: int) -> Path:
        """By whom it was started."""
        return self._of(instance, "claim")

    def exit(self, instance: int) -> Path:
        """With which status it has ended."""
        return self._of(instance, "exit")

    def progress(self, instance: int) -> Path:
        """Where it may write how many steps it has done."""
        return self._of(instance, "progress")

    def _of(self, instance: int, kind: str) -> Path:
        return self.folder / f"{self._name}.{instance}.{kind}"

    def note_start(self, note: StartNote) -> StartNote:
        """Write down how a run is started, before anything of it is; or, if that has been done, what was written."""
        self._out.mkdir(mode=FOLDER_FOR_US_ALONE, parents=True, exist_ok=True)
        for folder in (self.folder, self.kept):
            folder.mkdir(mode=FOLDER_FOR_US_ALONE, exist_ok=True)
        if earlier := self.start_note():
            return earlier
        write_whole(self._start, msgspec.json.encode(note))
        return note

    def start_note(self) -> StartNote | None:
        """How the run was started, if it was."""
        try:
            return msgspec.json.decode(read_plain(self._start), type=StartNote)
        except _UNREADABLE:
            return None

    def decide(self, ending: Ending) -> None:
        """Write down how the run ends before it is ended: from now on nothing of it starts, and nobody decides anew."""
        write_whole(self.end, msgspec.json.encode(ending))

    def decided(self) -> Ending | None:
        """How the run ends, if that is decided."""
        try:
            ending: Ending = msgspec.json.decode(read_plain(self.end), type=Ending)
        except _UNREADABLE:
            return None
        return ending if (ending.job, ending.run) == self._whose else None  # else a job speaks for another one


def mark_prefix(out: Path) -> str:
    """How the marks of all processes begin that are started for this folder."""
    return hashlib.sha256(os.fsencode(out.resolve())).hexdigest()[:16] + "-"


def new_mark(out: Path) -> str:
    """A mark for the processes of one more run."""
    return mark_prefix(out) + uuid4().hex


def _folder_name(job: str) -> str:
    name = quote(job, safe=" ", errors="surrogatepass")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > LONGEST_FOLDER_NAME:
        name = f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()}"
    return name
