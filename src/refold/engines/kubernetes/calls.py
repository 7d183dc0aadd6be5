"""Requests to the API server from the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from refold.engines.kubernetes.api_server import ApiError, ApiServer
from refold.engines.kubernetes.owners import Owners
from refold.model import Seconds

RETRY_PAUSE: Seconds = 1.0
CONFLICT, NOT_FOUND = 409, 404

T = TypeVar("T")

log = logging.getLogger("refold")


class Calls:
    """Requests to the API server from threads, for use with `await`."""

    def __init__(self, api: ApiServer, threads: ThreadPoolExecutor) -> None:
        self.api = api
        self.owners = Owners(api)
        self._threads = threads

    async def run(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function in a thread."""
        call = partial(function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def repeat(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread, again and again while the API server is not available."""
        while True:
            try:
                return await self.run(function, *arguments)
            except ApiError as error:
                if not error.is_transient:
                    raise
                log.warning("%s; retrying", error)
            await asyncio.sleep(RETRY_PAUSE)
