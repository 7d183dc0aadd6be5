"""What one user can cost the others: costly questions, changes of a long queue, memory for it, and floods of output."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.measure import REPOSITORY
from benchmarks.reliability.long_queue import serve, start
from benchmarks.reliability.queues import POLICIES, cpu_seconds, fill_queue
from benchmarks.table import Row, as_markdown, at_most

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

from real_daemon import kill_runs
from served_daemon import ServedDaemon

from refold.client import Client
from refold.client.address import read_address
from refold.client.api import JobAction, Submission
from refold.errors import NoDaemon, TooManyRequests, Unavailable

WAITING = 20_000
ASKING = 3
LISTING = 100
SECONDS = 20.0
FLOOD_SECONDS = 10.0
KIB = 1024
BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


class AbuseResult(msgspec.Struct, frozen=True):
    """What was measured under one policy. Times in seconds.

    `latencies`: p50, p99 and maximum of `GET /jobs`, without and with three clients that ask `/whatif` all the time;
    `listed`: while a reader lists jobs over a hundred connections.
    `answers`: of `/whatif`: answered, refused. `changes`: CPU time of daemon and client, by action.
    """

    policy: str
    load: float
    bytes_per_job: float
    quiet: tuple[float, float, float]
    latencies: tuple[float, float, float]
    listed: tuple[float, float, float]
    answers: tuple[int, int]
    changes: dict[str, tuple[float, float]]
    restart: float


class FloodResult(msgspec.Struct, frozen=True):
    """What a job that prints as fast as it can has on disk at most. Sizes in bytes."""

    limit: int
    peak: int
    printed: int


class AbuseResults(msgspec.Struct, frozen=True):
    """Results of all policies, and of the flood."""

    policies: list[AbuseResult]
    flood: FloodResult


def run_abuse() -> AbuseResults:
    """Measure each policy, and a flood."""
    return AbuseResults([measure_policy(policy) for policy in POLICIES], measure_flood())


def measure_policy(policy: str) -> AbuseResult:
    """Fill a queue, ask costly questions, restart the daemon, and hold, release and cancel all jobs."""
    with tempfile.TemporaryDirectory(prefix="refold-abuse-") as name:
        load = os.getloadavg()[0]
        daemon = serve(Path(name), policy, 1)
        client = daemon.client()
        client.info()
        idle = _memory(daemon.pid)
        fill_queue(client, WAITING)
        time.sleep(5.0)
        per_job = (_memory(daemon.pid) - idle) / WAITING
        quiet = _latencies(client, SECONDS / 4)
        latencies, answers = _latencies_while_asked(daemon, client)
        listed = _latencies_while_listed(client)
        daemon.kill()
        start(daemon)
        restart = cpu_seconds(daemon.pid)
        client = _patient_client(daemon)
        actions: tuple[JobAction, ...] = ("hold", "release", "cancel")
        changes = {str(action): _change_all(daemon, client, action) for action in actions}
        daemon.kill()
        kill_runs(daemon.folder)
    return AbuseResult(policy, load, per_job, quiet, latencies, listed, answers, changes, restart)


def _patient_client(daemon: ServedDaemon) -> Client:
    address = read_address(daemon.folder)
    assert address is not None
    return Client(address.address, address.token, timeout=600.0)


def _memory(pid: int) -> int:
    """Return the resident memory of a process in bytes, also what it shares with its copies."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _latencies(client: Client, seconds: float) -> tuple[float, float, float]:
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        client.jobs(limit=100)
        times.append(time.monotonic() - began)
        time.sleep(0.05)
    p50, p99, most = np.percentile(times, (50, 99, 100)).tolist()
    return p50, p99, most


def _latencies_while_asked(daemon: ServedDaemon, client: Client) -> tuple[tuple[float, float, float], tuple[int, int]]:
    counts, ended = {"answered": 0, "refused": 0}, threading.Event()

    def ask() -> None:
        variants = [Submission(name="wide", command=["true"], gpus=1) for _ in range(32)]
        asking = _patient_client(daemon)
        while not ended.is_set():
            try:
                asking.whatif(variants)
                counts["answered"] += 1
            except (TooManyRequests, Unavailable, NoDaemon):  # the daemon is killed in the end
                counts["refused"] += 1
                ended.wait(0.2)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(ASKING)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    latencies = _latencies(client, SECONDS)
    ended.set()
    return latencies, (counts["answered"], counts["refused"])


