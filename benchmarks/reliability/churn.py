"""Hours of use in which jobs come, end, fail, are held and cancelled: the memory of the daemon must not grow."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from benchmarks.measure import REPOSITORY
from benchmarks.table import Row, as_markdown, at_most

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from real_daemon import kill_runs
from served_daemon import ServedDaemon

from refold.client import Client
from refold.errors import RefoldError

SAMPLE_SECONDS = 15.0
MAX_WAITING = 60
COMMANDS = (["true"], ["sleep", "0.5"], ["sh", "-c", "echo hello; exit 3"], ["sh", "-c", "seq 1000"], ["sleep", "5"])


class ChurnResult(msgspec.Struct, frozen=True):
    """Resident memory of the daemon in MiB over time, and how many jobs there were."""

    policy: str
    minutes: float
    jobs: int
    memory_mib: list[float]
    store_mib: float

    @property
    def growth(self) -> float:
        """Median memory of the last quarter divided by that of the second one, after caches have filled."""
        quarter = max(1, len(self.memory_mib) // 4)
        before, after = sorted(self.memory_mib[quarter : 2 * quarter]), sorted(self.memory_mib[-quarter:])
        return after[len(after) // 2] / before[len(before) // 2]


def run_churn(minutes: float, policy: str, per_second: float) -> ChurnResult:
    """Use a daemon with four slots for some minutes, with commands as a user would give them."""
    with tempfile.TemporaryDirectory(prefix="refold-churn-") as name:
        folder = Path(name)
        daemon = ServedDaemon(folder / "state", folder / "log", ["--slots", "4", "--policy", policy], os.environ)
        daemon.launch()
        while not daemon.is_serving:
            time.sleep(0.05)
        try:
            jobs, memory = _use(daemon, minutes, per_second)
            size = (daemon.folder / "refold.db").stat().st_size / 2**20
        finally:
            daemon.kill()
            kill_runs(daemon.folder)
    return ChurnResult(policy, minutes, jobs, memory, size)


def _use(daemon: ServedDaemon, minutes: float, per_second: float) -> tuple[int, list[float]]:
    draw, jobs, memory = random.Random(0), 0, []
    end = time.monotonic() + minutes * 60
    next_sample = time.monotonic() + SAMPLE_SECONDS
    with daemon.client() as client:
        while time.monotonic() < end:
            jobs += _act(client, draw)
            if time.monotonic() > next_sample:
                next_sample += SAMPLE_SECONDS
                memory.append(_resident_mib(daemon.pid))
            time.sleep(1 / per_second)
    return jobs, memory


def _act(client: Client, draw: random.Random) -> int:
    """Submit a job, or do something with one that is there; return how many were submitted."""
    active = client.jobs(limit=200).jobs
    if len(active) < MAX_WAITING and draw.random() < 0.7:
        client.submit(name=draw.choice(["a", "b", "c"]), command=draw.choice(COMMANDS), gpus=draw.choice([1, 1, 2]))
        return 1
    if active:
        job = draw.choice(active)
        actions: list[Callable[[str], object]] = [client.cancel, client.why, client.hold, client.release]
        action = draw.choice(actions)
        with suppress(RefoldError):  # it has just ended, or is not held
            action(job.id)
    return 0


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def table(result: ChurnResult) -> str:
    """Format the result as Markdown."""
    samples = result.memory_mib
    what = f"{result.policy}, {result.minutes:g} minutes, {result.jobs:,} jobs: memory, last quarter to second quarter"
    shown = f"{result.growth:.3f} × ({samples[len(samples) // 4]:.0f} → {samples[-1]:.0f} MiB)"
    rows = [at_most(what, result.growth, 1.05, shown), Row("size of the store", f"{result.store_mib:.1f} MiB")]
    return as_markdown(rows)
