"""Time from a submission to the start of its process, beyond that of a process started directly."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.live.daemon import Daemon, run_daemon
from benchmarks.table import Row, at_most

GOAL_MILLISECONDS = 50.0
REPEATS = 40

WRITE_TIME = ("sh", "-c", 'date +%s.%N > "$0"')
"""A command that writes its start time to a file."""


def rows(quick: bool) -> list[Row]:
    """Measure medians over single submissions to an idle daemon, each paired with a direct process start."""
    repeats = REPEATS // 4 if quick else REPEATS
    with run_daemon("--slots", "2") as daemon, tempfile.TemporaryDirectory() as folder:
        _daemon_milliseconds(daemon, Path(folder) / "warm")
        pairs = [
            (
                _direct_milliseconds(Path(folder) / f"direct-{number}"),
                _daemon_milliseconds(daemon, Path(folder) / f"job-{number}"),
            )
            for number in range(repeats)
        ]
    direct, submitted = (statistics.median(side) for side in zip(*pairs, strict=True))
    p95 = sorted(with_daemon - alone for alone, with_daemon in pairs)[int(0.95 * repeats)]
    text = f"{submitted - direct:.1f} ms (p95 {p95:.1f}; direct start {direct:.1f})"
    return [
        at_most("submission to process start, minus direct start", submitted - direct, GOAL_MILLISECONDS, text, "ms")
    ]


def _direct_milliseconds(path: Path) -> float:
    start = time.time()
    subprocess.run([*WRITE_TIME, str(path)], check=True)
    return (float(path.read_text()) - start) * 1e3


def _daemon_milliseconds(daemon: Daemon, path: Path) -> float:
    start = time.time()
    job = daemon.client.submit(command=[*WRITE_TIME, str(path)], name="stamp", export="NONE")
    daemon.client.wait(job.id, 30)
    return (float(path.read_text()) - start) * 1e3
