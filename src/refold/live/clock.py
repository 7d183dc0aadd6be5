"""The wall clock, behind two verbs, so that a test can bring another."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from refold.model.units import Seconds


class Clock(Protocol):
    """Time since a start, that is waited for."""

    def now(self) -> Seconds:
        """Seconds since the start of the journal. Never goes back."""
        ...

    async def wait(self, something: asyncio.Event, until: Seconds | None) -> None:
        """Until something has come or the moment has; None: however long it takes."""
        ...


class WallClock:
    """Real time, from the moment this is made."""

    def __init__(self) -> None:
        self._start = monotonic()

    def now(self) -> Seconds:
        """Seconds since it was made."""
        return monotonic() - self._start

    async def wait(self, something: asyncio.Event, until: Seconds | None) -> None:
        """Wait in real time."""
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - self.now())):
                await something.wait()
        except TimeoutError:
            pass
