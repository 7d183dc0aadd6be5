"""The privileged helper: a process of root that does for the daemon what only root can do, and no more.

It serves one connection, to the daemon that it has started, and ends with it. See decision 38.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import stat
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import astuple
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from refold.engines.local import helper_messages as messages
from refold.engines.local.cgroups import Cgroups
from refold.engines.local.helper_messages import CHECK_SECONDS
from refold.engines.local.process import list_processes
from refold.engines.local.process_host import (
    MARK_VARIABLE,
    OutputCopy,
    find_start_problem,
    signal_groups,
)
from refold.errors import BadInput
from refold.server import JobAccount, end_with_parent, find_job_account
from refold.server.output import ResourceShortage

JOB_FOLDER_MODE = 0o2770
"""The job's user and the daemon's group may write; what either creates belongs to the daemon's group."""

OPEN = b"\n"
"""What lets a new process become the user's."""

SHIM_UMASK = 0o002
SHELL = "/bin/sh"

MAX_WORD_BYTES = 2**17 - 1
"""Maximum length of an argument or environment variable that Linux accepts (MAX_ARG_STRLEN)."""

OVERHEAD_BYTES = 9
"""What the kernel needs for each of them beside its characters: their end, and a pointer."""

FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
UID_MAP = Path("/proc/self/uid_map")


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
        self._sender_uid = find_unused_uid()
        self._children: dict[int, float] = {}
        """Processes that were started, and when each is to be killed at the latest."""

    def serve(self) -> None:
        """Serve until the daemon has closed the connection."""
        with self._connection:
            self._serve()
        os.close(self._out)
        if self._cgroups is not None:
            self._cgroups.close()

    def _serve(self) -> None:
        while True:
            self._wait_for_request()
            try:
                request, descriptors = messages.receive_request(self._connection)
            except (EOFError, OSError):
                return
            with ExitStack() as stack:
                for descriptor in descriptors:
                    stack.callback(os.close, descriptor)
                reply = self._answer(request, descriptors)
            try:
                messages.send(self._connection, reply)
            except OSError:
                return

    def _answer(self, request: messages.Request, descriptors: list[int]) -> messages.HelperReply:
        try:
            match request:
                case messages.Prepare():
                    return self._prepare(request)
                case messages.Check():
                    return self._check(request, descriptors)
                case messages.StartShim():
                    return self._start(request, descriptors)
                case messages.ListProcesses():
                    found = list_processes(MARK_VARIABLE, uids=True)
                    return messages.HelperReply(processes=[astuple(one) for one in found])
                case messages.Signal():
                    return self._signal(request)
                case _:
                    return (
                        messages.HelperReply()
                        if self._cgroups is None
                        else _answer_about_groups(request, self._cgroups)
                    )
        except ResourceShortage as error:
            return messages.HelperReply(str(error), errno.EMFILE)
        except OSError as error:
            return messages.HelperReply(error.strerror or str(error), error.errno or 0)
        except Exception as error:  # the helper must not end because of one request
            return messages.HelperReply(str(error))

    def _prepare(self, request: messages.Prepare) -> messages.HelperReply:
        account = find_job_account(request.user, self._daemon.uid)
        if "/" in request.name or request.name in ("", ".", ".."):
            raise BadInput(f"{request.name!r} is not the name of a job's folder")
        with ExitStack() as stack:
            job = _make_folder(stack, self._out, request.name, account.uid, self._daemon.gid, JOB_FOLDER_MODE)
            _make_folder(stack, job, "checkpoint", account.uid, account.gid, 0o700)
        return messages.HelperReply()

    def _check(self, request: messages.Check, descriptors: list[int]) -> messages.HelperReply:
        """Begin to look, as the user, whether a command can be started. The answer goes to the descriptor."""
        account = find_job_account(request.user, self._daemon.uid)
        if len(descriptors) != 1:
            raise BadInput("expected one descriptor for the answer")
        copies = [OutputCopy("output", Path(file)) for file in request.files]
        folder = Path(request.folder)

        def check() -> None:
            _set_output(descriptors[0])
            drop_privileges(account)
            try:
                problem = find_start_problem(request.program, folder, request.environment, copies)
            except OSError as error:
                problem = str(error)
            os.write(1, problem.encode("utf-8", "surrogateescape")[: messages.MAX_ANSWER_BYTES - 1] + messages.ANSWERED)

        self._children[_fork(check)] = monotonic() + CHECK_SECONDS
        return messages.HelperReply()

    def _start(self, request: messages.StartShim, descriptors: list[int]) -> messages.HelperReply:
        """Start a shim. Nothing here waits for a process that has become the user's, who could stop it."""
        account = find_job_account(request.user, self._daemon.uid)
        if len(descriptors) != 1 or request.words[:1] != [SHELL]:
            raise BadInput("expected one descriptor, and a shim")
        environment = _home_variables(account) | request.environment
        _check_size(request.words, environment)
        if request.place is not None and self._cgroups is not None:
            self._cgroups.create(request.place)
        reading, writing = os.pipe()
        try:
            pid = _fork(lambda: _become_shim(account, request.words, environment, reading, writing, descriptors[0]))
            self._children[pid] = float("inf")
            if request.place is not None and self._cgroups is not None:
                self._cgroups.join(request.place, pid)
            os.write(writing, OPEN)  # without that, it ends before it is the user's
        finally:
            os.close(reading)
            os.close(writing)
        return messages.HelperReply(pid=pid)

    def _signal(self, request: messages.Signal) -> messages.HelperReply:
        """Signal with the rights of the job's user: the kernel protects others' processes, whatever a job claims."""
        account, number = find_job_account(str(request.uid), self._daemon.uid), signal.Signals(request.number)

        def send_signals() -> None:
            # With a real uid that no process has, the user cannot stop this process, for which the helper waits, and
            # it cannot signal those of a third user.
            os.setresuid(self._sender_uid, account.uid, self._sender_uid)
            signal_groups((group for group in request.groups if group > 1), number)

        os.waitpid(_fork(send_signals), 0)
        return messages.HelperReply()

    def _wait_for_request(self) -> None:
        """Wait for a request; meanwhile kill checks that take too long, and let the kernel forget what has ended."""
        while True:
            self._reap()
            due = min(self._children.values(), default=float("inf"))
            timeout = None if due == float("inf") else max(0.0, due - monotonic())
            if select.select([self._connection], [], [], timeout)[0]:
                return

    def _reap(self) -> None:
        """Let the kernel forget processes that have ended: the exit status of a shim is in a file."""
        for pid, due in list(self._children.items()):
            if due <= monotonic():
                os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._children[pid]
            elif due <= monotonic():
                self._children[pid] = monotonic() + CHECK_SECONDS


