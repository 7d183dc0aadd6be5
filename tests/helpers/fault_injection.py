"""Faults injected into a daemon's process before it serves: full disk, wrong clock, missing rights."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

from refold.server import clock, daemon, inbox, live_state, writer

UNPRIVILEGED_UID = 65534


def fill_disk_on_usr1(max_file_bytes: int, retry_interval: float = 0.02) -> None:
    """From SIGUSR1 on, files cannot grow beyond `max_file_bytes`; SIGUSR2 lifts the limit."""
    writer.RETRY_INTERVAL_SECONDS = retry_interval
    inbox.COMMIT_TIMEOUT_SECONDS = 0.3
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    limited = (max_file_bytes, unlimited[1])
    signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, limited))
    signal.signal(signal.SIGUSR2, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, unlimited))


def set_sweep_interval(every: float) -> None:
    """Set how often log retention runs."""
    setattr(daemon, "SWEEP_INTERVAL_SECONDS", every)  # noqa: B010


def drop_root() -> None:
    """Switch to an unprivileged user, because root can write read-only files."""
    if os.getuid() == 0:
        os.setresgid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        os.setresuid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)


def use_false_clock(offset: str, boot_id: str = "") -> None:
    """Offset the system clock by the number in a file; optionally pretend that the machine was rebooted."""
    true_time, path = time.time, Path(offset)

    def false_time() -> float:
        return true_time() + float(path.read_text())

    time.time = false_time
    setattr(live_state, "time", false_time)  # noqa: B010
    if boot_id:
        clock._read_boot_id = lambda: boot_id
