"""The daemon behind `refold serve`: create all parts, connect them, run them, and shut them down."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from refold.client import local_url, read_address, write_address
from refold.core import Header, Policy, Scheduler
from refold.model import MINUTE, Seconds
from refold.server.accounts import user_check
from refold.server.backoff import Backoff
from refold.server.change_costs import ChangeCosts
from refold.server.clock import Anchor, WallClock
from refold.server.config import Config
from refold.server.descriptors import raise_descriptor_limit
from refold.server.drain import DrainManager
from refold.server.engine import BackendOptions, ClusterEngine, ServedBackend
from refold.server.environments import ENVIRONMENT_SWEEP_SECONDS, Environments
from refold.server.fallback import FallbackPolicy, log_rejection
from refold.server.http import (
    MAX_BUFFERED_EVENTS,
    AllowedHosts,
    Api,
    BodyLimits,
    EventStream,
    Page,
    Sessions,
    StoredToken,
    TokenAuthenticator,
    WebSession,
)
from refold.server.inbox import Inbox
from refold.server.job_limits import JobLimits
from refold.server.job_queries import JobQueries
from refold.server.job_table import Notice
from refold.server.listeners import Listeners, format_address, open_listeners
from refold.server.live_state import LiveState
from refold.server.log_copies import is_up_to_date
from refold.server.log_format import EventLog
from refold.server.log_retention import SWEEP_INTERVAL_SECONDS, LogRetention
from refold.server.loop import Loop, NextEpoch
from refold.server.machine_locks import GpuLocks
from refold.server.metrics import Metrics
from refold.server.monitor import (
    OUTPUT_POLL_SECONDS,
    GpuPoller,
    GpuUseWatch,
    Layout,
    Machine,
    OutputFollower,
    OutputWatch,
)
from refold.server.network import ConnectionTable, LoopLag, describe_fewer_connections, limits_for, make_http_server
from refold.server.notify import JobMessages, Notifier
from refold.server.output import LOGS_FOLDER
from refold.server.periodic import log_task_failure, run_every
from refold.server.probes import make_pages
from refold.server.recovery import past_jobs, recover
from refold.server.retries import Retries
from refold.server.service import SchedulerService
from refold.server.start_conditions import StartConditions
from refold.server.start_forecasts import StartForecasts
from refold.server.store import Store
from refold.server.store_upkeep import UPKEEP_INTERVAL_SECONDS, StoreUpkeep
from refold.server.tokens import TokenStore, create_owner_token
from refold.server.unix_users import UserDirectory
from refold.server.web import WebFiles
from refold.server.writer import Writer
from refold.simulator import make_policy, without_start_estimates

CLOCK_KEY = "clock"
"""Key in the store's `meta` table: when the journal began."""

SESSIONS_KEY = "web sessions"
"""Key in the store's `meta` table: the sessions of the web UI."""

LONG_WAIT_CHECK_SECONDS: Seconds = MINUTE
PURGE_SECONDS: Seconds = 10.0
"""How often it is tried to empty the write-ahead log of deleted secrets, if that was not possible at once."""

PROGRESS_INTERVAL: Seconds = 5.0
"""How often the output of pods that report progress in it is copied."""

