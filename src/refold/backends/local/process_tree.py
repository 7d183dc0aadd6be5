"""The process tree of a run: its processes and all their descendants, including daemonised ones.

Every process that the back end starts leads its own session and carries a mark in its environment, which descendants
inherit. A descendant is recognised by either. A process that leaves the session and also clears its environment is not
found; preventing that requires containers.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from refold.backends.local import process
from refold.backends.local.process import Process, ProcessInfo
from refold.backends.local.safe_files import RETRY_SECONDS, ResourceShortage
from refold.model import Seconds

MARK_VARIABLE = "REFOLD_MARK"
MAX_POLL_SECONDS: Seconds = 0.05
MIN_POLL_SECONDS: Seconds = 0.005

_NO_SUCH_GROUP = (ProcessLookupError, PermissionError)


class ProcessScanner:
    """Lists all processes of the machine, in a thread; concurrent requests share one scan."""

    def __init__(self) -> None:
        self._next: asyncio.Task[list[ProcessInfo]] | None = None
        self._lock = asyncio.Lock()

    async def scan(self) -> list[ProcessInfo]:
        """Return every process, as of some moment after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._scan())
        return await asyncio.shield(self._next)

    async def _scan(self) -> list[ProcessInfo]:
        async with self._lock:
            self._next = None  # later requests need a later scan
            while True:
                try:
                    return await asyncio.to_thread(process.list_processes, MARK_VARIABLE)
                except ResourceShortage:  # a process missing from the scan would count as ended
                    await asyncio.sleep(RETRY_SECONDS)


class ProcessTree:
    """The processes that carry a mark or belong to the sessions of its leaders."""

    def __init__(self, mark: str, scanner: ProcessScanner) -> None:
        self.mark = mark
        self._scanner = scanner
        self._leaders: dict[int, Process] = {}
        self._skip_grace = False

    def with_mark(self, mark: str) -> ProcessTree:
        """Return the tree of another mark."""
        return ProcessTree(mark, self._scanner)

    def add_leader(self, leader: Process) -> None:
        """Add a session leader, whose session belongs to the tree."""
        self._leaders[leader.pid] = leader

    def skip_grace(self) -> None:
        """Kill the processes without a (further) grace period."""
        self._skip_grace = True

    async def end(self, grace: Seconds, first: signal.Signals = signal.SIGTERM) -> None:
        """Send signal `first` to all processes, SIGKILL after `grace` seconds, and return when none is alive."""
        groups = await self._groups()
        _signal(groups, first)
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + grace, MIN_POLL_SECONDS
        while groups and loop.time() < deadline and not self._skip_grace:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)
            groups = await self._groups()
        while groups:
            _signal(groups, signal.SIGKILL)
            await asyncio.sleep(MIN_POLL_SECONDS)
            groups = await self._groups()

    async def _groups(self) -> set[int]:
        if process.has_proc():
            return self.groups_among(await self._scanner.scan())
        return {leader for leader in self._leaders if _group_exists(leader)}

    def groups_among(self, processes: Iterable[ProcessInfo]) -> set[int]:
        """Return the process groups with living processes of the tree.

        A session belongs to the tree if its leader has ended or is still the process that was started: a pid is not
        reused while a session of that id exists.
        """
        processes = list(processes)
        reused = {
            info.pid
            for info in processes
            if info.pid in self._leaders and self._leaders[info.pid].started not in (None, info.started)
        }
        sessions = self._leaders.keys() - reused
        return {info.group for info in processes if info.alive and (info.session in sessions or info.mark == self.mark)}


def find_strays(
    processes: Iterable[ProcessInfo], prefix: str, known_marks: set[str], scanner: ProcessScanner
) -> list[ProcessTree]:
    """Return the process trees whose mark has this prefix and is not known."""
    trees: dict[str, ProcessTree] = {}
    for info in processes:
        if info.alive and info.mark.startswith(prefix) and info.mark not in known_marks:
            tree = trees.setdefault(info.mark, ProcessTree(info.mark, scanner))
            if info.pid == info.session:
                tree.add_leader(Process(info.pid, info.started))
    return list(trees.values())


def _signal(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with suppress(*_NO_SUCH_GROUP):
            os.killpg(group, number)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except _NO_SUCH_GROUP:
        return False
    return True
