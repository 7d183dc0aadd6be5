"""The general simulator compared with AccaSim, both with FIFO, on the first Philly jobs."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import in_fresh_process
from benchmarks.peers import accasim_simulator as peer
from benchmarks.table import Row, at_least, skipped
from benchmarks.workloads import PHILLY, PHILLY_NODES, missing, philly, simulate_with_journal, starts_in

CASE = "Philly, fifo"
QUICK_COUNT = 2_000


class RefoldResult(NamedTuple):
    """Result of a run of Refold; started jobs and mean waiting (seconds) are read from the journal."""

    cpu_seconds: float
    started: int
    mean_waiting: float


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second of both, and the speed-up: medians of three alternating pairs of runs."""
    unavailable = missing(PHILLY, PHILLY_NODES)
    if unavailable:
        return [skipped(CASE, unavailable)]
    count = QUICK_COUNT if quick else 20_000
    allocator = min(peer.ALLOCATORS, key=lambda name: in_fresh_process(accasim, QUICK_COUNT, name)[0])
    pairs = [
        (
            peer.Result(*in_fresh_process(accasim, count, allocator)),
            RefoldResult(*in_fresh_process(refold, count)),
        )
        for _ in range(3)
    ]
    for theirs, ours in pairs:
        assert theirs.finished == ours.started == count, f"of {count} jobs, AccaSim ran {theirs}, Refold {ours}"
    theirs, ours = pairs[0]
    ratio = statistics.median(theirs.cpu_seconds / ours.cpu_seconds for theirs, ours in pairs)
    their_seconds = statistics.median(theirs.cpu_seconds for theirs, _ in pairs)
    our_seconds = statistics.median(ours.cpu_seconds for _, ours in pairs)
    waiting = f"mean waiting {ours.mean_waiting:,.0f} s, AccaSim {theirs.mean_waiting:,.0f} s"
    return [
        Row(f"AccaSim fifo + {allocator}, {count:,} Philly jobs", f"{count / their_seconds:,.0f} jobs/s"),
        Row(f"Refold fifo + best-fit, journal on, {count:,} Philly jobs", f"{count / our_seconds:,.0f} jobs/s"),
        at_least("Refold / AccaSim with its faster allocator", ratio, 20, f"{ratio:.1f} × ({waiting})"),
    ]


def accasim(count: int, allocator: peer.Allocator) -> peer.Result:
    """Run AccaSim; called in a fresh process."""
    return peer.run(*philly(count), allocator)


def refold(count: int) -> RefoldResult:
    """Run Refold; called in a fresh process."""
    jobs, cluster = philly(count)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        simulate_with_journal(jobs[:100], cluster, "fifo", "best-fit", journal)
        seconds = simulate_with_journal(jobs, cluster, "fifo", "best-fit", journal)
        started = dict(starts_in(journal))
    return RefoldResult(seconds, len(started), statistics.fmean(started[job.id] - job.submitted for job in jobs))
