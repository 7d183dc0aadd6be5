"""Processes of runs through the privileged helper: each run has the rights of its job's user."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from refold.engines.local import helper_messages as messages
from refold.engines.local.cgroups import Cgroups
from refold.engines.local.helper_messages import CHECK_SECONDS
from refold.engines.local.process import ProcessInfo, wait_readable
from refold.engines.local.process_host import OutputCopy
from refold.engines.local.run_groups import NO_GROUPS, GroupPlace, InstanceUsage, RunGroups
from refold.errors import RefoldError
from refold.server import find_job_account
from refold.server.output import FOR_ALL, raise_if_shortage

WITH_UMASK = ("/bin/sh", "-c", 'umask 022; exec "$@"', "refold-job")
"""Before a job's command: the shim has another umask, so that the daemon can link to its files."""


NO_UID = -1
"""The uid of a user without an account: no process has it."""


class HelperLost(OSError):
    """The helper does not answer any more."""


class HelperProcesses:
    """Asks the helper at the other end of a connection. Thread-safe: requests are serialised."""

    def __init__(self, connection: socket.socket, cgroups: Cgroups | None = None) -> None:
        """`cgroups`: those that the helper has; None: it has none."""
        self._connection = connection
        self._lock = threading.Lock()
        self.groups: RunGroups = NO_GROUPS if cgroups is None else HelperGroups(self._ask, cgroups.enforced)

    def prepare(self, user: str, out: Path, name: str) -> None:  # noqa: ARG002 - the helper knows where
        """Let the helper create the folder of a job."""
        self._ask(messages.Prepare(user, name))

    async def find_start_problem(
        self, user: str, program: str, folder: Path, environment: Mapping[str, str], copies: Sequence[OutputCopy]
    ) -> str:
        """Let the helper look as the user, who can see more, or less, than the daemon, and may stop what looks."""
        files = [str(copy.path) for copy in copies if copy.path is not None]
        reading, writing = os.pipe()
        try:
            try:
                self._ask(messages.Check(user, program, str(folder), dict(environment), files), writing)
            finally:
                os.close(writing)
            answer = await _read_answer(reading)
        finally:
            os.close(reading)
        if not answer.endswith(messages.ANSWERED):
            limit = f"{CHECK_SECONDS:g} s"
            return f"cannot start {program!r}: whether user {user!r} can was not answered within {limit}"
        return answer.removesuffix(messages.ANSWERED).decode("utf-8", "surrogateescape")

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return the command with the usual umask."""
        return [*WITH_UMASK, *command]

    def start(
        self,
        user: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        output: int,
        place: GroupPlace | None = None,
    ) -> int:
        """Let the helper start a process, whose user may write the log."""
        os.fchmod(output, FOR_ALL)
        return self._ask(messages.StartShim(user, list(words), dict(environment), place), output).pid

    def uid_of(self, user: str) -> int:
        """Return the uid of a user's jobs."""
        try:
            return find_job_account(user, os.geteuid()).uid
        except RefoldError:  # the account was removed
            return NO_UID

    def list_processes(self) -> list[ProcessInfo]:
        """Return every process, with its mark and uid."""
        return [ProcessInfo(*fields) for fields in self._ask(messages.ListProcesses()).processes]

    def signal(self, uid: int | None, groups: Iterable[int], number: signal.Signals) -> None:
        """Let the helper signal process groups as a user. Without one, only their cgroup can end them."""
        if (wanted := list(groups)) and uid not in (None, NO_UID):
            self._ask(messages.Signal(uid, wanted, int(number)))

    def _ask(self, request: messages.Request, *descriptors: int) -> messages.HelperReply:
        with self._lock:
            try:
                messages.send(self._connection, request, *descriptors)
                reply = messages.receive_reply(self._connection)
            except (OSError, EOFError):
                raise HelperLost(0, "the daemon's privileged helper has ended") from None
        if reply.error:
            error = OSError(reply.errno, reply.error)
            raise_if_shortage(error)
            raise error
        return reply


async def _read_answer(descriptor: int) -> bytes:
    """Read what a process writes at once, if it does so in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CHECK_SECONDS):
            await wait_readable(descriptor)
            return os.read(descriptor, messages.MAX_ANSWER_BYTES)
    return b""


class HelperGroups:
    """The cgroups of runs, in the hands of the helper. `ask`: sends it a request."""

    usable = True

    def __init__(self, ask: Callable[[messages.Request], messages.HelperReply], enforced: frozenset[str]) -> None:
        self._ask = ask
        self.enforced = enforced

    def members(self, run: str) -> list[int]:
        return self._ask(messages.ReadRun(run)).pids

    def kill(self, run: str) -> None:
        self._ask(messages.KillRun(run))

    def limit(self, place: GroupPlace) -> None:
        self._ask(messages.LimitInstance(place))

    def usage(self, run: str) -> list[InstanceUsage]:
        return self._ask(messages.ReadRun(run, usage=True)).usage

    def remove(self, run: str) -> None:
        self._ask(messages.RemoveRun(run))

    def runs(self) -> list[str]:
        return self._ask(messages.ListRuns()).runs

    def close(self) -> None:
        """Do nothing: the helper ends with the daemon."""
