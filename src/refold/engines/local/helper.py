"""The privileged helper: a process of root that does for the daemon what only root can do, and no more.

It serves one connection, to the daemon that it has started, and ends with it. See decision 38.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from refold.engines.local.cgroups import Cgroups
from refold.engines.local.helper_messages import (
    Check,
    GroupRequest,
    HelperReply,
    KillRun,
    LimitInstance,
    ListProcesses,
    ListRuns,
    Prepare,
    ReadRun,
    RemoveRun,
    Request,
    Signal,
    StartShim,
    receive_request,
    send,
)
from refold.engines.local.process import list_processes
from refold.engines.local.process_host import (
    MARK_VARIABLE,
    OutputCopy,
    find_start_problem,
    signal_groups,
    start_in_group,
)
from refold.errors import BadInput
from refold.model import Seconds
from refold.server import JobAccount, find_job_account
from refold.server.output import ResourceShortage

JOB_FOLDER_MODE = 0o2770
"""The job's user and the daemon's group may write; what either creates belongs to the daemon's group."""

CHECK_SECONDS: Seconds = 10.0
"""How long the helper waits for what it does as a user, whose file system may not answer."""

SHIM_UMASK = 0o002
PR_SET_PDEATHSIG = 1
SHELL = "/bin/sh"


class Helper:
    """Answers the requests of a daemon. `out`: the folder of the jobs' folders, which belongs to the daemon.

    `cgroups`: those of runs, in which no other cgroup can be named; None: there are none.
    """

    def __init__(
        self, connection: socket.socket, out: Path, daemon: JobAccount, cgroups: Cgroups | None = None
    ) -> None:
        self._cgroups = cgroups
        self._connection = connection
        self._out = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._daemon = daemon
        self._started: set[int] = set()

    def serve(self) -> None:
        """Serve until the daemon has closed the connection."""
        with self._connection:
            self._serve()
        os.close(self._out)
        if self._cgroups is not None:
            self._cgroups.close()

    def _serve(self) -> None:
        while True:
            try:
                request, descriptors = receive_request(self._connection)
            except (EOFError, OSError):
                return
            with ExitStack() as stack:
                for descriptor in descriptors:
                    stack.callback(os.close, descriptor)
                reply = self._answer(request, descriptors)
            self._reap()
            try:
                send(self._connection, reply)
            except OSError:
                return

    def _answer(self, request: Request, descriptors: list[int]) -> HelperReply:
        try:
            match request:
                case Prepare():
                    return self._prepare(request)
                case Check():
                    return self._check(request)
                case StartShim():
                    return self._start(request, descriptors)
                case ListProcesses():
                    found = list_processes(MARK_VARIABLE, uids=True)
                    return HelperReply(processes=[astuple(one) for one in found])
                case Signal():
                    return self._signal(request)
                case _:
                    return HelperReply() if self._cgroups is None else _answer_about_groups(request, self._cgroups)
        except ResourceShortage as error:
            return HelperReply(str(error), errno.EMFILE)
        except OSError as error:
            return HelperReply(error.strerror or str(error), error.errno or 0)
        except Exception as error:  # the helper must not end because of one request
            return HelperReply(str(error))

    def _prepare(self, request: Prepare) -> HelperReply:
        account = find_job_account(request.user, self._daemon.uid)
        if "/" in request.name or request.name in ("", ".", ".."):
            raise BadInput(f"{request.name!r} is not the name of a job's folder")
        with ExitStack() as stack:
            job = _make_folder(stack, self._out, request.name, account.uid, self._daemon.gid, JOB_FOLDER_MODE)
            _make_folder(stack, job, "checkpoint", account.uid, account.gid, 0o700)
        return HelperReply()

    def _check(self, request: Check) -> HelperReply:
        account = find_job_account(request.user, self._daemon.uid)
        copies = [OutputCopy("output", Path(file)) for file in request.files]
        folder = Path(request.folder)
        return HelperReply(
            text=_as_user(account, lambda: find_start_problem(request.program, folder, request.environment, copies))
        )

    def _start(self, request: StartShim, descriptors: list[int]) -> HelperReply:
        account = find_job_account(request.user, self._daemon.uid)
        if len(descriptors) != 1 or request.words[:1] != [SHELL]:
            raise BadInput("expected one descriptor, and a shim")
        process = start_in_group(
            request.words,
            request.place,
            self._cgroups,
            stdout=descriptors[0],
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_home_variables(account) | request.environment,
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            umask=SHIM_UMASK,
            cwd="/",
        )
        process.returncode = 0  # reaped by `_reap`
        self._started.add(process.pid)
        return HelperReply(pid=process.pid)

    def _signal(self, request: Signal) -> HelperReply:
        """Signal with the rights of the job's user: the kernel protects others' processes, whatever a job claims."""
        account, number = find_job_account(str(request.uid), self._daemon.uid), signal.Signals(request.number)
        pid = os.fork()
        if pid == 0:
            try:
                # With another real uid, the user cannot stop this process, for which the helper waits.
                os.setresuid(self._daemon.uid, account.uid, self._daemon.uid)
                signal_groups((group for group in request.groups if group > 1), number)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        return HelperReply()

    def _reap(self) -> None:
        """Let the kernel forget shims that have ended. Their exit status is in a file."""
        for pid in list(self._started):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._started.discard(pid)


