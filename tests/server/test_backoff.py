"""A job that fails again and again is tried again less and less soon."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hand_daemon import OWNER, HandDaemon
from hypothesis import given, strategies as st
from loop_setups import UnreliableMachine

from refold.core.events import JobHeld, RunFailed, RunFinished
from refold.model import Reason
from refold.server.job_table import JobRecord
from refold.testing import make_job


def test_the_pause_doubles_with_each_failure_up_to_five_minutes() -> None:
    pauses = [JobRecord(make_job("a"), failures=failures).pause for failures in (1, 2, 3, 8, 9, 1000)]
    assert pauses == [2, 4, 8, 256, 300, 300]


@given(st.integers(1, 5000))
def test_no_pause_is_shorter_than_the_one_before_or_longer_than_five_minutes(failures: int) -> None:
    before, after = (JobRecord(make_job("a"), failures=count).pause for count in (failures, failures + 1))
    assert before <= after <= 300


def test_a_job_that_failed_is_looked_at_again_after_its_pause(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            job = await daemon.submit("a", retries=3)
            for pause in (2.0, 4.0):
                await daemon.end_run(job, RunFailed, why="exit 1")
                status = await daemon.service.job(OWNER, job)
                assert (status.state, status.reason) == ("held", "Backoff")
                await daemon.pass_time(pause - 0.5)
                assert daemon.loop.view.held_for(job) is Reason.BACKOFF
                await daemon.pass_time(1.0)
            assert [(run.job, run.number) for run in daemon.loop.view.runs.values()] == [(job, 3)]
            await daemon.end_run(job, RunFinished)
            assert [(news.kind, news.run, news.text) for news in daemon.news if news.kind in ("failed", "held")] == [
                ("failed", 1, "exit 1; it is tried again"),
                ("held", 1, "for 2 s, after 1 failure"),
                ("failed", 2, "exit 1; it is tried again"),
                ("held", 2, "for 4 s, after 2 failures"),
            ]

    asyncio.run(main())


def test_others_run_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            first, second = await daemon.submit("a", gpus=2, retries=1), await daemon.submit("b", gpus=2)
            await daemon.end_run(first, RunFailed, why="exit 1")
            await daemon.pass_time(10.0)
            assert (list(daemon.loop.view.runs), list(daemon.loop.view.waiting)) == ([second], [first])

    asyncio.run(main())


def test_nobody_has_to_do_anything_for_the_pause_to_end(tmp_path: Path) -> None:
    """The clock is the test's, the timer is real: when it goes off there is a step."""

    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            job = await daemon.submit("a", retries=1)
            run = next(iter(daemon.machine.alive))
            daemon.machine.end(run, RunFailed(*run, "exit 1"))
            daemon.clock.time += 1.0
            daemon._is_busy()
            async with asyncio.timeout(10):
                while daemon.loop.view.held_for(job) is None:
                    await asyncio.sleep(0)
                daemon.clock.time += 1.99
                while job not in daemon.loop.view.runs:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["fifo", "srtf"], ids=["replayed", "in a new epoch"])
@pytest.mark.parametrize("away", [0.5, 100.0], ids=["within the pause", "after it"])
def test_a_pause_outlives_the_daemon(policy: str, away: float, tmp_path: Path) -> None:
    async def main() -> None:
        machine = UnreliableMachine()
        async with HandDaemon(tmp_path, machine) as before:
            job = await before.submit("a", retries=1)
            await before.end_run(job, RunFailed, why="exit 1")
            time = before.clock.time
        async with HandDaemon(tmp_path, machine, time=time + away, policy=policy) as after:
            assert after.loop.view.held_for(job) is Reason.BACKOFF
            await after.pass_time(0.1)
            assert (job in after.loop.view.runs) is (away > 2.0)
            await after.pass_time(2.0)
            assert job in after.loop.view.runs

    asyncio.run(main())


def test_whoever_does_not_want_to_wait_releases_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            job = await daemon.submit("a", retries=1)
            await daemon.end_run(job, RunFailed, why="exit 1")
            assert (await daemon.service.release(OWNER, job)).state == "running"

    asyncio.run(main())


def test_whoever_holds_it_meanwhile_has_it_held_beyond_the_pause(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            job = await daemon.submit("a", retries=1)
            await daemon.end_run(job, RunFailed, why="exit 1")
            await daemon.service.hold(OWNER, job)
            await daemon.pass_time(10.0)
            assert daemon.loop.view.held_for(job) is Reason.HELD

    asyncio.run(main())


def test_a_failure_that_is_reported_twice_pauses_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            job = await daemon.submit("a", retries=5)
            await daemon.end_run(job, RunFailed, why="exit 1")
            daemon.machine.post += [RunFailed(job, 1, "exit 1")] * 2
            await daemon.pass_time(2.1)
            await daemon.report(JobHeld(job, Reason.BACKOFF))
            assert [(run.number, run.stopping) for run in daemon.loop.view.runs.values()] == [(2, False)]

    asyncio.run(main())


def test_a_job_that_is_not_tried_again_does_not_pause(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            job = await daemon.submit("a")
            await daemon.end_run(job, RunFailed, why="exit 1")
            assert (await daemon.service.job(OWNER, job)).state == "failed"
            assert [news.kind for news in daemon.news if news.kind == "held"] == []

    asyncio.run(main())
