"""Fairness between requests and the scheduler, which share an event loop, and by how much that is late."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from time import monotonic
from typing import Any

from refold.model import MINUTE, Seconds

REQUESTS_PER_TURN = 16
"""How many requests begin in one turn of the event loop. All other tasks get their turn in between."""

App = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Any]


class Turnstile:
    """An ASGI application that lets requests of another one begin a few at a time, in the order of their arrival.

    `waiting`: requests that have not begun.
    """

    def __init__(self, app: App, per_turn: int = REQUESTS_PER_TURN) -> None:
        self._app = app
        self._per_turn = per_turn
        self._begun = 0
        self._is_scheduled = False
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that have arrived and not begun."""
        return len(self._queue)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request when its turn comes."""
        if self._begun < self._per_turn and not self._queue:
            self._begun += 1
            self._schedule_turn()
        else:
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            self._schedule_turn()
            await turn
        await self._app(scope, receive, send)

    def _schedule_turn(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled, self._begun = False, 0
        while self._queue and self._begun < self._per_turn:
            turn = self._queue.popleft()
            if not turn.done():  # a task that was cancelled
                turn.set_result(None)
                self._begun += 1
        if self._queue or self._begun:
            self._schedule_turn()


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
