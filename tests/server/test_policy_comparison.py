"""The current queue under other policies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api.questions import PolicyQuestion
from refold.errors import BadInput, TooManyRequests, Unavailable
from refold.server.policy_comparison import PolicyComparer, comparable_policies


def play(folder: Path, policy: str, scene: Callable[[ManualDaemon], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ManualDaemon(folder, UnreliableBackend(), policy=policy) as cluster:
            await scene(cluster)

    asyncio.run(main())


async def submit_queue(cluster: ManualDaemon) -> None:
    """One GPU of two is busy for 100 s; a job for both waits, and behind it one that would fit."""
    for name, gpus, seconds in (("long", 1, 100.0), ("wide", 2, 50.0), ("small", 1, 10.0)):
        await cluster.submit(name, gpus=gpus, estimate=seconds)


def test_a_policy_that_skips_jobs_starts_the_small_one_at_once(tmp_path: Path) -> None:
    async def scene(cluster: ManualDaemon) -> None:
        await submit_queue(cluster)
        found = await cluster.service.compare_policies(OWNER, PolicyQuestion(["fifo-skip", "fifo"], futures=3))
        present, other = found.forecasts
        assert (found.policy, present.policy, other.policy) == ("fifo", "fifo", "fifo-skip")
        assert (found.jobs, found.waiting, found.compared) == (3, 2, 2)
        assert (present.mean_wait, present.mean_completion) == pytest.approx((125, (100 + 150 + 160) / 3), abs=2)
        assert (other.mean_wait, other.mean_completion) == pytest.approx((50, (100 + 150 + 10) / 3), abs=2)
        assert (present.earlier, present.later, other.earlier, other.later) == (0, 0, 1, 0)
        shift = {row.job: row.starts[1] - row.starts[0] for row in found.starts}
        assert shift == pytest.approx({"small-3": -150, "wide-2": 0}, abs=2)
        assert list(cluster.state.view.waiting) == ["wide-2", "small-3"], "nothing has changed"

    play(tmp_path, "fifo", scene)


def test_only_policies_by_name_are_simulated_and_no_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit")

    async def scene(cluster: ManualDaemon) -> None:
        for name in ("nonsense", str(path), "srtf"):  # srtf knows run times, which nobody does here
            with pytest.raises(BadInput, match="unknown policy"):
                await cluster.service.compare_policies(OWNER, PolicyQuestion([name]))

    play(tmp_path, "fifo", scene)
    assert "srtf" not in comparable_policies()


def test_one_question_at_a_time_and_a_slow_one_is_ended(tmp_path: Path) -> None:
    async def scene(cluster: ManualDaemon) -> None:
        await submit_queue(cluster)
        comparer = PolicyComparer(cluster.state, cluster.store.reader, limit=0.01)
        first = asyncio.create_task(comparer.compare(PolicyQuestion(["easy"])))
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await comparer.compare(PolicyQuestion(["easy"]))
        with pytest.raises(Unavailable, match=r"took longer than 0.01 s"):
            await first

    play(tmp_path, "fifo", scene)
