"""EASY backfill compared with AccaSim, with known run times, on three slices whose jobs wait.

Refold makes no start estimates here, which AccaSim does not make either.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import cpu_seconds, in_fresh_process
from benchmarks.peers import accasim_simulator
from benchmarks.table import Row, at_least, at_most, skipped
from benchmarks.workloads import HELIOS, PHILLY, Slice, missing, starts_in
from refold.core import Header
from refold.journal import JournalFile
from refold.registry import make_policy
from refold.simulator import replay_easy, simulate, task_columns

COUNT, QUICK_COUNT = 5_000, 1_000
SLICES = (
    Slice("Philly from job 20,000 on 40 × 8 GPUs", PHILLY, 20_000, "40x8"),
    Slice("Philly from job 60,000 on 40 × 8 GPUs", PHILLY, 60_000, "40x8"),
    Slice("Helios Venus from job 13,000 on 64 × 8 GPUs", HELIOS, 13_000, "64x8"),
)
SETTINGS = {"durations": "known", "start_estimates": False}
REPEATS = 3


class RefoldResult(NamedTuple):
    """Result of a run of Refold. Times are seconds."""

    cpu_seconds: float
    mean_waiting: float


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second and mean waiting of all simulators: medians of three alternating runs per slice."""
    found: list[Row] = []
    for number, part in enumerate(SLICES):
        unavailable = missing(part.file)
        found += [skipped(f"{part.name}, EASY", unavailable)] if unavailable else _rows_of(number, part, quick)
    return found


def _rows_of(number: int, part: Slice, quick: bool) -> list[Row]:
    count, name = QUICK_COUNT if quick else COUNT, part.name
    allocator = min(
        accasim_simulator.ALLOCATORS, key=lambda name: in_fresh_process(accasim, number, QUICK_COUNT, name)[0]
    )
    runs = [
        (
            accasim_simulator.Result(*in_fresh_process(accasim, number, count, allocator)),
            RefoldResult(*in_fresh_process(general, number, count)),
            RefoldResult(*in_fresh_process(compiled, number, count)),
        )
        for _ in range(REPEATS)
    ]
    peer, simulated, replayed = runs[0]
    assert peer.finished == count
    ratios = [run[0].cpu_seconds / run[1].cpu_seconds for run in runs]
    slow = statistics.median(ratios)
    measured = f"{slow:.1f} × ({min(ratios):.1f}–{max(ratios):.1f})"
    fast = statistics.median(run[0].cpu_seconds / run[2].cpu_seconds for run in runs)
    waits = f"{replayed.mean_waiting:,.0f} s, AccaSim {peer.mean_waiting:,.0f} s"
    return [
        Row(f"AccaSim EASY + {allocator}, {count:,} jobs of {name}", f"{count / _median(runs, 0):,.0f} jobs/s"),
        Row(f"Refold easy, general simulator, journal on, {name}", f"{count / _median(runs, 1):,.0f} jobs/s"),
        Row(f"Refold easy, compiled replay, {name}", f"{count / _median(runs, 2):,.0f} jobs/s"),
        at_least(f"general simulator / AccaSim with its faster allocator, {name}", slow, 20, measured),
        at_least(f"compiled replay / AccaSim with its faster allocator, {name}", fast, 20, f"{fast:.1f} ×"),
        at_most(f"mean waiting / AccaSim, {name}", replayed.mean_waiting / peer.mean_waiting, 1, waits),
        Row(
            f"mean waiting, general simulator and compiled replay, {name}",
            f"{simulated.mean_waiting:,.1f} s and {replayed.mean_waiting:,.1f} s",
        ),
    ]


def _median(runs: list[tuple[accasim_simulator.Result, RefoldResult, RefoldResult]], index: int) -> float:
    return statistics.median(run[index].cpu_seconds for run in runs)


def accasim(number: int, count: int, allocator: accasim_simulator.Allocator) -> accasim_simulator.Result:
    """Run AccaSim; called in a fresh process."""
    return accasim_simulator.run(*SLICES[number].load(count), allocator, "easy")


def general(number: int, count: int) -> RefoldResult:
    """Run the general simulator after a warm-up that loads the kernels; called in a fresh process."""
    jobs, cluster = SLICES[number].load(count)
    simulate(jobs[:100], cluster, make_policy("easy", SETTINGS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"

        def run() -> None:
            with JournalFile(path, Header(cluster, "easy", SETTINGS)) as file:
                simulate(jobs, cluster, make_policy("easy", SETTINGS), journal=file)

        elapsed = cpu_seconds(run)
        submitted = {job.id: job.submitted for job in jobs}
        first: dict[str, float] = {}
        for job, start in starts_in(path):
            first.setdefault(job, start)
    return RefoldResult(elapsed, statistics.mean(start - submitted[job] for job, start in first.items()))


def compiled(number: int, count: int) -> RefoldResult:
    """Run the compiled replay after a warm-up that loads the kernels; called in a fresh process."""
    jobs, cluster = SLICES[number].load(count)
    tasks = task_columns(jobs)
    replay_easy(task_columns(jobs[:100]), cluster)
    replayed = replay_easy(tasks, cluster)
    elapsed = cpu_seconds(lambda: replay_easy(tasks, cluster))
    return RefoldResult(elapsed, float(np.mean(replayed.started - tasks.submitted)))
