"""Run a daemon until a signal ends it; on a cluster, continue with its new nodes when they have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from refold.model import format_count
from refold.server.config import Config
from refold.server.daemon import Daemon, DaemonReady
from refold.server.engine import ClusterEngine
from refold.server.monitor import Layout, SlotsMachine, with_power, with_topology
from refold.server.signals import TERMINATION_SIGNALS

END_SECONDS = 5.0
"""How long a daemon on a cluster may take to end in an orderly way."""


class ServeRequest(msgspec.Struct, frozen=True):
    """What to serve, and how to say how it goes: `say` prints a line, `ready` is called once the API answers."""

    config: Config
    folder: Path
    new_token: bool
    say: Callable[[str], None]
    ready: Callable[[DaemonReady], None]


def run_until_done(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine with uvloop, if installed: it handles about twice as many requests as asyncio."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def on_termination(action: Callable[[], object]) -> None:
    """Call this when a signal ends the program."""
    for number in TERMINATION_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, action)


async def serve_cluster(
    request: ServeRequest, engine: ClusterEngine, connect: Awaitable[str], ended: asyncio.Event
) -> None:
    """Connect, say to what, and serve until soon after `ended` is set, even if the cluster no longer answers."""
    task = asyncio.create_task(_connect_and_serve(request, engine, connect, ended))
    ending = asyncio.create_task(ended.wait())
    await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    await asyncio.wait({task}, timeout=END_SECONDS)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _connect_and_serve(
    request: ServeRequest, engine: ClusterEngine, connect: Awaitable[str], ended: asyncio.Event
) -> None:
    request.say(await connect)
    await _serve_epochs(request, engine, ended)


async def _serve_epochs(request: ServeRequest, engine: ClusterEngine, ended: asyncio.Event) -> None:
    """Serve a cluster; when its nodes have changed, continue with the new ones, at the same address."""
    config, new_token, port = request.config, request.new_token, request.config.serve.port

    def ready(report: DaemonReady) -> None:
        nonlocal port
        port = urlsplit(report.address).port or port
        request.ready(report)

    while not ended.is_set():
        cluster = with_power(with_topology(engine.cluster, config.topology), config.power, config.policy)
        size = f"{format_count(len(cluster.nodes), 'node')}, {format_count(cluster.gpus, 'GPU')}"
        request.say(f"{size}, policy {config.policy.name}")
        current = replace(config, serve=replace(config.serve, port=port))
        daemon = Daemon(current, request.folder, SlotsMachine(0), Layout(cluster, ()), engine, new_token=new_token)
        ending = asyncio.create_task(_end_with(daemon, ended))
        await daemon.serve(ready)
        ending.cancel()
        new_token = False
        engine.rebuild()


async def _end_with(daemon: Daemon, ended: asyncio.Event) -> None:
    await ended.wait()
    daemon.end()
