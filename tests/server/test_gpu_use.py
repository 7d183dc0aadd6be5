"""GPUs that others use: other daemons, and processes that no daemon has started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.core import GpuDrained, GpuReturned
from refold.errors import BadInput
from refold.model import Cluster, Node
from refold.server.config.settings import ClusterConfig, Config, UsedGpuRule, WatchConfig
from refold.server.machine_locks import GpuLocks, LockHolder
from refold.server.monitor.gpu_use import GpuUseWatch, describe_process
from refold.server.monitor.machine import Layout
from refold.server.monitor.nvidia import DetectedGpu, GpuProblem, GpuReading

LAYOUT = Layout(Cluster((Node("localhost", 2, "H100"),)), ((0, 0), (0, 1)), (("GPU-a", "GPU-b"),))


class FakeLocks(GpuLocks):
    """Locks of which some are held by others, who say so themselves."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self.others = dict.fromkeys(held, LockHolder(4_000_000, 4_000_000))

    def acquire(self, uuid: str) -> LockHolder | None:
        return self.others.get(uuid)


def watch(locks: GpuLocks, rule: UsedGpuRule = "avoid", gpus: str | tuple[int, ...] = "auto") -> GpuUseWatch:
    config = Config(cluster=ClusterConfig(gpus=gpus), watch=WatchConfig(used_gpus=rule))  # type: ignore[arg-type]
    names = {4711: "process 4711 (python) of user ann", 9: "process 9 (nvidia-cuda-mps) of user root"}
    return GpuUseWatch(LAYOUT, config, locks, lambda pid: names.get(pid, f"process {pid}"))


def readings(*processes: tuple[int, ...] | None) -> dict[int, GpuReading]:
    return {index: GpuReading(index, processes=pids) for index, pids in enumerate(processes)}


DAEMON = "in use by another daemon, process 4000000 of uid 4000000"
PYTHON = "in use by process 4711 (python) of user ann"


def test_the_gpu_of_another_daemon_is_drained_and_taken_when_it_is_free() -> None:
    locks = FakeLocks("GPU-b")
    use = watch(locks)
    use.claim()
    assert use.check({}, (), {}) == [GpuDrained(0, 1, DAEMON)]
    assert use.check({}, (), {(0, 1): DAEMON}) == []
    locks.others.clear()
    assert use.check({}, (), {(0, 1): DAEMON, (0, 0): "broken fan"}) == [GpuReturned(0, 1)]


def test_a_daemon_without_a_free_gpu_does_not_start() -> None:
    with pytest.raises(BadInput) as error:
        watch(FakeLocks("GPU-a", "GPU-b")).claim()
    assert str(error.value) == f"GPU 0 is {DAEMON}; stop that one, or use other GPUs"


def test_a_gpu_that_the_configuration_lists_must_be_free() -> None:
    with pytest.raises(BadInput, match="GPU 1 is in use by another daemon"):
        watch(FakeLocks("GPU-b"), gpus=(0, 1)).claim()
    watch(FakeLocks(), gpus=(0, 1)).claim()


def test_a_free_gpu_with_a_foreign_process_is_avoided_until_that_ends() -> None:
    use = watch(FakeLocks())
    assert use.check(readings((4711,), ()), (), {}) == []
    assert use.check(readings((4711,), ()), (), {}) == [GpuDrained(0, 0, PYTHON)]
    assert use.check(readings((4711,), ()), (), {(0, 0): PYTHON}) == []
    assert use.check(readings((), ()), (), {(0, 0): PYTHON}) == [GpuReturned(0, 0)]


def test_after_a_restart_a_gpu_that_is_still_used_is_not_returned() -> None:
    assert watch(FakeLocks()).check(readings((4711,), ()), (), {(0, 0): PYTHON}) == []


def test_processes_on_the_gpus_of_runs_are_those_of_the_runs() -> None:
    use = watch(FakeLocks())
    for _ in range(3):
        assert use.check(readings((4711,), None), {(0, 0)}, {}) == []


def test_processes_that_end_between_two_polls_do_not_count() -> None:
    use = watch(FakeLocks())
    for pids in ((4711,), (), (4711,), ()):
        assert use.check(readings(pids), (), {}) == []


@pytest.mark.parametrize("pids", [(9,), (os.getpid(),), None])
def test_services_and_the_daemon_itself_are_not_foreign(pids: tuple[int, ...] | None) -> None:
    use = watch(FakeLocks())
    for _ in range(3):
        assert use.check(readings(pids), (), {}) == []


def test_foreign_processes_are_only_shown_or_ignored_by_setting() -> None:
    shown, ignored = watch(FakeLocks("GPU-b"), "show"), watch(FakeLocks("GPU-b"), "off")
    for use in (shown, ignored):
        for _ in range(2):
            assert use.check(readings((4711,), ()), (), {}) == [GpuDrained(0, 1, DAEMON)]
    assert shown.reasons == {(0, 0): PYTHON, (0, 1): DAEMON}
    assert ignored.reasons == {(0, 1): DAEMON}


def test_a_process_is_described_as_far_as_it_is_known() -> None:
    assert describe_process(os.getpid()).startswith(f"process {os.getpid()} (")
    assert describe_process(4_194_305) == "process 4194305"
    assert describe_process(4_194_305, 4_000_000) == "process 4194305 of uid 4000000"


# With a daemon


class MachineInUse:
    """Two GPUs; a process of somebody else runs on the first."""

    def gpus(self) -> list[DetectedGpu]:
        return [DetectedGpu(index, f"GPU-{index}", "H100", "H100") for index in range(2)]

    def read(self) -> list[GpuReading]:
        return [GpuReading(0, processes=(4711,)), GpuReading(1, processes=())]

    def problems(self) -> list[GpuProblem]:
        return []

    def close(self) -> None: ...


@pytest.fixture
def use() -> Iterator[GpuUseWatch]:
    found = watch(FakeLocks("GPU-b"))
    yield found
    found.close()


def test_the_daemon_drains_what_others_use_and_shows_it(tmp_path: Path, use: GpuUseWatch) -> None:
    async def poll() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend(), machine=MachineInUse(), use=use) as daemon:
            await daemon.poller.claim()
            for _ in range(2):
                await daemon.poller.poll()
            await daemon.inbox.commit([])
            statuses = await daemon.service.gpus(OWNER)
            shown = [(status.drain_reason, status.used_by) for status in statuses]
            assert shown == [(PYTHON, PYTHON), (DAEMON, DAEMON)]
            assert daemon.service.info(OWNER).drained_gpus == 2

    asyncio.run(poll())
