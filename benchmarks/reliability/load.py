"""Fifty clients that submit together, a long queue that is asked for, listeners that do not listen."""

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
from urllib.parse import urlsplit

import msgspec
import numpy as np

from benchmarks.measure import REPOSITORY
from benchmarks.table import Row, as_markdown, at_least, at_most

sys.path.insert(0, str(REPOSITORY / "tests" / "helpers"))

import real_daemon
from loading import Heard, Load, submit_much
from real_daemon import RealDaemon

from refold.api import V1, Submission

CLIENTS = 50
PROCESSES = 2
WAITING = 10_000
POLICIES = ("fifo", "easy")
real_daemon.PATIENCE = 600.0  # a restart is measured here, however long it takes
HARDLY_LESS = 0.99
"""Of what is asked for per second some is still on its way when the time is over."""


class Times(msgspec.Struct, frozen=True):
    """How long something took, in milliseconds."""

    median: float
    p99: float
    count: int


class Submitted(msgspec.Struct, frozen=True):
    """What came of submitting: what was asked per second and acknowledged per second, and what else was seen."""

    policy: str
    asked: float
    acknowledged: float
    seconds: float
    accepted: int
    errors: int
    lost: int
    took: Times
    queue: Times
    daemon_cores: float
    client_cores: float
    restarted_in: float


class Queue(msgspec.Struct, frozen=True):
    """How long it takes to ask for a queue of so many jobs."""

    policy: str
    waiting: int
    page: Times
    largest_page: Times
    command: Times
    bare_python: Times


class Loaded(msgspec.Struct, frozen=True):
    """All of it."""

    submitted: list[Submitted]
    queues: list[Queue]


def times_of(seconds: list[float]) -> Times:
    """Median and 99th percentile."""
    found = np.array(seconds) * 1000
    return Times(float(np.median(found)), float(np.percentile(found, 99)), len(seconds))


