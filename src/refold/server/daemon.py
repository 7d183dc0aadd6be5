"""The daemon behind `refold serve`: create all parts, connect them, run them, and shut them down."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from refold.client import local_url, read_address, write_address
from refold.server.config import Config
from refold.server.daemon_parts import DaemonParts, log_task_failure, run_every
from refold.server.engine import ClusterEngine
from refold.server.http import (
    AllowedHosts,
    Api,
    BodyLimits,
    EventStream,
    Page,
    Sessions,
    TokenAuthenticator,
)
from refold.server.inbox import Inbox
from refold.server.listeners import Listeners, format_address, open_listeners
from refold.server.live_state import LiveState
from refold.server.metrics import Metrics, make_pages
from refold.server.monitor import (
    Layout,
    Machine,
)
from refold.server.network import ConnectionTable, LoopLag, describe_fewer_connections, limits_for, make_http_server
from refold.server.service import SchedulerService
from refold.server.signals import raise_descriptor_limit
from refold.server.store import Store
from refold.server.store_upkeep import UPKEEP_INTERVAL_SECONDS
from refold.server.tokens import create_owner_token
from refold.server.unix_users import UserDirectory
from refold.server.web import WebFiles


class DaemonReady(msgspec.Struct, frozen=True):
    """Start-up report, made once the API answers. `token` is set only if it is new; `notes` are for the operator.

    `socket`: the path of the Unix socket, if there is one.
    """

    address: str
    token: str
    running: int
    waiting: int
    notes: list[str]
    socket: Path | None = None


class Daemon:
    """The daemon: one store, loop, backend and API. Create it inside a running event loop."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        machine: Machine,
        layout: Layout,
        engine: ClusterEngine,
        *,
        new_token: bool = False,
    ) -> None:
        """`machine`, `layout`: the GPUs of this machine, as far as its runs use them.

        `new_token`: create a new owner token, because the old one was lost or leaked.
        """
        self._engine = engine
        self._new_token = new_token
        self._config = config
        self._folder = folder
        self._machine = machine
        self._layout = layout
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Shut down. Runs continue."""
        self._ended.set()

    async def serve(self, ready: Callable[[DaemonReady], None]) -> None:
        """Serve until `end` is called; call `ready` once the API answers."""
        gc.disable()  # until the jobs of the last daemon are restored: there may be many, and they stay
        try:
            with Store(self._folder) as store, open_listeners(self._config, self._folder) as listeners:
                await self._serve(store, listeners, ready)
        finally:
            gc.enable()

    async def _serve(self, store: Store, listeners: Listeners, ready: Callable[[DaemonReady], None]) -> None:
        parts = DaemonParts(self._config, self._folder, self._machine, self._layout, self._engine, store)
        await parts.open()
        token = create_owner_token(store) if self._new_token or not store.reader.tokens() else ""
        tokens = {stored.hash: stored for stored in store.reader.tokens()}
        service = parts.make_service(tokens)
        engine_parts = self._engine.make_parts(
            parts.state, parts.inbox, service.admission, parts.queries.status, self.end
        )
        limits, lag = limits_for(raise_descriptor_limit(), self._config.http), LoopLag()
        connections = ConnectionTable(limits)
        scores = parts.forecasts.scores_of_tenants
        shown = (parts.gpus, parts.event_stream, connections, lag, store.path, scores, engine_parts.metrics)
        metrics = Metrics(parts.state, parts.inbox, *shown)
        loop = parts.make_loop(metrics, engine_parts.subscribers)
        upkeep = parts.make_upkeep(loop)
        pages = make_pages(parts.inbox, metrics)
        api = self._make_api(service, TokenAuthenticator(tokens), listeners.tcp, pages, parts.restore_sessions())
        server = make_http_server(api, limits, connections)
        address = format_address(listeners.tcp)
        write_address(self._folder, address, token or _saved_token(self._folder), listeners.path)
        notes = [*parts.notes(), *self._engine.notes(), describe_fewer_connections(limits, self._config.http)]
        try:
            await self._until_ended(
                loop.run(parts.backend),
                server.serve(listeners.all),
                lag.run(),
                run_every(upkeep.run, UPKEEP_INTERVAL_SECONDS),
                *parts.periodic_work(),
                *engine_parts.tasks,
                _once_started(server, lambda: ready(_make_ready(address, listeners.path, token, parts.state, notes))),
                inbox=parts.inbox,
                server=server,
                event_stream=parts.event_stream,
            )
        finally:
            await parts.close()

    async def _until_ended(
        self, *work: Coroutine[Any, Any, None], inbox: Inbox, server: uvicorn.Server, event_stream: EventStream
    ) -> None:
        """Run all work until `end` is called or one of the first two tasks (loop, API server) ends."""
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        main, serving, *others = tasks
        for task in others:
            task.add_done_callback(log_task_failure)
        ended = asyncio.create_task(self._wait_for_end())
        try:
            await asyncio.wait({main, serving, ended}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            event_stream.close()
            inbox.stop()
            for task in others:
                task.cancel()
            await asyncio.gather(main, serving)
        finally:
            for task in (*tasks, ended):
                task.cancel()
            await asyncio.gather(*tasks, ended, return_exceptions=True)

    async def _wait_for_end(self) -> None:
        await self._ended.wait()

    def _make_api(
        self,
        service: SchedulerService,
        tokens: TokenAuthenticator,
        listener: socket.socket,
        pages: Mapping[str, Page],
        sessions: Sessions,
    ) -> Api:
        hosts = AllowedHosts(self._config.serve.host, listener.getsockname()[0], self._config.serve.allowed_hosts)
        users = UserDirectory(self._config.users, os.geteuid())
        return Api(
            service,
            tokens,
            hosts=hosts,
            users=users,
            pages=pages,
            sessions=sessions,
            files=WebFiles(),
            address=local_url(format_address(listener)),
            body_limits=BodyLimits(self._config.http.body_size),
        )


def _make_ready(address: str, path: Path | None, token: str, state: LiveState, notes: Sequence[str]) -> DaemonReady:
    return DaemonReady(address, token, len(state.view.active), len(state.view.waiting), [*filter(None, notes)], path)


def _saved_token(folder: Path) -> str:
    """Return the owner's token from the client file of an earlier start, or ''."""
    address = read_address(folder)
    return address.token if address is not None else ""


async def _once_started(server: uvicorn.Server, work: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    gc.freeze()
    gc.enable()
    work()
