"""Who is told of what becomes of jobs: each thing under its own name, once, and nothing that they did themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hand_daemon import OWNER, HandDaemon
from loop_setups import UnreliableMachine

from refold.core.events import RunFailed, RunStopped
from refold.model.units import HOUR
from refold.server.job_table import Kind, Notice
from refold.server.notify.messages import TOLD


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("hang suspected", [("hang_suspected", "a-1 may hang", "what is up")]),
        ("idle", [("gpu_idle", "a-1 leaves its GPUs idle", "what is up")]),
        ("ended", [("ended", "a-1 was ended", "what is up")]),
        ("noted", []),
        ("cancelled", []),
    ],
)
def test_every_kind_of_news_is_told_under_its_own_name_or_not_at_all(
    kind: Kind, told: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            job = await daemon.submit("a", hold=True)
            daemon.loop.tell(Notice(kind, daemon.loop.view.held[job], text="what is up"))
            await daemon.rest()
            assert daemon.told() == told

    asyncio.run(main())


def test_a_run_beyond_its_limit_is_told_of_when_it_is_flagged_and_when_it_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        rules = {"beyond_limit": True, "grace": 60.0}
        async with HandDaemon(tmp_path, UnreliableMachine(), watch=rules) as daemon:
            job = await daemon.submit("a", time_limit=600.0)
            for seconds in (601.0, 61.0):
                await daemon.pass_time(seconds)
            await daemon.end_run(job, RunStopped)
            (_, _, flag), (_, _, end) = daemon.told()[1:]
            assert daemon.told() == [
                ("started", "a-1 started", ""),
                ("hang_suspected", "a-1 may hang", flag),
                ("ended", "a-1 was ended", end),
            ]
            assert "limit" in flag and "limit" in end
            assert (await daemon.service.job(OWNER, job)).why == end

    asyncio.run(main())


def test_a_job_that_will_never_come_since_the_one_before_it_failed_is_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            first = await daemon.submit("a")
            await daemon.submit("b", after=[first])
            await daemon.end_run(first, RunFailed, why="exit 1")
            assert daemon.told() == [
                ("started", "a-1 started", ""),
                ("failed", "a-1 failed", "exit 1"),
                ("ended", "b-2 was ended", "it comes after 'a-1', which is over and has not finished"),
            ]

    asyncio.run(main())


def test_whoever_cancels_a_job_is_not_told_that_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            runs, waits = await daemon.submit("a", gpus=2), await daemon.submit("b")
            for job in (waits, runs):
                await daemon.service.cancel(OWNER, job)
            await daemon.end_run(runs, RunStopped)
            assert daemon.told() == [("started", "a-1 started", "")]
            assert [news.job.id for news in daemon.news if news.kind == "cancelled" and news.job] == [waits, runs]

    asyncio.run(main())


def test_a_long_wait_is_told_once_however_often_the_daemon_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        machine = UnreliableMachine()
        long = ("waiting_long", "b-2 has waited for 4 h", "(Resources)")
        async with HandDaemon(tmp_path, machine) as before:
            await before.submit("a", gpus=2)
            await before.submit("b", gpus=2)
            await before.pass_time(4 * HOUR - 10)
            await before.telling.look_for_long_waits()
            assert long not in before.told()
            await before.pass_time(10)
            for _ in range(2):
                await before.telling.look_for_long_waits()
            assert before.told().count(long) == 1
            time = before.clock.time
        async with HandDaemon(tmp_path, machine, time=time) as after:
            await after.telling.look_for_long_waits()
            assert after.told() == []

    asyncio.run(main())


def test_who_has_come_to_wait_for_long_while_nobody_was_there_is_told_of(tmp_path: Path) -> None:
    async def main() -> None:
        machine = UnreliableMachine()
        async with HandDaemon(tmp_path, machine) as before:
            await before.submit("a", gpus=2)
            await before.submit("b", gpus=2)
        async with HandDaemon(tmp_path, machine, time=5 * HOUR) as after:
            await after.telling.look_for_long_waits()
            assert after.told() == [("waiting_long", "b-2 has waited for 5 h", "(Resources)")]

    asyncio.run(main())


def test_the_time_that_a_job_has_run_is_no_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            job = await daemon.submit("a", gpus=2, retries=1)
            other = await daemon.submit("b", gpus=2)
            await daemon.pass_time(3 * HOUR)
            await daemon.end_run(job, RunFailed, why="exit 1")
            await daemon.pass_time(2 * HOUR)
            await daemon.telling.look_for_long_waits()
            assert (list(daemon.loop.view.waiting), list(daemon.loop.view.runs)) == ([job], [other])
            assert [kind for kind, _, _ in daemon.told() if kind == "waiting_long"] == []
            await daemon.pass_time(2 * HOUR)
            await daemon.telling.look_for_long_waits()
            assert [title for kind, title, _ in daemon.told() if kind == "waiting_long"] == ["a-1 has waited for 4 h"]
            assert daemon.store.reading.remembered(TOLD, list[str]) == [job]

    asyncio.run(main())