def timed(work: Callable[[], object], times: int, pause: float = 0.0) -> Times:
    """Of one call, done again and again."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
        time.sleep(pause)
    return times_of(seconds)


def load(seconds: float, per_second: float) -> Loaded:
    """Both parts, with each policy."""
    return Loaded([submit(policy, seconds, per_second) for policy in POLICIES], [queue(one) for one in POLICIES])


def submit(policy: str, seconds: float, per_second: float) -> Submitted:
    """Fifty clients submit behind one long job; then the daemon is killed, and started again."""
    with tempfile.TemporaryDirectory(prefix="refold-load-") as folder:
        state = Path(folder) / "state"
        daemon = RealDaemon(state, slots=1, policy=policy)
        client = daemon.client()
        client.submit(name="long", command=["sleep", "3600"])
        queue_times: list[float] = []
        over = threading.Event()
        others = [
            threading.Thread(target=_ask_for_queue, args=(daemon, queue_times, over)),
            threading.Thread(target=_listen_slowly, args=(daemon, over)),
            threading.Thread(target=_listen_and_vanish, args=(daemon, over)),
        ]
        for thread in others:
            thread.start()
        cpu, children = _cpu_seconds(daemon.pid), os.times()
        part = Load(
            daemon.told.address, daemon.told.token, CLIENTS // PROCESSES, per_second / PROCESSES, seconds, "load"
        )
        heard = submit_much([msgspec.structs.replace(part, name=f"p{number}") for number in range(PROCESSES)])
        cpu, after = _cpu_seconds(daemon.pid) - cpu, os.times()
        over.set()
        for thread in others:
            thread.join()
        client_cpu = after.children_user + after.children_system - children.children_user - children.children_system
        daemon.kill()
        began = time.monotonic()
        with RealDaemon(state, slots=1, policy=policy) as again:
            restarted_in = time.monotonic() - began
            kept = {job.id for job in again.client(timeout=60).queue()}
    return _submitted(policy, per_second, heard, kept, queue_times, cpu, client_cpu, restarted_in)


def _submitted(
    policy: str,
    asked: float,
    heard: list[Heard],
    kept: set[str],
    queue_times: list[float],
    cpu: float,
    client_cpu: float,
    restarted_in: float,
) -> Submitted:
    ids = [job for one in heard for job in one.ids]
    if not ids:
        raise SystemExit(f"nothing was accepted: {heard[0].errors[:1]}")
    lasted = max(one.lasted for one in heard)
    return Submitted(
        policy=policy,
        asked=asked,
        acknowledged=len(ids) / lasted,
        seconds=lasted,
        accepted=len(ids),
        errors=sum(len(one.errors) for one in heard),
        lost=len(set(ids) - kept) + len(ids) - len(set(ids)),
        took=times_of([second for one in heard for second in one.seconds]),
        queue=times_of(queue_times),
        daemon_cores=cpu / lasted,
        client_cores=client_cpu / lasted,
        restarted_in=restarted_in,
    )


def queue(policy: str) -> Queue:
    """The API's answer and the command's, with ten thousand jobs waiting."""
    with tempfile.TemporaryDirectory(prefix="refold-queue-") as folder:
        state = Path(folder) / "state"
        with RealDaemon(state, slots=1, policy=policy) as daemon:
            client = daemon.client(timeout=60)
            client.submit(name="long", command=["sleep", "3600"])
            for _ in range(WAITING // 1000):
                client.submit_all([Submission(name="waits", command=["true"]) for _ in range(1000)])
            environment = {**os.environ, "REFOLD_HOME": str(state)}
            refold = [str(Path(sys.executable).with_name("refold")), "queue"]

            def command() -> None:
                subprocess.run(refold, env=environment, stdout=subprocess.DEVNULL, check=True)

            def python() -> None:
                subprocess.run([sys.executable, "-c", "pass"], check=True)

            return Queue(
                policy,
                client.jobs(limit=1, state=["waiting"]).total,
                timed(lambda: client.jobs(limit=100), 200, 0.01),
                timed(lambda: client.jobs(limit=1000), 50, 0.01),
                timed(command, 20),
                timed(python, 20),
            )


def _ask_for_queue(daemon: RealDaemon, seconds: list[float], over: threading.Event) -> None:
    client = daemon.client(timeout=60)
    while not over.wait(0.2):
        began = time.perf_counter()
        client.jobs(limit=100)
        seconds.append(time.perf_counter() - began)


def _stream(daemon: RealDaemon) -> socket.socket:
    parts = urlsplit(daemon.told.address)
    listener = socket.create_connection((parts.hostname, parts.port))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked = f"GET {V1}/events?since=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.told.token}\r\n\r\n"
    listener.sendall(asked.encode())
    return listener


def _listen_slowly(daemon: RealDaemon, over: threading.Event) -> None:
    with _stream(daemon) as listener:
        while not over.wait(1.0):
            listener.recv(1)


def _listen_and_vanish(daemon: RealDaemon, over: threading.Event) -> None:
    while not over.wait(0.5):
        with _stream(daemon) as listener:
            listener.recv(1)
            # Without a word of farewell: what is not read yet makes the system reset the connection.


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def goals(found: Loaded) -> list[Row]:
    """What was wanted, and whether it was reached."""
    rows = []
    for one in found.submitted:
        what, measured = f"{one.policy}: submissions acknowledged", f"{one.acknowledged:,.0f} /s"
        rows.append(at_least(what, one.acknowledged, HARDLY_LESS * one.asked, measured, "/s"))
        rows.append(at_most(f"{one.policy}: of these lost after kill -9", one.lost, 0, f"{one.lost}", ""))
    for asked in found.queues:
        for what, times in (("100 jobs by the API, p99", asked.page), ("`refold queue`, median", asked.command)):
            value = times.p99 if "p99" in what else times.median
            rows.append(at_most(f"{asked.policy}, 10,000 waiting: {what}", value, 100, f"{value:.0f} ms", "ms"))
    return rows


def table(found: Loaded) -> str:
    """Both parts, and the goals."""
    return f"{as_markdown(goals(found))}\n\n{_details(found)}"


def _details(found: Loaded) -> str:
    lines = [
        "| policy | asked for | acknowledged | time | accepted | errors | lost after kill -9 | median | p99 | "
        "queue meanwhile: median | p99 | daemon, cores | clients, cores | started again in |",
        "|---|" + "---:|" * 13,
    ]
    for one in found.submitted:
        lines.append(
            f"| {one.policy} | {one.asked:,.0f} /s | {one.acknowledged:,.0f} /s | {one.seconds:.1f} s "
            f"| {one.accepted:,} | {one.errors} | {one.lost} | {one.took.median:.1f} ms | {one.took.p99:.1f} ms "
            f"| {one.queue.median:.1f} ms | {one.queue.p99:.1f} ms | {one.daemon_cores:.2f} | {one.client_cores:.2f} "
            f"| {one.restarted_in:.1f} s |"
        )
    lines += [
        "",
        "| policy | waiting | 100 jobs: median | p99 | 1,000 jobs: median | p99 | `refold queue`: median | p99 | "
        "bare `python -c pass`: median |",
        "|---|" + "---:|" * 8,
    ]
    for asked in found.queues:
        lines.append(
            f"| {asked.policy} | {asked.waiting:,} | {asked.page.median:.1f} ms | {asked.page.p99:.1f} ms "
            f"| {asked.largest_page.median:.1f} ms | {asked.largest_page.p99:.1f} ms | {asked.command.median:.0f} ms "
            f"| {asked.command.p99:.0f} ms | {asked.bare_python.median:.0f} ms |"
        )
    return "\n".join(lines)
