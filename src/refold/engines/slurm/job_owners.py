"""The Unix user of jobs in Slurm: the daemon's user for all, or for each job the user who submitted it."""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Protocol

from refold.engines.local import HelperLost, OwnProcesses, ProcessHost
from refold.engines.slurm.programs import TIMEOUT_SECONDS, Programs, SlurmError, program_message
from refold.engines.slurm.run_jobs import own_jobs
from refold.errors import BadInput
from refold.server import find_account, find_job_account
from refold.server.output import OWNER_ONLY_FOLDER

Uid = int

CALL = '"$@" 2>&1; echo "refold status $?"'
"""Runs a program and prints its exit status last."""

IDENTITY = ("HOME", "USER", "LOGNAME", "SHELL")
OPERATORS = ("Operator", "Administrator")
INHERITED = ("PATH", "LANG", "LC_ALL", "TZ")
"""Variables of the daemon that jobs of other users have, if they bring none of their own."""


class JobOwners(Protocol):
    """The owners of jobs of Slurm, and what can be done only as one of them."""

    @property
    def inherited(self) -> Mapping[str, str]:
        """The environment of jobs that bring none of their own."""

    @property
    def selection(self) -> Sequence[str]:
        """The options of squeue for the jobs of all of them."""

    def check(self) -> None:
        """Check that the daemon can see all their jobs. Raises BadInput or SlurmError."""

    def uid_of(self, user: str) -> Uid:
        """Return the owner of the jobs of a user. Raises BadInput if the user cannot have any."""

    def prepare(self, owner: Uid, out: Path, name: str) -> None:
        """Create the folder of a job, `name` in `out`, which its owner and the daemon can write. Raises OSError."""

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return a job's command, with what has to be set up before it."""

    def run(self, owner: Uid, program: str, *arguments: str) -> str:
        """Run a program as an owner and return its output. Raises SlurmError with its message."""


class DaemonOwner:
    """All jobs are of the daemon's user."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs.without_user_environment()
        self.inherited: Mapping[str, str] = os.environ
        self.selection: Sequence[str] = own_jobs()

    def check(self) -> None:
        """Do nothing: all users see their own jobs."""

    def uid_of(self, user: str) -> Uid:
        """Return the daemon's uid."""
        del user
        return os.getuid()

    def prepare(self, owner: Uid, out: Path, name: str) -> None:
        """Create the folder of a job."""
        del owner
        (out / name).mkdir(mode=OWNER_ONLY_FOLDER, parents=True, exist_ok=True)

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return the command as it is."""
        return OwnProcesses().command(command)

    def run(self, owner: Uid, program: str, *arguments: str) -> str:
        """Run a program."""
        del owner
        return self._programs.run(program, *arguments)


class SubmitterOwners:
    """Each job runs as the user who submitted it. `host`: starts processes as users."""

    def __init__(self, programs: Programs, host: ProcessHost) -> None:
        self._programs = programs
        found = programs.without_user_environment().environment
        self._environment = {name: value for name, value in found.items() if name not in IDENTITY}
        self._host = host
        self.inherited: Mapping[str, str] = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self.selection: Sequence[str] = ()

    def check(self) -> None:
        """Check that Slurm does not hide the jobs of users. Without them, runs would seem to be lost."""
        found = re.search(r"^PrivateData *= *(.*)$", self._programs.run("scontrol", "show", "config"), re.MULTILINE)
        if found is None or "jobs" not in found[1].split(","):
            return
        user = find_account(str(os.geteuid())).name
        words = ("--noheader", "--parsable2", "show", "user", user, "format=AdminLevel")
        if self._programs.run("sacctmgr", *words).strip() not in OPERATORS:
            raise BadInput(
                f"PrivateData=jobs in slurm.conf hides the jobs of users from {user}: run"
                f" `sacctmgr modify user {user} set adminlevel=Operator`"
            )

    def uid_of(self, user: str) -> Uid:
        """Return the uid of a user; not of root, a system account or the daemon's user."""
        return find_job_account(user, os.geteuid()).uid

    def prepare(self, owner: Uid, out: Path, name: str) -> None:
        """Create the folder of a job, or check that it is its owner's."""
        try:
            self._host.prepare(str(owner), out, name)
        except HelperLost as error:  # the daemon ends as well, and the next one prepares it
            raise SlurmError(f"the folder of the job is temporarily not there: {error.strerror}") from None

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return the command with the usual umask: with that of the job, the daemon can write its files."""
        return self._host.command(command)

    def run(self, owner: Uid, program: str, *arguments: str) -> str:
        """Run a program, whose user Slurm takes for the job's."""
        reading, writing = os.pipe()
        try:
            words = ["/bin/sh", "-c", CALL, "refold", program, *arguments]
            try:
                pid = self._host.start(str(owner), words, self._environment, writing)
            except OSError as error:
                raise SlurmError(f"{program} cannot be run: {error.strerror}") from None
            finally:
                os.close(writing)
            text = self._read(owner, reading, program, pid)
        finally:
            os.close(reading)
        output, _, status = text.rpartition("refold status ")
        if status.strip() != "0":
            code = int(status) if status.strip().isdecimal() else 1
            raise SlurmError(program_message(program, output, code))
        return output

    def _read(self, owner: Uid, pipe: int, program: str, pid: int) -> str:
        """Read what a program prints until it ends; end it if it takes too long."""
        deadline, content = monotonic() + TIMEOUT_SECONDS, b""
        while select.select([pipe], [], [], max(0.0, deadline - monotonic()))[0]:
            if not (part := os.read(pipe, 2**16)):
                return content.decode(errors="replace")
            content += part
        self._host.signal(owner, [pid], signal.SIGKILL)
        raise SlurmError(f"{program} did not answer within {TIMEOUT_SECONDS:g} s")
