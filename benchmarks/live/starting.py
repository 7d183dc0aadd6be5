"""From a submission to its process: how much later does it begin than one that nobody schedules?"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.live.served import Served, served
from benchmarks.table import Row, at_most

GOAL_MILLISECONDS = 50.0
TIMES = 40

STAMP = ("sh", "-c", 'date +%s.%N > "$0"')
"""A command that says when it runs, by the clock of the machine."""


def rows(quick: bool) -> list[Row]:
    """Medians over single submissions to an idle daemon, each with a process that was started directly just before."""
    times = TIMES // 4 if quick else TIMES
    with served("--slots", "2") as daemon, tempfile.TemporaryDirectory() as folder:
        _through_daemon(daemon, Path(folder) / "warm")
        pairs = [
            (_directly(Path(folder) / f"direct-{turn}"), _through_daemon(daemon, Path(folder) / f"job-{turn}"))
            for turn in range(times)
        ]
    direct, through = (statistics.median(side) for side in zip(*pairs, strict=True))
    slowest = sorted(later - alone for alone, later in pairs)[int(0.95 * times)]
    text = f"{through - direct:.1f} ms (p95 {slowest:.1f}; by itself it takes {direct:.1f})"
    return [
        at_most("submission to process start, beyond its own start", through - direct, GOAL_MILLISECONDS, text, "ms")
    ]


def _directly(path: Path) -> float:
    began = time.time()
    subprocess.run([*STAMP, str(path)], check=True)
    return (float(path.read_text()) - began) * 1e3


def _through_daemon(daemon: Served, path: Path) -> float:
    began = time.time()
    job = daemon.client.submit(command=[*STAMP, str(path)], name="stamp")
    daemon.client.wait(job.id, 30)
    return (float(path.read_text()) - began) * 1e3
