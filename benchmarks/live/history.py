"""Command latency with a hundred thousand finished jobs in the store."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.live.daemon import Daemon, run_daemon
from benchmarks.table import Row
from refold.client.api import Event, JobStatus
from refold.core import Entry
from refold.model import Job
from refold.server.store import Commit, EndedJob, NewJob, Store

FINISHED_JOBS = 100_000
BATCH = 5_000
REPEATS = 7
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("queue",),
    ("history", "--limit", "20"),
    ("history", "--state", "failed", "--limit", "20"),
    ("why", "nap-1"),
    ("logs", "nap-1"),
    ("nodes",),
    ("tenants",),
    ("top", "--once"),
    ("submit", "-y", "--hold", "--", "true"),
)


def rows(quick: bool) -> list[Row]:
    """Measure the median latency of each command with and without the history; the two daemons alternate."""
    count = FINISHED_JOBS // 20 if quick else FINISHED_JOBS
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        with run_daemon("--slots", "2", folder=state) as daemon:
            _run_one_job(daemon)
        _add_finished_jobs(state, count)
        start = time.perf_counter()
        with run_daemon("--slots", "2", folder=state) as full, run_daemon("--slots", "2") as empty:
            start_seconds = time.perf_counter() - start
            _run_one_job(empty)
            found = [_row(command, full, empty, count) for command in COMMANDS]
    started = Row(f"start of two daemons, one with {count:,} finished jobs", f"{start_seconds:.1f} s", start_seconds)
    return [*found, started]


def _run_one_job(daemon: Daemon) -> None:
    job = daemon.client.submit(command=["echo", "hello"], name="nap")
    daemon.client.wait(job.id, 60)


def _row(command: tuple[str, ...], full: Daemon, empty: Daemon, count: int) -> Row:
    pairs = [(_milliseconds(command, full), _milliseconds(command, empty)) for _ in range(REPEATS)]
    with_history, without = (statistics.median(side) for side in zip(*pairs, strict=True))
    text = f"{with_history:.0f} ms, {without:.0f} ms without: {with_history / without:.2f} ×"
    return Row(f"refold {' '.join(command)}, {count:,} finished jobs", text, with_history / without)


def _milliseconds(command: tuple[str, ...], daemon: Daemon) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "refold.cli.app", *command], env=daemon.environment, check=True, capture_output=True
    )
    return (time.perf_counter() - start) * 1e3


def _add_finished_jobs(folder: Path, count: int) -> None:
    """Write the rows of `count` finished jobs to the store in a few large commits."""
    with Store(folder) as store:
        number, event = store.reader.last_numbers()
        entry, now = store.reader.journal.last_entry(), time.time()
        status = store.reader.ended_job("nap-1")
        assert status is not None
        for first in range(0, count, BATCH):
            entry += 1
            jobs = [Job(f"past-{number + offset}", group="past") for offset in range(1, BATCH + 1)]
            ended = [EndedJob(_ended_status(status, job, now - count + first), 60.0) for job in jobs]
            events = [Event(event + offset, now, "finished", job.id, 1) for offset, job in enumerate(jobs, start=1)]
            new = [NewJob(number + offset, "past", job, "", {}) for offset, job in enumerate(jobs, start=1)]
            last = max((stored.now for stored in store.reader.journal.entries(entry - 1)), default=0.0)
            store.commit(Commit(entry, Entry(last), new, ended, events))
            number, event = number + BATCH, event + BATCH


def _ended_status(template: JobStatus, job: Job, at: float) -> JobStatus:
    """Return the status of an ended job; every fiftieth failed."""
    state = "failed" if int(job.id.rpartition("-")[2]) % 50 == 0 else "finished"
    return msgspec.structs.replace(template, id=job.id, name="past", state=state, ended=at)
