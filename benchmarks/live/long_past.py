"""A hundred thousand finished jobs in the store: is any command slower for it?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.live.served import Served, served
from benchmarks.table import Row
from refold.api import Event, JobStatus
from refold.core import Entry
from refold.model import Job
from refold.server.store import Commit, EndedJob, NewJob, Store

PAST = 100_000
TURNS = 7
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
    """Medians of each command as it is typed, with the past and without; the two daemons take turns."""
    past = PAST // 20 if quick else PAST
    with tempfile.TemporaryDirectory() as made:
        old = Path(made) / "old"
        with served("--slots", "2", folder=old) as daemon:
            _live_a_little(daemon)
        _add_past(old, past)
        began = time.perf_counter()
        with served("--slots", "2", folder=old) as long, served("--slots", "2") as short:
            restart = time.perf_counter() - began
            _live_a_little(short)
            found = [_row(command, long, short, past) for command in COMMANDS]
    return [*found, Row(f"two daemons started, one with {past:,} finished jobs", f"{restart:.1f} s", restart)]


def _live_a_little(daemon: Served) -> None:
    job = daemon.client.submit(command=["echo", "hello"], name="nap")
    daemon.client.wait(job.id, 60)


def _row(command: tuple[str, ...], long: Served, short: Served, past: int) -> Row:
    turns = [(_milliseconds(command, long), _milliseconds(command, short)) for _ in range(TURNS)]
    with_it, without = (statistics.median(side) for side in zip(*turns, strict=True))
    text = f"{with_it:.0f} ms, {without:.0f} ms without: {with_it / without:.2f} ×"
    return Row(f"refold {' '.join(command)}, {past:,} finished jobs", text, with_it / without)


def _milliseconds(command: tuple[str, ...], daemon: Served) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "refold.cli.app", *command], env=daemon.environment, check=True, capture_output=True
    )
    return (time.perf_counter() - began) * 1e3


def _add_past(folder: Path, count: int) -> None:
    """Rows such as jobs leave behind, in few large commits: as if they had come and gone."""
    with Store(folder) as store:
        number, event = store.reading.last_numbers()
        entry, now = store.reading.last_entry(), time.time()
        status = store.reading.ended_job("nap-1")
        assert status is not None
        for first in range(0, count, 5_000):
            entry += 1
            jobs = [Job(f"past-{number + place}", group="past") for place in range(1, 5_001)]
            ended = [EndedJob(_ended(status, job, now - count + first), 60.0) for job in jobs]
            told = [Event(event + place, now, "finished", job.id, 1) for place, job in enumerate(jobs, start=1)]
            new = [NewJob(number + place, "past", job, "", {}) for place, job in enumerate(jobs, start=1)]
            last = max((one.now for one in store.reading.entries(entry - 1)), default=0.0)
            store.commit(Commit(entry, Entry(last), new, ended, told))
            number, event = number + 5_000, event + 5_000


def _ended(like: JobStatus, job: Job, at: float) -> JobStatus:
    state = "failed" if int(job.id.rpartition("-")[2]) % 50 == 0 else "finished"
    return msgspec.structs.replace(like, id=job.id, name="past", state=state, ended=at)
