"""Runs on several nodes of a real Slurm, and what happens to runs there that is not ordered by the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_backend import OnSlurm, in_pool, job_ids, on_slurm, record_of, slurm_state
from slurm_servers import SlurmServers, is_running

from refold.core import JobCancelled, RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.engines.slurm import run_state
from refold.model import Allocation, Demand, Job, Launch, Plan, Share
from refold.testing.backend_contract import SHORT_GRACE
from refold.testing.backend_harness import BackendHarness

Made = Callable[[SlurmServers], OnSlurm]
MODES = [on_slurm, in_pool]
"""A job per run, and steps in a pool."""

WAIT = "echo >>starts; echo $$ >pid; while [ ! -e go ]; do sleep 0.05; done"
GANG = """cd {folder}
echo "$REFOLD_INSTANCE $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $RANK/$WORLD_SIZE" >>gang
echo "$MASTER_ADDR $MASTER_PORT" >>meeting
while [ ! -e go ]; do sleep 0.05; done
"""


async def start_gang(harness: BackendHarness, shares: tuple[Share, ...], script: str = GANG, **launch: str) -> None:
    text = script.format(folder=harness.folder)
    environment = tuple(launch.items())
    job = Job("job", demand=Demand(len(shares)), command=("sh", "-c", text), launch=Launch(environment=environment))
    harness.add_job(job)
    await harness.order(StartRun("job", 1, Allocation(shares, Plan(data=sum(len(share.gpus) for share in shares)))))


def gpus(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


async def lines(harness: BackendHarness, name: str, count: int) -> list[str]:
    while len(found := record_of(harness, name)) < count:
        await asyncio.sleep(0.05)
    return sorted(found)


@pytest.mark.parametrize("made", MODES)
def test_gangs_have_what_was_chosen_on_equal_and_unequal_nodes(made: Made, slurm: SlurmServers, tmp_path: Path) -> None:
    shapes = {
        "equal": (Share(0, gpus(0, 2)), Share(0, gpus(2, 2)), Share(2, gpus(0, 2)), Share(2, gpus(2, 2))),
        "unequal": (Share(1, gpus(0, 3)), Share(3, gpus(4, 1))),
    }

    async def check(harness: BackendHarness) -> None:
        await start_gang(harness, shapes[harness.folder.name])
        found = await lines(harness, "gang", len(shapes[harness.folder.name]))
        (meeting,) = {*await lines(harness, "meeting", len(found))}
        assert meeting.startswith("127.0.0.1 2")
        await harness.started("job")
        await harness.stop("job")
        assert await harness.ending("job") == RunStopped("job", 1)
        assert (
            found
            == {
                "equal": ["0 n0 0,1 0/4", "1 n0 2,3 1/4", "2 n2 0,1 2/4", "3 n2 2,3 3/4"],
                "unequal": ["0 n1 0,1,2 0/2", "1 n3 0 1/2"],
            }[harness.folder.name]
        )

    for name in shapes:
        (tmp_path / name).mkdir()
        slurm.cancel_all()
        made(slurm).run_test(tmp_path / name, check)


@pytest.mark.parametrize("made", MODES)
def test_one_failing_node_ends_the_gang(made: Made, slurm: SlurmServers, tmp_path: Path) -> None:
    script = (
        "cd {folder}; [ $REFOLD_INSTANCE = 1 ] || {{ echo $$ >pid; exec sleep 1000; }}\n"
        "while [ ! -s pid ]; do sleep 0.05; done; exit 7"
    )

    async def check(harness: BackendHarness) -> None:
        await start_gang(harness, (Share(0, (0,)), Share(1, (0,))), script)
        end = await harness.ending("job")
        assert end == RunFailed("job", 1, "instance 1: exit 7", exit_code=7)
        assert not is_running(int(await harness.content("pid")))

    made(slurm).run_test(tmp_path, check, SHORT_GRACE)


@pytest.mark.parametrize("made", MODES)
def test_commands_and_environments_are_not_interpreted(made: Made, slurm: SlurmServers, tmp_path: Path) -> None:
    odd = "$(touch bad) `touch bad`; 'quoted' \"twice\" \\ %j\nnext line \x01 ü"

    async def check(harness: BackendHarness) -> None:
        command = ("sh", "-c", 'printf "%s|%s\n" "$ODD" "$1" >"$0"', str(harness.folder / "seen"), odd)
        launch = Launch(environment=(("ODD", odd), ("not-a-name", "x")))
        harness.add_job(Job("a/b %j", command=command, launch=launch))
        await harness.order(StartRun("a/b %j", 1, Allocation((Share(0, (0,)),))))
        assert await harness.ending("a/b %j") == RunFinished("a/b %j", 1)
        assert (harness.folder / "seen").read_text() == f"{odd}|{odd}\n"
        assert not [*harness.folder.rglob("bad")]

    made(slurm).run_test(tmp_path, check)


@pytest.mark.parametrize("made", MODES)
@pytest.mark.parametrize(
    ("job", "why"),
    [
        (Job("job"), "no command"),
        (Job("job", command=("true",), demand=Demand(gpu_milli=500)), "a part of a GPU"),
    ],
)
def test_what_slurm_cannot_run_fails(made: Made, slurm: SlurmServers, tmp_path: Path, job: Job, why: str) -> None:
    async def check(harness: BackendHarness) -> None:
        harness.add_job(job)
        await harness.order(StartRun("job", 1, Allocation((Share(0, (0,), job.demand.gpu_milli),))))
        end = await harness.ending("job")
        assert isinstance(end, RunFailed)
        assert (why in end.why, end.retry) == (True, False)

    made(slurm).run_test(tmp_path, check)


def test_a_job_that_slurm_refuses_fails_with_its_message(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        harness.add_job(Job("job", command=("true",)))
        await harness.order(StartRun("job", 1, Allocation((Share(0, (0,), memory_mib=2**30),))))
        end = await harness.ending("job")
        assert isinstance(end, RunFailed)
        assert (end.why[:7], end.retry) == ("sbatch:", False)

    on_slurm(slurm).run_test(tmp_path, check)


def test_a_job_that_slurm_does_not_start_is_given_up(
    slurm: SlurmServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "START_TIMEOUT", 1.0)
    slurm.run("sbatch", "--output=/dev/null", "--nodelist=n0", "--gres=gpu:8", "--wrap", "sleep 1000")

    async def check(harness: BackendHarness) -> None:
        await harness.start("job", "echo >>starts")
        end = await harness.ending("job")
        assert isinstance(end, RunFailed)
        assert end.retry
        assert "did not start it within 1 s" in end.why
        assert job_ids(slurm) == []

    on_slurm(slurm).run_test(tmp_path, check)
    assert not (tmp_path / "starts").exists()


# What others do.


def test_a_job_that_is_cancelled_in_slurm_is_cancelled(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        await harness.start("job", WAIT)
        await harness.started("job")
        slurm.run("scancel", *job_ids(slurm))
        await harness.ending("job")
        assert harness.reports == [
            RunStarted("job", 1),
            JobCancelled("job", "cancelled in Slurm"),
            RunStopped("job", 1),
        ]

    on_slurm(slurm).run_test(tmp_path, check)


def test_a_requeued_job_does_not_run_twice(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        await harness.start("job", WAIT)
        await harness.content("pid")
        (number,) = job_ids(slurm)
        slurm.run("scontrol", "update", f"JobId={number}", "Requeue=1")
        slurm.run("scontrol", "requeue", number)
        assert await harness.ending("job") == RunFailed("job", 1, "requeued in Slurm", retry=True)
        assert record_of(harness, "starts") == [""]

    on_slurm(slurm).run_test(tmp_path, check)


def test_a_run_whose_node_dies_is_lost_without_fault(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        await start_gang(harness, (Share(1, (0,)), Share(2, (0,))))
        await lines(harness, "gang", 2)
        await harness.started("job")
        await asyncio.to_thread(slurm.kill_node, "n1")
        slurm.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=killed")  # found out in a minute
        end = await harness.ending("job")
        assert end == RunFailed("job", 1, "a node failed (Slurm: NODE_FAIL)", retry=True)

    try:
        on_slurm(slurm).run_test(tmp_path, check, SHORT_GRACE)
    finally:
        slurm.start_node("n1")
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME", check=False)


@pytest.mark.parametrize("made", MODES)
def test_runs_continue_while_the_controller_is_dead(made: Made, slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        await harness.start("job", WAIT)
        await harness.started("job")
        await asyncio.to_thread(slurm.wait_until_saved)
        slurm.kill("slurmctld")
        await harness.start("next", "echo >>next")
        (harness.folder / "go").touch()
        await asyncio.sleep(0.5)
        assert harness.endings("job") == [], "its end is not known before the controller is back"
        await asyncio.to_thread(slurm.start_controller)
        assert await harness.ending("job") == RunFinished("job", 1)
        assert await harness.ending("next") == RunFinished("next", 1)
        assert (record_of(harness, "starts"), record_of(harness, "next")) == ([""], [""])

    made(slurm).run_test(tmp_path, check)


def test_a_waiting_job_that_the_controller_forgets_is_submitted_again(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        slurm.run("sbatch", "--job-name=first", "--output=/dev/null", "--gres=gpu:8", "-wn0", "--wrap", "sleep 1000")
        await asyncio.to_thread(slurm.wait_until_saved)
        await harness.start("job", "echo >>starts")
        while not job_ids(slurm):
            await asyncio.sleep(0.05)
        slurm.kill("slurmctld")
        await asyncio.to_thread(slurm.start_controller)
        while not job_ids(slurm):
            await asyncio.sleep(0.05)
        slurm.run("scancel", *job_ids(slurm, "first"))
        assert await harness.ending("job") == RunFinished("job", 1)
        assert record_of(harness, "starts") == [""]

    on_slurm(slurm).run_test(tmp_path, check)


def test_of_two_jobs_for_a_run_only_one_starts_it(slurm: SlurmServers, tmp_path: Path) -> None:
    async def check(harness: BackendHarness) -> None:
        await harness.start("job", WAIT)
        await harness.content("pid")
        (number,) = job_ids(slurm)
        comment = slurm.run("squeue", "-h", "-o", "%k", "-j", number).strip()
        script = slurm.run("scontrol", "write", "batch_script", number, "-")
        copy = harness.folder / "copy.sh"
        copy.write_text(script)
        slurm.run("sbatch", f"--comment={comment}", "--output=/dev/null", "--job-name=copy", "--gres=gpu:1", str(copy))
        while job_ids(slurm, "copy"):
            await asyncio.sleep(0.05)
        (harness.folder / "go").touch()
        assert await harness.ending("job") == RunFinished("job", 1)
        assert record_of(harness, "starts") == [""]

    on_slurm(slurm).run_test(tmp_path, check)


def test_a_run_that_slurm_preempts_is_queued_again(slurm_with_preemption: SlurmServers, tmp_path: Path) -> None:
    slurm = slurm_with_preemption

    async def check(harness: BackendHarness) -> None:
        harness.add_job(Job("job", command=("sh", "-c", f"cd {harness.folder}; {WAIT}")))
        await harness.order(StartRun("job", 1, Allocation((Share(0, gpus(0, 8)),))))
        await harness.started("job")
        (number,) = job_ids(slurm)
        urgent = ("--partition=urgent", "--gres=gpu:8", "--output=/dev/null", "--wrap", "true")
        slurm.run("sbatch", *urgent)
        end = await harness.ending("job")
        assert end == RunFailed("job", 1, "preempted by Slurm for another job", retry=True)
        assert slurm_state(slurm, number) == "PREEMPTED"
        assert record_of(harness, "starts") == [""]

    made = on_slurm(slurm)
    made.partition = "gpu"
    made.run_test(tmp_path, check, SHORT_GRACE)
