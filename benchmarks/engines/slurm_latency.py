"""Time from a submission to the start of its process: through Refold on Slurm, and by plain `sbatch`, in turns."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from slurm_daemon import SlurmDaemon  # noqa: E402
from slurm_servers import SlurmServers  # noqa: E402

WRITE_TIME = 'date +%s.%N >"$0.new"; mv "$0.new" "$0"'
"""A script that writes its start time to a file."""

RESOURCES = ("--gres=gpu:1", "--cpus-per-task=1", "--mem=1024M", "--output=/dev/null")
TIMEOUT_SECONDS = 60.0


class Latencies(NamedTuple):
    """Seconds of each submission to an idle cluster, in turns."""

    refold: list[float]
    sbatch: list[float]
    pool: list[float]
    srun: list[float]


def measure_latency(repeats: int) -> Latencies:
    """Submit one job after the other, by each way in turn. The pool has two of the four nodes."""
    slurm = SlurmServers(4, 8)
    with TemporaryDirectory(prefix="refold-latency-") as name:
        folder, found = Path(name), Latencies([], [], [], [])
        jobs = SlurmDaemon(slurm, folder / "jobs", "--policy", "fifo")
        pool = SlurmDaemon(slurm, folder / "pool", "--policy", "fifo", "--pool", "2")
        try:
            slurm.start()
            pool.start()
            jobs.start()
            allocation = _first_allocation(slurm)
            for number in range(repeats + 1):
                path = folder / str(number)
                values = (
                    _with_refold(jobs, path.with_suffix(".job")),
                    _with_sbatch(slurm, path.with_suffix(".batch")),
                    _with_refold(pool, path.with_suffix(".step")),
                    _with_srun(slurm, allocation, path.with_suffix(".srun")),
                )
                if number:  # the first round warms up
                    for times, value in zip(found, values, strict=True):
                        times.append(value)
        finally:
            jobs.kill()
            pool.kill()
            slurm.stop()
    return found


def _first_allocation(slurm: SlurmServers) -> str:
    """Return the id of a job that the pool holds, when it holds all."""

    def held() -> list[str]:
        return slurm.run("squeue", "--noheader", "--name=refold-pool", "--states=running", "--format=%A").split()

    slurm.wait_until(lambda: len(held()) == 2, "the pool has its nodes")
    return held()[0]


def _with_refold(daemon: SlurmDaemon, path: Path) -> float:
    with daemon.client() as client:
        began = time.time()
        job = client.submit(
            name="stamp", command=["sh", "-c", WRITE_TIME, str(path)], gpus=1, cpus=1, memory_gib=1, export="NONE"
        )
        client.wait(job.id, TIMEOUT_SECONDS)
    return float(path.read_text()) - began


def _with_sbatch(slurm: SlurmServers, path: Path) -> float:
    script = path.with_suffix(".sh")
    script.write_text(f"#!/bin/sh\nexec sh -c '{WRITE_TIME}' {path}\n")
    began = time.time()
    number = slurm.run("sbatch", "--parsable", *RESOURCES, str(script)).strip()
    slurm.wait_until(lambda: not slurm.run("squeue", "--noheader", f"--jobs={number}").strip(), "the job has ended")
    return float(path.read_text()) - began


def _with_srun(slurm: SlurmServers, allocation: str, path: Path) -> float:
    began = time.time()
    slurm.run("srun", f"--jobid={allocation}", "--exact", "--ntasks=1", *RESOURCES, "sh", "-c", WRITE_TIME, str(path))
    return float(path.read_text()) - began


def latency_table(found: Latencies) -> list[str]:
    """Return a Markdown table: medians with the smallest and largest value."""
    names = ("`refold submit`, a job per run", "`sbatch`", "`refold submit`, in a pool", "`srun` in an allocation")
    return [
        f"Submission to process start on an idle cluster, {len(found.refold)} jobs with one GPU each, in turns:",
        "",
        "| | median, s | smallest to largest |",
        "|---|---|---|",
        *(
            f"| {name} | {median(values):.2f} | {min(values):.2f} to {max(values):.2f} |"
            for name, values in zip(names, found, strict=True)
        ),
    ]
