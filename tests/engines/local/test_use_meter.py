"""CPUs and memory in use, by the processes of jobs."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from refold.core.orders import StartRun
from refold.engines.local import process_tree
from refold.engines.local.backend import LocalBackend
from refold.engines.local.process import ProcessInfo, has_proc
from refold.engines.local.process_tree import TICKS_PER_SECOND, UseMeter
from refold.model import Allocation, Share
from refold.server import MachineUse
from refold.testing import make_job

PAGES_PER_MIB = process_tree.PAGES_PER_MIB


def process(pid: int, seconds: float, mib: int = 0, started: int = 1) -> ProcessInfo:
    ticks = round(seconds * TICKS_PER_SECOND)
    return ProcessInfo(pid, pid, pid, started, True, cpu_ticks=ticks, memory_pages=mib * PAGES_PER_MIB)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(process_tree, "monotonic", lambda: now[0])
    return now


def test_cpu_time_counts_since_the_measurement_before(clock: list[float]) -> None:
    meter = UseMeter()
    clock[0] += 10
    assert meter.measure({"a": [process(1, 5, 100), process(2, 10, 200)]})["a"] == (1.5, 300)
    clock[0] += 10
    assert meter.measure({"a": [process(1, 25, 100), process(2, 10, 50)]})["a"] == (2.0, 150)


def test_a_new_process_with_the_pid_of_an_old_one_counts_from_its_start(clock: list[float]) -> None:
    meter = UseMeter()
    clock[0] += 10
    meter.measure({"a": [process(1, 8)]})
    clock[0] += 10
    assert meter.measure({"b": [process(1, 4, started=2)]})["b"].cpus == 0.4


def test_jobs_are_measured_apart(clock: list[float]) -> None:
    clock_before = UseMeter()
    clock[0] += 1
    measured = clock_before.measure({"a": [process(1, 1, 10)], "b": [process(2, 0.5, 20)], "c": []})
    assert measured == {"a": (1.0, 10), "b": (0.5, 20), "c": (0.0, 0)}


@pytest.mark.skipif(not has_proc(), reason="needs /proc")
def test_the_processes_of_a_run_are_measured_with_their_children(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    child = "import pathlib, sys; data = bytearray(b'x' * 2**26); pathlib.Path(sys.argv[1]).touch(); sum(iter(int, 1))"
    script = f"{shlex.quote(sys.executable)} -c {shlex.quote(child)} {shlex.quote(str(ready))} & wait"
    job = make_job("busy", command=("sh", "-c", script))

    async def run() -> dict[str, MachineUse]:
        backend = LocalBackend(lambda _: None, tmp_path, 1.0)
        await backend.carry_out([StartRun("busy", 1, Allocation((Share(0, (0,)),)))], {"busy": job})
        while not ready.exists():
            await asyncio.sleep(0.05)
        await backend.use()
        await asyncio.sleep(0.5)
        use = dict(await backend.use())
        await backend.close()
        return use

    use = asyncio.run(asyncio.wait_for(run(), 60))
    assert use["busy"][0] > 0.05
    assert use["busy"][1] > 64
