"""What a daemon does again and again beside its loop: nobody waits for it, so it has to look after itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from refold.model import Seconds

log = logging.getLogger("refold")


async def again_and_again(work: Callable[[], Awaitable[None] | None], every: Seconds) -> None:
    """What fails is said, and done again the next time: nobody else would notice that it is not done any more."""
    while True:
        await asyncio.sleep(every)
        try:
            under_way = work()
            if under_way is not None:
                await under_way
        except Exception:
            log.exception("what is done every %g s has failed this time", every)


def say_if_it_failed(task: asyncio.Task[None]) -> None:
    """For a task that nobody waits for."""
    if not task.cancelled() and task.exception() is not None:
        log.error("a part of the daemon has ended", exc_info=task.exception())
