"""CPU use and memory of an idle daemon."""

from __future__ import annotations

import time

from benchmarks.live.daemon import run_daemon
from benchmarks.table import Row, at_most

GOAL_PERCENT = 1.0
GOAL_MIB = 150.0
SECONDS = 60.0


def rows(quick: bool) -> list[Row]:
    """Measure after 20 jobs have finished, without any requests."""
    return [row for policy in ("easy", "fifo") for row in _idle_rows(policy, SECONDS / 4 if quick else SECONDS)]


def _idle_rows(policy: str, seconds: float) -> list[Row]:
    with run_daemon("--slots", "4", "--policy", policy) as daemon:
        jobs = [daemon.client.submit(command=["sleep", "0.2"], name=f"nap-{number % 3}") for number in range(20)]
        for job in jobs:
            daemon.client.wait(job.id, 60)
        time.sleep(2)
        before, start = daemon.cpu_seconds(), time.perf_counter()
        time.sleep(seconds)
        percent = (daemon.cpu_seconds() - before) / (time.perf_counter() - start) * 100
        memory = daemon.resident_mib()
    return [
        at_most(f"CPU use of an idle daemon, {policy}", percent, GOAL_PERCENT, f"{percent:.2f} % of a core", "%"),
        at_most(f"memory of an idle daemon, {policy}", memory, GOAL_MIB, f"{memory:.0f} MiB resident", "MiB"),
    ]
