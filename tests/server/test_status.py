"""The status of running and ended jobs: what they hold, their plan, and their last progress."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import JobsQuery
from refold.core.events import JobReleased, RunFailed, RunFinished, RunProgressed, RunStopped
from refold.journal import JobRecord
from refold.journal.records import RunRecord
from refold.model import Allocation, Plan, RunUsage, Share
from refold.server.output.run_files import RunFiles
from refold.server.status import ended_status
from refold.testing import make_job

FOUR_GPUS = Allocation((Share(0, (0, 1, 2, 3)),), Plan(4))


def write_steps(daemon: ManualDaemon, folder: Path, job: str, text: str) -> None:
    files = RunFiles(folder / "logs", job, 1)
    files.folder.mkdir(parents=True, exist_ok=True)
    files.log(0).write_text(text)


@pytest.mark.parametrize(
    ("report", "fields", "state"),
    [(RunFinished, {}, "finished"), (RunFailed, {"why": "exit 1"}, "failed"), (RunStopped, {}, "running")],
)
def test_the_last_progress_is_read_when_the_processes_have_ended(
    report: Any, fields: dict[str, Any], state: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", steps=200, progress=r"step (\d+)")
            await daemon.report(RunProgressed(job, 1, steps=179))
            write_steps(daemon, tmp_path, job, "step 179\nstep 194\nstep 195")  # without a newline at the end
            await daemon.end_run(job, report, **fields)
            status = await daemon.service.job(OWNER, job)
            assert (status.state, status.steps_done, status.steps) == (state, 195, 200)
            ended = (await daemon.service.jobs(OWNER, JobsQuery(ended=True))).jobs
            assert [one.steps_done for one in ended] == [195] * (state != "running")

    asyncio.run(main())


def test_the_end_of_a_run_is_reported_even_if_its_output_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:

            def broken(job: str, run: int) -> int:
                raise OSError("the disk is gone")

            monkeypatch.setattr(daemon.output, "read_to_end", broken)
            job = await daemon.submit("a")
            await daemon.end_run(job, RunFinished)
            assert (await daemon.service.job(OWNER, job)).state == "finished"

    asyncio.run(main())


def test_a_pinned_plan_is_shown_while_a_job_runs_and_after_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", gpus=2, plan=Plan(1, 2))
            waiting = await daemon.submit("b", gpus=2, plan=Plan(1, 2))
            assert (await daemon.service.job(OWNER, job)).plan == "DP1 TP2"
            assert (await daemon.service.job(OWNER, waiting)).plan == ""
            await daemon.end_run(job, RunFinished)
            assert (await daemon.service.job(OWNER, job)).plan == "DP1 TP2"

    asyncio.run(main())


def test_a_job_shows_what_its_ended_runs_have_used(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("a", retries=1)
            await daemon.end_run(job, RunFailed, why="exit 1", usage=RunUsage(10.0, 700))
            status = await daemon.service.job(OWNER, job)
            assert (status.state, status.cpu_seconds, status.peak_memory_mib) == ("held", 10.0, 700)
            await daemon.report(JobReleased(job))
            await daemon.settle()
            await daemon.end_run(job, RunFinished, usage=RunUsage(5.5, 300))
            status = await daemon.service.job(OWNER, job)
            assert (status.state, status.cpu_seconds, status.peak_memory_mib) == ("finished", 15.5, 700)
            unmeasured = await daemon.submit("b")
            await daemon.end_run(unmeasured, RunFinished)
            status = await daemon.service.job(OWNER, unmeasured)
            assert (status.cpu_seconds, status.peak_memory_mib) == (None, None)

    asyncio.run(main())


def test_an_ended_job_shows_the_gpus_and_the_plan_of_its_last_run() -> None:
    job = make_job("a", gpus=1, gpu_range=(1, 8), reshapable=True)
    record = JobRecord(job, "finished", RunRecord(1, FOUR_GPUS, 0.0), runs=1, ended=9.0, steps=7)
    status = ended_status(record, lambda moment: moment)
    assert (status.gpus, status.requested_gpus, status.demand) == (4.0, 1.0, "1 GPU")
    assert (status.plan, status.steps_done) == ("DP4", 7)


def test_a_job_that_never_ran_shows_the_gpus_that_it_requested() -> None:
    status = ended_status(JobRecord(make_job("a", gpus=2), "cancelled", ended=9.0), lambda moment: moment)
    assert (status.gpus, status.requested_gpus, status.plan) == (2.0, 2.0, "")
