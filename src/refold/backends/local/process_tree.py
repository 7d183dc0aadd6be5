"""The processes of one run and everything they have started, down to those that made themselves independent.

Each process that is started leads a session of its own, and carries a mark in its environment that its
descendants inherit. A descendant is known by either. One that leaves the session and clears its environment
as well is lost sight of; who has to fear that needs containers.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from refold.backends.local import process as processes
from refold.backends.local.process import Process, ProcessInfo
from refold.backends.local.safe_files import TRY_AGAIN_AFTER, OutOfFileHandles
from refold.model import Seconds

MARK = "REFOLD_MARK"
LOOK_EVERY: Seconds = 0.05
FIRST_LOOK: Seconds = 0.005

_GONE = (ProcessLookupError, PermissionError)


class Census:
    """Looks at all processes of the machine: in a thread, and once for all who ask at the same time."""

    def __init__(self) -> None:
        self._coming: asyncio.Task[list[ProcessInfo]] | None = None
        self._turn = asyncio.Lock()

    async def everybody(self) -> list[ProcessInfo]:
        """Every process, at some moment after this was asked."""
        if self._coming is None:
            self._coming = asyncio.create_task(self._look())
        return await asyncio.shield(self._coming)

    async def _look(self) -> list[ProcessInfo]:
        async with self._turn:
            self._coming = None  # who asks from now on wants a later one
            while True:
                try:
                    return await asyncio.to_thread(processes.everybody, MARK)
                except OutOfFileHandles:  # who is not found would be taken to have ended
                    await asyncio.sleep(TRY_AGAIN_AFTER)


class ProcessTree:
    """Whatever descends from the processes that are started with its mark."""

    def __init__(self, mark: str, census: Census) -> None:
        self.mark = mark
        self._census = census
        self._leaders: dict[int, Process] = {}
        self._hurry = False

    def add_leader(self, process: Process) -> None:
        """A process leads a session, and the session is of this tree."""
        self._leaders[process.pid] = process

    def hurry(self) -> None:
        """Grant no grace any more."""
        self._hurry = True

    async def end(self, grace: Seconds, first: signal.Signals = signal.SIGTERM) -> None:
        """Ask every process to end; kill those that have not after `grace`; return when none is left."""
        groups = await self._groups()
        _signal(groups, first)
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + grace, FIRST_LOOK
        while groups and loop.time() < until and not self._hurry:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_EVERY)
            groups = await self._groups()
        while groups:
            _signal(groups, signal.SIGKILL)
            await asyncio.sleep(FIRST_LOOK)
            groups = await self._groups()

    async def _groups(self) -> set[int]:
        if processes.has_proc():
            return self.groups_among(await self._census.everybody())
        return {leader for leader in self._leaders if _answers(leader)}

    def groups_among(self, everybody: Iterable[ProcessInfo]) -> set[int]:
        """The process groups in which something of the tree is alive.

        A session is ours if its leader is gone, or still the one that we know: as long as a session has a process,
        no other process gets the number of its leader.
        """
        everybody = list(everybody)
        others = {
            each.pid
            for each in everybody
            if each.pid in self._leaders and self._leaders[each.pid].started not in (None, each.started)
        }
        sessions = self._leaders.keys() - others
        return {each.group for each in everybody if each.alive and (each.session in sessions or each.mark == self.mark)}


def strays(everybody: Iterable[ProcessInfo], prefix: str, known: set[str], census: Census) -> list[ProcessTree]:
    """The trees whose marks begin so and are not known."""
    trees: dict[str, ProcessTree] = {}
    for each in everybody:
        if each.alive and each.mark.startswith(prefix) and each.mark not in known:
            tree = trees.setdefault(each.mark, ProcessTree(each.mark, census))
            if each.pid == each.session:
                tree.add_leader(Process(each.pid, each.started))
    return list(trees.values())


def _signal(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with suppress(*_GONE):
            os.killpg(group, number)


def _answers(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except _GONE:
        return False
    return True
