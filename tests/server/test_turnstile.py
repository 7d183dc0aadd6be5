"""Requests begin a few at a time, so that the scheduler gets its turn."""

from __future__ import annotations

import asyncio
from typing import Any

from refold.server.network.turnstile import Turnstile


def run_beside(count: int, per_turn: int) -> tuple[list[int], int]:
    """Send requests at once; return their order, and the most that began between two turns of another task."""

    async def main() -> tuple[list[int], int]:
        begun: list[int] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            begun.append(scope)

        turnstile = Turnstile(app, per_turn)
        requests = [asyncio.create_task(turnstile(number, None, None)) for number in range(count)]
        most = before = 0
        while len(begun) < count:
            await asyncio.sleep(0)
            most, before = max(most, len(begun) - before), len(begun)
        await asyncio.gather(*requests)
        return begun, most

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_other_tasks_get_a_turn_after_a_few_requests() -> None:
    begun, most = run_beside(1_000, per_turn=4)
    assert begun == list(range(1_000))
    assert most <= 8  # of two turns at most


def test_a_request_that_was_cancelled_takes_no_turn() -> None:
    async def main() -> list[int]:
        begun: list[int] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            begun.append(scope)

        turnstile = Turnstile(app, 1)
        requests = [asyncio.create_task(turnstile(number, None, None)) for number in range(4)]
        await asyncio.sleep(0)
        requests[2].cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        return begun

    assert asyncio.run(asyncio.wait_for(main(), 30)) == [0, 1, 3]
