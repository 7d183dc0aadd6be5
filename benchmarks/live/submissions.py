"""Durable submissions per second, compared with single-row SQLite commits on the same disk."""

from __future__ import annotations

import multiprocessing
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.live.daemon import run_daemon
from benchmarks.table import Row, at_least
from refold.client import Address, Client
from refold.client.api import Submission

GOAL = 1_000.0
CLIENTS = 50
PROCESSES = 2
SECONDS = 10.0

Work = Callable[[Client], int]
"""Submits jobs and returns how many."""

_worker_state: dict[str, Barrier] = {}
"""State that each worker process receives from the pool initializer."""


def rows(quick: bool) -> list[Row]:
    """Measure acknowledged submissions per second of concurrent clients, one job per call and in batches."""
    seconds = SECONDS / 4 if quick else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        commits = _bare_commits(Path(folder) / "bare.db", seconds / 2)
    with run_daemon("--slots", "1", "--policy", "fifo") as daemon:
        blocker = daemon.client.submit(command=["sleep", "600"], name="blocker")
        single = _rate(_submit_one, CLIENTS, daemon.address, seconds)
        batched = _rate(_submit_batch, 4, daemon.address, seconds / 2)
        daemon.client.cancel(blocker.id)
    return [
        Row("SQLite loop of single-row commits, WAL and FULL", f"{commits:,.0f}/s", commits),
        at_least(
            f"durable submissions, {CLIENTS} clients, one job per call",
            single,
            GOAL,
            f"{single:,.0f}/s ({single / commits:.2f} × the SQLite loop)",
            "/s",
        ),
        at_least(
            "durable submissions, 4 clients, 100 jobs per call",
            batched,
            GOAL,
            f"{batched:,.0f}/s ({batched / commits:.2f} × the SQLite loop)",
            "/s",
        ),
    ]


def _bare_commits(path: Path, seconds: float) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE jobs (number INTEGER PRIMARY KEY, job BLOB)")
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        connection.execute("INSERT INTO jobs (job) VALUES (?)", (b"x" * 400,))  # autocommit: one commit per row
        done += 1
    connection.close()
    return done / elapsed


def _rate(work: Work, clients: int, address: Address, seconds: float) -> float:
    """Return the jobs per second acknowledged to all clients, which are threads in separate processes."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, context, _init_worker, (ready,)) as pool:
        counts = [pool.submit(_run_clients, clients // PROCESSES, work, address, seconds) for _ in range(PROCESSES)]
        return sum(count.result() for count in counts) / seconds


def _init_worker(ready: Barrier) -> None:
    _worker_state["ready"] = ready


def _wait_for_all_processes() -> None:
    _worker_state["ready"].wait()


def _run_clients(threads: int, work: Work, address: Address, seconds: float) -> int:
    with ThreadPoolExecutor(threads) as pool:
        all_ready = threading.Barrier(threads, action=_wait_for_all_processes)
        return sum(pool.map(lambda _: _run_client(work, address, seconds, all_ready), range(threads)))


def _run_client(work: Work, address: Address, seconds: float, all_ready: threading.Barrier) -> int:
    """Repeat `work` for `seconds`; return the number of acknowledged jobs."""
    with Client(address.address, address.token) as client:
        client.info()
        all_ready.wait()
        deadline, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < deadline:
            count += work(client)
        return count


def _submit_one(client: Client) -> int:
    client.submit(Submission("many", ["true"]))
    return 1


def _submit_batch(client: Client) -> int:
    return len(client.submit_all([Submission("many", ["true"])] * 100))
