"""Who starts, finds and signals the processes of runs: this process itself, or a helper with more rights."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from refold.engines.local import process
from refold.engines.local.cgroups import Cgroups
from refold.engines.local.process import ProcessInfo
from refold.engines.local.run_groups import NO_GROUPS, GroupPlace, RunGroups

MARK_VARIABLE = "REFOLD_MARK"
"""Environment variable by which the processes of a run are recognised."""

NO_SUCH_GROUP = (ProcessLookupError, PermissionError)


GATE = "read -r _refold_gate || exit 97\nexec </dev/null\n"
"""First lines of a script that is started in a cgroup: it waits until it has been moved there."""


class ProcessHost(Protocol):
    """Processes of runs. `user`: that of the job. `groups`: the cgroups of runs."""

    @property
    def groups(self) -> RunGroups: ...

    def prepare(self, user: str, out: Path, name: str, /) -> None:
        """Create the folder of a job, `name` in `out`, and `checkpoint` in it, if they must not be this user's."""

    async def find_start_problem(
        self, user: str, program: str, folder: Path, environment: Mapping[str, str], copies: Sequence[OutputCopy]
    ) -> str:
        """Return why the program cannot be started, or ''."""

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return a job's command, with what has to be set up before it."""

    def start(
        self,
        user: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        place: GroupPlace | None = None,
    ) -> int:
        """Start a process that leads a session of its own, with a descriptor for its output; return its pid.

        `words`: `sh -c SCRIPT` and arguments. `place`: the cgroup in which it runs.
        """

    def uid_of(self, user: str) -> int | None:
        """Return the uid of a user's jobs; None: all jobs have that of this process."""

    def list_processes(self) -> list[ProcessInfo]:
        """Return every process, with its mark; with its uid if those of jobs differ."""

    def signal(self, uid: int | None, groups: Iterable[int], number: signal.Signals) -> None:
        """Signal what belongs to a uid in process groups; groups that do not exist are skipped."""


def start_in_group(
    words: Sequence[str], place: GroupPlace | None, cgroups: Cgroups | None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a shim without input. One with a place begins when it is in its cgroup, so that no child is elsewhere."""
    if place is None or cgroups is None:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, **options)
    cgroups.create(place)
    shell, option, script, *arguments = words
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen([shell, option, GATE + script, *arguments], stdin=reading, **options)
        try:
            cgroups.join(place, process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
        os.write(writing, b"\n")
        return process
    finally:
        os.close(reading)
        os.close(writing)


def signal_groups(groups: Iterable[int], number: signal.Signals) -> None:
    """Signal what this user may signal in process groups."""
    for group in groups:
        with suppress(*NO_SUCH_GROUP):
            os.killpg(group, number)


class OwnProcesses:
    """Runs are processes of this user. `cgroups`: None: there are none."""

    def __init__(self, cgroups: Cgroups | None = None) -> None:
        self._cgroups = cgroups
        self.groups: RunGroups = cgroups or NO_GROUPS

    def prepare(self, *_: object) -> None:
        """Do nothing: the folders are this user's."""

    async def find_start_problem(
        self,
        user: str,  # noqa: ARG002
        program: str,
        folder: Path,
        environment: Mapping[str, str],
        copies: Sequence[OutputCopy],
    ) -> str:
        """Return why the program cannot be started, or ''."""
        return find_start_problem(program, folder, environment, copies)

    def command(self, command: Sequence[str]) -> Sequence[str]:
        return command

    def start(
        self,
        user: str,  # noqa: ARG002
        words: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        place: GroupPlace | None = None,
    ) -> int:
        shell = start_in_group(
            words,
            place,
            self._cgroups,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        shell.returncode = 0  # the process is reaped by `wait_for_exit`, not by this object
        return shell.pid

    def uid_of(self, user: str) -> None:
        """Return None: all processes are of this user."""

    def list_processes(self) -> list[ProcessInfo]:
        """Return every process. Marks of other users' processes are not known."""
        return process.list_processes(MARK_VARIABLE)

    def signal(self, uid: int | None, groups: Iterable[int], number: signal.Signals) -> None:  # noqa: ARG002
        signal_groups(groups, number)


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
