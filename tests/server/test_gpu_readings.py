"""Whoever asks how the GPUs do is answered, and keeps nobody waiting, however the driver does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hand_daemon import CLUSTER, OWNER, HandDaemon
from loop_setups import UnreliableMachine

from refold.api.wire import GpuStatus
from refold.backends.local.nvidia import DetectedGpu, GpuProblem, GpuReading
from refold.server.config.settings import WatchChoice
from refold.server.monitor import gpu_poller
from refold.server.monitor.gpu_poller import GpuPoller
from refold.server.monitor.machine import Layout

BUSY = [
    GpuStatus("a", 0, "slot", [], 1.0, load=90.0, celsius=60.0),
    GpuStatus("a", 1, "slot", [], 1.0, load=80.0, celsius=50.0),
]
UNKNOWN = [GpuStatus("a", index, "slot", [], 1.0) for index in (0, 1)]


class SlowDriver:
    """GPUs whose driver answers when it is let to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self.fails = False

    def gpus(self) -> Sequence[DetectedGpu]:
        return [DetectedGpu(index, "", "slot", "slot") for index in (0, 1)]

    def read(self) -> Sequence[GpuReading]:
        self.asked += 1
        if not self.answers.wait(30.0) or self.fails:
            raise RuntimeError("the driver has failed")
        return [GpuReading(0, load=90.0, celsius=60.0), GpuReading(1, load=80.0, celsius=50.0)]

    def problems(self) -> Sequence[GpuProblem]:
        return []

    def close(self) -> None: ...


Test = Callable[[HandDaemon, GpuPoller, SlowDriver], Coroutine[Any, Any, None]]


def within(folder: Path, test: Test) -> None:
    async def main() -> None:
        async with HandDaemon(folder / "state", UnreliableMachine()) as daemon:
            driver = SlowDriver()
            rounds = GpuPoller(daemon.loop, driver, Layout(CLUSTER, ((0, 0), (0, 1))), WatchChoice(), daemon.telling)
            daemon.service.gpu_readings = rounds.statuses
            try:
                await test(daemon, rounds, driver)
            finally:
                driver.answers.set()

    asyncio.run(main())


def test_those_who_ask_at_once_wait_for_one_reading_and_nobody_else_waits(tmp_path: Path) -> None:
    async def test(daemon: HandDaemon, rounds: GpuPoller, driver: SlowDriver) -> None:
        asking = [asyncio.create_task(daemon.service.gpus(OWNER)) for _ in range(3)]
        walking = asyncio.create_task(rounds.go_round())
        await daemon.submit("meanwhile", gpus=3)  # it never fits
        assert not any(task.done() for task in (*asking, walking))
        await daemon.service.cancel(OWNER, "meanwhile")
        driver.answers.set()
        assert await asyncio.gather(*asking) == [BUSY] * 3
        await walking
        assert (await rounds.statuses(), driver.asked) == (BUSY, 1)  # it was read just now

    within(tmp_path, test)


def test_a_driver_that_does_not_answer_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_poller, "PATIENCE", 0.02)
    monkeypatch.setattr(gpu_poller, "FRESH_FOR", 0.0)

    async def test(daemon: HandDaemon, rounds: GpuPoller, driver: SlowDriver) -> None:
        driver.answers.set()
        await rounds.go_round()
        driver.answers.clear()
        told = [await rounds.statuses() for _ in range(3)]
        assert (told, driver.asked) == ([BUSY] * 3, 2)  # what was said last; and it is asked once only

    within(tmp_path, test)


def test_of_a_driver_that_fails_nothing_is_known_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_poller, "FRESH_FOR", 0.0)

    async def test(daemon: HandDaemon, rounds: GpuPoller, driver: SlowDriver) -> None:
        driver.answers.set()
        assert await rounds.statuses() == BUSY
        driver.fails = True
        assert await rounds.statuses() == UNKNOWN
        assert "the GPUs could not be read" in caplog.text
        driver.fails = False
        assert await rounds.statuses() == BUSY

    within(tmp_path, test)
