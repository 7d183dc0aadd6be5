"""The wall clock, behind two verbs, so that a test can bring another."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from time import monotonic
from typing import Protocol

import msgspec

from refold.model import Seconds

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Time since a start, that is waited for."""

    def now(self) -> Seconds:
        """Seconds since the start of the journal. Never goes back."""
        ...

    async def wait(self, something: asyncio.Event, until: Seconds | None) -> None:
        """Until something has come or the moment has; None: however long it takes."""
        ...


class WallClock:
    """Real time, from the moment this is made, which is `start` seconds after the start of the journal."""

    def __init__(self, start: Seconds = 0.0) -> None:
        self._zero = monotonic() - start

    def now(self) -> Seconds:
        """Seconds since the start. A machine's clock may be set forth or back: this one does not notice."""
        return monotonic() - self._zero

    async def wait(self, something: asyncio.Event, until: Seconds | None) -> None:
        """Wait in real time."""
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - self.now())):
                await something.wait()
        except TimeoutError:
            pass


class Anchor(msgspec.Struct, frozen=True):
    """When a journal began, as two clocks told it: the machine's own since it was switched on, and everybody's."""

    boot: str
    boot_zero: Seconds
    wall_zero: float

    @staticmethod
    def of(now: Seconds) -> Anchor:
        """The anchor of a journal that is `now` seconds old."""
        return Anchor(_boot(), _since_boot() - now, time.time() - now)

    def now(self, at_least: Seconds) -> Seconds:
        """How old the journal is: while the machine stays on, however its clock is set; and never less than it was."""
        if self.boot and self.boot == _boot():
            return max(at_least, _since_boot() - self.boot_zero)
        return max(at_least, time.time() - self.wall_zero)


def _boot() -> str:
    """Which time that this machine was switched on this is; empty: it does not tell."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _since_boot() -> Seconds:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former goes on while the machine sleeps
    return time.clock_gettime(clock)
