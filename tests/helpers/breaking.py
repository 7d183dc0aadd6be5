"""What can be done to a daemon's process before it serves: a disk that is full, a clock that jumps, another user."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

from refold.server import clock, daemon, loop, writer

NOBODY = 65534


def fill_the_disk_on_usr1(bytes_left: int, try_again_after: float = 0.02) -> None:
    """From SIGUSR1 on no file of the daemon may grow beyond a size; from SIGUSR2 on they may again."""
    writer.TRY_AGAIN_AFTER = try_again_after
    loop.PATIENCE = 0.3
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    limited = (bytes_left, unlimited[1])
    signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, limited))
    signal.signal(signal.SIGUSR2, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, unlimited))


def sweep_often(every: float) -> None:
    """Old output is looked for without pause."""
    setattr(daemon, "SWEEP_EVERY", every)  # noqa: B010


def be_nobody() -> None:
    """Lose the rights of root, to whom no file is read-only."""
    if os.getuid() == 0:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def follow_a_false_clock(offset: str, boot: str = "") -> None:
    """Everybody's clock is off by what a file says, which may change; the machine may claim to have been restarted."""
    true_time, path = time.time, Path(offset)

    def false_time() -> float:
        return true_time() + float(path.read_text())

    time.time = false_time
    setattr(loop, "time", false_time)  # noqa: B010
    if boot:
        clock._boot = lambda: boot
