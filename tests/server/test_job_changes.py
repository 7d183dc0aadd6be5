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
from refold.server import job_changes

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


def test_there_is_one_commit_for_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "BATCH_JOBS", 4)

    async def check(daemon: ManualDaemon) -> None:
        for _ in range(8):
            await daemon.submit("job", gpus=2, hold=True)
        before = daemon.state.entry
        await daemon.service.change_jobs(OWNER, JobChange("cancel", match="*"))
        assert (daemon.state.entry - before, await states(daemon)) == (2, [])

    run_with_daemon(tmp_path, check)


def test_without_jobs_and_without_a_filter_nothing_is_changed(tmp_path: Path) -> None:
    async def check(daemon: ManualDaemon) -> None:
        first, second = [await daemon.submit("job", gpus=2, hold=True) for _ in range(2)]
        assert await daemon.service.change_jobs(OWNER, JobChange("cancel")) == JobChanges([], [])
        outcome = await daemon.service.change_jobs(OWNER, JobChange("cancel", [second], match="job-*"))
        assert [job.id for job in outcome.changed] == [second, first]

    run_with_daemon(tmp_path, check)
