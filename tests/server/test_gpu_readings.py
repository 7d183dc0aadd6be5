"""GPU status calls are answered in time, whatever the driver does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api.wire import GpuStatus
from refold.server.monitor import gpu_poller
from refold.server.monitor.gpu_poller import GpuPoller
from refold.server.monitor.nvidia import DetectedGpu, GpuProblem, GpuReading

BUSY = [
    GpuStatus("a", 0, "slot", [], 1.0, utilisation=90.0, celsius=60.0),
    GpuStatus("a", 1, "slot", [], 1.0, utilisation=80.0, celsius=50.0),
]
UNKNOWN = [GpuStatus("a", index, "slot", [], 1.0) for index in (0, 1)]


class SlowDriver:
    """GPUs whose driver answers when the test allows it."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.reads = 0
        self.fails = False

    def gpus(self) -> Sequence[DetectedGpu]:
        return [DetectedGpu(index, "", "slot", "slot") for index in (0, 1)]

    def read(self) -> Sequence[GpuReading]:
        self.reads += 1
        if not self.answers.wait(30.0) or self.fails:
            raise RuntimeError("the driver has failed")
        return [GpuReading(0, utilisation=90.0, celsius=60.0), GpuReading(1, utilisation=80.0, celsius=50.0)]

    def problems(self) -> Sequence[GpuProblem]:
        return []

    def close(self) -> None: ...


Test = Callable[[ManualDaemon, GpuPoller, SlowDriver], Coroutine[Any, Any, None]]


def run_with_poller(folder: Path, test: Test) -> None:
    async def main() -> None:
        driver = SlowDriver()
        async with ManualDaemon(folder / "state", UnreliableBackend(), machine=driver) as daemon:
            try:
                await test(daemon, daemon.poller, driver)
            finally:
                driver.answers.set()

    asyncio.run(main())


def test_concurrent_calls_share_one_reading_and_block_nothing_else(tmp_path: Path) -> None:
    async def test(daemon: ManualDaemon, poller: GpuPoller, driver: SlowDriver) -> None:
        calls = [asyncio.create_task(daemon.service.gpus(OWNER)) for _ in range(3)]
        polling = asyncio.create_task(poller.poll())
        await daemon.submit("meanwhile", gpus=3, allow_impossible=True)
        assert not any(task.done() for task in (*calls, polling))
        await daemon.service.cancel(OWNER, "meanwhile")
        driver.answers.set()
        assert await asyncio.gather(*calls) == [BUSY] * 3
        await polling
        assert (await poller.statuses(), driver.reads) == (BUSY, 1)  # the reading is recent

    run_with_poller(tmp_path, test)


def test_a_slow_driver_times_out_and_the_last_readings_are_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_poller, "DRIVER_TIMEOUT_SECONDS", 0.02)
    monkeypatch.setattr(gpu_poller, "READING_MAX_AGE_SECONDS", 0.0)

    async def test(daemon: ManualDaemon, poller: GpuPoller, driver: SlowDriver) -> None:
        driver.answers.set()
        await poller.poll()
        driver.answers.clear()
        statuses = [await poller.statuses() for _ in range(3)]
        assert (statuses, driver.reads) == ([BUSY] * 3, 2)  # the last readings; only one read is pending

    run_with_poller(tmp_path, test)


def test_a_failing_driver_is_logged_and_readings_become_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_poller, "READING_MAX_AGE_SECONDS", 0.0)

    async def test(daemon: ManualDaemon, poller: GpuPoller, driver: SlowDriver) -> None:
        driver.answers.set()
        assert await poller.statuses() == BUSY
        driver.fails = True
        assert await poller.statuses() == UNKNOWN
        assert "cannot read the GPUs" in caplog.text
        driver.fails = False
        assert await poller.statuses() == BUSY

    run_with_poller(tmp_path, test)
