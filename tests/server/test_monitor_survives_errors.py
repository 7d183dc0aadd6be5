"""Whatever the daemon does again and again goes on after it has failed once, and the failure is said."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from refold.server.periodic import again_and_again, say_if_it_failed


def at_once(done: list[int]) -> None:
    done.append(len(done))
    if len(done) == 1:
        raise RuntimeError("the first time it fails")


async def later(done: list[int]) -> None:
    await asyncio.sleep(0)
    at_once(done)


@pytest.mark.parametrize("work", [at_once, later])
def test_what_fails_once_is_said_and_done_again(
    work: Callable[[list[int]], Awaitable[None] | None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        done: list[int] = []
        task = asyncio.create_task(again_and_again(lambda: work(done), 0.001))
        async with asyncio.timeout(10):
            while len(done) < 3:
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.ERROR, "refold"):
        asyncio.run(main())
    assert [(record.getMessage(), str(record.exc_info and record.exc_info[1])) for record in caplog.records] == [
        ("what is done every 0.001 s has failed this time", "the first time it fails")
    ]


def test_a_part_that_ends_by_a_failure_is_said_and_one_that_is_ended_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("it is gone")

    async def main() -> None:
        tasks = [asyncio.create_task(fail()), asyncio.create_task(asyncio.sleep(60))]
        for task in tasks:
            task.add_done_callback(say_if_it_failed)
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with caplog.at_level(logging.ERROR, "refold"):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == ["a part of the daemon has ended"]
