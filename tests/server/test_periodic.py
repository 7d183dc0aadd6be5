"""Periodic tasks continue after a failure, and failures are logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from refold.server.daemon_parts import log_task_failure, run_every


def work_sync(calls: list[int]) -> None:
    calls.append(len(calls))
    if len(calls) == 1:
        raise RuntimeError("first call fails")


async def work_async(calls: list[int]) -> None:
    await asyncio.sleep(0)
    work_sync(calls)


@pytest.mark.parametrize("work", [work_sync, work_async])
def test_a_failed_call_is_logged_and_the_task_continues(
    work: Callable[[list[int]], Awaitable[None] | None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        calls: list[int] = []
        task = asyncio.create_task(run_every(lambda: work(calls), 0.001))
        async with asyncio.timeout(10):
            while len(calls) < 3:
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.ERROR, "refold"):
        asyncio.run(main())
    assert [(record.getMessage(), str(record.exc_info and record.exc_info[1])) for record in caplog.records] == [
        ("periodic task failed; next attempt in 0.001 s", "first call fails")
    ]


def test_a_failed_background_task_is_logged_and_a_cancelled_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    async def main() -> None:
        tasks = [asyncio.create_task(fail()), asyncio.create_task(asyncio.sleep(60))]
        for task in tasks:
            task.add_done_callback(log_task_failure)
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with caplog.at_level(logging.ERROR, "refold"):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == ["a background task stopped because of an error"]