def _answer_about_groups(request: GroupRequest, cgroups: Cgroups) -> HelperReply:
    match request:
        case KillRun(run):
            cgroups.kill(run)
        case LimitInstance(place):
            cgroups.limit(place)
        case ReadRun(run, usage):
            return HelperReply(pids=cgroups.members(run), usage=list(cgroups.usage(run)) if usage else [])
        case RemoveRun(run):
            cgroups.remove(run)
        case ListRuns():
            return HelperReply(runs=cgroups.runs())
    return HelperReply()


def _make_folder(stack: ExitStack, parent: int, name: str, uid: int, gid: int, mode: int) -> int:
    """Create a folder for a user, or check that it is that user's; return a descriptor. Links are not followed."""
    is_new = True
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        is_new = False
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    stack.callback(os.close, folder)
    info = os.fstat(folder)
    if is_new and info.st_uid == 0:
        os.fchown(folder, uid, gid)
        os.fchmod(folder, mode)
    elif info.st_uid != uid or not stat.S_ISDIR(info.st_mode):
        raise BadInput(f"the folder {name!r} belongs to another user")
    return folder


def _as_user(account: JobAccount, function: Callable[[], str]) -> str:
    """Call a function in a process of a user, who may stop it; return its text, or that of its error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            drop_privileges(account)
            os.write(writing, function().encode("utf-8", "surrogateescape")[:4096])
        except BaseException as error:
            os.write(writing, str(error).encode("utf-8", "surrogateescape")[:4096])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        in_time = select.select([answer], [], [], CHECK_SECONDS)[0]
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        text = answer.read() if in_time else f"no answer within {CHECK_SECONDS:g} s".encode()
    os.waitpid(pid, 0)
    return text.decode("utf-8", "surrogateescape")


def drop_privileges(account: JobAccount) -> None:
    """Become a user for good."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def _home_variables(account: JobAccount) -> dict[str, str]:
    return {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}


def start_daemon(daemon: JobAccount, folder: Path, out: Path, cgroups: Cgroups | None = None) -> socket.socket:
    """Split this process of root: return in a child with the rights of `daemon`, and serve it here as its helper.

    The helper ends with the daemon, with the same exit status. `folder`: the daemon's state; `out`: in it, of runs.
    `cgroups`: those of runs.
    """
    for path, mode in ((folder, 0o711), (out, 0o711)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _give(path, daemon, mode)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        drop_privileges(daemon)
        _end_with_parent()
        os.environ.update(_home_variables(daemon) | {"HOME": str(folder)})
        return theirs
    theirs.close()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: _forward(pid, received))
    os._exit(_serve_until_end(Helper(ours, out, daemon, cgroups), pid))


def _end_with_parent() -> None:
    """Let the kernel end the daemon if its helper is killed: it could start and stop nothing."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _give(path: Path, daemon: JobAccount, mode: int) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid not in (0, daemon.uid):
            raise BadInput(f"{path} belongs to another user than {daemon.name!r}")
        os.fchown(folder, daemon.uid, daemon.gid)
        os.fchmod(folder, mode)
    finally:
        os.close(folder)


def _forward(pid: int, number: Any) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _serve_until_end(helper: Helper, pid: int) -> int:
    """Serve the daemon, and return its exit status."""
    helper.serve()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code
