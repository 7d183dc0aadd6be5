"""Drained nodes and GPUs accept no work until they are resumed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon

from refold.client.api import DrainQuery, GpuQuery
from refold.core.events import GpuLost, NodeLost, RunFinished, RunStopped
from refold.errors import NotFound


def gpus_of(daemon: ManualDaemon) -> dict[str, tuple[int, ...]]:
    """Return the GPUs of each run, of node 'a'."""
    return {run.job: run.allocation.placement[0].gpus for run in daemon.state.view.runs.values()}


def notices_of(daemon: ManualDaemon, *kinds: str) -> list[tuple[str, str]]:
    return [(notice.kind, notice.text) for notice in daemon.notices if notice.kind in kinds]


def test_a_free_gpu_is_drained_at_once_and_used_again_when_it_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            node = await daemon.service.drain(OWNER, "a", DrainQuery(reason="fan", gpu=0))
            assert (node.up, node.free_gpus, node.reason) == (True, 1.0, "GPU 0 is drained: fan")
            first, second = await daemon.submit("one"), await daemon.submit("two")
            assert gpus_of(daemon) == {first: (1,)}
            node = await daemon.service.resume(OWNER, "a", GpuQuery(gpu=0))
            await daemon.settle()
            assert (node.free_gpus, node.reason) == (0.0, "")
            assert gpus_of(daemon) == {first: (1,), second: (0,)}
            assert notices_of(daemon, "gpu drained", "gpu resumed") == [
                ("gpu drained", "GPU 0 of a: fan"),
                ("gpu resumed", "GPU 0 of a"),
            ]

    asyncio.run(main())


def test_runs_on_a_drained_gpu_are_stopped_and_queued_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            shared = [await daemon.submit(name, gpu_share=0.5) for name in ("one", "two")]
            whole = await daemon.submit("three")
            await daemon.service.drain(OWNER, "a", DrainQuery(reason="fan", gpu=0))
            await daemon.settle()
            assert [daemon.state.view.runs[job].stopping for job in (*shared, whole)] == [True, True, False]
            await daemon.end_run(shared[0], RunStopped)
            assert daemon.service.nodes(OWNER)[0].free_gpus == 0.0
            await daemon.end_run(shared[1], RunStopped)
            assert (gpus_of(daemon), sorted(daemon.state.view.waiting)) == ({whole: (1,)}, shared)
            await daemon.end_run(whole, RunFinished)
            assert gpus_of(daemon) == dict.fromkeys(shared, (1,))

    asyncio.run(main())


def test_gpus_of_a_drained_node_have_its_reason_unless_they_have_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            await daemon.service.drain(OWNER, "a", DrainQuery(reason="fan", gpu=1))
            assert [gpu.drain_reason for gpu in await daemon.service.gpus(OWNER)] == ["", "fan"]
            await daemon.service.drain(OWNER, "a", DrainQuery(reason="cables"))
            assert [gpu.drain_reason for gpu in await daemon.service.gpus(OWNER)] == ["cables", "fan"]

    asyncio.run(main())


def test_a_drain_without_a_reason_names_the_caller(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            node = await daemon.service.drain(OWNER, "a", DrainQuery(gpu=0))
            assert node.reason == f"GPU 0 is drained: by {OWNER.name}"
            assert (await daemon.service.drain(OWNER, "a", DrainQuery())).reason == f"by {OWNER.name}"

    asyncio.run(main())


def test_a_run_is_recalled_from_a_gpu_whatever_reports_that_the_gpu_is_down(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("one")
            await daemon.report(GpuLost(0, 0, "XID 79"))
            assert notices_of(daemon, "stopping") == [("stopping", "GPU 0 of a is down: XID 79")]
            await daemon.end_run(job, RunStopped)
            assert gpus_of(daemon) == {job: (1,)}

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["fifo", "easy"], ids=["replayed", "another policy"])
def test_drains_and_their_reasons_survive_a_restart(tmp_path: Path, policy: str) -> None:
    async def main() -> None:
        backend = UnreliableBackend()
        async with ManualDaemon(tmp_path, backend) as daemon:
            await daemon.service.drain(OWNER, "a", DrainQuery(reason="fan", gpu=1))
            await daemon.service.drain(OWNER, "a", DrainQuery(reason="cables"))
        async with ManualDaemon(tmp_path, backend, policy=policy) as daemon:
            (node,) = daemon.service.nodes(OWNER)
            assert (node.up, node.drained, node.reason, node.free_gpus) == (False, True, "cables", 0.0)
            assert (await daemon.service.resume(OWNER, "a", GpuQuery())).reason == "GPU 1 is drained: fan"
            job, _ = await daemon.submit("one"), await daemon.submit("two")
            assert gpus_of(daemon) == {job: (0,)}

    asyncio.run(main())


@pytest.mark.parametrize("move", [False, True])
def test_runs_leave_a_drained_node_only_if_they_are_moved(tmp_path: Path, move: bool) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            job = await daemon.submit("one")
            await daemon.service.drain(OWNER, "a", DrainQuery(reason="cables", move=move))
            await daemon.settle()
            assert daemon.state.view.runs[job].stopping == move
            assert notices_of(daemon, "node drained", "node down") == [("node drained", "a: cables")]
            assert notices_of(daemon, "stopping") == [("stopping", "a is drained: cables")] * move

    asyncio.run(main())


def test_the_last_reason_of_a_drained_node_is_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            await daemon.service.drain(OWNER, "a", DrainQuery(reason="cables"))
            await daemon.report(NodeLost(0))
            assert daemon.service.nodes(OWNER)[0].reason == "cables"
            assert (await daemon.service.drain(OWNER, "a", DrainQuery(reason="fire"))).reason == "fire"

    asyncio.run(main())


def test_a_gpu_that_is_up_is_not_reported_as_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            await daemon.service.resume(OWNER, "a", GpuQuery(gpu=0))
            await daemon.service.resume(OWNER, "a", GpuQuery())
            assert notices_of(daemon, "gpu resumed", "node up") == []

    asyncio.run(main())


def test_only_gpus_that_exist_can_be_drained(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            with pytest.raises(NotFound, match="node 'a' has no GPU 2: it has 2, counted from 0"):
                await daemon.service.drain(OWNER, "a", DrainQuery(gpu=2))

    asyncio.run(main())


def test_a_node_that_was_lost_is_down_and_not_drained(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            await daemon.report(NodeLost(0, "no power"), GpuLost(0, 1, "XID 79"))
            (node,) = daemon.service.nodes(OWNER)
            assert (node.up, node.drained, node.reason) == (False, False, "no power")
            assert notices_of(daemon, "node drained", "node down", "gpu drained", "gpu down") == [
                ("node down", "a: no power"),
                ("gpu down", "GPU 1 of a: XID 79"),
            ]
            assert (await daemon.service.resume(OWNER, "a", GpuQuery())).reason == "GPU 1 is down: XID 79"

    asyncio.run(main())


def test_drained_gpus_are_counted_alike_for_the_cluster_its_nodes_and_its_gpus(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend()) as daemon:
            for query, free, drained in ((DrainQuery(gpu=1), 1.0, 1), (DrainQuery(), 0.0, 2)):
                node = await daemon.service.drain(OWNER, "a", query)
                info, gpus = daemon.service.info(OWNER), await daemon.service.gpus(OWNER)
                assert node.free_gpus == info.free_gpus == sum(gpu.free for gpu in gpus) == free
                assert info.drained_gpus == sum(bool(gpu.drain_reason) for gpu in gpus) == drained
            await daemon.service.resume(OWNER, "a", GpuQuery())
            assert daemon.service.info(OWNER).drained_gpus == 1

    asyncio.run(main())
