"""The Ray back end on a real cluster: the contract of back ends, chosen nodes, parts of GPUs, lost nodes, output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from ray_backend import OnRay
from ray_cluster import RayCluster

from refold.core import RunFailed, RunFinished, StartRun
from refold.model import Allocation, Demand, Job, Share
from refold.testing.backend_harness import BackendHarness


class TestRayBackend(OnRay):
    @pytest.fixture(autouse=True)
    def use(self, connection: RayCluster) -> None:
        self.cluster = connection

    def test_instances_run_on_the_nodes_that_were_chosen(self, tmp_path: Path) -> None:
        async def check(harness: BackendHarness) -> None:
            await start(harness, "spread", "echo >up-$REFOLD_INSTANCE; sleep 1000", Share(2, (0,)), Share(0, (0,)))
            await harness.content("up-0")
            await harness.content("up-1")
            tables = self.cluster.ray.util.placement_group_table().values()
            (table,) = [entry for entry in tables if entry["name"].endswith(":1:spread")]
            nodes = self.nodes().nodes
            assert table["bundles_to_node_id"] == {0: nodes[2].id, 1: nodes[0].id}

        self.run_test(tmp_path, check)

    def test_two_runs_share_a_gpu(self, tmp_path: Path) -> None:
        async def check(harness: BackendHarness) -> None:
            shell = "echo $CUDA_VISIBLE_DEVICES >gpus-$REFOLD_JOB; sleep 1000"
            await start(harness, "others", shell, Share(1, tuple(range(7))))
            for name in ("one", "two"):
                await start(harness, name, shell, Share(1, (7,), gpu_milli=500))
            found = {name: await harness.content(f"gpus-{name}") for name in ("others", "one", "two")}
            assert found["one"] == found["two"]
            assert len(found["others"].split(",")) == 7 and found["one"] not in found["others"].split(",")

        self.run_test(tmp_path, check)

    def test_a_run_whose_node_is_lost_fails_without_fault_of_its_job(self, tmp_path: Path) -> None:
        node = self.cluster.add_node()
        (index,) = [number for number, found in enumerate(self.nodes().nodes) if found.id == node.node_id]

        async def check(harness: BackendHarness) -> None:
            shell = "echo $$ >pid-$REFOLD_INSTANCE; exec sleep 1000"
            await start(harness, "lost", shell, Share(index, (0,)), Share(index - 1 if index else 1, (0,)))
            pids = [int(await harness.content(f"pid-{instance}")) for instance in range(2)]
            await asyncio.to_thread(self.cluster.kill_node, node)
            end = await harness.ending("lost")
            assert isinstance(end, RunFailed) and end.retry, end
            await until(lambda: not any(map(self.is_alive, pids)))

        self.run_test(tmp_path, check)

    def test_output_is_copied_once_although_the_back_end_is_replaced(self, tmp_path: Path) -> None:
        async def check(harness: BackendHarness) -> None:
            shell = "echo first; echo >up; while [ ! -e go ]; do sleep 0.02; done; echo second; exit 0"
            await harness.start("job", shell)
            log = harness.folder / "out" / "job" / "run-1.0.log"
            await until(lambda: log.exists() and log.read_text() == "first\n")
            await harness.replace_backend()
            await harness.start("job", shell)
            (harness.folder / "go").touch()
            assert await harness.ending("job") == RunFinished("job", 1)
            assert log.read_text() == "first\nsecond\n"

        self.run_test(tmp_path, check)

    def test_a_run_waits_in_vain_for_gpus_that_others_use(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def check(harness: BackendHarness) -> None:
            await start(harness, "others", "echo >up; sleep 1000", Share(3, tuple(range(8))))
            await harness.content("up")
            monkeypatch.setattr("refold.engines.ray.gang.PLACEMENT_WAIT", 0.5)
            await start(harness, "late", "true", Share(3, (0,)))
            end = await harness.ending("late")
            assert isinstance(end, RunFailed) and end.retry and "not enough free resources" in end.why

        self.run_test(tmp_path, check)


async def start(harness: BackendHarness, job: str, shell: str, *shares: Share) -> None:
    """Start a run of a shell script with an instance for each share."""
    command = ("sh", "-c", f"cd '{harness.folder}'\n{shell}")
    harness.add_job(Job(job, demand=Demand(len(shares), len(shares[0].gpus)), command=command))
    await harness.order(StartRun(job, 1, Allocation(shares)))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.05)