log = logging.getLogger("refold")


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
        self._header = Header(layout.cluster, config.policy.name, config.policy_settings)
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
        config, layout, logs = self._config, self._layout, self._folder / LOGS_FOLDER

        # The state, the input, and where steps are written.
        header = self._header
        history = self._engine.history()
        recovered = recover(store.reader, header, partial(_make_policy, header), log_rejection, history)
        state = LiveState(recovered, header, _make_clock(store, recovered.now))
        writer = Writer(store)
        inbox = Inbox(writer, recovered.wakes)
        for notice in recovered.notices:
            inbox.add_notice(notice)

        # Parts that read the state and add input.
        notifier = Notifier(config.notify)
        messages = JobMessages(state, writer, store, notifier, config.notify.waiting_long_after, logs)
        output = OutputWatch(logs, inbox.report, config.watch.output, partial(_add_note, state, inbox))
        use = GpuUseWatch(layout, config, GpuLocks())
        gpus = GpuPoller(state, inbox, self._machine, layout, config.watch, messages, use)
        await gpus.claim()
        drains = DrainManager(state, inbox)
        engine = self._engine
        copier = engine.make_output(state, logs, config.serve.max_output)
        refresh_log = copier.refresh if copier is not None else is_up_to_date
        retries = Retries(state, inbox, output, refresh_log)
        environments = Environments(state, writer, store)
        conditions = StartConditions(state, inbox, store.reader)
        past = past_jobs(store.reader, history)
        forecasts = StartForecasts(state, past)
        retention = LogRetention(store.reader, logs, config.serve.keep_logs_for)

        # The API and the loop.
        event_stream = _restore_event_stream(store)
        limits = JobLimits(config.limits, state.job_table.records.values(), user_check(bool(config.serve.user)))
        backend = self._make_backend(retries, store, environments, limits)
        tokens, token = _load_tokens(store, self._new_token)
        queries = JobQueries(state, writer, store.reader, logs, forecasts, refresh_log)
        service = SchedulerService(
            state,
            inbox,
            store,
            queries,
            environments=environments,
            conditions=conditions,
            drains=drains,
            gpus=gpus,
            forecasts=forecasts,
            tokens=TokenStore(writer, store, tokens),
            event_stream=event_stream,
            kill=backend.kill,
            preemption=config.preemption,
            limits=limits,
            node_limits=engine.limits_text,
        )
        parts = engine.make_parts(state, inbox, service.admission, queries.status, self.end)
        connection_limits, lag = limits_for(raise_descriptor_limit(), config.http), LoopLag()
        connections = ConnectionTable(connection_limits)
        metrics = Metrics(state, inbox, gpus, event_stream, connections, lag, store.path)
        subscribers = [
            drains,
            Backoff(state),
            OutputFollower(state, output),
            conditions,
            messages,
            forecasts,
            ChangeCosts(inbox),
            limits,
            metrics,
            EventLog(),
            *parts.subscribers,
        ]
        loop = Loop(state, inbox, writer, event_stream, subscribers)

        async def begin_epoch() -> None:
            past = await asyncio.to_thread(past_jobs, store.reader, history)
            loop.begin_epoch(NextEpoch(state.header, _make_scheduler(state.header), past))

        upkeep = StoreUpkeep(state, writer, store, config.serve, begin_epoch)
        sessions = _restore_sessions(store, writer)
        api = self._make_api(service, TokenAuthenticator(tokens), listeners.tcp, make_pages(inbox, metrics), sessions)
        server = make_http_server(api, connection_limits, connections)
        address = format_address(listeners.tcp)
        write_address(self._folder, address, token or _saved_token(self._folder), listeners.path)
        notes = [
            recovered.note,
            backend.enforcement(),
            *engine.notes(),
            describe_fewer_connections(connection_limits, config.http),
        ]

        # Run all of it.
        try:
            await self._until_ended(
                loop.run(backend),
                server.serve(listeners.all),
                run_every(lambda: asyncio.to_thread(output.poll), OUTPUT_POLL_SECONDS),
                gpus.run(),
                lag.run(),
                run_every(lambda: writer.write(store.purge_log), PURGE_SECONDS),
                run_every(messages.notify_long_waits, LONG_WAIT_CHECK_SECONDS),
                run_every(lambda: asyncio.to_thread(retention.sweep), SWEEP_INTERVAL_SECONDS),
                run_every(environments.sweep, ENVIRONMENT_SWEEP_SECONDS),
                run_every(upkeep.run, UPKEEP_INTERVAL_SECONDS),
                *parts.tasks,
                *([run_every(copier.copy_progress, PROGRESS_INTERVAL)] if copier is not None else []),
                _once_started(server, lambda: ready(_make_ready(address, listeners.path, token, state, notes))),
                inbox=inbox,
                server=server,
                event_stream=event_stream,
            )
        finally:
            output.close()
            retention.close()
            await backend.detach()
            notifier.close()
            use.close()
            self._machine.close()

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
            body_limits=BodyLimits(self._config.http.body_size, self._config.http.body_timeout),
        )

    def _make_backend(
        self, retries: Retries, store: Store, environments: Environments, limits: JobLimits
    ) -> ServedBackend:
        return self._engine.make_backend(
            BackendOptions(
                retries.report,
                self._folder / LOGS_FOLDER,
                self._config.serve.grace,
                environments.variables,
                store.reader.secrets,
                self._config.serve.max_output,
                limits.of_run,
            )
        )


def _make_policy(header: Header) -> Policy:
    return FallbackPolicy(partial(make_policy, header.policy, without_start_estimates(header.settings)))


def _make_scheduler(header: Header) -> Scheduler:
    return Scheduler(header.cluster, _make_policy(header), on_rejection=log_rejection)


def _make_ready(address: str, path: Path | None, token: str, state: LiveState, notes: Sequence[str]) -> DaemonReady:
    return DaemonReady(address, token, len(state.view.active), len(state.view.waiting), [*filter(None, notes)], path)


def _make_clock(store: Store, last: Seconds) -> WallClock:
    """Continue the journal's time, including the time during which no daemon ran."""
    anchor = store.reader.read_meta(CLOCK_KEY, Anchor)
    now = 0.0 if anchor is None else anchor.now(at_least=last)
    store.write_meta(CLOCK_KEY, Anchor.at(now))
    return WallClock(now)


def _restore_event_stream(store: Store) -> EventStream:
    """Return a stream with the latest events, so that listeners can continue after a restart."""
    event_stream = EventStream()
    event_stream.publish(store.reader.latest_events(MAX_BUFFERED_EVENTS))
    return event_stream


def _restore_sessions(store: Store, writer: Writer) -> Sessions:
    """Return the sessions of the web UI, so that nobody has to sign in again after a restart."""

    async def save(sessions: dict[str, WebSession]) -> None:
        await writer.write(lambda: store.write_meta(SESSIONS_KEY, sessions))

    return Sessions(store.reader.read_meta(SESSIONS_KEY, dict[str, WebSession]), save)


def _load_tokens(store: Store, renew: bool) -> tuple[dict[str, StoredToken], str]:
    """Return the stored tokens by hash and, for a new store or if `renew`, a new owner token (else '')."""
    token = create_owner_token(store) if renew or not store.reader.tokens() else ""
    return {stored.hash: stored for stored in store.reader.tokens()}, token


def _saved_token(folder: Path) -> str:
    """Return the owner's token from the client file of an earlier start, or ''."""
    address = read_address(folder)
    return address.token if address is not None else ""


def _add_note(state: LiveState, inbox: Inbox, job_id: str, text: str) -> None:
    """Add a note to a job's events. Thread-safe."""
    record = state.job_table.records.get(job_id)
    if record is not None:
        inbox.add_notice(Notice("note", record.job, record.run, text))


async def _once_started(server: uvicorn.Server, work: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    gc.freeze()
    gc.enable()
    work()
