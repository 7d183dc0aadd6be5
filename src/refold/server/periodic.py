"""Background tasks of the daemon that run periodically."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from refold.model import Seconds

log = logging.getLogger("refold")


async def run_every(work: Callable[[], Awaitable[None] | None], every: Seconds) -> None:
    """Call `work` periodically; log failures and continue."""
    while True:
        await asyncio.sleep(every)
        try:
            awaitable = work()
            if awaitable is not None:
                await awaitable
        except Exception:
            log.exception("periodic task failed; next attempt in %g s", every)


def log_task_failure(task: asyncio.Task[None]) -> None:
    """Log the exception of a background task that ended."""
    if not task.cancelled() and task.exception() is not None:
        log.error("a background task stopped because of an error", exc_info=task.exception())
