"""The wall clock behind a two-method interface, so that tests can replace it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from time import monotonic
from typing import Protocol

import msgspec

from refold.model import Seconds

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Time since the start of the journal."""

    def now(self) -> Seconds:
        """Return seconds since the start of the journal. Never goes back."""

    async def wait(self, event: asyncio.Event, until: Seconds | None) -> None:
        """Wait until the event is set or the time is reached; None: no time limit."""


class WallClock:
    """Real time. When it is created, the journal is `start` seconds old."""

    def __init__(self, start: Seconds = 0.0) -> None:
        self._zero = monotonic() - start

    def now(self) -> Seconds:
        """Return seconds since the start of the journal. Monotonic: setting the system clock has no effect."""
        return monotonic() - self._zero

    async def wait(self, event: asyncio.Event, until: Seconds | None) -> None:
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - self.now())):
                await event.wait()
        except TimeoutError:
            pass


class Anchor(msgspec.Struct, frozen=True):
    """The start of a journal on two clocks: seconds since boot and Unix time."""

    boot_id: str
    boot_zero: Seconds
    wall_zero: float

    @staticmethod
    def at(now: Seconds) -> Anchor:
        """Return the anchor of a journal that is `now` seconds old."""
        return Anchor(_read_boot_id(), _seconds_since_boot() - now, time.time() - now)

    def now(self, at_least: Seconds) -> Seconds:
        """Return the age of the journal, at least `at_least`.

        Within the same boot it is measured by the boot clock, which setting the system clock does not change; after a
        reboot by Unix time.
        """
        if self.boot_id and self.boot_id == _read_boot_id():
            return max(at_least, _seconds_since_boot() - self.boot_zero)
        return max(at_least, time.time() - self.wall_zero)


def _read_boot_id() -> str:
    """Return the kernel's id of this boot, or '' if unavailable."""
    try:
        return _BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""


def _seconds_since_boot() -> Seconds:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # CLOCK_BOOTTIME counts suspended time
    return time.clock_gettime(clock)
