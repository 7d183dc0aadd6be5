"""What is done about GPUs that go bad or idle, and whether it is done again after somebody says that they are well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hand_daemon import CLUSTER, OWNER, HandDaemon
from loop_setups import UnreliableMachine

from refold.backends.local.nvidia import DetectedGpu, GpuProblem, GpuReading
from refold.core.events import RunStopped
from refold.server.config.settings import BadGpuRule, IdleRule, WatchChoice
from refold.server.drained_gpus import drained_gpus
from refold.server.monitor.gpu_poller import GpuPoller
from refold.server.monitor.machine import Layout

ECC = GpuProblem(0, "its memory", bad=True)


class SickMachine:
    """Two GPUs without load; what is wrong with them is in the test's hand."""

    def __init__(self) -> None:
        self.wrong: list[GpuProblem] = []

    def gpus(self) -> Sequence[DetectedGpu]:
        return []

    def read(self) -> Sequence[GpuReading]:
        return [GpuReading(index, load=0.0) for index in range(2)]

    def problems(self) -> Sequence[GpuProblem]:
        wrong, self.wrong = self.wrong, []
        return wrong

    def close(self) -> None: ...


class Rounds:
    """Rounds over such a machine, of a daemon."""

    def __init__(self, daemon: HandDaemon, bad_gpus: BadGpuRule = "drain") -> None:
        self.daemon, self.machine = daemon, SickMachine()
        choice = WatchChoice(idle=IdleRule(seconds=60.0), bad_gpus=bad_gpus)
        self._rounds = GpuPoller(
            daemon.loop, self.machine, Layout(CLUSTER, ((0, 0), (0, 1)), None), choice, daemon.telling
        )
        daemon.service.resumed = self._rounds.is_well

    async def go(self, *wrong: GpuProblem) -> None:
        self.machine.wrong += wrong
        await self._rounds.go_round()
        await asyncio.sleep(0)
        await self.daemon.rest()

    def news(self) -> list[str]:
        return [f"{news.kind}: {news.text}" for news in self.daemon.news if news.kind.startswith("gpu")]


def test_a_bad_gpu_is_drained_again_when_it_goes_bad_after_it_was_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            rounds = Rounds(daemon)
            for _ in range(2):
                await rounds.go(ECC)
                await rounds.go(ECC)
                assert drained_gpus(daemon.loop.view) == {("a", 0): "its memory"}
                await daemon.service.resume(OWNER, "a", gpu=0)
                await daemon.rest()
                assert drained_gpus(daemon.loop.view) == {}
            assert rounds.news() == ["gpu drained: GPU 0 of a: its memory"] * 2

    asyncio.run(main())


@pytest.mark.parametrize(("rule", "times"), [("warn", 2), ("drain", 1)], ids=["told of", "still drained"])
def test_a_node_that_is_resumed_has_well_gpus_but_for_those_that_stay_drained(
    rule: BadGpuRule, times: int, tmp_path: Path
) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            rounds = Rounds(daemon, rule)
            await rounds.go(ECC)
            await daemon.service.drain(OWNER, "a", why="", gpu=None, move=False)
            await daemon.service.resume(OWNER, "a", gpu=None)
            await rounds.go(ECC)
            assert len(rounds.news()) == times

    asyncio.run(main())


def test_an_idle_run_is_told_of_once_as_idle_and_as_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with HandDaemon(tmp_path, UnreliableMachine()) as daemon:
            rounds = Rounds(daemon)
            job = await daemon.submit("a")
            for _ in range(3):
                await rounds.go()
                await daemon.pass_time(61.0)
            assert daemon.told() == [
                ("started", "a-1 started", ""),
                ("gpu_idle", "a-1 leaves its GPUs idle", "its GPU has had a load below 5 % for 1 min 1 s"),
            ]
            assert (await daemon.service.job(OWNER, job)).warning == ""
            await daemon.service.cancel(OWNER, job)
            await daemon.end_run(job, RunStopped)

    asyncio.run(main())
