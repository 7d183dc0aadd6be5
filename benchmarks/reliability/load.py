"""Load tests of the daemon: fifty clients submit jobs, a long queue is queried, and event-stream clients misbehave."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np

from benchmarks.measure import REPOSITORY
from benchmarks.reliability.queues import POLICIES, cpu_seconds, fill_queue
from benchmarks.table import Row, as_markdown, at_least, at_most

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

import real_daemon
from load_generator import Load, LoadResult, submit_load
from real_daemon import RealDaemon

from refold.client.api import V1

CLIENTS = 50
PROCESSES = 2
QUEUE_LENGTH = 10_000
real_daemon.TIMEOUT_SECONDS = 600.0  # the restart time is a result here, so it must not time out
GOAL_SHARE = 0.99
"""Share of the target rate that must be acknowledged; some requests are still in flight at the end."""


class Latency(msgspec.Struct, frozen=True):
    """Latencies in milliseconds."""

    median: float
    p99: float
    count: int


class SubmissionResult(msgspec.Struct, frozen=True):
    """Result of the submission load; `target` and `acknowledged` are jobs per second, `queue` is meanwhile.

    `load`: how many processes of the machine could run, before.
    """

    policy: str
    target: float
    acknowledged: float
    seconds: float
    accepted: int
    errors: int
    lost: int
    submit: Latency
    queue: Latency
    daemon_cores: float
    client_cores: float
    restart_seconds: float
    load: float


class Measured(NamedTuple):
    """What was measured beside the submissions: seconds of queries meanwhile, CPU seconds, and the others as above."""

    queue_seconds: list[float]
    daemon_cpu: float
    client_cpu: float
    restart_seconds: float
    load: float


class QueueResult(msgspec.Struct, frozen=True):
    """Latencies of queries of a queue of `queued` jobs."""

    policy: str
    queued: int
    page: Latency
    largest_page: Latency
    command: Latency
    bare_python: Latency


class LoadResults(msgspec.Struct, frozen=True):
    """Results of all load tests."""

    submissions: list[SubmissionResult]
    queues: list[QueueResult]


def latency_of(seconds: list[float]) -> Latency:
    """Return the median and 99th percentile of durations in seconds."""
    milliseconds = np.array(seconds) * 1000
    return Latency(float(np.median(milliseconds)), float(np.percentile(milliseconds, 99)), len(seconds))


def measure_latency(work: Callable[[], object], repeats: int, pause: float = 0.0) -> Latency:
    """Measure the latency of a call over several repeats."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
        time.sleep(pause)
    return latency_of(seconds)


def run_load(seconds: float, per_second: float) -> LoadResults:
    """Run both load tests with each policy."""
    return LoadResults(
        [measure_submissions(policy, seconds, per_second) for policy in POLICIES],
        [measure_queue(policy) for policy in POLICIES],
    )


def measure_submissions(policy: str, seconds: float, per_second: float) -> SubmissionResult:
    """Submit jobs from fifty clients behind one long job; then kill the daemon and start it again."""
    with tempfile.TemporaryDirectory(prefix="refold-load-") as folder:
        state, load = Path(folder) / "state", os.getloadavg()[0]
        daemon = RealDaemon(state, slots=1, policy=policy)
        client = daemon.client()
        fill_queue(client, 0)
        queue_times: list[float] = []
        done = threading.Event()
        others = [
            threading.Thread(target=_poll_queue, args=(daemon, queue_times, done)),
            threading.Thread(target=_read_slowly, args=(daemon, done)),
            threading.Thread(target=_reset_connections, args=(daemon, done)),
        ]
        for thread in others:
            thread.start()
        cpu, children = cpu_seconds(daemon.pid), os.times()
        part = Load(
            daemon.startup.address, daemon.startup.token, CLIENTS // PROCESSES, per_second / PROCESSES, seconds, "load"
        )
        results = submit_load([msgspec.structs.replace(part, name=f"p{number}") for number in range(PROCESSES)])
        cpu, after = cpu_seconds(daemon.pid) - cpu, os.times()
        done.set()
        for thread in others:
            thread.join()
        client_cpu = after.children_user + after.children_system - children.children_user - children.children_system
        daemon.kill()
        start = time.monotonic()
        with RealDaemon(state, slots=1, policy=policy) as restarted:
            restart_seconds = time.monotonic() - start
            recovered = {job.id for job in restarted.client(timeout=60).queue()}
    measured = Measured(queue_times, cpu, client_cpu, restart_seconds, load)
    return _summarise(policy, per_second, results, recovered, measured)


