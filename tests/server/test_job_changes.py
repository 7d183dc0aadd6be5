"""Many jobs are cancelled, held or released by one call, each as far as it can be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import ChangedJob, JobChange, JobChanges, JobsQuery, RejectedChange
from refold.client.api.queries import Caller
from refold.core import RunFinished
from refold.server import job_changes
from refold.server.store import Commit

BEN = Caller("ben", "member", "default", "ben", own_jobs_only=True)


def run_with_daemon(folder: Path, work: Callable[[ManualDaemon], Awaitable[None]]) -> None:
    async def serve() -> None:
        async with ManualDaemon(folder, UnreliableBackend()) as daemon:
            await work(daemon)

    asyncio.run(serve())


async def states(daemon: ManualDaemon) -> list[str]:
    return [job.state for job in (await daemon.service.jobs(OWNER, JobsQuery())).jobs]


def test_named_jobs_are_changed_and_the_others_are_rejected_with_the_reason(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        running = await daemon.submit("running", gpus=2)
        waiting = [await daemon.submit("waiting", gpus=2) for _ in range(3)]
        outcome = await daemon.service.change_jobs(OWNER, JobChange("hold", [running, *waiting, "none", waiting[0]]))
        assert [job.id for job in outcome.changed] == waiting
        assert outcome.rejected == [
            RejectedChange(running, f"job {running!r} is running; only queued jobs can be held"),
            RejectedChange("none", outcome.rejected[1].error),
        ]
        assert await states(daemon) == ["running", "held", "held", "held"]
        outcome = await daemon.service.change_jobs(OWNER, JobChange("release", waiting[:2]))
        assert outcome == JobChanges([ChangedJob(job, "waiting") for job in waiting[:2]], [])
        outcome = await daemon.service.change_jobs(OWNER, JobChange("cancel", [running, *waiting]))
        assert [job.state for job in outcome.changed] == ["stopping", "cancelled", "cancelled", "cancelled"]

    run_with_daemon(tmp_path, check)


def test_a_filter_selects_the_callers_jobs_in_a_state_in_which_they_can_be_changed(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        await daemon.submit("running", gpus=2)
        for name in ("train", "other", "train"):
            await daemon.submit(name, gpus=2)
        outcome = await daemon.service.change_jobs(BEN, JobChange("cancel", match="*"))
        assert outcome == JobChanges([], [])
        outcome = await daemon.service.change_jobs(OWNER, JobChange("hold", match="train-*"))
        assert [job.id for job in outcome.changed] == ["train-2", "train-4"]
        outcome = await daemon.service.change_jobs(OWNER, JobChange("release", match="*", user="ann"))
        assert [job.id for job in outcome.changed] == ["train-2", "train-4"]
        outcome = await daemon.service.change_jobs(BEN, JobChange("cancel", ["train-2"]))
        assert [one.job for one in outcome.rejected] == ["train-2"]

    run_with_daemon(tmp_path, check)


def test_runs_are_killed_if_that_is_asked_for_or_if_they_were_cancelled_before(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        jobs = [await daemon.submit("job", gpus=1) for _ in range(2)]
        await daemon.service.change_jobs(OWNER, JobChange("cancel", jobs[:1]))
        assert daemon.killed == []
        await daemon.service.change_jobs(OWNER, JobChange("cancel", [jobs[0], jobs[0].removeprefix("job-")]))
        assert daemon.killed == jobs[:1]
        await daemon.service.change_jobs(OWNER, JobChange("cancel", jobs[1:], now=True))
        assert daemon.killed == jobs

    run_with_daemon(tmp_path, check)


def test_there_is_one_commit_for_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "BATCH_JOBS", 4)

    async def check(daemon: ManualDaemon) -> None:
        for _ in range(8):
            await daemon.submit("job", gpus=2, hold=True)
        before = daemon.state.entry
        await daemon.service.change_jobs(OWNER, JobChange("cancel", match="*"))
        assert (daemon.state.entry - before, await states(daemon)) == (2, [])

    run_with_daemon(tmp_path, check)


def test_names_of_no_active_job_do_not_keep_the_daemon_from_other_work(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        ended = await daemon.submit("job", gpus=2, hold=True)
        await daemon.service.cancel(OWNER, ended)
        names = [ended, *(f"job-{number}" for number in range(100, 120))]
        turns = 0

        async def work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(work())
        outcome = await daemon.service.change_jobs(OWNER, JobChange("cancel", names))
        other.cancel()
        assert turns >= len(names)
        assert outcome.rejected == [
            RejectedChange(ended, f"job {ended!r} has already been cancelled"),
            *(RejectedChange(name, f"unknown job {name!r}") for name in names[1:]),
        ]

    run_with_daemon(tmp_path, check)


def test_a_job_whose_start_is_being_committed_is_not_stopped_by_a_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(daemon: ManualDaemon) -> None:
        first = await daemon.submit("first", gpus=2)
        second = await daemon.submit("second", gpus=2)
        commit, is_written = daemon.writer.commit, asyncio.Event()

        async def wait_and_commit(step: Commit) -> None:
            await is_written.wait()
            await commit(step)

        monkeypatch.setattr(daemon.writer, "commit", wait_and_commit)
        daemon.inbox.report(RunFinished(first, 1))
        while second not in daemon.state.view.runs:
            await asyncio.sleep(0)
        holding = asyncio.ensure_future(daemon.service.change_jobs(OWNER, JobChange("hold", match="*")))
        for _ in range(10):
            await asyncio.sleep(0)
        is_written.set()
        outcome = await holding
        assert outcome == JobChanges([], [RejectedChange(second, outcome.rejected[0].error)])
        assert "only queued jobs can be held" in outcome.rejected[0].error
        await daemon.settle()
        assert await states(daemon) == ["running"]

    run_with_daemon(tmp_path, check)


def test_without_jobs_and_without_a_filter_nothing_is_changed(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        first, second = [await daemon.submit("job", gpus=2, hold=True) for _ in range(2)]
        assert await daemon.service.change_jobs(OWNER, JobChange("cancel")) == JobChanges([], [])
        outcome = await daemon.service.change_jobs(OWNER, JobChange("cancel", [second], match="job-*"))
        assert [job.id for job in outcome.changed] == [second, first]

    run_with_daemon(tmp_path, check)
