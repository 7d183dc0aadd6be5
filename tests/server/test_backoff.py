"""Jobs that fail repeatedly are retried with exponential back-off."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.core.events import JobHeld, RunFailed, RunFinished
from refold.model import Reason
from refold.server.job_table import backoff_seconds


def test_the_backoff_doubles_with_each_failure_up_to_five_minutes() -> None:
    backoffs = [backoff_seconds(failures) for failures in (1, 2, 3, 8, 9, 1000)]
    assert backoffs == [2, 4, 8, 256, 300, 300]


@given(st.integers(1, 5000))
def test_the_backoff_never_shrinks_and_never_exceeds_five_minutes(failures: int) -> None:
    before, after = (backoff_seconds(count) for count in (failures, failures + 1))
    assert before <= after <= 300


def test_a_failed_job_is_retried_after_its_backoff(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", retries=3)
            for backoff in (2.0, 4.0):
                await daemon.end_run(job, RunFailed, why="exit 1")
                status = await daemon.service.job(OWNER, job)
                assert (status.state, status.reason) == ("held", "Backoff")
                until = datetime.fromtimestamp(round(daemon.state.wall_time(daemon.state.now() + backoff)))
                assert status.message == f"until {until}, after {'1 failure' if backoff == 2 else '2 failures'}"
                await daemon.advance(backoff - 0.5)
                assert daemon.state.view.hold_reason(job) is Reason.BACKOFF
                await daemon.advance(1.0)
            assert [(run.job, run.number) for run in daemon.state.view.runs.values()] == [(job, 3)]
            await daemon.end_run(job, RunFinished)
            assert [
                (notice.kind, notice.run, notice.text) for notice in daemon.notices if notice.kind in ("failed", "held")
            ] == [
                ("failed", 1, "exit 1; it will be retried"),
                ("held", 1, "for 2 s, after 1 failure"),
                ("failed", 2, "exit 1; it will be retried"),
                ("held", 2, "for 4 s, after 2 failures"),
            ]

    asyncio.run(main())


def test_other_jobs_run_during_the_backoff(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            first, second = await daemon.submit("a", gpus=2, retries=1), await daemon.submit("b", gpus=2)
            await daemon.end_run(first, RunFailed, why="exit 1")
            await daemon.advance(10.0)
            assert (list(daemon.state.view.runs), list(daemon.state.view.waiting)) == ([second], [first])

    asyncio.run(main())


def test_the_backoff_ends_without_any_other_event(tmp_path: Path) -> None:
    """Only the clock moves: the loop wakes when the back-off has expired."""

    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", retries=1)
            await daemon.end_run(job, RunFailed, why="exit 1")
            assert daemon.state.view.hold_reason(job) is Reason.BACKOFF
            assert not daemon.inbox.arrived.is_set()
            daemon.clock.advance(2.0)
            async with asyncio.timeout(10):
                while job not in daemon.state.view.runs:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["fifo", "srtf"], ids=["replayed", "in a new epoch"])
@pytest.mark.parametrize("downtime", [0.5, 100.0], ids=["shorter than the back-off", "longer than the back-off"])
def test_a_backoff_survives_a_restart_of_the_daemon(policy: str, downtime: float, tmp_path: Path) -> None:
    async def main() -> None:
        backend = UnreliableBackend()
        async with ManualDaemon(tmp_path, backend) as before:
            job = await before.submit("a", retries=1)
            await before.end_run(job, RunFailed, why="exit 1")
            time = before.clock.time
        async with ManualDaemon(tmp_path, backend, time=time + downtime, policy=policy) as after:
            expired = downtime > 2.0
            assert (after.state.view.hold_reason(job) is Reason.BACKOFF) is not expired
            assert (job in after.state.view.runs) is expired
            await after.advance(2.0)
            assert job in after.state.view.runs

    asyncio.run(main())


def test_a_user_can_release_a_job_from_backoff(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", retries=1)
            await daemon.end_run(job, RunFailed, why="exit 1")
            assert (await daemon.service.release(OWNER, job)).state == "running"

    asyncio.run(main())


def test_a_job_held_during_backoff_stays_held_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", retries=1)
            await daemon.end_run(job, RunFailed, why="exit 1")
            await daemon.service.hold(OWNER, job)
            await daemon.advance(10.0)
            assert daemon.state.view.hold_reason(job) is Reason.HELD

    asyncio.run(main())


def test_a_failure_reported_twice_causes_one_backoff(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", retries=5)
            await daemon.end_run(job, RunFailed, why="exit 1")
            daemon.backend.undelivered += [RunFailed(job, 1, "exit 1")] * 2
            await daemon.advance(2.1)
            await daemon.report(JobHeld(job, Reason.BACKOFF))
            assert [(run.number, run.stopping) for run in daemon.state.view.runs.values()] == [(2, False)]

    asyncio.run(main())


def test_a_job_without_retries_has_no_backoff(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a")
            await daemon.end_run(job, RunFailed, why="exit 1")
            assert (await daemon.service.job(OWNER, job)).state == "failed"
            assert [notice.kind for notice in daemon.notices if notice.kind == "held"] == []

    asyncio.run(main())
