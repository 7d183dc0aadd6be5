"""Durable submissions per second, beside the commits that the same disk makes of one row each."""

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

from benchmarks.live.served import served
from benchmarks.table import Row, at_least
from refold.api import Submission
from refold.client import Address, Client

GOAL = 1_000.0
CLIENTS = 50
PROCESSES = 2
SECONDS = 10.0

Work = Callable[[Client], int]
"""Submits something and says how many jobs that were."""

_handed: dict[str, Barrier] = {}


def rows(quick: bool) -> list[Row]:
    """How many are acknowledged per second by many clients at once, each waiting for its answer; and in groups."""
    seconds = SECONDS / 4 if quick else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        commits = _bare_commits(Path(folder) / "bare.db", seconds / 2)
    with served("--slots", "1", "--policy", "fifo") as daemon:
        blocker = daemon.client.submit(command=["sleep", "600"], name="blocker")
        single = _rate(_submit_singly, CLIENTS, daemon.at, seconds)
        grouped = _rate(_submit_in_groups, 4, daemon.at, seconds / 2)
        daemon.client.cancel(blocker.id)
    return [
        Row("bare loop of commits of one row, WAL and FULL", f"{commits:,.0f}/s", commits),
        at_least(
            f"durable submissions, {CLIENTS} clients, one job a call",
            single,
            GOAL,
            f"{single:,.0f}/s ({single / commits:.2f} × the bare loop)",
            "/s",
        ),
        at_least(
            "durable submissions, 4 clients, 100 jobs a call",
            grouped,
            GOAL,
            f"{grouped:,.0f}/s ({grouped / commits:.2f} × the bare loop)",
            "/s",
        ),
    ]


def _bare_commits(path: Path, seconds: float) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE jobs (number INTEGER PRIMARY KEY, job BLOB)")
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        connection.execute("INSERT INTO jobs (job) VALUES (?)", (b"x" * 400,))  # outside a transaction: a commit each
        done += 1
    connection.close()
    return done / spent


def _rate(work: Work, clients: int, at: Address, seconds: float) -> float:
    """Jobs per second that many clients had acknowledged between them: threads in processes of their own."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, context, _take_ready, (ready,)) as pool:
        counts = [pool.submit(_counted_by, clients // PROCESSES, work, at, seconds) for _ in range(PROCESSES)]
        return sum(count.result() for count in counts) / seconds


def _take_ready(ready: Barrier) -> None:
    """What a process of a pool is handed over once."""
    _handed["ready"] = ready


def _when_all_are_ready() -> None:
    _handed["ready"].wait()


def _counted_by(threads: int, work: Work, at: Address, seconds: float) -> int:
    with ThreadPoolExecutor(threads) as pool:
        together = threading.Barrier(threads, action=_when_all_are_ready)
        return sum(pool.map(lambda _: _counted(work, at, seconds, together), range(threads)))


def _counted(work: Work, at: Address, seconds: float, together: threading.Barrier) -> int:
    with Client(at.address, at.token) as client:
        client.about()
        together.wait()
        until, count = time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            count += work(client)
        return count


def _submit_singly(client: Client) -> int:
    client.submit(Submission("many", ["true"]))
    return 1


def _submit_in_groups(client: Client) -> int:
    return len(client.submit_all([Submission("many", ["true"])] * 100))
