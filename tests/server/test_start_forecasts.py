"""Start estimates of the daemon: unknown at first, refreshed, bounded by time limits, never in the past, scored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import StartAccuracy
from refold.client.api.questions import WhatIf
from refold.client.api.submissions import Submission
from refold.core.events import RunFinished, RunProgressed
from refold.model import MINUTE, StartEstimate
from refold.server import start_forecasts
from refold.server.forked_work import WorkHere, WorkOutcome
from refold.simulator import EstimateMaker

T = TypeVar("T")

SELDOM = ("fifo-skip", "drf", "las")
POLICIES = ("refold", "fifo", "easy", "conservative", *(pytest.param(name, marks=pytest.mark.long) for name in SELDOM))
TWO_POLICIES = (
    "refold",
    "easy",
    *(pytest.param(name, marks=pytest.mark.long) for name in ("fifo", "conservative", *SELDOM)),
)


class Cluster(ManualDaemon):
    """Two slots, with runs that end when a test lets them."""

    def wait_of(self, job: str) -> float | None:
        """Return how long a job has to wait from now on, by its estimate."""
        estimate = self.forecasts.estimate(job)
        return None if estimate is None else estimate.at - self.clock.time

    def latest_wait_of(self, job: str) -> float | None:
        estimate = self.forecasts.estimate(job)
        return None if estimate is None or estimate.latest is None else estimate.latest - self.clock.time

    async def renew_estimate(self, job: str) -> None:
        """Ask for an estimate, which makes new ones in the background, and wait for them."""
        self.forecasts.estimate(job)
        await self.settle()

    async def run_for(self, seconds: float, *jobs: str) -> None:
        """Let runs take this long from now on, then finish."""
        await self.advance(seconds)
        for job in jobs:
            await self.end_run(job, RunFinished)

    async def run_all(self, seconds: float) -> None:
        """Let every job run for this long, until none is left."""
        while self.state.view.runs:
            await self.run_for(seconds, *self.state.view.runs)


def play(folder: Path, policy: str, scene: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Cluster(folder, UnreliableBackend(), policy=policy) as cluster:
            await scene(cluster)

    asyncio.run(main())


async def submit_many(cluster: Cluster, count: int, name: str = "short", **more: object) -> list[str]:
    return [await cluster.submit(name, **more) for _ in range(count)]


@pytest.mark.parametrize("policy", POLICIES)
def test_on_a_cold_start_nothing_is_estimated(tmp_path: Path, policy: str) -> None:
    async def scene(cluster: Cluster) -> None:
        jobs = await submit_many(cluster, 6)
        await cluster.advance(5.0)
        assert [cluster.wait_of(job) for job in jobs] == [None] * 6
        status = await cluster.service.job(OWNER, jobs[-1])
        assert (status.state, status.start_estimate) == ("waiting", None)
        preview = await cluster.service.preview(OWNER, Submission(name="next", command=["true"]))
        assert (preview.starts_now, preview.start_estimate) == (False, None)

    play(tmp_path, policy, scene)


@pytest.mark.parametrize("policy", TWO_POLICIES)
def test_a_burst_of_short_jobs_is_estimated_as_soon_as_one_has_ended(tmp_path: Path, policy: str) -> None:
    async def scene(cluster: Cluster) -> None:
        jobs = await submit_many(cluster, 10)
        await cluster.run_for(8.0, *jobs[:2])
        waits = [cluster.wait_of(job) for job in jobs[4:]]
        assert waits == pytest.approx([8, 8, 16, 16, 24, 24], rel=0.35)
        await cluster.run_for(8.0, *jobs[2:4])
        assert [cluster.wait_of(job) for job in jobs[6:]] == pytest.approx([8, 8, 16, 16], rel=0.2)

    play(tmp_path, policy, scene)


def test_while_many_estimates_are_made_the_daemon_does_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_forecasts, "ESTIMATES_AT_ONCE", 2)

    async def scene(cluster: Cluster) -> None:
        jobs = await submit_many(cluster, 10)
        turn, made_in = 0, list[int]()

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        class Maker(EstimateMaker):
            def estimates(self, *arguments: Any) -> dict[str, StartEstimate]:
                made_in.append(turn)
                return super().estimates(*arguments)

        cluster.forecasts._maker = Maker()
        counting = asyncio.create_task(count_turns())
        await cluster.run_for(8.0, *jobs[:2])
        counting.cancel()
        assert len(set(made_in)) == len(made_in) >= 3
        assert None not in [cluster.wait_of(job) for job in jobs[4:]]

    play(tmp_path, "fifo", scene)


@pytest.mark.parametrize("policy", TWO_POLICIES)
def test_after_many_short_jobs_the_next_ones_do_not_start_now(tmp_path: Path, policy: str) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 5)
        await cluster.run_all(8.0)
        jobs = await submit_many(cluster, 6)
        assert [cluster.wait_of(job) for job in jobs[2:]] == pytest.approx([8, 8, 16, 16], rel=0.2)
        await cluster.advance(4.0)
        assert [cluster.wait_of(job) for job in jobs[2:]] == pytest.approx([4, 4, 12, 12], rel=0.35)
        # The runs take longer than all before. Nothing starts in the past, and the estimates move on.
        await cluster.advance(16.0)
        waits = [cluster.wait_of(job) for job in jobs[2:]]
        assert all(wait is not None and wait >= 0 for wait in waits)

    play(tmp_path, policy, scene)


@pytest.mark.parametrize("policy", ["refold", "fifo", "easy", "conservative"])
def test_a_time_limit_bounds_the_wait_for_a_run(tmp_path: Path, policy: str) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 2, "long", time_limit=30 * MINUTE)
        (job,) = await submit_many(cluster, 1)
        for passed, remaining in ((0, 30), (10, 20)):
            await cluster.advance(passed * MINUTE)
            waits = (cluster.wait_of(job), cluster.latest_wait_of(job))
            assert waits == pytest.approx((remaining * MINUTE,) * 2, abs=1)
        await cluster.advance(21 * MINUTE)  # the runs are past their limit, so that the bound is moved
        await cluster.renew_estimate(job)
        wait, latest = cluster.wait_of(job), cluster.latest_wait_of(job)
        assert wait is not None
        assert latest is not None
        assert 30 < wait < latest
        assert latest == pytest.approx(30 * MINUTE, abs=1)

    play(tmp_path, policy, scene)


@pytest.mark.parametrize("policy", ["refold", "fifo", "easy", "conservative"])
def test_time_limits_bound_predictions_from_other_jobs(tmp_path: Path, policy: str) -> None:
    async def scene(cluster: Cluster) -> None:
        for _ in range(5):  # all jobs so far took hours
            job = await cluster.submit("training")
            await cluster.run_for(5 * 3600.0, job)
        await submit_many(cluster, 4, "training", time_limit=30 * MINUTE)
        (job,) = await submit_many(cluster, 1, "training", time_limit=30 * MINUTE)
        estimate = cluster.forecasts.estimate(job)
        assert estimate is not None
        assert estimate.latest is not None
        assert estimate.at <= estimate.latest <= cluster.clock.time + 60 * MINUTE

    play(tmp_path, policy, scene)


def test_a_mixture_of_short_and_long_jobs_is_told_apart_by_name(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        for _ in range(6):
            short, long = await cluster.submit("short"), await cluster.submit("long")
            await cluster.run_for(8.0, short)
            await cluster.run_for(3592.0, long)
        await submit_many(cluster, 1, "short")
        await submit_many(cluster, 2, "long")
        (last,) = await submit_many(cluster, 1, "short")
        # One slot is free after the short job, for the second long one; the other after the first long one.
        assert cluster.wait_of(last) == pytest.approx(3600, rel=0.3)

    play(tmp_path, "easy", scene)


def test_the_estimate_of_a_user_is_used_before_anything_is_known(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 2, estimate=100.0)
        (job,) = await submit_many(cluster, 1)
        assert cluster.wait_of(job) == pytest.approx(100, abs=1)
        await cluster.advance(101.0)  # wrong, and nothing else is known
        await cluster.renew_estimate(job)
        assert cluster.wait_of(job) is None

    play(tmp_path, "easy", scene)


def test_progress_reported_by_the_runs_tells_when_they_end(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        jobs = await submit_many(cluster, 2, steps=100)
        (waiting,) = await submit_many(cluster, 1)
        await cluster.advance(50.0)
        await cluster.report(*(RunProgressed(job, 1, 50.0, 50) for job in jobs))
        assert cluster.wait_of(waiting) == pytest.approx(50, rel=0.3)

    play(tmp_path, "easy", scene)


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    async def first(cluster: Cluster) -> None:
        await submit_many(cluster, 6)
        await cluster.run_all(8.0)

    async def second(cluster: Cluster) -> None:
        jobs = await submit_many(cluster, 3)
        assert cluster.wait_of(jobs[2]) == pytest.approx(8, rel=0.2)

    play(tmp_path, "easy", first)
    play(tmp_path, "easy", second)


def test_a_preview_gives_the_start_of_a_job_behind_the_queue(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 5)
        await cluster.run_all(8.0)
        await submit_many(cluster, 4)
        preview = await cluster.service.preview(OWNER, Submission(name="short", command=["true"]))
        assert preview.start_estimate is not None
        wait = preview.start_estimate.at - cluster.state.wall_time(cluster.clock.time)
        assert wait == pytest.approx(16, rel=0.2)
        assert not preview.starts_now

    play(tmp_path, "easy", scene)


@pytest.mark.parametrize("policy", ["easy", "fifo"])
def test_whatif_compares_variants_and_the_delay_of_waiting_jobs(tmp_path: Path, policy: str) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 4, estimate=100.0)
        variants = [
            Submission(name="same", command=["true"], estimate=50.0),
            Submission(name="first", command=["true"], gpus=2, estimate=50.0, priority=1),
            Submission(name="unknown", command=["true"], gpus=2),
            Submission(name="huge", command=["true"], gpus=3),
        ]
        outcome = await cluster.service.whatif(OWNER, WhatIf(variants))
        assert outcome.futures == 40
        same, first, unknown, huge = outcome.variants
        now = outcome.now
        assert same.start is not None
        assert same.end is not None
        assert (same.start.at - now, same.end.at - now) == pytest.approx((200, 250), abs=1)
        assert (same.mean_delay_of_others, same.delayed_jobs) == (0.0, 0)
        assert first.start is not None
        assert first.start.at - now == pytest.approx(100, abs=1)
        assert (first.mean_delay_of_others, first.delayed_jobs) == pytest.approx((50, 2), abs=0.5)
        assert unknown.start is not None
        assert unknown.end is None
        assert (huge.start, huge.fits, huge.reason[:39]) == (None, False, "the job can never run on this cluster: ")
        assert list(cluster.state.view.waiting) == ["short-3", "short-4"]

    play(tmp_path, policy, scene)


def test_whatif_compares_only_starts_that_both_futures_have_reached(tmp_path: Path) -> None:
    """The end of the long run is unknown; under `refold`, futures use up their decisions at different times."""

    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 1, "over")
        await cluster.run_all(6.0)
        await submit_many(cluster, 1, "long")
        await submit_many(cluster, 1, "behind", gpus=2)
        outcome = await cluster.service.whatif(OWNER, WhatIf([Submission(name="small", command=["true"], gpus=0)]))
        assert outcome.variants[0].mean_delay_of_others == pytest.approx(0.0, abs=60.0)

    play(tmp_path, "refold", scene)


def test_whatif_on_a_cold_start_says_that_the_start_is_not_known(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 2)
        question = WhatIf([Submission(name="next", command=["true"])])
        (variant,) = (await cluster.service.whatif(OWNER, question)).variants
        assert (variant.start, variant.end, variant.fits) == (None, None, True)
        assert variant.reason == "not known yet: it waits for jobs whose run times are not known"

    play(tmp_path, "fifo", scene)


@pytest.mark.parametrize("policy", ["refold", "drf"])
def test_whatif_works_under_policies_that_do_not_start_jobs_in_queue_order(tmp_path: Path, policy: str) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 2, estimate=100.0)
        outcome = await cluster.service.whatif(OWNER, WhatIf([Submission(name="next", command=["true"])]))
        assert outcome.variants[0].start is not None

    play(tmp_path, policy, scene)


def test_under_refold_jobs_with_less_work_are_estimated_to_start_first_and_do(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        for _ in range(6):
            short, long = await cluster.submit("short"), await cluster.submit("long")
            await cluster.run_for(8.0, short)
            await cluster.run_for(3592.0, long)
        running = await submit_many(cluster, 2, "short")
        (long,) = await submit_many(cluster, 1, "long")
        shorts = await submit_many(cluster, 2, "short")
        assert [cluster.wait_of(job) for job in (*shorts, long)] == pytest.approx([8, 8, 16], rel=0.3)
        await cluster.run_for(8.0, *running)
        assert set(cluster.state.view.runs) == set(shorts)
        await cluster.run_for(8.0, *shorts)
        assert set(cluster.state.view.runs) == {long}

    play(tmp_path, "refold", scene)


def test_the_accuracy_of_first_estimates_is_reported(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        assert cluster.service.info(OWNER).start_accuracy == StartAccuracy()
        jobs = await submit_many(cluster, 2)  # they start at once, which needs no estimate
        unknown = await submit_many(cluster, 1, "other")  # it waits, and starts before anything was known
        await cluster.run_for(8.0, jobs[0])
        await cluster.run_for(0.0, jobs[1], *unknown)
        assert cluster.service.info(OWNER).start_accuracy == StartAccuracy(jobs=0, unknown=1)
        jobs = await submit_many(cluster, 4)
        first = [cluster.forecasts.estimate(job) for job in jobs[2:]]
        assert first[0] is not None
        await cluster.run_for(20.0, *jobs[:2])
        accuracy = cluster.service.info(OWNER).start_accuracy
        assert (accuracy.jobs, accuracy.unknown, accuracy.bounded, accuracy.coverage) == (2, 1, 2, 1.0)
        assert accuracy.median_error == pytest.approx(abs(28.0 - first[0].at), abs=1)

    play(tmp_path, "fifo", scene)


def test_a_missed_bound_lowers_the_coverage(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 2, time_limit=10.0)
        await submit_many(cluster, 1)
        await cluster.run_for(25.0, *cluster.state.view.runs)  # the runs were not ended at their limit
        accuracy = cluster.service.info(OWNER).start_accuracy
        assert (accuracy.jobs, accuracy.bounded, accuracy.coverage) == (1, 1, 0.0)
        assert accuracy.median_error == pytest.approx(15, abs=1)

    play(tmp_path, "fifo", scene)


def test_estimates_are_made_again_only_as_often_as_they_are_cheap(tmp_path: Path) -> None:
    class SlowWork(WorkHere):
        async def run(self, work: Callable[[], T]) -> WorkOutcome[T]:
            return WorkOutcome((await super().run(work)).result, 4.0)

    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 5)
        await cluster.run_all(8.0)
        cluster.forecasts._work = SlowWork()
        jobs = await submit_many(cluster, 4)
        assert cluster.wait_of(jobs[2]) == pytest.approx(8, rel=0.2)
        assert cluster.wait_of(jobs[3]) is None
        await cluster.advance(38.0)
        assert cluster.wait_of(jobs[3]) is None
        await cluster.advance(2.0)
        await cluster.renew_estimate(jobs[3])
        assert cluster.wait_of(jobs[3]) is not None

    play(tmp_path, "fifo", scene)


def test_forecasts_are_as_of_the_time_when_the_copy_is_made(tmp_path: Path) -> None:
    class LateWork(WorkHere):
        def __init__(self) -> None:
            self.requested, self.begin = asyncio.Event(), asyncio.Event()

        async def run(self, work: Callable[[], T]) -> WorkOutcome[T]:
            self.requested.set()
            await self.begin.wait()
            return await super().run(work)

    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 5)
        await cluster.run_all(8.0)
        jobs = await submit_many(cluster, 4)
        job = msgspec.structs.replace(cluster.state.view.waiting[jobs[3]], id="next")
        cluster.forecasts._work = work = LateWork()
        comparison = asyncio.create_task(cluster.forecasts.compare([job]))
        await work.requested.wait()
        cluster.forecasts._work = WorkHere()
        await cluster.run_for(8.0, *jobs[:2])  # the others start later than the forecast was asked for
        work.begin.set()
        (forecast,) = (await comparison).jobs
        assert forecast.start is not None
        assert forecast.start.at - cluster.clock.time == pytest.approx(8, rel=0.2)

    play(tmp_path, "fifo", scene)


def test_a_policy_that_cannot_be_copied_has_no_estimates_and_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(cluster: Cluster) -> None:
        await submit_many(cluster, 5)
        await cluster.run_all(8.0)
        monkeypatch.setattr(cluster.state.scheduler.policy, "rows", (row for row in "ab"), raising=False)
        jobs = await submit_many(cluster, 4)
        for _ in range(3):
            await cluster.advance(5.0)
            await cluster.renew_estimate(jobs[3])
            assert cluster.wait_of(jobs[3]) is None
        preview = await cluster.service.preview(OWNER, Submission(name="next", command=["true"]))
        assert (preview.starts_now, preview.start_estimate) == (False, None)

    play(tmp_path, "fifo", scene)
    assert [record.getMessage() for record in caplog.records] == [
        "there are no start estimates: the policy fifo cannot be copied"
    ]