def _summarise(
    policy: str,
    target: float,
    results: list[LoadResult],
    recovered: set[str],
    measured: Measured,
) -> SubmissionResult:
    ids = [job for result in results for job in result.ids]
    if not ids:
        raise SystemExit(f"no submission was accepted: {results[0].errors[:1]}")
    elapsed = max(result.elapsed for result in results)
    return SubmissionResult(
        policy=policy,
        target=target,
        acknowledged=len(ids) / elapsed,
        seconds=elapsed,
        accepted=len(ids),
        errors=sum(len(result.errors) for result in results),
        lost=len(set(ids) - recovered) + len(ids) - len(set(ids)),
        submit=latency_of([second for result in results for second in result.seconds]),
        queue=latency_of(measured.queue_seconds),
        daemon_cores=measured.daemon_cpu / elapsed,
        client_cores=measured.client_cpu / elapsed,
        restart_seconds=measured.restart_seconds,
        load=measured.load,
    )


def measure_queue(policy: str) -> QueueResult:
    """Measure the latency of the API and of `refold queue` with ten thousand queued jobs."""
    with tempfile.TemporaryDirectory(prefix="refold-queue-") as folder:
        state = Path(folder) / "state"
        with RealDaemon(state, slots=1, policy=policy) as daemon:
            client = daemon.client(timeout=60)
            fill_queue(client, QUEUE_LENGTH)
            environment = {**os.environ, "REFOLD_HOME": str(state)}
            refold = [str(Path(sys.executable).with_name("refold")), "queue"]

            def command() -> None:
                subprocess.run(refold, env=environment, stdout=subprocess.DEVNULL, check=True)

            def python() -> None:
                subprocess.run([sys.executable, "-c", "pass"], check=True)

            return QueueResult(
                policy,
                client.jobs(limit=1, state=["waiting"]).total,
                measure_latency(lambda: client.jobs(limit=100), 200, 0.01),
                measure_latency(lambda: client.jobs(limit=1000), 50, 0.01),
                measure_latency(command, 20),
                measure_latency(python, 20),
            )


def _poll_queue(daemon: RealDaemon, seconds: list[float], done: threading.Event) -> None:
    client = daemon.client(timeout=60)
    while not done.wait(0.2):
        start = time.perf_counter()
        client.jobs(limit=100)
        seconds.append(time.perf_counter() - start)


def _open_event_stream(daemon: RealDaemon) -> socket.socket:
    parts = urlsplit(daemon.startup.address)
    stream = socket.create_connection((parts.hostname, parts.port))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = (
        f"GET {V1}/events?since=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.startup.token}\r\n\r\n"
    )
    stream.sendall(request.encode())
    return stream


def _read_slowly(daemon: RealDaemon, done: threading.Event) -> None:
    """Read one byte of the event stream per second."""
    with _open_event_stream(daemon) as stream:
        while not done.wait(1.0):
            stream.recv(1)


def _reset_connections(daemon: RealDaemon, done: threading.Event) -> None:
    """Open the event stream twice a second; closing it with unread data resets the connection."""
    while not done.wait(0.5):
        with _open_event_stream(daemon) as stream:
            stream.recv(1)


def goals(results: LoadResults) -> list[Row]:
    """Return the goals and whether they were met."""
    rows = []
    for one in results.submissions:
        name = f"{one.policy}: submissions acknowledged (load {one.load:.1f})"
        measured = f"{one.acknowledged:,.0f} /s"
        rows.append(at_least(name, one.acknowledged, GOAL_SHARE * one.target, measured, "/s"))
        rows.append(at_most(f"{one.policy}: acknowledged jobs lost after kill -9", one.lost, 0, f"{one.lost}", ""))
    for queue in results.queues:
        latencies = {"`GET /jobs`, 100 jobs, p99": queue.page.p99, "`refold queue`, median": queue.command.median}
        for name, value in latencies.items():
            rows.append(at_most(f"{queue.policy}, 10,000 waiting: {name}", value, 100, f"{value:.0f} ms", "ms"))
    return rows


def table(results: LoadResults) -> str:
    """Format the goals and all results as Markdown."""
    return f"{as_markdown(goals(results))}\n\n{_details(results)}"


def _details(results: LoadResults) -> str:
    lines = [
        "| policy | offered | acknowledged | time | accepted | errors | lost after kill -9 | median | p99 | "
        "`GET /jobs` meanwhile: median | p99 | daemon, cores | clients, cores | restart |",
        "|---|" + "---:|" * 13,
    ]
    for one in results.submissions:
        lines.append(
            f"| {one.policy} | {one.target:,.0f} /s | {one.acknowledged:,.0f} /s | {one.seconds:.1f} s "
            f"| {one.accepted:,} | {one.errors} | {one.lost} | {one.submit.median:.1f} ms | {one.submit.p99:.1f} ms "
            f"| {one.queue.median:.1f} ms | {one.queue.p99:.1f} ms | {one.daemon_cores:.2f} | {one.client_cores:.2f} "
            f"| {one.restart_seconds:.1f} s |"
        )
    return "\n".join(lines)
