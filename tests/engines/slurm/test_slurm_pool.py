"""A pool of allocations: its rules, without Slurm; and what happens to runs in it on a real Slurm."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from slurm_backend import in_pool, record_of
from slurm_output import FakePrograms, node_line
from slurm_servers import SlurmServers

from refold.core import RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.engines.slurm import SlurmEngine
from refold.engines.slurm.nodes import map_nodes, read_nodes
from refold.engines.slurm.pool import (
    JOB_NAME,
    HeldPool,
    PoolChange,
    PoolJob,
    PoolNode,
    PoolSettings,
    closing_jobs,
    narrowed,
    next_change,
    parse_pool_nodes,
    pool_comment,
    read_pool,
)
from refold.engines.slurm.programs import Programs
from refold.engines.slurm.requests import SlurmSettings
from refold.engines.slurm.run_jobs import QueuedRuns, RunJob, RunSteps, read_run_steps, run_mark
from refold.errors import BadInput, BadValue
from refold.model import Allocation, Demand, Job, Share
from refold.testing.backend_contract import SHORT_GRACE
from refold.testing.backend_harness import BackendHarness

WAIT = "echo >>starts; while [ ! -e go ]; do sleep 0.05; done"
HOUR = 3600.0


def held(number: int, node: str, *, ends: float | None = None, is_own: bool = True) -> PoolJob:
    return PoolJob(number, "RUNNING", (PoolNode(node, {"a100": 8}, 64, 1000),), 0.0, ends, is_own)


def waiting(number: int) -> PoolJob:
    return PoolJob(number, "PENDING")


# How many allocations there are.


@pytest.mark.parametrize(
    ("jobs", "wanted", "now", "busy", "expected"),
    [
        ([], 2, 0.0, [], PoolChange(2)),
        ([held(1, "n0"), waiting(2)], 2, 0.0, [], PoolChange()),
        ([held(1, "n0"), PoolJob(2, "NODE_FAIL")], 2, 0.0, [], PoolChange(1)),
        ([held(1, "n0"), PoolJob(2, "COMPLETING")], 2, 0.0, [], PoolChange(1)),
        ([held(1, "n0"), held(2, "n1")], 1, 0.0, ["n0"], PoolChange(0, (2,))),
        ([held(1, "n0"), held(2, "n1")], 1, 0.0, ["n1"], PoolChange(0, ())),
        ([waiting(1), held(2, "n1")], 1, 0.0, [], PoolChange(0, (1,))),
        ([held(1, "n0", is_own=False)], 1, 0.0, [], PoolChange(1)),
        ([held(1, "n0", is_own=False)], 0, 0.0, [], PoolChange()),
        ([held(1, "n0", ends=10 * HOUR)], 1, 9.4 * HOUR, [], PoolChange()),
        ([held(1, "n0", ends=10 * HOUR)], 1, 9.6 * HOUR, ["n0"], PoolChange(1)),
        ([held(1, "n0", ends=10 * HOUR), waiting(2)], 1, 9.6 * HOUR, [], PoolChange(0, (1,))),
        ([held(1, "n0", ends=300.0)], 1, 239.0, [], PoolChange()),
        ([held(1, "n0")._replace(is_abandoned=True)], 1, 0.0, ["n0"], PoolChange(1)),
        ([held(1, "n0")._replace(is_abandoned=True), held(2, "n1")], 1, 0.0, [], PoolChange(0, (1,))),
        ([held(1, "n0", ends=300.0)], 1, 241.0, [], PoolChange(1, (1,))),
    ],
)  # fmt: skip
def test_the_pool_has_the_size_that_is_wanted(
    jobs: list[PoolJob], wanted: int, now: float, busy: list[str], expected: PoolChange
) -> None:
    assert next_change(jobs, wanted, now, busy) == expected


def test_nothing_is_started_where_the_end_is_near_or_that_is_too_many() -> None:
    jobs = [held(1, "n0", ends=HOUR), held(2, "n1"), held(3, "n2"), held(4, "n3", is_own=False), waiting(5)]
    assert closing_jobs(jobs, 3, 0.0) == set()
    assert closing_jobs(jobs, 1, 0.0) == {2, 3}
    assert closing_jobs(jobs, 1, 0.95 * HOUR) == {1, 3}


def pool_of(*numbers: int, after: float = 300.0) -> tuple[HeldPool, list[tuple[str, ...]]]:
    """Return a pool that has these allocations, on nodes n1, n2, …, and the calls that it makes."""
    calls: list[tuple[str, ...]] = []

    class Recorded(Programs):
        def without_user_environment(self) -> Programs:
            return self

        def run(self, program: str, *arguments: str, stdin: str = "") -> str:
            del stdin
            calls.append((program, *arguments[-1:]))
            return "99"

    pool = HeldPool(Recorded({}), "id", SlurmSettings(), PoolSettings(len(numbers), release_idle_after=after))
    pool.jobs = [held(number, f"n{number}") for number in numbers]
    return pool, calls


def test_idle_nodes_are_released_and_requested_again_when_jobs_wait() -> None:
    pool, calls = pool_of(1, 2)
    pool.adapt(0.0, {"n1"}, jobs_wait=False)
    pool.adapt(299.0, {"n1"}, jobs_wait=False)
    assert not pool.is_abandoned("2.0")
    pool.adapt(300.0, {"n1"}, jobs_wait=False)
    assert (pool.is_abandoned("1.0"), pool.is_abandoned("2.0")) == (False, True)
    pool.jobs = [held(1, "n1")]
    pool.request_missing(301.0)
    assert calls == []  # one is enough
    pool.adapt(302.0, {"n1"}, jobs_wait=True)
    pool.request_missing(302.0)
    assert [program for program, *_ in calls] == ["sbatch"]


def test_a_node_is_idle_from_its_last_run_or_the_last_waiting_job_on() -> None:
    pool, _ = pool_of(1)
    for now, busy, jobs_wait in ((0.0, [], False), (200.0, ["n1"], False), (250.0, [], False), (500.0, [], True)):
        pool.adapt(now, busy, jobs_wait)
    for now in (501.0, 800.0):
        pool.adapt(now, [], jobs_wait=False)
        assert not pool.is_abandoned("1.0")
    pool.adapt(801.0, [], jobs_wait=False)
    assert pool.is_abandoned("1.0")


def test_at_its_end_the_daemon_releases_what_has_no_runs() -> None:
    pool, calls = pool_of(1, 2)
    pool.jobs.append(held(3, "n3", is_own=False))
    pool.release_all_idle({"n2"})
    assert calls == [("scancel", "1")]


def test_allocations_are_not_requested_for_moments() -> None:
    with pytest.raises(BadValue, match="time limit of a pool is 0 s, expected at least 300 s"):
        PoolSettings(2, 0.0)


# What Slurm prints.


def test_what_an_allocation_has_on_its_nodes() -> None:
    text = (
        "JobId=2 NumNodes=3 JOB_GRES=gpu:a100:10 Nodes=n[1-2] CPU_IDs=0-3,8 Mem=100 GRES=gpu:a100:4(IDX:0-3) "
        "Nodes=n7 CPU_IDs=0 Mem=5 GRES= MinCPUsNode=1"
    )
    assert parse_pool_nodes(text) == (
        PoolNode("n1", {"a100": 4}, 5, 100),
        PoolNode("n2", {"a100": 4}, 5, 100),
        PoolNode("n7", {}, 1, 5),
    )


def test_an_allocation_whose_memory_slurm_does_not_print_has_no_known_memory() -> None:
    assert parse_pool_nodes("Nodes=n1 GRES=gpu:a100:4(IDX:0-3)") == (PoolNode("n1", {"a100": 4}, 1, 0),)


def test_nodes_have_what_the_allocations_have_on_them() -> None:
    nodes = map_nodes(read_nodes(FakePrograms([], [node_line("n1"), node_line("n2"), node_line("n3")]).run))
    places = {"n1": PoolNode("n1", {"a100": 4}, 16, 100), "n2": PoolNode("n2", {}, 8, 0)}
    found = [group.node for group in narrowed(nodes, places).groups]
    assert [(node.name, node.gpus, node.cpus, node.memory_mib) for node in found] == [
        ("n1", {"a100": 4}, 16, 100),
        ("n2", {"a100": 8}, 8, 65536),
        ("n3", {"a100": 8}, 64, 65536),
    ]


def test_allocations_are_recognised_by_their_comment_or_number() -> None:
    def row(number: str, state: str, comment: str, end: str = "N/A") -> str:
        cells = ((number, 16), ("N/A", 12), (state, 24), ("100", 24), (end, 24), ("", 1024))
        return "".join(text.ljust(width) for text, width in cells) + comment

    text = "\n".join(
        [
            row("1", "RUNNING", pool_comment("d1"), "900"),
            row("2", "RUNNING", pool_comment("d2")),
            row("3", "PENDING", run_mark("d1", ("job", 1))),
            row("4", "RUNNING", "(null)"),
        ]
    )
    assert read_pool(lambda *_: text, "d1", (4,)) == [
        PoolJob(1, "RUNNING", (), 100.0, 900.0),
        PoolJob(4, "RUNNING", (), 100.0, None, is_own=False),
    ]


def test_steps_are_recognised_by_their_name() -> None:
    odd = ("a/b ü", 2)
    mark = run_mark("d1", odd, "ada")
    text = f"1.2 {mark}\n1.3 part.{mark}\n1.batch batch\n9.0 {run_mark('d2', odd)}\n\n"
    assert read_run_steps(lambda *_: text, "d1") == {odd: RunSteps(["1.2"], ["1.3"])}


@pytest.mark.parametrize(
    ("steps", "claim", "status", "allocation", "expected"),
    [
        (RunSteps(["1.2"], ["1.3"]), "1.2", None, "RUNNING", [RunJob("1.2", "RUNNING")]),
        (RunSteps([], ["4.3"]), "1.2", None, "NODE_FAIL", [RunJob("4.3", "RUNNING")]),
        (RunSteps([], []), "1.2", 0, "RUNNING", []),
        (RunSteps([], []), "1.2", None, "COMPLETING", [RunJob("1.2", "COMPLETING")]),
        (RunSteps([], []), "1.2", 143, "TIMEOUT",
         [RunJob("1.2", "REVOKED", lost="its allocation, job 1 of Slurm, has ended (TIMEOUT)")]),
        (RunSteps([], []), "1.2", None, "PENDING", []),
        (RunSteps([], []), "1.2", 143, "PENDING",
         [RunJob("1.2", "REVOKED", lost="its allocation, job 1 of Slurm, is gone")]),
        (RunSteps([], []), "1.2", None, None, []),
        (RunSteps([], []), "1.2", 143, None,
         [RunJob("1.2", "REVOKED", lost="its allocation, job 1 of Slurm, is gone")]),
        (RunSteps([], []), None, None, "RUNNING", []),
    ],
)  # fmt: skip
def test_a_step_is_a_job_whose_end_may_be_that_of_its_allocation(
    steps: RunSteps, claim: str | None, status: int | None, allocation: str | None, expected: list[RunJob]
) -> None:
    key = ("job", 1)
    queue = QueuedRuns({}, {key: steps}, {"1": allocation} if allocation else {})
    assert queue.jobs_of(key, 1000, claim, status) == expected


# On a real Slurm.


def allocations(slurm: SlurmServers, node: str = "") -> list[str]:
    """Return the allocations of the pool, or that of a node."""
    words = ("--noheader", "--format=%A", f"--name={JOB_NAME}", *([f"--nodelist={node}"] if node else []))
    return slurm.run("squeue", *words).split()


def test_a_run_whose_allocation_is_cancelled_is_lost_without_fault(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        await harness.start("job", WAIT)
        await harness.started("job")
        (number,) = allocations(slurm, "n0")
        slurm.run("scancel", number)
        await harness.ending("job")
        why = f"its allocation, job {number} of Slurm, has ended (CANCELLED)"
        assert harness.reports == [RunStarted("job", 1), RunFailed("job", 1, why, retry=True)]

    in_pool(slurm).run_test(tmp_path, check, SHORT_GRACE)


def test_a_gang_is_lost_with_one_of_its_nodes_and_leaves_nothing_on_the_others(
    slurm: SlurmServers, tmp_path: Path
) -> None:
    script = f"cd {tmp_path}; echo $$ >pid.$REFOLD_INSTANCE; {WAIT}"

    async def check(harness: BackendHarness) -> None:
        harness.add_job(Job("job", demand=Demand(2), command=("sh", "-c", script)))
        await harness.order(StartRun("job", 1, Allocation((Share(1, (0,)), Share(2, (0,))))))
        await harness.content("pid.1")
        await harness.started("job")
        await asyncio.to_thread(slurm.kill_node, "n1")
        slurm.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=killed")
        end = await harness.ending("job")
        assert isinstance(end, RunFailed)
        assert end.retry
        assert slurm.run("squeue", "--steps", "--noheader", "--format=%j").count("refold/") == 0

    try:
        in_pool(slurm).run_test(tmp_path, check, SHORT_GRACE)
    finally:
        slurm.start_node("n1")
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME", check=False)


def test_a_run_ends_with_its_checkpoint_before_its_allocation_does(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        await harness.start("job", "trap 'echo saved >>log; exit 0' TERM\n" + WAIT)
        await harness.started("job")
        (number,) = allocations(slurm, "n0")
        pool = harness.backend._pool  # type: ignore[attr-defined]
        pool.jobs = [job._replace(ends_at=time.time() + 5.0) for job in pool.jobs]
        why = f"the time limit of its allocation, job {number} of Slurm, is near"
        assert await harness.ending("job") == RunFailed("job", 1, why, retry=True)
        assert (record_of(harness, "log"), allocations(slurm, "n0")) == (["saved"], [number])

    in_pool(slurm).run_test(tmp_path, check)


def test_a_run_outlives_the_machine_that_has_started_it(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        await harness.start("job", WAIT)
        await harness.started("job")
        (client,) = harness.backend._submitter._clients  # type: ignore[attr-defined]
        os.killpg(client.pid, signal.SIGKILL)
        await harness.replace_backend()
        await harness.start("job", WAIT)
        (harness.folder / "go").touch()
        assert await harness.ending("job") == RunFinished("job", 1)
        assert record_of(harness, "starts") == [""]

    in_pool(slurm).run_test(tmp_path, check)


def test_a_step_that_does_not_fit_is_not_started_and_can_be_stopped(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        harness.add_job(Job("job", command=("sh", "-c", f"cd {tmp_path}; {WAIT}")))
        await harness.order(StartRun("job", 1, Allocation((Share(0, tuple(range(8))),))))
        await harness.started("job")
        await harness.start("late", "echo >>late")
        await asyncio.sleep(1.0)
        await harness.stop("late")
        assert await harness.ending("late") == RunStopped("late", 1)
        assert not (tmp_path / "late").exists()

    in_pool(slurm).run_test(tmp_path, check)


def test_an_existing_allocation_is_used_with_what_it_has(slurm: SlurmServers, tmp_path: Path) -> None:
    words = ("--gres=gpu:2", "--cpus-per-task=4", "--mem=1000M", "--nodelist=n2", "--output=/dev/null")
    number = int(slurm.run("sbatch", "--parsable", *words, "--wrap", "sleep 1000"))
    pool = HeldPool(Programs(slurm.environment), "id", SlurmSettings(), PoolSettings(jobs=(number,)))

    def is_held() -> bool:
        pool.read(time.time())
        return pool.place("n2") is not None

    slurm.wait_until(is_held, "the allocation is known")
    assert pool.place("n2") == (number, PoolNode("n2", {"a100": 2}, 4, 1000))
    assert (pool.place("n0"), pool.missing_jobs()) == (None, [])


def test_whole_nodes_are_requested(slurm: SlurmServers) -> None:
    pool = in_pool(slurm).make_pool(
        Programs(slurm.environment), "id", SlurmSettings(), map_nodes(read_nodes(Programs(slurm.environment).run))
    )
    nodes = sorted((node for job in pool.jobs for node in job.nodes), key=lambda node: node.name)
    assert nodes == [PoolNode(name, {"a100": 8}, 64, 65536) for name in slurm.nodes]


def test_an_allocation_that_does_not_exist_is_refused(slurm: SlurmServers) -> None:
    engine = SlurmEngine(Programs(slurm.environment), "id", SlurmSettings(), pool=PoolSettings(jobs=(999_999,)))
    with pytest.raises(BadInput, match="job 999999 of Slurm, given as a pool, does not exist"):
        asyncio.run(engine.connect())
