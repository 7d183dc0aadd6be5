"""Output of runs is removed some time after the job has ended; the job's `checkpoint` folder stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import ManualDaemon
from real_daemon import RealDaemon, wait_until

from refold.core.events import RunFinished
from refold.model import HOUR
from refold.server import store_upkeep
from refold.server.output.run_files import RunFiles
from refold.server.store_upkeep import LogRetention

KEEP_FOR = 100.0
FREQUENT_SWEEPS = {"prepare": "fault_injection:set_sweep_interval", "arguments": {"every": 0.05}}


class RetentionSetup:
    """A daemon, log retention with a manual clock, and the files of jobs."""

    def __init__(self, daemon: ManualDaemon, folder: Path) -> None:
        self.daemon = daemon
        self.logs = folder / "logs"
        self.now = 0.0
        self.retention = LogRetention(daemon.store.reader, self.logs, KEEP_FOR, lambda: self.now)

    async def job(self, *, kept: str = "", ended: bool = True) -> str:
        """Add a job with the files of one run; return its id."""
        job = await self.daemon.submit("job")
        files = RunFiles(self.logs, job, 1)
        files.checkpoint_folder.mkdir(parents=True)
        for path in (files.log(0), files.claim(0), files.exit(0), files.end, files.folder / "run-1.0.log.gone"):
            path.write_text("x")
        if kept:
            (files.checkpoint_folder / kept).write_text("x")
        if ended:
            await self.daemon.end_run(job, RunFinished)
        return job

    def end_time(self, job: str) -> float:
        row = self.daemon.store.reader.ended_job(job)
        assert row is not None
        assert row.ended is not None
        return row.ended

    def remaining(self) -> dict[str, list[str]]:
        """Return the remaining files by job."""
        return {
            folder.name: sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
            for folder in self.logs.iterdir()
        }


def run_with_daemon(folder: Path, test: Callable[[RetentionSetup], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with ManualDaemon(folder / "state", UnreliableBackend()) as daemon:
            await test(RetentionSetup(daemon, folder))

    asyncio.run(main())


def test_records_are_removed_soon_after_the_job_has_ended_and_its_output_stays(tmp_path: Path) -> None:
    async def test(setup: RetentionSetup) -> None:
        job = await setup.job()
        setup.retention = LogRetention(setup.daemon.store.reader, setup.logs, HOUR, lambda: setup.now)
        setup.now = setup.end_time(job) + store_upkeep.KEEP_RECORDS_FOR - 1
        setup.retention.sweep()
        assert "run-1.0.claim" in setup.remaining()[job]
        setup.now += 2
        setup.retention.sweep()
        assert setup.remaining() == {job: ["run-1.0.log", "run-1.0.log.gone"]}

    run_with_daemon(tmp_path, test)


def test_output_is_removed_after_the_retention_time_and_not_before(tmp_path: Path) -> None:
    async def test(setup: RetentionSetup) -> None:
        job = await setup.job()
        before = setup.remaining()
        setup.now = setup.end_time(job) + KEEP_FOR - 1.0
        setup.retention.sweep()
        assert setup.remaining() == before
        setup.now += 1.0
        setup.retention.sweep()
        assert setup.remaining() == {}

    run_with_daemon(tmp_path, test)


def test_the_checkpoint_folder_of_a_job_stays(tmp_path: Path) -> None:
    async def test(setup: RetentionSetup) -> None:
        job = await setup.job(kept="model.pt")
        setup.now = setup.end_time(job) + KEEP_FOR
        setup.retention.sweep()
        assert setup.remaining() == {job: ["checkpoint", "checkpoint/model.pt"]}

    run_with_daemon(tmp_path, test)


def test_output_of_a_running_job_is_never_removed(tmp_path: Path) -> None:
    async def test(setup: RetentionSetup) -> None:
        job = await setup.job(ended=False)
        before = setup.remaining()
        setup.now = 1e12
        setup.retention.sweep()
        assert (list(before), setup.remaining()) == ([job], before)

    run_with_daemon(tmp_path, test)


def test_no_ended_job_is_visited_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_upkeep, "JOBS_PER_QUERY", 2)

    async def test(setup: RetentionSetup) -> None:
        jobs = [await setup.job() for _ in range(5)]
        last = await setup.job()
        setup.now = setup.end_time(jobs[-1]) + KEEP_FOR
        setup.retention.sweep()
        assert list(setup.remaining()) == [last]
        setup.now = setup.end_time(jobs[-1]) + store_upkeep.KEEP_RECORDS_FOR
        setup.retention.sweep()
        RunFiles(setup.logs, jobs[0], 1).folder.mkdir()  # created later: not visited again
        setup.now = 1e12
        setup.retention.sweep()
        assert setup.remaining() == {jobs[0]: []}

    run_with_daemon(tmp_path, test)


def test_files_that_cannot_be_removed_are_logged_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(setup: RetentionSetup) -> None:
        first, second = await setup.job(), await setup.job()
        stubborn = RunFiles(setup.logs, first, 1).folder / "run-of\nits-own"
        stubborn.mkdir()
        setup.now = 1e12
        setup.retention.sweep()
        assert setup.remaining() == {first: ["run-of\nits-own"]}
        assert [record.getMessage().partition(": Is")[0] for record in caplog.records] == [
            f"cannot remove the output of {first}: {str(stubborn)!r}"
        ]
        assert second not in caplog.text

    run_with_daemon(tmp_path, test)


def test_a_closed_sweeper_removes_nothing(tmp_path: Path) -> None:
    async def test(setup: RetentionSetup) -> None:
        job = await setup.job()
        setup.now = 1e12
        setup.retention.close()
        setup.retention.sweep()
        assert list(setup.remaining()) == [job]

    run_with_daemon(tmp_path, test)


def test_the_retention_time_is_configurable(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state", keep_logs_for=0.2, **FREQUENT_SWEEPS) as daemon, daemon.client() as client:
        job = client.submit(name="brief", command=["echo", "here"])
        client.wait(job.id, timeout=20)
        wait_until(lambda: not list((tmp_path / "state" / "logs").rglob("brief*")))
        assert "".join(client.logs(job.id)) == ""
        assert client.job(job.id).state == "finished"
        assert daemon.end() == 0
        assert daemon.log() == ""
