"""The timeline of the daemon: runs from the journal, who may see what, and a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import TimelineQuery
from refold.client.api.queries import Caller
from refold.client.api.submissions import Submission
from refold.client.api.wire import NodeGpus, TimelineRun
from refold.core import RunFailed, RunFinished, RunStarted, RunStopped

OTHER = Caller("other", "reader", "speech", "bob")
HOUR = TimelineQuery(3600.0)


def seconds(run: TimelineRun, daemon: ManualDaemon) -> tuple[float, float | None]:
    """Return start and end in journal seconds."""
    offset = daemon.state.wall_time(0.0)
    return round(run.start - offset), None if run.end is None else round(run.end - offset)


def test_runs_are_on_the_timeline_with_their_times_and_gpus(tmp_path: Path) -> None:
    async def check() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            first = await daemon.service.submit(OWNER, Submission("first", ["true"]))
            second = await daemon.service.submit(OWNER, Submission("second", ["true"]))
            daemon.clock.time = 100.0
            await daemon.inbox.commit([RunFinished(first.id, 1)])
            ended, running = (await daemon.service.timeline(OWNER, HOUR)).runs
            assert (ended.job, ended.ending, ended.placement) == (first.id, "finished", [NodeGpus("a", [0])])
            assert seconds(ended, daemon) == (0, 100)
            assert (running.job, running.end, running.placement) == (second.id, None, [NodeGpus("a", [1])])

    asyncio.run(check())


def test_starting_and_stopping_are_overhead(tmp_path: Path) -> None:
    async def check() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.service.submit(OWNER, Submission("first", ["true"]))
            daemon.clock.time = 30.0
            await daemon.inbox.commit([RunStarted(job.id, 1)])
            daemon.clock.time = 100.0
            await daemon.service.cancel(OWNER, job.id)
            daemon.clock.time = 112.0
            await daemon.inbox.commit([RunStopped(job.id, 1)])
            (run,) = (await daemon.service.timeline(OWNER, HOUR)).runs
            assert (seconds(run, daemon), round(run.overhead)) == ((0, 112), 30 + 12)

    asyncio.run(check())


def test_what_ended_before_the_time_span_is_left_out_and_users_are_hidden_from_others(tmp_path: Path) -> None:
    async def check() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            for name in ("early", "late"):
                job = await daemon.service.submit(OWNER, Submission(name, ["true"]))
                daemon.clock.time += 100.0
                await daemon.inbox.commit([RunFailed(job.id, 1, "exit status 1")])
            daemon.clock.time = 250.0
            (late,) = (await daemon.service.timeline(OWNER, TimelineQuery(100.0))).runs
            assert (late.job, late.ending, late.user) == ("late-2", "failed", "ann")
            assert [run.user for run in (await daemon.service.timeline(OTHER, HOUR)).runs] == ["", ""]

    asyncio.run(check())


def test_a_new_daemon_reads_the_past_from_the_journal(tmp_path: Path) -> None:
    async def check() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.service.submit(OWNER, Submission("first", ["true"]))
            daemon.clock.time = 100.0
            await daemon.inbox.commit([RunFinished(job.id, 1)])
        async with ManualDaemon(tmp_path, UnreliableBackend(), time=200.0) as again:
            (run,) = (await again.service.timeline(OWNER, HOUR)).runs
            assert (run.job, run.tenant, seconds(run, again)) == (job.id, "default", (0, 100))

    asyncio.run(check())
