"""The parts of the daemon below its API: the state and the input, what reads the state, and what launches runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from refold.core import Header, Policy, Scheduler
from refold.model import MINUTE, Seconds, SlowPlace
from refold.server.admission import AdmissionRules
from refold.server.backend import is_up_to_date
from refold.server.clock import Anchor, WallClock
from refold.server.config import Config
from refold.server.drain import DrainManager
from refold.server.engine import BackendOptions, ClusterEngine
from refold.server.environments import ENVIRONMENT_SWEEP_SECONDS, Environments
from refold.server.fallback import FallbackPolicy, log_rejection
from refold.server.http import MAX_BUFFERED_EVENTS, EventStream, Sessions, StoredToken, WebSession
from refold.server.inbox import Inbox
from refold.server.job_limits import JobLimits
from refold.server.job_queries import JobQueries
from refold.server.job_table import Notice
from refold.server.live_state import LiveState
from refold.server.loop import Loop, NextEpoch
from refold.server.machine_locks import GpuLocks
from refold.server.metrics import Metrics
from refold.server.monitor import (
    OUTPUT_POLL_SECONDS,
    USE_POLL_SECONDS,
    GpuPoller,
    GpuUseWatch,
    JobUseHistory,
    Layout,
    Machine,
    OutputFollower,
    OutputWatch,
)
from refold.server.notify import JobMessages, Notifier
from refold.server.output import LOGS_FOLDER
from refold.server.recovery import past_jobs, recover
from refold.server.retries import Backoff, Retries
from refold.server.service import SchedulerService
from refold.server.start_conditions import StartConditions
from refold.server.start_forecasts import StartForecasts
from refold.server.store import Store
from refold.server.store_upkeep import SWEEP_INTERVAL_SECONDS, LogRetention, StoreUpkeep
from refold.server.subscribers import ChangeCosts, EventLog, Subscriber
from refold.server.tokens import TokenStore
from refold.server.unix_users import user_check
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


class DaemonParts:
    """All parts below the API, connected. To be created in a running event loop, opened, and closed after use."""

    def __init__(
        self, config: Config, folder: Path, machine: Machine, layout: Layout, engine: ClusterEngine, store: Store
    ) -> None:
        self._config, self._machine, self._layout, self._engine = config, machine, layout, engine
        self._store, self._logs = store, folder / LOGS_FOLDER
        self._restore()
        self._watch_runs_and_gpus()
        self._answer_queries()

    def _restore(self) -> None:
        """Continue from what is stored: the state, the input, and where steps are written."""
        store, header = (
            self._store,
            Header(self._layout.cluster, self._config.policy.name, self._config.policy_settings),
        )
        self._recorded = self._engine.history()
        recovered = recover(store.reader, header, partial(_make_policy, header), log_rejection, self._recorded)
        self.state = LiveState(recovered, header, _make_clock(store, recovered.now))
        self._writer = Writer(store)
        self.inbox = Inbox(self._writer, recovered.wakes)
        for notice in recovered.notices:
            self.inbox.add_notice(notice)
        self._recovery_note = recovered.note
        self.event_stream = EventStream()  # with the latest events, so that listeners can continue
        self.event_stream.publish(store.reader.latest_events(MAX_BUFFERED_EVENTS))

    def _watch_runs_and_gpus(self) -> None:
        """Create what notices how runs and GPUs are, and adds input."""
        config, state, inbox = self._config, self.state, self.inbox
        self._notifier = Notifier(config.notify)
        self._messages = JobMessages(
            state, self._writer, self._store, self._notifier, config.notify.waiting_long_after, self._logs
        )
        self._output = OutputWatch(self._logs, inbox.report, config.watch.output, self._add_note, self._place_of)
        self._gpu_use = GpuUseWatch(self._layout, config, GpuLocks())
        self.gpus = GpuPoller(state, inbox, self._machine, self._layout, config.watch, self._messages, self._gpu_use)
        self._use = JobUseHistory(state, self._engine.job_use, self.gpus.utilisation_of_jobs)
        self._drains = DrainManager(state, inbox)
        self._copier = self._engine.make_output(state, self._logs, config.serve.max_output)
        self._refresh_log = self._copier.refresh if self._copier is not None else is_up_to_date
        self._retries = Retries(state, inbox, self._output, self._refresh_log, self._engine.retry_delay)
        self._retention = LogRetention(self._store.reader, self._logs, config.serve.keep_logs_for)

    def _answer_queries(self) -> None:
        """Create what the API reads, and the limits of what it accepts."""
        state, store = self.state, self._store
        self._environments = Environments(state, self._writer, store)
        self._conditions = StartConditions(state, self.inbox, store.reader)
        self.forecasts = StartForecasts(state, past_jobs(store.reader, self._recorded))
        users = user_check(bool(self._config.serve.user))
        self._limits = JobLimits(self._config.limits, state.job_table.records.values(), users)
        self.queries = JobQueries(
            state, self._writer, store.reader, self._logs, self.forecasts, self._refresh_log, self._engine.run_note
        )

    async def open(self) -> None:
        """Claim the GPUs; then create what launches runs on them."""
        await self.gpus.claim()
        self.backend = self._engine.make_backend(
            BackendOptions(
                self._retries.report,
                self._logs,
                self._config.serve.grace,
                self._environments.variables,
                self._store.reader.secrets,
                self._config.serve.max_output,
                self._limits.of_run,
            )
        )

    def make_service(self, tokens: dict[str, StoredToken]) -> SchedulerService:
        return SchedulerService(
            self.state,
            self.inbox,
            self._store,
            self.queries,
            environments=self._environments,
            conditions=self._conditions,
            drains=self._drains,
            gpus=self.gpus,
            use_of=self._use.of,
            forecasts=self.forecasts,
            tokens=TokenStore(self._writer, self._store, tokens),
            event_stream=self.event_stream,
            kill=self.backend.kill,
            rules=AdmissionRules(
                self._config.preemption, self._limits, self._config.notify.allow, self._engine.complete
            ),
            node_limits=self._engine.limits_text,
        )

    def make_loop(self, metrics: Metrics, others: Sequence[Subscriber]) -> Loop:
        """Create the loop; `others`: subscribers of the engine."""
        subscribers = [
            self._drains,
            Backoff(self.state, self._engine.retry_delay),
            OutputFollower(self.state, self._output),
            self._conditions,
            self._messages,
            self.forecasts,
            ChangeCosts(self.inbox),
            self._limits,
            metrics,
            EventLog(),
            *others,
        ]
        return Loop(self.state, self.inbox, self._writer, self.event_stream, subscribers)

    def make_upkeep(self, loop: Loop) -> StoreUpkeep:
        """Create what keeps the store small; it begins epochs of the loop."""

        async def begin_epoch() -> None:
            past = await asyncio.to_thread(past_jobs, self._store.reader, self._recorded)
            header = self.state.header
            scheduler = Scheduler(header.cluster, _make_policy(header), on_rejection=log_rejection)
            loop.begin_epoch(NextEpoch(header, scheduler, past))

        return StoreUpkeep(self.state, self._writer, self._store, self._config.serve, begin_epoch)

    def restore_sessions(self) -> Sessions:
        """Return the sessions of the web UI, which outlive a restart."""

        async def save(sessions: Mapping[str, WebSession]) -> None:
            await self._writer.write(lambda: self._store.write_meta(SESSIONS_KEY, sessions))

        return Sessions(self._store.reader.read_meta(SESSIONS_KEY, dict[str, WebSession]), save)

    def periodic_work(self) -> list[Coroutine[Any, Any, None]]:
        """Return what runs beside the loop until the daemon ends."""
        work = [
            run_every(lambda: asyncio.to_thread(self._output.poll), OUTPUT_POLL_SECONDS),
            self.gpus.run(),
            run_every(self._use.poll, USE_POLL_SECONDS),
            run_every(lambda: self._writer.write(self._store.purge_log), PURGE_SECONDS),
            run_every(self._messages.notify_long_waits, LONG_WAIT_CHECK_SECONDS),
            run_every(lambda: asyncio.to_thread(self._retention.sweep), SWEEP_INTERVAL_SECONDS),
            run_every(self._environments.sweep, ENVIRONMENT_SWEEP_SECONDS),
        ]
        if self._copier is not None:
            work.append(run_every(self._copier.copy_progress, PROGRESS_INTERVAL))
        return work

    def notes(self) -> list[str]:
        """Return what the operator should know; '' for nothing."""
        return [self._recovery_note, self.backend.enforcement()]

    async def close(self) -> None:
        """Let go of everything. Runs continue."""
        self._output.close()
        self._retention.close()
        await self.backend.detach()
        self._notifier.close()
        self._gpu_use.close()
        self._machine.close()

    def _place_of(self, job_id: str, place: SlowPlace) -> str:
        """Return node and GPU of a rank. Thread-safe."""
        run = self.state.view.runs.get(job_id)
        shares = run.allocation.placement if run is not None else ()
        if not 0 <= place.instance < len(shares):
            return ""
        share = shares[place.instance]
        gpu = f", GPU {share.gpus[place.local_rank]}" if 0 <= place.local_rank < len(share.gpus) else ""
        return f" ({self.state.view.cluster.nodes[share.node].name}{gpu})"

    def _add_note(self, job_id: str, text: str) -> None:
        """Add a note to a job's events. Thread-safe."""
        record = self.state.job_table.records.get(job_id)
        if record is not None:
            self.inbox.add_notice(Notice("note", record.job, record.run, text))


def _make_policy(header: Header) -> Policy:
    return FallbackPolicy(partial(make_policy, header.policy, without_start_estimates(header.settings)))


def _make_clock(store: Store, last: Seconds) -> WallClock:
    """Continue the journal's time, including the time during which no daemon ran."""
    anchor = store.reader.read_meta(CLOCK_KEY, Anchor)
    now = 0.0 if anchor is None else anchor.now(at_least=last)
    store.write_meta(CLOCK_KEY, Anchor.at(now))
    return WallClock(now)


# Background tasks of the daemon that run periodically.

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