def _latencies_while_listed(client: Client) -> tuple[float, float, float]:
    token = client.create_token("listing", "reader").token
    words = [client.address, token, str(LISTING), "1000"]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.reliability.list_flood", *words], cwd=REPOSITORY
    ) as listing:
        time.sleep(3.0)
        latencies = _latencies(client, SECONDS)
        listing.kill()
    return latencies


def _change_all(daemon: ServedDaemon, client: Client, action: JobAction) -> tuple[float, float]:
    """Return the CPU time of the daemon and of this process."""
    before, own = cpu_seconds(daemon.pid), time.process_time()
    outcome = client.change_jobs(action, match="waits-*")
    assert len(outcome.changed) == WAITING, (len(outcome.changed), outcome.rejected[:3])
    return cpu_seconds(daemon.pid) - before, time.process_time() - own


def measure_flood() -> FloodResult:
    """Let a job print zeros for some seconds, and look how large its log is."""
    limit = 4 * 2**20
    with tempfile.TemporaryDirectory(prefix="refold-flood-") as name:
        configuration = Path(name) / "refold.yaml"
        configuration.write_text(f"serve: {{max_output: {limit}}}\n")
        words = ["--config", str(configuration), "--slots", "1"]
        daemon = ServedDaemon(Path(name) / "state", Path(name) / "log", words, os.environ)
        start(daemon)
        client = daemon.client()
        job = client.submit(name="flood", command=["sh", "-c", "exec cat /dev/zero"]).id
        peak, end = 0, time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end:
            peak = max(peak, sum(map(_disk_bytes, (daemon.folder / "logs" / job).glob("run-*"))))
        printed = client.read_logs(job, offset=-1).next
        client.cancel(job, now=True)
        daemon.kill()
        kill_runs(daemon.folder)
    return FloodResult(limit, peak, printed)


def _disk_bytes(path: Path) -> int:
    try:
        return BLOCK_BYTES * path.stat().st_blocks
    except FileNotFoundError:  # renamed meanwhile
        return 0


def table(results: AbuseResults) -> str:
    """Format the goals as Markdown."""
    rows: list[Row] = []
    for one in results.policies:
        name = f"{one.policy}, {WAITING:,} waiting (load {one.load:.1f})"
        p50, p99, most = (1000 * seconds for seconds in one.latencies)
        measured = f"{p99:.0f} ms (median {p50:.0f}, longest {most:.0f}; {1000 * one.quiet[1]:.0f} ms without them)"
        what = f"{name}: `GET /jobs`, 100 jobs, p99, while three clients ask `/whatif` of 32 variants"
        rows.append(at_most(what, p99, 100, measured, "ms"))
        p50, p99, most = (1000 * seconds for seconds in one.listed)
        what = f"{name}: `GET /jobs`, 100 jobs, median, while a reader lists 1,000 jobs over {LISTING} connections"
        rows.append(at_most(what, p50, 100, f"{p50:.0f} ms (p99 {p99:.0f}, longest {most:.0f})", "ms"))
        for action, (daemon, client) in one.changes.items():
            measured = f"{daemon + client:.1f} s (client {client:.1f} s)"
            rows.append(at_most(f"{name}: {action} all, CPU time", daemon + client, 3, measured, "s"))
        rows.append(
            at_most(f"{name}: memory per job", one.bytes_per_job / KIB, 6, f"{one.bytes_per_job / KIB:.1f} KiB", "KiB")
        )
        rows.append(at_most(f"{name}: restart, CPU time", one.restart, 2.5, f"{one.restart:.1f} s", "s"))
    flood = results.flood
    what = f"a job prints {flood.printed / 2**30:.1f} GiB, {flood.limit // 2**20} MiB are kept: most on disk"
    rows.append(at_most(what, flood.peak / 2**20, 2 * flood.limit / 2**20, f"{flood.peak / 2**20:.1f} MiB", "MiB"))
    return as_markdown(rows)
