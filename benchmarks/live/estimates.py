"""Start estimates: time of `refold queue --start` and `refold whatif` with few and with many waiting jobs."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.live.daemon import Daemon, run_daemon
from benchmarks.table import Row, at_most
from refold.client import Client
from refold.client.api import Submission

FEW_JOBS, MANY_JOBS, QUICK_JOBS = 3, 10_000, 500
FEW_GOAL_SECONDS, MANY_GOAL_SECONDS = 1.0, 3.0
POLICIES = ("easy", "fifo", "refold")
JOBS_PER_CALL = 1_000
RUNS = 3


def rows(quick: bool) -> list[Row]:
    """Measure each policy on four slots, with jobs of one minute: the first ones run, the others wait."""
    many = QUICK_JOBS if quick else MANY_JOBS
    few_rows = [row for policy in POLICIES for row in _rows(policy, FEW_JOBS, FEW_GOAL_SECONDS)]
    return few_rows + [row for policy in POLICIES for row in _rows(policy, many, MANY_GOAL_SECONDS)]


def _rows(policy: str, jobs: int, goal: float) -> list[Row]:
    with run_daemon("--slots", "4", "--policy", policy) as daemon:
        client = daemon.client
        client.wait(client.submit(command=["sleep", "1"], name="train").id, 60)  # so that run times are known
        _submit(client, jobs)
        job = Path(daemon.folder) / "job.yaml"
        job.write_text("name: another\ngpus: 2\nrun: sleep 1\n", encoding="utf-8")
        commands = {"queue --start": ["queue", "--start"], "whatif job.yaml": ["whatif", str(job)]}
        measured = {name: _seconds(daemon, words) for name, words in commands.items()}
    return [
        at_most(f"refold {name}, {policy}, {jobs:,} jobs on 4 slots", seconds, goal, f"{seconds:.2f} s", "s")
        for name, seconds in measured.items()
    ]


def _submit(client: Client, jobs: int) -> None:
    """Submit jobs of one or two GPUs. Runs that continue when the daemon has stopped end after a minute."""
    submissions = [
        Submission(name="train", command=["sleep", "60"], gpus=1 + (number % 3 == 0)) for number in range(jobs)
    ]
    for first in range(0, jobs, JOBS_PER_CALL):
        client.submit_all(submissions[first : first + JOBS_PER_CALL])


def _seconds(daemon: Daemon, words: list[str]) -> float:
    """Return the median wall-clock time of a command that has been run before, as a user sees it."""
    times: list[float] = []
    for _ in range(1 + RUNS):
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "refold.cli.app", *words],
            env=daemon.environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        times.append(time.monotonic() - began)
    return statistics.median(times[1:])
