"""FIFO compared with AccaSim on three slices: the general simulator and the compiled replay, with journals."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import in_fresh_process
from benchmarks.peers import accasim_simulator as peer
from benchmarks.table import Row, at_least, skipped
from benchmarks.workloads import (
    HELIOS,
    PHILLY,
    PHILLY_NODES,
    Slice,
    missing,
    replay_with_journal,
    simulate_with_journal,
    starts_in,
)

COUNT, QUICK_COUNT = 20_000, 2_000
SLICES = (
    Slice("Philly", PHILLY, 0, PHILLY_NODES),
    Slice("Philly from job 20,000 on 64 nodes", PHILLY, 20_000, "64x8"),
    Slice("Helios Venus", HELIOS, 0, "135x8:V100"),
)


class RefoldResult(NamedTuple):
    """Result of a run of Refold; started jobs and mean waiting (seconds) are read from the journal."""

    cpu_seconds: float
    general_seconds: float
    started: int
    mean_waiting: float


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second of both, and the speed-up: medians of three alternating pairs of runs per slice."""
    found: list[Row] = []
    for number, part in enumerate(SLICES):
        unavailable = missing(part.file, PHILLY_NODES)
        found += [skipped(f"{part.name}, fifo", unavailable)] if unavailable else _rows_of(number, part, quick)
    return found


def _rows_of(number: int, part: Slice, quick: bool) -> list[Row]:
    count = QUICK_COUNT if quick else COUNT
    allocator = min(peer.ALLOCATORS, key=lambda name: in_fresh_process(accasim, number, QUICK_COUNT, name)[0])
    pairs = [
        (
            peer.Result(*in_fresh_process(accasim, number, count, allocator)),
            RefoldResult(*in_fresh_process(refold, number, count)),
        )
        for _ in range(3)
    ]
    for theirs, ours in pairs:
        assert theirs.finished == ours.started == count, f"of {count} jobs, AccaSim ran {theirs}, Refold {ours}"
    theirs, ours = pairs[0]
    ratios = [theirs.cpu_seconds / ours.cpu_seconds for theirs, ours in pairs]
    their_seconds = statistics.median(theirs.cpu_seconds for theirs, _ in pairs)
    our_seconds = statistics.median(ours.cpu_seconds for _, ours in pairs)
    general = statistics.median(theirs.cpu_seconds / ours.general_seconds for theirs, ours in pairs)
    waiting = f"mean waiting {ours.mean_waiting:,.0f} s, AccaSim {theirs.mean_waiting:,.0f} s"
    ratio = statistics.median(ratios)
    measured = f"{ratio:.1f} × ({min(ratios):.1f}–{max(ratios):.1f}; {waiting})"
    return [
        Row(f"AccaSim fifo + {allocator}, {count:,} jobs of {part.name}", f"{count / their_seconds:,.0f} jobs/s"),
        Row(f"Refold fifo + best-fit, journal on, {part.name}", f"{count / our_seconds:,.0f} jobs/s"),
        Row(f"general simulator, journal on / AccaSim, {part.name}", f"{general:.1f} ×"),
        at_least(f"Refold / AccaSim with its faster allocator, {part.name}", ratio, 20, measured),
    ]


def accasim(number: int, count: int, allocator: peer.Allocator) -> peer.Result:
    """Run AccaSim; called in a fresh process."""
    return peer.run(*SLICES[number].load(count), allocator)


def refold(number: int, count: int) -> RefoldResult:
    """Run Refold; called in a fresh process."""
    jobs, cluster = SLICES[number].load(count)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        simulated, general = Path(folder) / "simulated.jsonl", 0.0
        for part in (jobs[:100], jobs):  # the first loads the kernels
            general = simulate_with_journal(part, cluster, "fifo", "best-fit", simulated)
            seconds = replay_with_journal(part, cluster, "fifo", "best-fit", journal)
        assert simulated.read_bytes() == journal.read_bytes()
        started = dict(starts_in(journal))
    return RefoldResult(
        seconds, general, len(started), statistics.fmean(started[job.id] - job.submitted for job in jobs)
    )
