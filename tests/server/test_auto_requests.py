"""`memory: auto` and `cpus: auto`: what is chosen, from which jobs, and what follows an out-of-memory kill."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from loop_setups import UnreliableBackend
from manual_daemon import OWNER, ManualDaemon
from msgspec.structs import replace

from refold.core.events import JobReleased, RunFailed, RunFinished
from refold.model import AutoRequest, Cluster, Demand, Job, Launch, Node, RunUsage
from refold.server.auto_requests import MAX_RAISES, choose_requests, describe_choices, raised_memory
from refold.server.store import GroupUsage
from refold.testing import make_cluster

NODES = Cluster((Node("a", 4, "H100", 64_000, 262_144), Node("b", 8, "H100", 64_000, 262_144)))
BOTH = (AutoRequest("cpus"), AutoRequest("memory"))


def make(gpus: int = 1, auto: tuple[AutoRequest, ...] = BOTH, **fields: Any) -> Job:
    return Job("train-9", demand=Demand(gpus=gpus), group="train", launch=Launch(auto=auto), **fields)


def used(peak: int | None, seconds: float | None = None, run_time: float | None = 100.0, **fields: Any) -> GroupUsage:
    return replace_usage(GroupUsage("", 1, 1, peak, seconds, run_time), **fields)


def replace_usage(usage: GroupUsage, **fields: Any) -> GroupUsage:
    return usage._replace(**fields)


def choose(job: Job, *earlier: GroupUsage, cluster: Cluster = NODES) -> tuple[int, int, list[str]]:
    """Return the chosen thousandths of CPUs and MiB, and how they are explained."""
    chosen = choose_requests(job, cluster, lambda *_: earlier)
    return chosen.demand.cpu_milli, chosen.demand.memory_mib, describe_choices(chosen)


def test_the_largest_peak_and_average_with_their_margins() -> None:
    earlier = (used(1000, 150.0), used(4000, 50.0, runs=3), used(None, None), used(10, 90.0, run_time=None))
    assert choose(make(), *earlier) == (
        3000,  # 1.5 times 1.5 CPUs, rounded up
        4864,  # 4000 MiB and 20 %, rounded up to 128 MiB
        [
            "cpus: auto is 3 CPUs: 4 earlier runs used 1.5 CPUs at most",
            "memory: auto is 4.75 GiB: 5 earlier runs used 3.906 GiB at most",
        ],
    )


def test_cpus_are_those_of_one_instance() -> None:
    assert choose(make(), used(1, 800.0, instances=4))[0] == 3000


def test_jobs_of_another_workload_are_of_another_group() -> None:
    assert choose(make(workload="llama-2-7b"), used(4000, 50.0)) == choose(make(workload="llama-2-7b"))


def test_without_measured_jobs_a_job_gets_the_share_of_its_gpus() -> None:
    assert choose(make(2)) == (
        16_000,
        65_536,
        [
            "cpus: auto is 16 CPUs: no earlier run was measured",
            "memory: auto is 64 GiB: no earlier run was measured",
        ],
    )
    assert choose(make(0))[:2] == (1000, 4096)
    half = replace(make(), demand=Demand(gpus=1, gpu_milli=500))
    assert choose(half)[:2] == (4000, 16_384)
    assert choose(make(16))[:2] == (0, 0)  # no node has so many GPUs


def test_what_nodes_have_is_the_most_and_if_it_is_not_known_the_first_job_is_not_limited() -> None:
    assert choose(make(), used(10**6, 10**6))[:2] == (64_000, 262_144)
    unknown = Cluster((Node("a", 4, "H100"),), cpus_known=False, memory_known=False)
    assert choose(make(), cluster=unknown) == (
        0,
        0,
        [
            "cpus: auto is not limited: no earlier run was measured",
            "memory: auto is not limited: no earlier run was measured",
        ],
    )
    assert choose(make(), used(10**6, 100.0), cluster=unknown)[:2] == (2000, 1_200_000)


def test_what_is_requested_is_not_changed() -> None:
    job = Job("a", demand=Demand(cpu_milli=500, memory_mib=7))
    assert choose_requests(job, NODES, lambda *_: [used(4000, 50.0)]) is job
    memory = replace(make(auto=(AutoRequest("memory"),)), demand=Demand(cpu_milli=500))
    assert choose(memory, used(100, 50.0))[:2] == (500, 128)


KILLED = RunUsage(1.0, 100, out_of_memory=True)


@pytest.mark.parametrize(
    ("memory", "usage", "failures", "raised"),
    [
        (1024, KILLED, 0, 2048),
        (200_000, KILLED, 0, 262_144),
        (262_144, KILLED, 0, None),
        (0, KILLED, 0, None),
        (1024, KILLED, MAX_RAISES, None),
        (1024, RunUsage(1.0, 1024), 0, None),
        (1024, None, 0, None),
    ],
)
def test_memory_is_doubled_up_to_what_a_node_has(
    memory: int, usage: RunUsage | None, failures: int, raised: int | None
) -> None:
    job = replace(make(), demand=Demand(memory_mib=memory))
    assert raised_memory(job, NODES, usage, failures) == raised
    assert raised_memory(replace(job, launch=Launch(auto=(AutoRequest("cpus"),))), NODES, usage, failures) is None


CLUSTER = make_cluster(2, memory_gib=64)


def test_requests_are_learned_from_ended_jobs_of_the_same_user_and_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend(), cluster=CLUSTER) as daemon:
            first = await daemon.submit("train", memory_gib="auto")
            status = await daemon.service.job(OWNER, first)
            assert (status.requested_memory_mib, status.auto) == (
                32_768,
                ["memory: auto is 32 GiB: no earlier run was measured"],
            )
            await daemon.end_run(first, RunFinished, usage=RunUsage(3.0, 1000))
            status = await daemon.service.job(OWNER, await daemon.submit("train", memory_gib="auto"))
            assert (status.requested_memory_mib, status.auto) == (
                1280,
                ["memory: auto is 1.25 GiB: 1 earlier run used 1000 MiB at most"],
            )
            other = await daemon.service.job(OWNER, await daemon.submit("other", memory_gib="auto"))
            assert other.requested_memory_mib == 32_768
            explained = await daemon.service.why(OWNER, status.id)
            assert explained.events[0].text == f"1 GPU; {status.auto[0]}"

    asyncio.run(main())


def test_a_job_that_runs_out_of_memory_is_retried_with_twice_as_much(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend(), cluster=CLUSTER) as daemon:
            job = await daemon.submit("train", memory_gib="auto")
            await daemon.end_run(job, RunFinished, usage=RunUsage(1.0, 13_000))
            job = await daemon.submit("train", memory_gib="auto")
            why = "out of memory: a process was killed"
            for memory in (31_232, 62_464, 65_536):
                await daemon.end_run(job, RunFailed, why=why, exit_code=137, usage=RunUsage(1.0, 16_000, True))
                status = await daemon.service.job(OWNER, job)
                assert (status.state, status.requested_memory_mib) == ("held", memory)
                await daemon.report(JobReleased(job))
                await daemon.settle()
                run = daemon.state.view.runs[job]
                assert [share.memory_mib for share in run.allocation.placement] == [memory]
            texts = [event.text for event in (await daemon.service.why(OWNER, job)).events if event.kind == "note"]
            assert texts == [
                "memory: auto is 30.5 GiB for the next run: 15.25 GiB was not enough",
                "memory: auto is 61 GiB for the next run: 30.5 GiB was not enough",
                "memory: auto is 64 GiB for the next run: 61 GiB was not enough",
            ]
            await daemon.end_run(job, RunFailed, why=why, exit_code=137, usage=RunUsage(1.0, 64_000, True))
            assert (await daemon.service.job(OWNER, job)).state == "failed"

    asyncio.run(main())


def test_the_raised_memory_survives_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        backend = UnreliableBackend()
        async with ManualDaemon(tmp_path, backend, cluster=CLUSTER) as daemon:
            job = await daemon.submit("train", memory_gib="auto")
            await daemon.end_run(job, RunFailed, why="x", usage=RunUsage(1.0, 16_000, True))
        async with ManualDaemon(tmp_path, backend, cluster=CLUSTER) as daemon:
            assert daemon.state.view.held[job].demand.memory_mib == 65_536
            assert daemon.state.job_table.records[job].job.demand.memory_mib == 65_536

    asyncio.run(main())


def test_a_job_that_requests_its_memory_is_not_given_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with ManualDaemon(tmp_path, UnreliableBackend(), cluster=CLUSTER) as daemon:
            job = await daemon.submit("train", memory_gib=1.0)
            await daemon.end_run(job, RunFailed, why="out of memory", usage=RunUsage(1.0, 1024, True))
            assert (await daemon.service.job(OWNER, job)).state == "failed"

    asyncio.run(main())
