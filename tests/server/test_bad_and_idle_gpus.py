"""Faulty GPUs are drained and idle runs reported, also again after a GPU was resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import DrainQuery, GpuQuery
from refold.core.events import RunStopped
from refold.server.config.settings import BadGpuRule, IdleRule, WatchConfig
from refold.server.monitor.nvidia import DetectedGpu, GpuProblem, GpuReading

ECC_ERROR = GpuProblem(0, "memory error", bad=True)


class FaultyMachine:
    """Two idle GPUs whose problems are set by the test."""

    def __init__(self) -> None:
        self.new_problems: list[GpuProblem] = []

    def gpus(self) -> Sequence[DetectedGpu]:
        return []

    def read(self) -> Sequence[GpuReading]:
        return [GpuReading(index, utilisation=0.0) for index in range(2)]

    def problems(self) -> Sequence[GpuProblem]:
        problems, self.new_problems = self.new_problems, []
        return problems

    def close(self) -> None: ...


class FaultyDaemon(ManualDaemon):
    """A daemon on such a machine."""

    def __init__(self, folder: Path, bad_gpus: BadGpuRule = "drain") -> None:
        self.machine = FaultyMachine()
        watch = WatchConfig(idle=IdleRule(seconds=60.0), bad_gpus=bad_gpus)
        super().__init__(folder, UnreliableBackend(), machine=self.machine, watch_config=watch)

    async def poll(self, *problems: GpuProblem) -> None:
        self.machine.new_problems += problems
        await self.poller.poll()
        await asyncio.sleep(0)
        await self.settle()

    def gpu_notices(self) -> list[str]:
        return [f"{notice.kind}: {notice.text}" for notice in self.notices if notice.kind.startswith("gpu")]


def test_a_faulty_gpu_is_drained_again_if_it_fails_after_being_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with FaultyDaemon(tmp_path) as daemon:
            for _ in range(2):
                await daemon.poll(ECC_ERROR)
                await daemon.poll(ECC_ERROR)
                assert daemon.state.view.down_gpus == {(0, 0): "memory error"}
                await daemon.service.resume(OWNER, "a", GpuQuery(gpu=0))
                await daemon.settle()
                assert daemon.state.view.down_gpus == {}
            drained, resumed = "gpu drained: GPU 0 of a: memory error", "gpu resumed: GPU 0 of a"
            assert daemon.gpu_notices() == [drained, resumed] * 2

    asyncio.run(main())


@pytest.mark.parametrize(("rule", "times"), [("warn", 2), ("drain", 1)], ids=["reported", "still drained"])
def test_resuming_a_node_marks_its_gpus_healthy_except_drained_ones(
    rule: BadGpuRule, times: int, tmp_path: Path
) -> None:
    async def main() -> None:
        async with FaultyDaemon(tmp_path, rule) as daemon:
            await daemon.poll(ECC_ERROR)
            await daemon.service.drain(OWNER, "a", DrainQuery())
            await daemon.service.resume(OWNER, "a", GpuQuery())
            await daemon.poll(ECC_ERROR)
            assert len(daemon.gpu_notices()) == times

    asyncio.run(main())


def test_an_idle_run_is_reported_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with FaultyDaemon(tmp_path) as daemon:
            job = await daemon.submit("a")
            for _ in range(3):
                await daemon.poll()
                await daemon.advance(61.0)
            assert daemon.sent() == [
                ("started", "a-1 started", ""),
                ("gpu_idle", "a-1 leaves its GPUs idle", "GPU utilisation below 5 % for 1 min 1 s"),
            ]
            assert (await daemon.service.job(OWNER, job)).warning == ""
            await daemon.service.cancel(OWNER, job)
            await daemon.end_run(job, RunStopped)

    asyncio.run(main())
