"""A daemon at rest: how much of a core, how much memory."""

from __future__ import annotations

import time

from benchmarks.live.served import served
from benchmarks.table import Row, at_most

GOAL_PERCENT = 1.0
GOAL_MIB = 150.0
SECONDS = 60.0


def rows(quick: bool) -> list[Row]:
    """After some jobs have come and gone, with nobody asking."""
    return [row for policy in ("easy", "fifo") for row in _resting(policy, SECONDS / 4 if quick else SECONDS)]


def _resting(policy: str, seconds: float) -> list[Row]:
    with served("--slots", "4", "--policy", policy) as daemon:
        jobs = [daemon.client.submit(command=["sleep", "0.2"], name=f"nap-{turn % 3}") for turn in range(20)]
        for job in jobs:
            daemon.client.wait(job.id, 60)
        time.sleep(2)
        used, began = daemon.cpu_seconds(), time.perf_counter()
        time.sleep(seconds)
        percent = (daemon.cpu_seconds() - used) / (time.perf_counter() - began) * 100
        memory = daemon.resident_mib()
    return [
        at_most(f"CPU of a daemon at rest, {policy}", percent, GOAL_PERCENT, f"{percent:.2f} % of a core", "%"),
        at_most(f"memory of a daemon at rest, {policy}", memory, GOAL_MIB, f"{memory:.0f} MiB resident", "MiB"),
    ]
