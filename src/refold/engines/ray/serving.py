"""Serve a Ray cluster: each instance of a run is an actor."""

from __future__ import annotations

import asyncio

from refold.engines.ray.cluster import RayConnection
from refold.engines.ray.engine import DAEMON_KEY, RayEngine
from refold.engines.ray.tasks import connected, load_ray
from refold.server import ServeRequest, load_daemon_id, on_termination, serve_cluster

ADDRESS = "auto"
"""The Ray cluster to serve: that of the variable RAY_ADDRESS, or of this machine. None is started."""


def serve_ray(request: ServeRequest) -> None:
    """Serve until a signal ends the daemon. Jobs continue."""
    ray = load_ray("refold serve --on ray")

    async def serve() -> None:
        ended = asyncio.Event()
        on_termination(ended.set)
        daemon_id = await asyncio.to_thread(load_daemon_id, request.folder, DAEMON_KEY)
        engine = RayEngine(RayConnection(ray), daemon_id, request.config.tenants)
        await serve_cluster(request, engine, engine.connect(), ended)

    with connected(ray, ADDRESS):
        asyncio.run(serve())
    request.say("stopped; running jobs continue, and `refold serve --on ray` takes control of them again")
