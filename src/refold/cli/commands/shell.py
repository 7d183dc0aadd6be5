"""`refold shell`: open a shell on allocated GPUs."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import tempfile
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import TenantOption, connect, format_reason, option
from refold.cli.commands.attach import RUNNING_STATES, exit_code
from refold.cli.commands.logs import ENDED_STATES, format_end
from refold.cli.commands.submit import COMMAND_KEY, CommandAfterDashes
from refold.cli.views import print_line, print_notes
from refold.errors import BadInput, RefoldError, WaitTimeout

if TYPE_CHECKING:
    from refold.cli.inputs import SubmitOptions
    from refold.client import Client
    from refold.client.api import JobStatus

POLL_SECONDS = 0.3
END_TIMEOUT_SECONDS = 30.0
"""Maximum time from the end of the terminal to the end of the job: it covers the grace period."""

READ_BYTES = 65536
MAX_SOCKET_PATH_BYTES = 100

COMMAND_CLASSES = {"shell": CommandAfterDashes}
"""Command classes by command name, for `lazy_group`."""


def shell(
    context: typer.Context,
    gpus: Annotated[str | None, option("N", "Total GPUs: a number or a share (0.5) (default: 1).")] = None,
    gpu_type: Annotated[str | None, option("NAME,…", "Accepted GPU types (default: any).")] = None,
    cpus: Annotated[float | None, option("N", "CPUs (default: none requested).", min=0)] = None,
    memory: Annotated[str | None, option("SIZE", "Memory, such as 32 (GiB), 32GB or 512MB.")] = None,
    time: Annotated[str | None, option("TIME", "Time limit, such as 90m, 12h or 2d.")] = None,
    name: Annotated[str, option("NAME", "Job name.")] = "shell",
    tenant: TenantOption = None,
) -> None:
    """Open a shell on allocated GPUs, or run another interactive command after --.

    The shell is a job like any other: it waits in the queue (Ctrl-C cancels it), sees its GPUs only, has a time limit,
    can be cancelled, and ends when this command ends. Exits with the exit status of the shell. The daemon has to run
    on this machine, as the same user or as root.

    Examples: refold shell --gpus 1 · refold shell --gpus 2 --time 1h -- python -i
    """
    from refold.cli.inputs import SubmitOptions

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("refold shell needs a terminal; use `refold submit` in scripts")
    client = connect()
    command = context.meta.get(COMMAND_KEY) or [os.environ.get("SHELL") or "/bin/sh"]
    options = SubmitOptions(
        {"name": name, "cpus": cpus, "tenant": tenant}, gpus, gpu_type, memory=memory, time_limit=time
    )
    with _listener() as listener:
        job = _submit(client, Path(listener.getsockname()), command, options)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _exit)
        try:
            status = _run(client, job, listener)
        finally:
            _cancel(client, job)
    if status.state != "finished":
        print_line(f"{status.id} {format_end(status)}", err=True)
    raise typer.Exit(exit_code(status))


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _listener() -> Iterator[socket.socket]:
    """Listen on a socket in a private folder: what connects gets control of the terminal."""
    folder = tempfile.gettempdir()
    parent = folder if len(os.fsencode(folder)) < MAX_SOCKET_PATH_BYTES - len("/refold-12345678/terminal") else "/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="refold-", dir=parent) as private,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(f"{private}/terminal")
        listener.listen(1)
        yield listener


def _submit(client: Client, listener: Path, command: Sequence[str], options: SubmitOptions) -> str:
    from refold.cli.inputs import read_submissions
    from refold.client import choose_exported
    from refold.engines.local import terminal_command

    (submission,), notes, _ = read_submissions(None, terminal_command(listener, command), options)
    if submission.gpu_range is not None:
        raise BadInput(f"--gpus {options.gpus}: a shell cannot change its size; expected a number")
    print_notes(notes)
    exported = choose_exported(os.environ)
    assert exported is not None, "all variables are exported by default"
    return client.submit(submission, exported=client.create_environment(exported.variables).id).id


def _run(client: Client, job: str, listener: socket.socket) -> JobStatus:
    """Wait for the job to start, connect its terminal with ours, and return its last status."""
    from refold.engines.local import hand_out

    ours, theirs = os.openpty()
    try:
        _copy_window_size(ours)
        status = _wait_for_start(client, job, listener)
        if status is not None:
            return status
        connection, _ = listener.accept()
        with connection:
            hand_out(connection, theirs)
            os.close(theirs)
            _relay(ours)
            return _wait_for_end(client, job)  # the job ends when the connection does
    finally:
        os.close(ours)


def _wait_for_start(client: Client, job: str, listener: socket.socket) -> JobStatus | None:
    """Wait until the job connects, and return None, or its status if it has ended before."""
    shown = False
    while not select.select([listener], [], [], POLL_SECONDS)[0]:
        status = client.job(job)
        if status.state in ENDED_STATES:
            return status
        if not shown and status.state != "running":
            print_line(f"{job} is {status.state} {format_reason(status)}; Ctrl-C cancels it", err=True)
            shown = True
    return None


def _wait_for_end(client: Client, job: str) -> JobStatus:
    """Return the last status of a job. If its run was stopped by a drain and it would run again, it is cancelled."""
    deadline = monotonic() + END_TIMEOUT_SECONDS
    while True:
        try:
            return client.wait(job, POLL_SECONDS)
        except WaitTimeout:
            status = client.job(job)
            if status.runs > 1 or status.state not in (*RUNNING_STATES, *ENDED_STATES):
                print_line(f"{job} was stopped by the scheduler; its terminal is gone", err=True)
                return client.cancel(job)
            if monotonic() > deadline:
                raise


def _cancel(client: Client, job: str) -> None:
    """Cancel the job unless it has ended. If the daemon does not answer, the job ends because its terminal is gone."""
    with suppress(RefoldError):
        client.cancel(job)


def _relay(terminal: int) -> None:
    """Copy between our terminal and that of the job until the job has closed its own."""
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    before = termios.tcgetattr(stdin)
    os.set_blocking(terminal, False)
    signal.signal(signal.SIGWINCH, lambda *_: _copy_window_size(terminal))
    try:
        tty.setraw(stdin)
        _copy(stdin, stdout, terminal)
    finally:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        termios.tcsetattr(stdin, termios.TCSAFLUSH, before)


def _copy(stdin: int, stdout: int, terminal: int) -> None:
    typed = b""  # what the terminal has not accepted yet
    while True:
        readable, writable, _ = select.select([terminal, *([] if typed else [stdin])], [terminal] if typed else [], [])
        if terminal in readable:
            try:
                output = os.read(terminal, READ_BYTES)
            except OSError:  # the last process on the terminal has ended
                return
            _write_all(stdout, output)
        if stdin in readable:
            typed = os.read(stdin, READ_BYTES)
            if not typed:  # our own terminal is gone
                return
        if typed and (terminal in writable or stdin in readable):
            with suppress(BlockingIOError):
                typed = typed[os.write(terminal, typed) :]


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _copy_window_size(terminal: int) -> None:
    size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
