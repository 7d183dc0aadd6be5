"""The processes of one run and everything they have started, down to those that made themselves independent.

Each process that is started leads a session of its own, and carries a mark in its environment that its
descendants inherit. A descendant is known by either. One that leaves the session and clears its environment
as well is lost sight of; who has to fear that needs containers.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from refold.model.units import Seconds

MARK = "REFOLD_MARK"
LOOK_EVERY: Seconds = 0.05

_PROC = Path("/proc")
_GONE = (ProcessLookupError, PermissionError)


class ProcessTree:
    """Whatever descends from the processes that are started with its mark."""

    def __init__(self) -> None:
        self.mark = uuid4().hex
        self.leaders: set[int] = set()
        self._hurry = False

    def hurry(self) -> None:
        """Grant no grace any more."""
        self._hurry = True

    async def end(self, grace: Seconds) -> None:
        """Ask every process to end; kill those that have not after `grace`; return when none is left."""
        self._signal(signal.SIGTERM)
        loop = asyncio.get_running_loop()
        until = loop.time() + grace
        while loop.time() < until and not self._hurry and self._groups():
            await asyncio.sleep(LOOK_EVERY)
        while self._groups():
            self._signal(signal.SIGKILL)
            await asyncio.sleep(LOOK_EVERY)

    def _signal(self, number: signal.Signals) -> None:
        for group in self._groups():
            with suppress(*_GONE):
                os.killpg(group, number)

    def _groups(self) -> set[int]:
        """The process groups in which something of the tree is alive."""
        if (_PROC / "self" / "stat").exists():
            return {group for pid, group, session in _processes() if session in self.leaders or self._marked(pid)}
        return {leader for leader in self.leaders if _answers(leader)}

    def _marked(self, pid: str) -> bool:
        try:
            environment = (_PROC / pid / "environ").read_bytes()
        except OSError:
            return False  # gone, or somebody else's
        return f"{MARK}={self.mark}".encode() in environment.split(b"\0")


def _processes() -> Iterator[tuple[str, int, int]]:
    """Every process that is alive: its id, group and session. Zombies are not."""
    for folder in _PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError, ValueError):
            # "pid (name) state parent group session …", and the name may hold anything.
            state, _, group, session, *_ = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if state not in (b"Z", b"X"):
                yield folder.name, int(group), int(session)


def _answers(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except _GONE:
        return False
    return True
