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


def measure_latency(repeats: int) -> Latencies:
    """Submit one job after the other, by each way in turn."""
    slurm = SlurmServers(4, 8)
    with TemporaryDirectory(prefix="refold-latency-") as name:
        folder, found = Path(name), Latencies([], [])
        daemon = SlurmDaemon(slurm, folder / "state", "--policy", "fifo")
        try:
            slurm.start()
            daemon.start()
            for number in range(repeats + 1):
                pair = (_with_refold(daemon, folder / f"r{number}"), _with_sbatch(slurm, folder / f"s{number}"))
                if number:  # the first pair warms up
                    found.refold.append(pair[0])
                    found.sbatch.append(pair[1])
        finally:
            daemon.kill()
            slurm.stop()
    return found


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
    slurm.run("sbatch", *RESOURCES, str(script))
    slurm.wait_until(path.exists, "the job has run")
    slurm.wait_until(slurm.is_ready, "the nodes are idle again")
    return float(path.read_text()) - began


def latency_table(found: Latencies) -> list[str]:
    """Return a Markdown table: medians with the smallest and largest value."""
    return [
        f"Submission to process start on an idle cluster, {len(found.refold)} jobs with one GPU each, in turns:",
        "",
        "| | median, s | smallest to largest |",
        "|---|---|---|",
        *(
            f"| {name} | {median(values):.2f} | {min(values):.2f} to {max(values):.2f} |"
            for name, values in (("`refold submit`", found.refold), ("`sbatch`", found.sbatch))
        ),
    ]
