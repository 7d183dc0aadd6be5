"""The daemon with a long queue: how many jobs end while ten thousand wait, and how long a restart takes."""

from __future__ import annotations

import http.client
import os
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from benchmarks.measure import REPOSITORY
from benchmarks.reliability.queues import POLICIES, cpu_seconds, fill_queue
from benchmarks.table import Row, as_markdown, at_least, at_most

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

import served_daemon
from real_daemon import kill_runs
from served_daemon import ServedDaemon

from refold.client import Client

WAITING, SECONDS, SLOTS = 10_000, 10.0, 8
RESTART_WAITING = 50_000
served_daemon.END_SECONDS = 600.0


class EndsResult(msgspec.Struct, frozen=True):
    """Jobs that ended in ten seconds. `load`: how many processes of the machine could run, before and after.

    `cpu`: CPU seconds of the daemon meanwhile.
    """

    policy: str
    waiting: int
    ended: int
    cpu: float
    load: tuple[float, float]


class RestartResult(msgspec.Struct, frozen=True):
    """Seconds from `refold serve` until /readyz answers, after kill -9. `lost`: jobs that are not there any more.

    `cpu`: CPU seconds of the daemon until then.
    """

    policy: str
    waiting: int
    seconds: float
    cpu: float
    lost: int
    load: float


class QueueResults(msgspec.Struct, frozen=True):
    """Results of both."""

    ends: list[EndsResult]
    restarts: list[RestartResult]


def run_long_queue() -> QueueResults:
    """Measure each policy."""
    return QueueResults([measure_ends(policy) for policy in POLICIES], [measure_restart(policy) for policy in POLICIES])


def serve(folder: Path, policy: str, slots: int) -> ServedDaemon:
    """Start a daemon in a folder."""
    words = ["--slots", str(slots), "--policy", policy]
    daemon = ServedDaemon(folder / "state", folder / "log", words, os.environ)
    start(daemon)
    return daemon


def start(daemon: ServedDaemon) -> float:
    """Start a daemon; return the seconds until it is ready."""
    start = time.monotonic()
    daemon.launch()
    while not (daemon.is_serving and _is_ready(daemon.client())):
        if daemon.has_ended:
            raise SystemExit(daemon.log())
        time.sleep(0.01)
    return time.monotonic() - start


def _is_ready(client: Client) -> bool:
    parts = urlsplit(client.address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _ended(client: Client) -> int:
    return client.jobs(ended=True, limit=1).total


def measure_ends(policy: str) -> EndsResult:
    """Count the jobs that end in ten seconds, while ten thousand wait."""
    with tempfile.TemporaryDirectory(prefix="refold-ends-") as name:
        folder = Path(name)
        daemon = serve(folder, policy, SLOTS)
        client = daemon.client()
        wait = ["sh", "-c", f"while [ ! -e {folder}/go ]; do sleep 0.2; done"]
        fill_queue(client, WAITING, SLOTS, wait)
        load = os.getloadavg()[0]
        (folder / "go").touch()
        while _ended(client) < SLOTS:
            time.sleep(0.01)
        before, start, cpu = _ended(client), time.monotonic(), cpu_seconds(daemon.pid)
        time.sleep(SECONDS)
        ended = (_ended(client) - before) * SECONDS / (time.monotonic() - start)
        cpu = cpu_seconds(daemon.pid) - cpu
        daemon.kill()
        kill_runs(daemon.folder)
    return EndsResult(policy, WAITING, round(ended), cpu, (load, os.getloadavg()[0]))


def measure_restart(policy: str) -> RestartResult:
    """Kill a daemon with a long queue, and start it again."""
    with tempfile.TemporaryDirectory(prefix="refold-restart-") as name:
        folder = Path(name)
        daemon = serve(folder, policy, 1)
        client = daemon.client()
        fill_queue(client, RESTART_WAITING)
        daemon.kill()
        load = os.getloadavg()[0]
        seconds = start(daemon)
        cpu = cpu_seconds(daemon.pid)
        with daemon.client() as client:
            waiting = client.jobs(limit=1, state=["waiting"]).total
        daemon.kill()
        kill_runs(daemon.folder)
    return RestartResult(policy, waiting, seconds, cpu, RESTART_WAITING - waiting, load)


def table(results: QueueResults) -> str:
    """Format the goals as Markdown."""
    rows: list[Row] = []
    for one in results.ends:
        what = f"{one.policy}, {one.waiting:,} waiting, {SLOTS} slots: jobs ended in 10 s (load {one.load[0]:.1f})"
        measured = f"{one.ended} ({1000 * one.cpu / max(one.ended, 1):.0f} ms CPU each)"
        rows.append(at_least(what, one.ended, 400, measured, ""))
    for restart in results.restarts:
        what = f"{restart.policy}, {restart.waiting:,} waiting: restart until ready (load {restart.load:.1f})"
        rows.append(at_most(what, restart.seconds, 5, f"{restart.seconds:.1f} s ({restart.cpu:.1f} s CPU)", "s"))
        rows.append(at_most(f"{restart.policy}: jobs lost", restart.lost, 0, str(restart.lost), ""))
    return as_markdown(rows)
