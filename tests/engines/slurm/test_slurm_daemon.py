"""The daemon on a real Slurm: jobs, output, reshaping, restarts, nodes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

import pytest
from slurm_backend import job_ids
from slurm_daemon import SlurmDaemon
from slurm_servers import SlurmServers

from refold.engines.slurm import SlurmEngine
from refold.engines.slurm.programs import Programs
from refold.engines.slurm.requests import SlurmSettings
from refold.errors import BadInput

HELPERS = Path(__file__).parents[2] / "helpers"
CHECKPOINTING = """
cd {folder}
echo "start $CUDA_VISIBLE_DEVICES $REFOLD_PLAN" >>log
trap 'echo saved >>log; exit 0' TERM
while [ ! -e go ]; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def served(slurm: SlurmServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    found = SlurmDaemon(slurm, folder / "state", "--policy", str(HELPERS / "shrinking_policy.py"))
    try:
        found.start()
        yield found
    finally:
        found.kill(signal.SIGTERM)


@pytest.fixture
def daemon(served: SlurmDaemon) -> Iterator[SlurmDaemon]:
    yield served
    with served.client() as client:
        for job in client.jobs().jobs:
            client.cancel(job.id, now=True)
    served.wait_until(lambda: not {"running", "waiting"} & {*served.states().values()}, "all jobs have ended")


def test_a_submitted_job_runs_in_slurm_and_its_output_is_shown(daemon: SlurmDaemon, slurm: SlurmServers) -> None:
    with daemon.client() as client:
        job = client.submit(command=["sh", "-c", "echo on $SLURMD_NODENAME as $REFOLD_JOB; echo $MINE"],
                            name="hello", gpus=2, environment={"MINE": "yes"})  # fmt: skip
        assert client.wait(job.id, timeout=60).state == "finished"
        text = "".join(client.logs(job.id))
        (node,) = [node.name for node in client.nodes() if f"on {node.name} as" in text]
    assert text == f"on {node} as {job.id}\nyes\n"
    comments = slurm.run("squeue", "--noheader", "--states=all", f"--name={job.id}", "--format=%k").split()
    assert [comment.split("/")[2:] for comment in comments] == [["1", job.id, "owner"]]


def test_plain_launchers_of_a_gang_form_one_job(daemon: SlurmDaemon) -> None:
    with daemon.client() as client:
        command = [sys.executable, str(HELPERS / "fake_torchrun.py")]
        job = client.submit(command=command, name="gang", instances=2, gpus=6)
        assert client.wait(job.id, timeout=60).state == "finished"
        output = [client.read_logs(job.id, instance=instance).text for instance in range(2)]
    assert output == ["node 0: world size 12\n", "node 1: world size 12\n"]


def test_the_daemon_says_as_whom_jobs_run(daemon: SlurmDaemon) -> None:
    assert f". All jobs run as {getuser()}. To run them as their users, start the daemon as root" in daemon.log()


def test_a_failed_job_says_why(daemon: SlurmDaemon) -> None:
    with daemon.client() as client:
        job = client.submit(command=["sh", "-c", "exit 3"], name="bad")
        found = client.wait(job.id, timeout=60)
    assert (found.state, found.exit_code) == ("failed", 3)


def test_a_job_is_reshaped_by_signal_checkpoint_and_a_new_job_of_slurm(
    daemon: SlurmDaemon, slurm: SlurmServers, tmp_path: Path
) -> None:
    with daemon.client() as client:
        elastic = client.submit(
            command=["sh", "-c", CHECKPOINTING.format(folder=tmp_path)],
            name="elastic", gpus=8, gpu_range=(2, 8), reshapable=True, preemptible=True,
        )  # fmt: skip
        daemon.wait_until((tmp_path / "log").exists, "the job runs")
        first = job_ids(slurm, elastic.id)
        wide = client.submit(command=["true"], name="wide", instances=4, gpus=6)
        assert client.wait(wide.id, timeout=60).state == "finished"
        assert job_ids(slurm, elastic.id) != first
        (tmp_path / "go").touch()
        assert client.wait(elastic.id, timeout=60).state == "finished"
    lines = (tmp_path / "log").read_text().splitlines()
    first_gpus, _, second_gpus = (line.partition(" {")[0].count(",") for line in lines)
    assert (first_gpus, lines[1], second_gpus) == (7, "saved", 1)
    assert ('"data":8' in lines[0], '"data":2' in lines[2]) == (True, True)


def test_runs_outlive_a_daemon_that_is_killed(daemon: SlurmDaemon, tmp_path: Path) -> None:
    shell = "echo >>{0}.starts; while [ ! -e {1} ]; do sleep 0.05; done"
    with daemon.client() as client:
        short = client.submit(command=["sh", "-c", shell.format(tmp_path / "short", tmp_path / "now")], name="short")
        long = client.submit(command=["sh", "-c", shell.format(tmp_path / "long", tmp_path / "go")], name="long")
    starts = [tmp_path / "short.starts", tmp_path / "long.starts"]
    daemon.wait_until(lambda: all(path.exists() for path in starts), "both jobs run")
    daemon.kill()
    (tmp_path / "now").touch()
    daemon.start()
    daemon.wait_for_state(short.id, "finished")
    assert daemon.states()[long.id] == "running"
    (tmp_path / "go").touch()
    daemon.wait_for_state(long.id, "finished")
    assert [path.read_text() for path in starts] == ["\n", "\n"]


def test_nodes_that_slurm_drains_and_jobs_of_others_are_respected(daemon: SlurmDaemon, slurm: SlurmServers) -> None:
    slurm.run(
        "sbatch", "--output=/dev/null", "-wn0", "--gres=gpu:3", "--job-name=others", "--mem=100", "--wrap", "sleep 1000"
    )
    slurm.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=fan")
    with daemon.client() as client:

        def nodes() -> dict[str, tuple[int, str]]:
            return {node.name: (round(node.free_gpus), node.reason) for node in client.nodes()}

        expected = {"n0": (5, ""), "n1": (0, "slurm: DRAIN: fan"), "n2": (8, ""), "n3": (8, "")}
        daemon.wait_until(lambda: nodes() == expected, "the use of nodes is known")
        slurm.run("scancel", "--name=others")
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")
        daemon.wait_until(lambda: {*nodes().values()} == {(8, "")}, "all nodes are free again")


def test_a_cancelled_job_is_cancelled_in_slurm(daemon: SlurmDaemon, slurm: SlurmServers) -> None:
    with daemon.client() as client:
        job = client.submit(command=["sleep", "1000"], name="sleep")
        daemon.wait_for_state(job.id, "running")
        client.cancel(job.id)
        assert client.wait(job.id, timeout=60).state == "cancelled"
    assert job_ids(slurm, job.id) == []


def test_without_slurm_the_daemon_says_so(tmp_path: Path) -> None:
    engine = SlurmEngine(Programs({"PATH": str(tmp_path)}), "id", SlurmSettings())
    with pytest.raises(BadInput, match="sinfo was not found"):
        asyncio.run(engine.connect())


# A pool.


@pytest.fixture
def pooled(slurm: SlurmServers, tmp_path: Path) -> Iterator[SlurmDaemon]:
    found = SlurmDaemon(slurm, tmp_path / "state", "--policy", "fifo", "--pool", "2", "--pool-time", "1h")
    try:
        found.start()
        yield found
    finally:
        found.kill(signal.SIGTERM)


def test_a_pool_runs_jobs_inside_its_allocations_and_nowhere_else(pooled: SlurmDaemon, slurm: SlurmServers) -> None:
    with pooled.client() as client:
        shell = 'echo "$SLURM_JOB_NAME $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES $REFOLD_INSTANCE"'
        gang = client.submit(command=["sh", "-c", shell], name="gang", instances=2, gpus=8)
        assert client.wait(gang.id, timeout=60).state == "finished"
        held = [node.name for node in client.nodes() if not node.reason]
        other = [node.reason for node in client.nodes() if node.reason]
        wide = client.submit(command=["true"], name="wide", instances=3, gpus=8)
        assert client.job(wide.id).state == "waiting"
    assert (len(held), other) == (2, ["slurm: not in the pool"] * 2)
    assert len(job_ids(slurm, "refold-pool")) == 2
    assert slurm.run("squeue", "-h", "-o", "%l", "--name=refold-pool").split() == ["1:00:00"] * 2


def test_a_daemon_that_ends_gives_the_idle_nodes_of_its_pool_back(
    pooled: SlurmDaemon, slurm: SlurmServers, tmp_path: Path
) -> None:
    with pooled.client() as client:
        client.submit(command=["sh", "-c", f"touch {tmp_path}/started; sleep 600"], name="long", gpus=8)
    pooled.wait_until((tmp_path / "started").exists, "the job runs")
    pooled.wait_until(lambda: len(job_ids(slurm, "refold-pool")) == 2, "the pool has two nodes")
    pooled.kill(signal.SIGTERM)
    slurm.wait_until(lambda: len(job_ids(slurm, "refold-pool")) == 1, "the idle node is released")


def test_a_pool_that_is_cancelled_is_renewed_and_the_job_runs_again(
    pooled: SlurmDaemon, slurm: SlurmServers, tmp_path: Path
) -> None:
    shell = f"echo >>{tmp_path}/starts; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    with pooled.client() as client:
        job = client.submit(command=["sh", "-c", shell], name="long", gpus=8)
        pooled.wait_until((tmp_path / "starts").exists, "the job runs")
        first = job_ids(slurm, "refold-pool")
        slurm.run("scancel", *first)
        pooled.wait_until(lambda: (tmp_path / "starts").read_text() == "\n\n", "the job runs again")
        (tmp_path / "go").touch()
        assert client.wait(job.id, timeout=60).state == "finished"
    assert not {*first} & {*job_ids(slurm, "refold-pool")}


def test_a_job_is_stopped_before_the_time_limit_of_its_node_in_the_pool_and_continues_on_another(
    pooled: SlurmDaemon, slurm: SlurmServers, tmp_path: Path
) -> None:
    shell = (
        f"trap 'echo saved >>{tmp_path}/saved; exit 0' TERM; echo $SLURM_JOB_ID >>{tmp_path}/starts; "
        f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    )
    with pooled.client() as client:
        job = client.submit(command=["sh", "-c", shell], name="long", gpus=8, grace=1.0)
    pooled.wait_until((tmp_path / "starts").exists, "the job runs")
    first = (tmp_path / "starts").read_text().strip()
    slurm.run("scontrol", "update", f"JobId={first}", "TimeLimit=1")
    pooled.wait_until(lambda: len((tmp_path / "starts").read_text().split()) == 2, "the job runs again")
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert first not in (tmp_path / "starts").read_text().split()[1:]
    assert any(f"the time limit of its allocation, job {first} of Slurm, is near" in e for e in pooled.events(job.id))
    (tmp_path / "go").touch()
    pooled.wait_for_state(job.id, "finished")


def test_a_node_of_the_pool_that_a_higher_partition_takes_is_requested_again(
    slurm_with_preemption: SlurmServers, tmp_path: Path
) -> None:
    slurm = slurm_with_preemption
    pooled = SlurmDaemon(slurm, tmp_path / "state", "--policy", "fifo", "--pool", "1")
    shell = f"echo $SLURM_JOB_ID >>{tmp_path}/starts; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    try:
        pooled.start()
        with pooled.client() as client:
            job = client.submit(command=["sh", "-c", shell], name="long", gpus=8)
        pooled.wait_until((tmp_path / "starts").exists, "the job runs")
        first = (tmp_path / "starts").read_text().strip()
        slurm.run("sbatch", "--partition=urgent", "--gres=gpu:8", "--output=/dev/null", "--wrap", "true")
        pooled.wait_until(lambda: len((tmp_path / "starts").read_text().split()) == 2, "the job runs again")
        assert any(f"job {first} of Slurm, has ended (PREEMPTED)" in event for event in pooled.events(job.id))
        (tmp_path / "go").touch()
        pooled.wait_for_state(job.id, "finished")
    finally:
        pooled.kill(signal.SIGTERM)


def test_a_daemon_without_a_pool_takes_over_its_runs_and_releases_it(
    pooled: SlurmDaemon, slurm: SlurmServers, tmp_path: Path
) -> None:
    shell = f"echo >>{tmp_path}/starts; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    with pooled.client() as client:
        job = client.submit(command=["sh", "-c", shell], name="long", gpus=8)
    pooled.wait_until((tmp_path / "starts").exists, "the job runs")
    pooled.kill()
    next_daemon = SlurmDaemon(slurm, pooled.folder, "--policy", "fifo")
    try:
        next_daemon.start()
        next_daemon.wait_until(lambda: len(job_ids(slurm, "refold-pool")) == 1, "the idle node is released")
        assert next_daemon.states()[job.id] == "running"
        (tmp_path / "go").touch()
        next_daemon.wait_for_state(job.id, "finished")
        next_daemon.wait_until(lambda: not job_ids(slurm, "refold-pool"), "the pool is released")
    finally:
        next_daemon.kill(signal.SIGTERM)
    assert (tmp_path / "starts").read_text() == "\n"
