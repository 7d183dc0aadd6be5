"""Memory and time of `refold report` on large journals: `python -m benchmarks.large_journals [--write]`.

Short jobs on 512 GPUs are simulated; the journal repeats this with other jobs, each of which is submitted, started once
and ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.measure import AS_INSTALLED
from benchmarks.result_page import measurement_parser, publish
from refold.core import Entry, Event, Header, JobSubmitted, RunFinished
from refold.journal import JournalFile
from refold.model import Demand, Job, Tenant
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.testing import make_cluster

PAGE = Path(__file__).with_name("large_journals.md")
NODES, GPUS = 64, 8
ENTRIES = (1_000_000, 3_000_000, 10_000_000)
QUICK_ENTRIES = (30_000, 100_000)
JOBS_AT_ONCE = 50_000
"""Jobs of the simulation, which is repeated as often as needed; the cluster is empty in between."""

LOAD, MEAN_SECONDS, MEAN_GPUS = 0.9, 300.0, 2.25
SIZES, SHARES = (1, 2, 4, 8), (0.5, 0.25, 0.15, 0.1)
TENANTS, USERS = 20, 400
MAX_REPORT_BYTES = 5e6


class Figures(NamedTuple):
    """What a report took. `seconds`: CPU time."""

    entries: int
    jobs: int
    journal_bytes: int
    seconds: float
    peak_bytes: int
    report_bytes: int


class ListJournal:
    """A journal in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        """Keep an entry."""
        self.entries.append(entry)


def write_journal(path: Path, entries: int, quotas: bool = False, seed: int = 0) -> None:
    """Write a journal of so many entries: one simulation, over and over, with other jobs each time.

    `quotas`: the GPUs are divided among the tenants, so that guarantees are checked; all jobs are guaranteed.
    """
    cluster, journal = make_cluster(*[GPUS] * NODES), ListJournal()
    if quotas:
        tenants = tuple(Tenant(f"tenant-{number}", NODES * GPUS / TENANTS) for number in range(TENANTS))
        cluster = replace(cluster, tenants=tenants)
    settings = {"placement": "best-fit"}
    jobs = list(_jobs(np.random.default_rng(seed), JOBS_AT_ONCE))
    period = simulate(jobs, cluster, make_policy("fifo", settings), journal=journal).now + 1.0
    with JournalFile(path, Header(cluster, "fifo", settings)) as file:
        for number in range(entries):
            copy, index = divmod(number, len(journal.entries))
            file.write(_shifted(journal.entries[index], copy * period, f"-{copy}"))


def _shifted(entry: Entry, by: float, suffix: str) -> Entry:
    events = tuple(_shifted_event(event, by, suffix) for event in entry.events)
    orders = tuple(replace(order, job=order.job + suffix) for order in entry.orders)
    return Entry(entry.now + by, events, orders)


def _shifted_event(event: Event, by: float, suffix: str) -> Event:
    match event:
        case JobSubmitted(job):
            return JobSubmitted(replace(job, id=job.id + suffix, submitted=job.submitted + by))
        case RunFinished(job, run):
            return RunFinished(job + suffix, run)
        case _:
            return event


def _jobs(rng: np.random.Generator, count: int) -> Iterator[Job]:
    gap = MEAN_SECONDS * MEAN_GPUS / (LOAD * NODES * GPUS)
    submitted = np.cumsum(rng.exponential(gap, count))
    work, gpus = rng.lognormal(np.log(MEAN_SECONDS) - 0.5, 1.0, count), rng.choice(SIZES, count, p=SHARES)
    users = rng.integers(USERS, size=count)
    for index in range(count):
        user = int(users[index])
        yield Job(
            f"job-{index}",
            round(float(submitted[index]), 3),
            Demand(1, int(gpus[index])),
            work=round(float(work[index]), 3),
            tenant=f"tenant-{user % TENANTS}",
            user=f"user-{user}",
        )


def measure_report(journal: Path, entries: int) -> Figures:
    """Run `refold report` on a journal, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "refold.cli.app", "report", str(journal), "--out", folder, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **AS_INSTALLED})
        assert process.stdout is not None
        jobs = json.loads(process.stdout.read())["measures"]["jobs"]
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"{' '.join(command)}: exit status {status}")
        report, seconds = (Path(folder) / "report.html").stat().st_size, usage.ru_utime + usage.ru_stime
        return Figures(entries, jobs, journal.stat().st_size, seconds, usage.ru_maxrss * 1024, report)


def page(found: Sequence[Figures]) -> str:
    """Return the page."""
    rows = [
        f"| {row.entries:,} | {row.jobs:,} | {row.journal_bytes / 1e9:.2f} | {row.seconds:.0f} |"
        f" {row.peak_bytes / 1e6:,.0f} | {_growth(before, row)} | {row.report_bytes / 1e6:.2f} |"
        for before, row in zip([None, *found], found, strict=False)
    ]
    return f"""# Reports of large journals

`python -m benchmarks.large_journals --write` simulates {JOBS_AT_ONCE:,} short jobs on {NODES * GPUS} GPUs, repeats
their journal with other jobs, and measures `refold report` on it: CPU time and peak memory of the process, and the
size of the report (goal: at most {MAX_REPORT_BYTES / 1e6:g} MB).

| entries | jobs | journal, GB | CPU time, s | peak memory, MB | bytes per further job | report, MB |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

What grows is memory per job and run, not per entry: columns of numbers, and temporary arrays of the measures. The
fields of a job that others share (tenant, user, demand) are kept once, and so are equal allocations; of the start
estimates of a job, the first and the last.
"""


def _growth(before: Figures | None, row: Figures) -> str:
    if before is None:
        return ""
    return f"{(row.peak_bytes - before.peak_bytes) / (row.jobs - before.jobs):,.0f}"


def main() -> None:
    """Write journals, measure reports, print the page."""
    parser = measurement_parser("benchmarks.large_journals", __doc__, "smaller journals")
    parser.add_argument("--entries", type=int, action="append", help="one size; can be repeated")
    parser.add_argument("--quotas", action="store_true", help="tenants have quotas (not part of the page)")
    parser.add_argument("--folder", type=Path, help="keep the journals here, and use those that exist")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for entries in options.entries or (QUICK_ENTRIES if options.quick else ENTRIES):
            journal = (options.folder or Path(temporary)) / f"{entries}{'-quotas' * options.quotas}.jsonl"
            if not journal.exists():
                write_journal(journal, entries, options.quotas)
            found.append(measure_report(journal, entries))
            print(found[-1], file=sys.stderr)
            if not options.folder:
                journal.unlink()
    publish(options, PAGE, page(found), [row._asdict() for row in found])


if __name__ == "__main__":
    main()
