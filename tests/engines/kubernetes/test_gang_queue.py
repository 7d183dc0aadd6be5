"""The queue of gangs: what it does before the state of the previous daemon is restored."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from refold.engines.kubernetes.gang_queue import GangQueue


def test_no_gang_is_examined_before_it_is_known_which_gangs_have_a_job() -> None:
    """A gang that another daemon has bound in part would be submitted again, without the pods that are bound."""
    examined = asyncio.Event()

    def gangs() -> list[Any]:
        examined.set()
        return []

    async def work() -> None:
        mirror = SimpleNamespace(follow=asyncio.Queue, unfollow=lambda _: None, gangs=gangs)
        state = SimpleNamespace(job_table=SimpleNamespace(records={}), now=lambda: 0.0)
        none = cast(Any, None)
        queue = GangQueue(cast(Any, state), none, none, cast(Any, mirror), none, none, none, none)
        running = asyncio.create_task(queue.run())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not examined.is_set()
        queue.started()
        async with asyncio.timeout(10):
            await examined.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(work())
