"""The general simulator beside AccaSim, both with fifo, on the first Philly jobs."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import in_fresh_process
from benchmarks.peers import accasim_simulator as peer
from benchmarks.table import Row, at_least, skipped
from benchmarks.workloads import PHILLY, PHILLY_NODES, missing, philly, simulate_with_journal, starts_in

WHAT = "Philly, fifo"
QUICK = 2_000


class Ours(NamedTuple):
    """What came of Refold's run; the last two as its journal has them."""

    cpu_seconds: float
    started: int
    mean_waiting: float


def rows(quick: bool) -> list[Row]:
    """Jobs per second of both, and how many times faster Refold is: the median of three pairs, run in turns."""
    why_not = missing(PHILLY, PHILLY_NODES)
    if why_not:
        return [skipped(WHAT, why_not)]
    count = QUICK if quick else 20_000
    allocator = min(peer.ALLOCATORS, key=lambda name: in_fresh_process(accasim, QUICK, name)[0])
    pairs = [
        (
            peer.Outcome(*in_fresh_process(accasim, count, allocator)),
            Ours(*in_fresh_process(refold, count)),
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
        at_least("Refold / AccaSim, with its faster allocator", ratio, 20, f"{ratio:.1f} × ({waiting})"),
    ]


def accasim(count: int, allocator: peer.Allocator) -> peer.Outcome:
    """AccaSim's run, in a process of its own."""
    return peer.run(*philly(count), allocator)


def refold(count: int) -> Ours:
    """Refold's run, in a process of its own."""
    jobs, cluster = philly(count)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        simulate_with_journal(jobs[:100], cluster, "fifo", "best-fit", journal)
        seconds = simulate_with_journal(jobs, cluster, "fifo", "best-fit", journal)
        started = dict(starts_in(journal))
    return Ours(seconds, len(started), statistics.fmean(started[job.id] - job.submitted for job in jobs))
