"""By how much the event loop, which requests and the scheduler share, is late."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic

from refold.model import MINUTE, Seconds

INTERVAL: Seconds = 0.5


class LoopLag:
    """Sleeps again and again, and measures how much longer it took; keeps the measurements of a minute."""

    def __init__(self) -> None:
        self._lags: deque[Seconds] = deque(maxlen=round(MINUTE / INTERVAL))

    def largest(self) -> Seconds:
        return max(self._lags, default=0.0)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = monotonic() + INTERVAL
            await asyncio.sleep(INTERVAL)
            self._lags.append(max(0.0, monotonic() - due))
