"""What runs have written goes some time after their job has ended; what the job has kept stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hand_daemon import HandDaemon
from loop_setups import UnreliableMachine
from real_daemon import RealDaemon, until

from refold.backends.local.run_files import RunFiles
from refold.core.events import RunFinished
from refold.server import log_retention
from refold.server.log_retention import LogRetention

KEEP_FOR = 100.0
OFTEN = {"prepare": "breaking:sweep_often", "arguments": {"every": 0.05}}


class Swept:
    """A daemon, a sweeper with a clock of its own, and the files of jobs."""

    def __init__(self, daemon: HandDaemon, folder: Path) -> None:
        self.daemon = daemon
        self.logs = folder / "logs"
        self.now = 0.0
        self.sweeping = LogRetention(daemon.store.reading, self.logs, KEEP_FOR, lambda: self.now)

    async def job(self, *, kept: str = "", over: bool = True) -> str:
        """The id of a job that has run, and has left what runs leave."""
        job = await self.daemon.submit("job")
        files = RunFiles(self.logs, job, 1)
        files.kept.mkdir(parents=True)
        for path in (files.log(0), files.claim(0), files.exit(0), files.end, files.folder / "run-1.0.log.gone"):
            path.write_text("x")
        if kept:
            (files.kept / kept).write_text("x")
        if over:
            await self.daemon.end_run(job, RunFinished)
        return job

    def ended(self, job: str) -> float:
        row = self.daemon.store.reading.ended_job(job)
        assert row is not None
        assert row.ended is not None
        return row.ended

    def left(self) -> dict[str, list[str]]:
        """The files of each job that has a folder still."""
        return {
            folder.name: sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
            for folder in self.logs.iterdir()
        }


def within(folder: Path, test: Callable[[Swept], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with HandDaemon(folder / "state", UnreliableMachine()) as daemon:
            await test(Swept(daemon, folder))

    asyncio.run(main())


def test_output_goes_when_its_time_has_come_and_not_before(tmp_path: Path) -> None:
    async def test(swept: Swept) -> None:
        job = await swept.job()
        everything = swept.left()
        swept.now = swept.ended(job) + KEEP_FOR - 1.0
        swept.sweeping.sweep()
        assert swept.left() == everything
        swept.now += 1.0
        swept.sweeping.sweep()
        assert swept.left() == {}

    within(tmp_path, test)


def test_what_a_job_has_kept_for_itself_stays(tmp_path: Path) -> None:
    async def test(swept: Swept) -> None:
        job = await swept.job(kept="model.pt")
        swept.now = swept.ended(job) + KEEP_FOR
        swept.sweeping.sweep()
        assert swept.left() == {job: ["kept", "kept/model.pt"]}

    within(tmp_path, test)


def test_a_job_that_runs_keeps_its_output_however_long(tmp_path: Path) -> None:
    async def test(swept: Swept) -> None:
        job = await swept.job(over=False)
        everything = swept.left()
        swept.now = 1e12
        swept.sweeping.sweep()
        assert (list(everything), swept.left()) == ([job], everything)

    within(tmp_path, test)


def test_all_are_come_to_however_many_there_are_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retention, "PIECE", 2)

    async def test(swept: Swept) -> None:
        jobs = [await swept.job() for _ in range(5)]
        last = await swept.job()
        swept.now = swept.ended(jobs[-1]) + KEEP_FOR
        swept.sweeping.sweep()
        assert list(swept.left()) == [last]
        RunFiles(swept.logs, jobs[0], 1).folder.mkdir()  # by somebody else: it is not looked at again
        swept.now = 1e12
        swept.sweeping.sweep()
        assert swept.left() == {jobs[0]: []}

    within(tmp_path, test)


def test_what_cannot_be_removed_is_said_and_the_rest_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(swept: Swept) -> None:
        first, second = await swept.job(), await swept.job()
        stubborn = RunFiles(swept.logs, first, 1).folder / "run-of-its-own"
        stubborn.mkdir()
        swept.now = 1e12
        swept.sweeping.sweep()
        assert swept.left() == {first: ["run-of-its-own"]}
        assert [record.getMessage().partition(": Is")[0] for record in caplog.records] == [
            f"the output of {first} stays: {stubborn} cannot be removed"
        ]
        assert second not in caplog.text

    within(tmp_path, test)


def test_one_that_is_closed_leaves_the_rest_for_another_time(tmp_path: Path) -> None:
    async def test(swept: Swept) -> None:
        job = await swept.job()
        swept.now = 1e12
        swept.sweeping.close()
        swept.sweeping.sweep()
        assert list(swept.left()) == [job]

    within(tmp_path, test)


def test_a_daemon_keeps_logs_for_as_long_as_its_owner_says(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state", keep_logs_for=0.2, **OFTEN) as daemon, daemon.client() as client:
        job = client.submit(name="brief", command=["echo", "here"])
        client.wait(job.id, timeout=20)
        until(lambda: not list((tmp_path / "state" / "logs").iterdir()))
        assert "".join(client.logs(job.id)) == ""
        assert client.job(job.id).state == "finished"
        assert daemon.end() == 0
        assert daemon.log() == ""
