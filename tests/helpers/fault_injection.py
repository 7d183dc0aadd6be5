"""Faults injected into a daemon's process before it serves: full disk, wrong clock, missing rights or descriptors."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from refold.server import clock, daemon, daemon_parts, inbox, live_state, store_upkeep, writer
from refold.server.http import BodyLimits
from refold.server.network import limits_for
from refold.server.store import Store

UNPRIVILEGED_UID = 65534


def _replace(owner: object, name: str, value: object) -> None:
    """Replace a name of a module or class, which must have it: else the fault would never be injected."""
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, value)


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
    _replace(daemon_parts, "SWEEP_INTERVAL_SECONDS", every)


def set_upkeep(every: float, keep_backups: int = 0, entries: int | None = None) -> None:
    """Set how often the store is pruned and backed up, and how many backups and journal entries are kept."""
    _replace(daemon, "UPKEEP_INTERVAL_SECONDS", every)
    if entries is not None:
        _replace(store_upkeep.StoreUpkeep, "_kept_entries", entries)
    _replace(store_upkeep, "BACKUP_INTERVAL", 0.1)
    create = store_upkeep.StoreUpkeep

    def create_with_backups(state: Any, writer: Any, store: Any, config: Any, begin_epoch: Any) -> Any:
        config = replace(config, keep_backups=keep_backups)
        return create(state, writer, store, config, begin_epoch)

    _replace(daemon_parts, "StoreUpkeep", create_with_backups)


def limit_http(body_seconds: float = 30.0, **limits: Any) -> None:
    """Set limits of the HTTP server."""
    changed = {**limits, "body_seconds": 1.5 * body_seconds}
    _replace(daemon, "limits_for", lambda *given: replace(limits_for(*given), **changed))
    _replace(daemon, "BodyLimits", lambda size: BodyLimits(size, body_seconds))


def drop_root() -> None:
    """Switch to an unprivileged user, because root can write read-only files."""
    if os.getuid() == 0:
        os.setresgid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        os.setresuid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)


def keep_write_ahead_log() -> None:
    """Let deleted secrets remain in the write-ahead log, as if a query read it all the time."""
    _replace(Store, "purge_log", lambda _: None)


def limit_descriptors(count: int) -> None:
    """Limit the file descriptors of the daemon, for good."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def lower_descriptors(soft: int) -> None:
    """Lower the soft limit of file descriptors, which the daemon may raise again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def use_false_clock(offset: str, boot_id: str = "") -> None:
    """Offset the system clock by the number in a file; optionally pretend that the machine was rebooted."""
    true_time, path = time.time, Path(offset)

    def false_time() -> float:
        return true_time() + float(path.read_text())

    time.time = false_time
    _replace(live_state, "time", false_time)
    if boot_id:
        clock._read_boot_id = lambda: boot_id
