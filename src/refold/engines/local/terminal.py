"""Run a command on a terminal that another process of the user has opened: the job of `refold shell`.

As a program: connect to a Unix socket, receive a terminal from it, run the command there, and exit with its status. The
other side keeps the connection open. When it ends, the command gets SIGHUP; so it does when this program is stopped,
since interactive shells ignore SIGTERM.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from refold.model import Seconds

POLL_SECONDS: Seconds = 0.1

HANG_UP_SECONDS: Seconds = 1.0
"""How long to wait for the end of a command that has got SIGHUP."""

CLIENT_GONE = 128 + signal.SIGHUP
"""Exit status if the other side has closed the connection and the command is still running."""


def terminal_command(listener: Path, command: Sequence[str]) -> list[str]:
    """Return a command that runs another one on the terminal that the listener hands out."""
    return [sys.executable, "-P", "-m", __name__, str(listener), *command]


def hand_out(connection: socket.socket, terminal: int) -> None:
    """Send a terminal to the program at the other end of a connection."""
    socket.send_fds(connection, [b"\0"], [terminal])


def run_on_terminal(listener: str, command: Sequence[str]) -> int:
    """Run a command on the terminal that the listener hands out; return its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(listener)
            _, (terminal,), _, _ = socket.recv_fds(connection, 1, 1)
        except (OSError, ValueError) as error:
            raise SystemExit(f"the terminal of `refold shell` cannot be reached: {error}") from None
        process = subprocess.Popen(
            command,
            pass_fds=(terminal,),
            preexec_fn=partial(os.login_tty, terminal),  # noqa: PLW1509 - this program has no threads
        )
        os.close(terminal)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: _hang_up(process))
        while process.poll() is None:
            if select.select([connection], [], [], POLL_SECONDS)[0]:
                _hang_up(process)  # no effect on a command that is just exiting, whose terminal is closed already
                with suppress(subprocess.TimeoutExpired):
                    process.wait(HANG_UP_SECONDS)
                break
        status = process.returncode
        if status is None:
            return CLIENT_GONE
        return status if status >= 0 else 128 - status


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGHUP)


if __name__ == "__main__":
    sys.exit(run_on_terminal(sys.argv[1], sys.argv[2:]))
