"""The general simulator beside AccaSim, both with fifo, on the first Philly jobs."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import in_fresh_process
from benchmarks.peers import accasim_fifo
from benchmarks.table import Row, at_least, skipped
from benchmarks.workloads import PHILLY, PHILLY_NODES, missing, philly, simulate_with_journal, starts_in

WHAT = "Philly, fifo"


def rows(quick: bool) -> list[Row]:
    """Jobs per second of both, and how many times faster Refold is."""
    why_not = missing(PHILLY, PHILLY_NODES)
    if why_not:
        return [skipped(WHAT, why_not)]
    count = 2_000 if quick else 20_000
    allocators: tuple[accasim_fifo.Allocator, ...] = ("first-fit", "best-fit")
    theirs = {name: accasim_fifo.Outcome(*in_fresh_process(accasim, count, name)) for name in allocators}
    ours = [in_fresh_process(refold, count) for _ in range(3)]
    faster = min(allocators, key=lambda name: theirs[name].cpu_seconds)
    peer, seconds = theirs[faster], statistics.median(run[0] for run in ours)
    _, finished, waiting = ours[0]
    assert peer.finished == finished == count, f"AccaSim finished {peer.finished} jobs, Refold {finished} of {count}"
    rows = [
        Row(f"AccaSim fifo + {name}, {count:,} Philly jobs", f"{count / run.cpu_seconds:,.0f} jobs/s")
        for name, run in theirs.items()
    ]
    return [
        *rows,
        Row(f"Refold fifo + best-fit, journal on, {count:,} Philly jobs", f"{count / seconds:,.0f} jobs/s"),
        at_least(
            f"Refold / AccaSim (its faster allocator: {faster})",
            peer.cpu_seconds / seconds,
            20,
            f"{peer.cpu_seconds / seconds:.1f} × (mean waiting {waiting:,.0f} s, AccaSim {peer.mean_waiting:,.0f} s)",
        ),
    ]


def accasim(count: int, allocator: accasim_fifo.Allocator) -> accasim_fifo.Outcome:
    """AccaSim's run, in a process of its own."""
    jobs, cluster = philly()
    return accasim_fifo.run(jobs[:count], cluster, allocator)


def refold(count: int) -> tuple[float, int, float]:
    """CPU seconds, jobs that were started, mean waiting: the last two as the journal has them."""
    jobs, cluster = philly()
    jobs = jobs[:count]
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        simulate_with_journal(jobs[:100], cluster, "fifo", "best-fit", journal)
        seconds = simulate_with_journal(jobs, cluster, "fifo", "best-fit", journal)
        started = dict(starts_in(journal))
    return seconds, len(started), statistics.fmean(started[job.id] - job.submitted for job in jobs)
