"""A back end for Kubernetes in a test, without a daemon: orders in, events out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kubernetes_daemon import PODS
from kubernetes_objects import DAEMON

from refold.core import Event
from refold.engines.kubernetes.api_server import ApiServer, ObjectList
from refold.engines.kubernetes.backend import KubernetesBackend
from refold.engines.kubernetes.job_objects import OwnJobs
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.nodes import map_nodes
from refold.engines.kubernetes.objects import Pod

TIMEOUT_SECONDS = 120.0


class Runs:
    """A back end, and the events that it reports."""

    def __init__(self, api: ApiServer) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        self._api = api
        self._mirror = Mirror(api, DAEMON)

    async def __aenter__(self) -> Runs:
        await self._mirror.start()
        nodes = map_nodes(self._mirror.nodes.values())
        self.backend = KubernetesBackend(self._report, self._api, self._mirror, nodes, OwnJobs())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.detach()
        await self._mirror.stop()

    def _report(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def wait_for(self, event: Event) -> None:
        """Wait until an event is reported."""
        while event not in self.events:
            self._changed.clear()
            await self._changed.wait()


def play(api: ApiServer, test: Callable[[Runs], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a back end."""

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS), Runs(api) as runs:
            await test(runs)

    asyncio.run(run())


def running(api: ApiServer, name: str) -> list[Pod]:
    """Return the running pods whose names begin so."""
    found = api.get(PODS, ObjectList[Pod]).items
    return [pod for pod in found if pod.metadata.name.startswith(f"{name}-") and pod.status.phase == "Running"]
