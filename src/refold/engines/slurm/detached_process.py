"""A process that outlives this one. `subprocess` would complain about it, and asyncio would kill it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class DetachedProcess:
    """A program in a session of its own, without input. `status`: its exit status, once it is known.

    `output`: the file for what it prints. Raises OSError if it cannot be run.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self.status: int | None = None
        self.pid = os.posix_spawnp(
            words[0],
            list(words),
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def poll(self) -> int | None:
        """Return its exit status, if it has ended."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                pid, status = self.pid, 0
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def terminate(self) -> None:
        """Ask it to end."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
