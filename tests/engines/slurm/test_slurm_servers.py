"""The Slurm of the tests is a real one: it runs jobs on chosen nodes with chosen GPUs, and its parts can fail."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_accounting import SlurmWithAccounting
from slurm_servers import SlurmServers, is_running


def submit(slurm: SlurmServers, shell: str, *options: str) -> str:
    """Submit a shell command without output, and return its id."""
    return slurm.run("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", shell).strip()


def state(slurm: SlurmServers, job: str) -> str:
    return slurm.run("squeue", "--noheader", "--states=all", "--format=%T", "--job", job, check=False).strip()


def test_a_job_has_the_node_and_the_gpus_that_it_asks_for(slurm: SlurmServers, tmp_path: Path) -> None:
    out = tmp_path / "out"
    submit(slurm, f"echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES >{out}.new; mv {out}.new {out}", "-w", "n2", "-G", "3")
    slurm.wait_until(out.exists, "the job has run")
    assert out.read_text() == "n2 0,1,2\n"


def test_gangs_wait_whole(slurm: SlurmServers) -> None:
    first = submit(slurm, "sleep 1000", "--nodes=3", "--gpus-per-node=8")
    slurm.wait_until(lambda: state(slurm, first) == "RUNNING", "the first job runs")
    second = submit(slurm, "sleep 1000", "--nodes=2", "--gpus-per-node=8")
    reasons = ("(Resources)", "(Priority)")
    slurm.wait_until(
        lambda: slurm.run("squeue", "-h", "-o", "%R", "-j", second).strip() in reasons, "the second job waits"
    )
    assert state(slurm, second) == "PENDING"


def test_runs_survive_the_death_of_the_controller(slurm: SlurmServers, tmp_path: Path) -> None:
    job = submit(slurm, f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    slurm.wait_until(lambda: state(slurm, job) == "RUNNING", "the job runs")
    slurm.wait_until_saved()
    slurm.kill("slurmctld")
    slurm.start_controller()
    assert state(slurm, job) == "RUNNING"
    (tmp_path / "go").touch()
    slurm.wait_until(lambda: state(slurm, job) == "COMPLETED", "the job ends")


def test_a_job_whose_node_dies_is_requeued(slurm: SlurmServers, tmp_path: Path) -> None:
    job = submit(slurm, f"echo $$ >{tmp_path}/pid; sleep 1000", "--nodelist=n1", "--requeue")
    slurm.wait_until(lambda: (tmp_path / "pid").exists() and state(slurm, job) == "RUNNING", "the job runs")
    slurm.wait_until(lambda: (tmp_path / "pid").read_text() != "", "the job has written its process id")
    slurm.kill_node("n1")
    assert not is_running(int((tmp_path / "pid").read_text()))
    slurm.run("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=killed")
    slurm.wait_until(lambda: state(slurm, job) == "PENDING", "the job is requeued")
    slurm.start_node("n1")
    slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")


def test_stopping_ends_all_processes_and_deletes_the_folder(slurm: SlurmServers, tmp_path: Path) -> None:
    other = SlurmServers(nodes=1)
    try:
        other.start()
        submit(other, f"echo $$ >{tmp_path}/pid; trap '' TERM; while :; do sleep 1; done")
        other.wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "the job runs")
    finally:
        other.stop()
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert not other.folder.exists()
    assert slurm.is_ready(), "two clusters on one machine do not disturb each other"
    assert "SLURM_CONF" not in os.environ


def test_accounting_records_jobs(slurm_with_accounting: SlurmWithAccounting) -> None:
    slurm = slurm_with_accounting
    job = submit(slurm, "exit 3", "--gpus=2")
    columns = (
        "sacct",
        "--noheader",
        "--allocations",
        "--parsable2",
        "--format=State,ExitCode,AllocTRES",
        "--jobs",
        job,
    )
    slurm.wait_until(lambda: slurm.run(*columns).startswith("FAILED"), "the job is recorded")
    assert slurm.run(*columns).strip() == "FAILED|3:0|billing=1,cpu=1,gres/gpu=2,mem=100M,node=1"
