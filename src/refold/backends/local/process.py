"""One process of this machine, by more than its number: numbers are used again."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from refold.backends.local.safe_files import OutOfFileHandles, raise_if_not_now
from refold.model import Seconds

PROC = Path("/proc")
POLL_EVERY: Seconds = 0.2
"""How often a process is looked at where the system cannot tell us that it has ended."""


@dataclass(frozen=True, slots=True)
class Process:
    """Who it is: its number, and when it started, in ticks since the machine did (None: nobody can say)."""

    pid: int
    started: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process as /proc has it. A zombie is not alive. `mark` is what a variable of its environment says."""

    pid: int
    group: int
    session: int
    started: int
    alive: bool
    mark: str = ""


def seen(pid: int) -> ProcessInfo | None:
    """What /proc says of a process; None: it has none, or there is no /proc."""
    try:
        return seen_in((PROC / str(pid) / "stat").read_bytes())
    except ValueError:
        return None
    except OSError as error:
        raise_if_not_now(error)
        return None


def seen_in(stat: bytes, mark: str = "") -> ProcessInfo:
    """A line of /proc: 'pid (name) state parent group session …', and the name may hold anything."""
    number, _, _ = stat.partition(b" ")
    state, _, group, session, *more = stat.rpartition(b")")[2].split()
    return ProcessInfo(int(number), int(group), int(session), int(more[15]), state not in (b"Z", b"X"), mark)


def everybody(variable: str) -> list[ProcessInfo]:
    """Every process that /proc has, with what this variable was in its environment when it started."""
    found: list[ProcessInfo] = []
    try:
        names = [entry.name for entry in os.scandir(PROC) if entry.name.isdecimal()]
    except OSError as error:
        raise_if_not_now(error)
        raise
    for name in names:
        try:
            found.append(seen_in(_content(f"{PROC}/{name}/stat"), _mark(f"{PROC}/{name}/environ", variable)))
        except ValueError:
            continue
        except OSError as error:
            raise_if_not_now(error)  # else it is gone
    return found


def _mark(environment: str, variable: str) -> str:
    try:
        content = b"\0" + _content(environment)
    except OSError as error:
        raise_if_not_now(error)
        return ""  # gone, or somebody else's
    _, is_there, rest = content.partition(f"\0{variable}=".encode())
    return rest.partition(b"\0")[0].decode("latin-1") if is_there else ""


def _content(path: str) -> bytes:
    """A file of /proc, read with as little ado as possible: there are many of them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        content = piece = os.read(descriptor, 65536)
        while piece:
            piece = os.read(descriptor, 65536)
            content += piece
        return content
    finally:
        os.close(descriptor)


def has_proc() -> bool:
    """Whether this system tells about its processes in files."""
    return (PROC / "self" / "stat").exists()


def boot_id() -> str:
    """What tells one start of the machine from another."""
    try:
        return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return ""


def process_of(pid: int) -> Process:
    """A process that is known to be there: a child that was not collected."""
    try:
        found = seen(pid)
    except OutOfFileHandles:
        found = None
    return Process(pid, found.started if found else None)


def is_alive(process: Process) -> bool:
    """Whether it runs, and is still the one that is meant; yes, as long as nobody can say."""
    if has_proc():
        try:
            found = seen(process.pid)
        except OutOfFileHandles:
            return True
        return found is not None and found.alive and process.started in (None, found.started)
    try:
        return os.getsid(process.pid) == process.pid  # whom we start leads a session; that is all one can ask for here
    except OSError:
        return False


async def until_ended(process: Process) -> int | None:
    """Wait for the end of a process; its exit status if it was a child of ours, as `subprocess` has it."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return _collect(process)
    except (AttributeError, OSError):  # no such call here, or too many files open
        return await _polled(process)
    try:
        if is_alive(process):  # asked after the descriptor is had, which stays with whom it was had for
            await _until_readable(descriptor)
    finally:
        os.close(descriptor)
    return _collect(process)


async def _polled(process: Process) -> int | None:
    while is_alive(process):
        if (status := _collect(process)) is not None:
            return status
        await asyncio.sleep(POLL_EVERY)
    return _collect(process)


async def _until_readable(descriptor: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def _collect(process: Process) -> int | None:
    with suppress(ChildProcessError):
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
    return None
