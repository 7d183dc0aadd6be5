"""Processes of this machine, identified by pid and start time, since pids are reused."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from refold.model import Seconds
from refold.server.output import ResourceShortage, raise_if_shortage

PROC = Path("/proc")
READ_BYTES = 2**16
MAX_FILE_BYTES = 2**21
"""What is read of a file of /proc: as much as a process may have of arguments and environment, with a usual stack."""

POLL_SECONDS: Seconds = 0.2
"""Polling interval on systems without pidfds."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process: pid, and start time in clock ticks since boot (None: unknown)."""

    pid: int
    started: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process as /proc describes it. A zombie is not alive. `mark`: the value of the mark variable at its start.

    `uid`: the real uid, if it was asked for. `cpu_ticks`, `memory_pages`: CPU time used until now, and resident memory.
    """

    pid: int
    group: int
    session: int
    started: int
    alive: bool
    mark: str = ""
    uid: int | None = None
    cpu_ticks: int = 0
    memory_pages: int = 0


def read_process(pid: int) -> ProcessInfo | None:
    """Read a process from /proc; None if it does not exist or there is no /proc."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_bytes())
    except ValueError:
        return None
    except OSError as error:
        raise_if_shortage(error)
        return None


def parse_stat(stat: bytes, mark: str = "", uid: int | None = None) -> ProcessInfo:
    """Parse /proc/PID/stat: 'pid (name) state parent group session …'. The name may contain any characters."""
    number, _, _ = stat.partition(b" ")
    state, _, group, session, *more = stat.rpartition(b")")[2].split()
    is_alive, started = state not in (b"Z", b"X"), int(more[15])
    ticks, pages = int(more[7]) + int(more[8]), int(more[17])
    return ProcessInfo(int(number), int(group), int(session), started, is_alive, mark, uid, ticks, pages)


def list_processes(variable: str, uids: bool = False) -> list[ProcessInfo]:
    """Return every process in /proc, with the value of this environment variable at its start, and with real uids."""
    processes: list[ProcessInfo] = []
    try:
        names = [entry.name for entry in os.scandir(PROC) if entry.name.isdecimal()]
    except OSError as error:
        raise_if_shortage(error)
        raise
    for name in names:
        try:
            mark = _read_variable(f"{PROC}/{name}/environ", variable)
            uid = _read_real_uid(f"{PROC}/{name}/status") if uids else None
            processes.append(parse_stat(_read_proc_file(f"{PROC}/{name}/stat"), mark, uid))
        except (ValueError, IndexError):
            continue
        except OSError as error:
            raise_if_shortage(error)  # otherwise the process has ended meanwhile
    return processes


def _read_variable(environment: str, variable: str) -> str:
    try:
        content = b"\0" + _read_proc_file(environment)
    except OSError as error:
        raise_if_shortage(error)
        return ""  # the process has ended or belongs to another user
    _, separator, rest = content.partition(f"\0{variable}=".encode())
    return rest.partition(b"\0")[0].decode("latin-1") if separator else ""


def _read_real_uid(status: str) -> int:
    """Read the real uid, which decides who may signal a process. The files of /proc have the effective one."""
    return int(_read_proc_file(status).partition(b"\nUid:")[2].split(None, 1)[0])


def _read_proc_file(path: str) -> bytes:
    """Read a file of /proc with few system calls, since many are read; not the end of a long one, of any user."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts, size = [os.read(descriptor, READ_BYTES)], 0
        while parts[-1] and (size := size + len(parts[-1])) < MAX_FILE_BYTES:
            parts.append(os.read(descriptor, READ_BYTES))
        return b"".join(parts)
    finally:
        os.close(descriptor)


def has_proc() -> bool:
    return (PROC / "self" / "stat").exists()


def boot_id() -> str:
    """Return the id of the current boot; empty if unknown."""
    try:
        return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""


def identify_process(pid: int) -> Process:
    """Return the identity of a process that is known to exist: a child that has not been waited for."""
    try:
        info = read_process(pid)
    except ResourceShortage:
        info = None
    return Process(pid, info.started if info else None)


def is_alive(process: Process) -> bool:
    """Whether the process is alive and its pid was not reused. True if that cannot be determined now."""
    if has_proc():
        try:
            info = read_process(process.pid)
        except ResourceShortage:
            return True
        return info is not None and info.alive and process.started in (None, info.started)
    try:
        return os.getsid(process.pid) == process.pid  # our processes lead their session; no better check without /proc
    except OSError:
        return False


async def wait_for_exit(process: Process) -> int | None:
    """Wait for a process to end. Return its exit code if it is our child (negative: killed by a signal), else None."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return _reap(process)
    except (AttributeError, OSError):  # not supported here, or no free file descriptor
        return await _poll_for_exit(process)
    try:
        if is_alive(process):  # checked after opening the pidfd, which refers to this process even if its pid is reused
            await wait_readable(descriptor)
    finally:
        os.close(descriptor)
    return _reap(process)


async def _poll_for_exit(process: Process) -> int | None:
    while is_alive(process):
        if (status := _reap(process)) is not None:
            return status
        await asyncio.sleep(POLL_SECONDS)
    return _reap(process)


async def wait_readable(descriptor: int) -> None:
    """Wait until there is something to read, or the other end is closed."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def _reap(process: Process) -> int | None:
    with suppress(ChildProcessError):
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    return None
