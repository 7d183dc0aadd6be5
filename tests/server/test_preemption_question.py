"""What preemption would have cost and brought, on the jobs that the daemon has run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon
from real_daemon import RealDaemon

from refold.core import PastJob
from refold.errors import NotFound, TooManyRequests, Unavailable
from refold.server.preemption_question import PreemptionAdviser
from refold.server.store import StoreReader
from refold.testing import make_job


class Past(StoreReader):
    """A reader whose past is given."""

    def __init__(self, *past: PastJob) -> None:
        self._past = past

    def ran_jobs(self, limit: int) -> list[PastJob]:
        return list(self._past[-limit:])


def long_and_short_jobs() -> list[PastJob]:
    """Two jobs with all slots, of which one consents, and jobs that wait for them; in order of their end."""
    long = [PastJob(make_job(f"long-{n}", gpus=2, preemptible=n == 0), 40_000.0) for n in range(2)]
    return [PastJob(make_job(f"short-{n}", at=60.0 + n, preemptible=False), 30.0) for n in range(5)] + long


def play(folder: Path, scene: Callable[[ManualDaemon], Awaitable[None]], policy: str = "fifo") -> None:
    async def main() -> None:
        async with ManualDaemon(folder, UnreliableBackend(), policy=policy) as cluster:
            await scene(cluster)

    asyncio.run(main())


def test_the_latest_jobs_are_simulated_under_each_rule(tmp_path: Path) -> None:
    async def scene(cluster: ManualDaemon) -> None:
        outlook = await PreemptionAdviser(cluster.state, Past(*long_and_short_jobs())).outlook()
        assert (outlook.policy, outlook.jobs) == ("refold", 7)
        assert [each.preemptible for each in (outlook.always, outlook.consent, outlook.never)] == [7, 1, 0]
        assert outlook.never.preemptions == 0 < outlook.consent.preemptions
        assert (outlook.consent.mean_wait or 0) < (outlook.never.mean_wait or 0)

    play(tmp_path, scene, "refold")


def test_files_in_the_folder_of_the_daemon_are_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started_in = tmp_path / "here"
    started_in.mkdir()
    (started_in / "msgspec.py").write_text("raise SystemExit")
    monkeypatch.chdir(started_in)

    async def scene(cluster: ManualDaemon) -> None:
        assert (await PreemptionAdviser(cluster.state, Past(*long_and_short_jobs()[:2])).outlook()).jobs == 2

    play(tmp_path, scene)


def test_before_the_first_job_has_ended_there_is_nothing_to_simulate(tmp_path: Path) -> None:
    async def scene(cluster: ManualDaemon) -> None:
        with pytest.raises(NotFound, match="no job has ended yet"):
            await cluster.service.preemption_outlook(OWNER)

    play(tmp_path, scene)


def test_one_question_at_a_time_and_a_slow_one_is_ended(tmp_path: Path) -> None:
    async def scene(cluster: ManualDaemon) -> None:
        adviser = PreemptionAdviser(cluster.state, Past(*long_and_short_jobs()), limit=0.01)
        first, second = await asyncio.gather(adviser.outlook(), adviser.outlook(), return_exceptions=True)
        assert isinstance(first, Unavailable) and "longer than 0.01 s; `refold report`" in str(first)
        assert isinstance(second, TooManyRequests)

    play(tmp_path, scene)


def test_jobs_that_were_cancelled_while_they_ran_are_part_of_the_past(tmp_path: Path) -> None:
    """They held GPUs for which others waited. A job that was cancelled before its start held none."""
    with RealDaemon(tmp_path / "state", slots=1) as daemon, daemon.client() as client:
        ran = client.submit(name="ran", command=["sleep", "1000"]).id
        while client.job(ran).state != "running":
            time.sleep(0.05)
        never = client.submit(name="never", command=["true"]).id
        for job in (never, ran):
            client.cancel(job)
            client.wait(job, timeout=30)
        assert client.preemption_outlook().jobs == 1
