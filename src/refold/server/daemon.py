"""Everything that `refold serve` is made of, put together; and taken apart again when it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from time import time
from typing import Any

import msgspec
import uvicorn

from refold.api import MOST_EVENTS, AllowedHosts, Api, EventStream, StoredToken, TokenAuthenticator
from refold.backends.local import LocalBackend
from refold.client import left_address, write_address
from refold.core import Header, JobSubmitted, Policy, RunFinished, Scheduler, StartRun
from refold.errors import BadInput
from refold.model import MINUTE, Job, Seconds
from refold.registry import make_policy
from refold.server import drained_gpus
from refold.server.backoff import Backoff
from refold.server.clock import Anchor, WallClock
from refold.server.config import Config
from refold.server.dependencies import Dependencies
from refold.server.drain import DrainManager
from refold.server.fallback import FallbackPolicy, refused
from refold.server.job_table import Notice
from refold.server.log_retention import SWEEP_EVERY, LogRetention
from refold.server.loop import Loop, LoopStep
from refold.server.memory_use import hand_back_the_compiler
from refold.server.monitor import LOOK_EVERY, GpuPoller, Layout, Machine, OutputWatch
from refold.server.notify import JobMessages, Notifier
from refold.server.periodic import again_and_again, say_if_it_failed
from refold.server.recovery import recover
from refold.server.retries import Retries
from refold.server.service import SchedulerService
from refold.server.store import Store
from refold.server.tokens import make_owner

CLOCK = "clock"
"""Under which name it is kept when the journal began."""

LOGS = "logs"
LOOK_FOR_LONG_WAITS_EVERY: Seconds = MINUTE
HAND_BACK_EVERY: Seconds = MINUTE
"""A kernel that is used for the first time takes the compiler out again."""


class Ready(msgspec.Struct, frozen=True):
    """That the daemon answers, and where; `token` is told when it is new. `notes` are for whoever started it."""

    address: str
    token: str
    running: int
    waiting: int
    notes: list[str]


class Daemon:
    """One store, one loop, one back end, one API. Made within a running event loop."""

    def __init__(
        self, config: Config, folder: Path, machine: Machine, layout: Layout, *, new_token: bool = False
    ) -> None:
        """`new_token`: its owner needs another, since the old one is lost or known to others."""
        self._new_token = new_token
        self._config = config
        self._folder = folder
        self._machine = machine
        self._layout = layout
        self._header = Header(layout.cluster, config.policy.name, config.policy_settings)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Have it end; its runs go on."""
        self._ended.set()

    async def serve(self, ready: Callable[[Ready], None]) -> None:
        """Until it is told to end."""
        self._rehearse()
        with Store(self._folder) as store:
            listener = _listener(self._config.serve.host, self._config.serve.port)
            with listener:
                await self._serve(store, listener, ready)

    def _rehearse(self) -> None:
        """Let another such policy decide once, for nothing: what is compiled on first use is so before anybody asks."""
        scheduler = Scheduler(self._header.cluster, self._policy(), refused=refused)
        scheduler.step(0.0, [JobSubmitted(Job(name)) for name in ("rehearsal", "of two")])
        scheduler.step(1.0, [RunFinished("rehearsal", 1)])
        hand_back_the_compiler()

    def _policy(self) -> Policy:
        return FallbackPolicy(partial(make_policy, self._header.policy, self._header.settings))

    async def _serve(self, store: Store, listener: socket.socket, ready: Callable[[Ready], None]) -> None:
        stand = recover(store.reading, self._header, self._policy, refused)
        feed = EventStream()
        feed.publish(store.reading.latest_events(MOST_EVENTS))
        loop = Loop(store, stand, self._header, _clock(store, stand.now), feed)
        output = OutputWatch(self._folder / LOGS, loop.report, self._config.watch.output, _noting(loop))
        verdicts = Retries(loop, output)
        backend = self._backend(verdicts, store)
        notifier = Notifier(self._config.notify)
        telling = JobMessages(loop, notifier, self._config.notify.waiting_long_after, store)
        rounds = GpuPoller(loop, self._machine, self._layout, self._config.watch, telling)
        sweeping = LogRetention(store.reading, self._folder / LOGS, self._config.serve.keep_logs_for)
        tokens, token = _tokens(store, self._new_token)
        servicing = DrainManager(loop, store)
        service = SchedulerService(loop, store, feed, servicing, tokens, self._folder / LOGS, time())
        service.gpu_readings = rounds.statuses
        service.resumed = rounds.is_well
        verdicts.drained = servicing.explain_later
        loop.gathers.append(drained_gpus.take_what_is_free)
        loop.beginnings.append(lambda: _follow_all(output, loop))
        Backoff(loop).attend()
        loop.watches += [_following(output, loop), Dependencies(loop, store.reading).watch, telling.watch]

        names = AllowedHosts(self._config.serve.host, listener.getsockname()[0], self._config.serve.names)
        server = uvicorn.Server(_uvicorn(Api(service, TokenAuthenticator(tokens), names=names)))
        address = _address(listener)
        write_address(self._folder, address, token or _kept_token(self._folder))
        try:
            await self._until_ended(
                loop.run(backend),
                server.serve([listener]),
                again_and_again(lambda: asyncio.to_thread(output.look), LOOK_EVERY),
                rounds.watch(),
                again_and_again(telling.look_for_long_waits, LOOK_FOR_LONG_WAITS_EVERY),
                again_and_again(hand_back_the_compiler, HAND_BACK_EVERY),
                again_and_again(lambda: asyncio.to_thread(sweeping.sweep), SWEEP_EVERY),
                _once_started(server, lambda: ready(self._ready(address, token, loop, backend, stand.note))),
                loop=loop,
                server=server,
                feed=feed,
            )
        finally:
            output.close()
            sweeping.close()
            await backend.leave()
            notifier.close()
            self._machine.close()

    async def _until_ended(
        self, *work: Coroutine[Any, Any, None], loop: Loop, server: uvicorn.Server, feed: EventStream
    ) -> None:
        """All of it, until somebody ends it or one of the first two ends. The others see to it that they go on."""
        tasks = [asyncio.create_task(one) for one in work]
        main, serving, *others = tasks
        for task in others:
            task.add_done_callback(say_if_it_failed)
        ended = asyncio.create_task(self._told_to_end())
        try:
            await asyncio.wait({main, serving, ended}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            feed.end()
            loop.end()
            for task in others:
                task.cancel()
            await asyncio.gather(main, serving)
        finally:
            for task in (*tasks, ended):
                task.cancel()
            await asyncio.gather(*tasks, ended, return_exceptions=True)

    async def _told_to_end(self) -> None:
        await self._ended.wait()

    def _backend(self, verdicts: Retries, store: Store) -> LocalBackend:
        return LocalBackend(
            verdicts.report,
            self._folder / LOGS,
            self._config.serve.grace,
            more_environment=store.reading.secrets,
            devices=self._layout.devices,
            device_memory_mib=self._layout.device_memory_mib,
            gpus=self._layout.devices is not None,
            in_own_folder=True,
            most_output=self._config.serve.most_output,
        )

    def _ready(self, address: str, token: str, loop: Loop, backend: LocalBackend, note: str) -> Ready:
        running = sum(not drained_gpus.is_drain_placeholder(job) for job in loop.view.active.values())
        return Ready(address, token, running, len(loop.view.waiting), [*filter(None, [note, backend.enforcement()])])


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadInput(f"cannot listen on {host} port {port}: {error.strerror}; name another with --port") from None
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _uvicorn(api: Api) -> uvicorn.Config:
    return uvicorn.Config(
        api,
        lifespan="off",
        access_log=False,
        log_config=None,
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        backlog=1024,
    )


def _clock(store: Store, last: Seconds) -> WallClock:
    """The journal's time goes on from where it was, and counts the time that nobody was there."""
    anchor = store.reading.remembered(CLOCK, Anchor)
    now = 0.0 if anchor is None else anchor.now(at_least=last)
    store.remember(CLOCK, Anchor.of(now))
    return WallClock(now)


def _tokens(store: Store, anew: bool) -> tuple[dict[str, StoredToken], str]:
    """Those that are known; of a new store, or if that is wanted, with a new one for its owner, which is told."""
    token = make_owner(store) if anew or not store.reading.tokens() else ""
    return {known.hash: known for known in store.reading.tokens()}, token


def _kept_token(folder: Path) -> str:
    """The owner's token, from where the first start has left it."""
    left = left_address(folder)
    return left.token if left is not None else ""


def _follow_all(output: OutputWatch, loop: Loop) -> None:
    """The output of runs that were going on is followed from where it is."""
    for run in loop.real_runs():
        output.follow(loop.view.active[run.job], run.number, len(run.allocation.placement))


def _following(output: OutputWatch, loop: Loop) -> Callable[[LoopStep], None]:
    """The output of runs is followed from their start to their end."""

    def watch(step: LoopStep) -> None:
        for order in step.entry.orders:
            if isinstance(order, StartRun) and order.job in loop.view.active:
                output.follow(loop.view.active[order.job], order.run, len(order.allocation.placement))
        for news in step.news:
            if news.job is not None and news.kind in ("stopped", "failed", "finished", "cancelled", "ended"):
                output.forget(news.job.id, news.run)

    return watch


def _noting(loop: Loop) -> Callable[[str, str], None]:
    """A sentence about a job that a thread has to say."""
    event_loop = asyncio.get_running_loop()

    def note(job_id: str, sentence: str) -> None:
        record = loop.job_table.of.get(job_id)
        if record is not None:
            event_loop.call_soon_threadsafe(loop.tell, Notice("noted", record.job, record.run, sentence))

    return note


async def _once_started(server: uvicorn.Server, work: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.005)
    work()