def _answer_about_groups(request: messages.GroupRequest, cgroups: Cgroups) -> messages.HelperReply:
    match request:
        case messages.KillRun(run):
            cgroups.kill(run)
        case messages.LimitInstance(place):
            cgroups.limit(place)
        case messages.ReadRun(run, usage):
            return messages.HelperReply(pids=cgroups.members(run), usage=list(cgroups.usage(run)) if usage else [])
        case messages.RemoveRun(run):
            cgroups.remove(run)
        case messages.ListRuns():
            return messages.HelperReply(runs=cgroups.runs())
    return messages.HelperReply()


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


def _fork(work: Callable[[], None]) -> int:
    """Do work in a new process, which then ends; return its pid. It has the signal handlers of any program."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (*FORWARDED_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        work()
    finally:
        os._exit(0)


def _become_shim(
    account: JobAccount, words: list[str], environment: dict[str, str], gate: int, other_end: int, output: int
) -> NoReturn:
    """Become a process of a user, as soon as the helper has opened the gate: it moves this one to a cgroup before."""
    os.close(other_end)
    os.setsid()
    if os.read(gate, 1) != OPEN:
        os._exit(1)
    _set_output(output)
    os.umask(SHIM_UMASK)
    os.chdir("/")
    try:
        drop_privileges(account)
        os.execve(words[0], words, environment)
    except OSError as error:  # the user may have too many processes
        os.write(2, f"cannot start {words[0]}: {error.strerror}\n".encode())
        os._exit(1)


def _set_output(output: int) -> None:
    """Let the output of this process go to a descriptor, and close all others: the daemon is at the end of one."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _check_size(words: list[str], environment: dict[str, str]) -> None:
    """Raise OSError if the kernel would not take so long a command: the helper does not wait until that shows."""
    sizes = [len(os.fsencode(word)) for word in (*words, *(f"{name}={text}" for name, text in environment.items()))]
    if max(sizes) > MAX_WORD_BYTES or sum(sizes) + OVERHEAD_BYTES * len(sizes) > os.sysconf("SC_ARG_MAX"):
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))


def find_unused_uid() -> int:
    """Return the highest uid that there is here. No account has it, unless somebody wanted to provoke that."""
    extents = [line.split() for line in UID_MAP.read_text().splitlines()]
    return max(int(first) + int(count) - 1 for first, _, count in extents)


def drop_privileges(account: JobAccount) -> None:
    """Become a user for good."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def _home_variables(account: JobAccount) -> dict[str, str]:
    return {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}


def start_daemon(
    daemon: JobAccount, folder: Path, out: Path, cgroups: Cgroups | None = None, socket_folder: Path | None = None
) -> socket.socket:
    """Split this process of root: return in a child with the rights of `daemon`, and serve it here as its helper.

    The helper ends with the daemon, with the same exit status. `folder`: the daemon's state; `out`: in it, of runs.
    `cgroups`: those of runs. `socket_folder`: where only root can remove a folder, which the daemon leaves empty.
    """
    for path, mode in ((folder, 0o711), (out, 0o711)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _give(path, daemon, mode)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        drop_privileges(daemon)
        end_with_parent(signal.SIGTERM)  # without its helper, it could start and stop nothing
        os.environ.update(_home_variables(daemon) | {"HOME": str(folder)})
        return theirs
    theirs.close()
    for number in FORWARDED_SIGNALS:
        signal.signal(number, lambda received, _: _forward(pid, received))
    status = _serve_until_end(Helper(ours, out, daemon, cgroups), pid)
    if socket_folder is not None:
        with suppress(OSError):  # there is something else
            socket_folder.rmdir()
    os._exit(status)


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
