"""EASY backfill compared with AccaSim, with known run times, on 5,000 Philly jobs that wait for hours."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.measure import cpu_seconds, in_fresh_process
from benchmarks.peers import accasim_simulator
from benchmarks.table import Row, at_least, at_most, skipped
from benchmarks.workloads import PHILLY, TRACES, missing, starts_in
from refold.core import Header
from refold.journal import JournalFile
from refold.model import Cluster, Job
from refold.registry import make_policy
from refold.simulator import replay_easy, simulate, task_columns
from refold.traces import read_cluster, read_trace

FIRST_JOB, COUNT, QUICK_COUNT = 20_000, 5_000, 1_000
SETTINGS = {"durations": "known"}
REPEATS = 3


class RefoldResult(NamedTuple):
    """Result of a run of Refold. Times are seconds."""

    cpu_seconds: float
    mean_waiting: float


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second and mean waiting of all simulators: medians of three alternating runs."""
    unavailable = missing(PHILLY)
    if unavailable:
        return [skipped("Philly, EASY", unavailable)]
    count = QUICK_COUNT if quick else COUNT
    allocator = min(accasim_simulator.ALLOCATORS, key=lambda name: in_fresh_process(accasim, QUICK_COUNT, name)[0])
    runs = [
        (
            accasim_simulator.Result(*in_fresh_process(accasim, count, allocator)),
            RefoldResult(*in_fresh_process(general, count)),
            RefoldResult(*in_fresh_process(compiled, count)),
        )
        for _ in range(REPEATS)
    ]
    peer, simulated, replayed = runs[0]
    assert peer.finished == count
    slow, fast = (statistics.median(run[0].cpu_seconds / run[index].cpu_seconds for run in runs) for index in (1, 2))
    workload_name = f"{count:,} Philly jobs on 40 × 8 GPUs"
    waits = f"{replayed.mean_waiting:,.0f} s, AccaSim {peer.mean_waiting:,.0f} s"
    return [
        Row(f"AccaSim EASY + {allocator}, {workload_name}", f"{count / _median(runs, 0):,.0f} jobs/s"),
        Row(f"Refold easy, general simulator, journal on, {workload_name}", f"{count / _median(runs, 1):,.0f} jobs/s"),
        Row(f"Refold easy, compiled replay, {workload_name}", f"{count / _median(runs, 2):,.0f} jobs/s"),
        at_least("general simulator / AccaSim with its faster allocator", slow, 20, f"{slow:.1f} ×"),
        at_least("compiled replay / AccaSim with its faster allocator", fast, 20, f"{fast:.1f} ×"),
        at_most("mean waiting / AccaSim", replayed.mean_waiting / peer.mean_waiting, 1, waits),
        Row(
            "mean waiting, general simulator and compiled replay",
            f"{simulated.mean_waiting:,.1f} s and {replayed.mean_waiting:,.1f} s",
        ),
    ]


def _median(runs: list[tuple[accasim_simulator.Result, RefoldResult, RefoldResult]], index: int) -> float:
    return statistics.median(run[index].cpu_seconds for run in runs)


def workload(count: int) -> tuple[list[Job], Cluster]:
    """Return jobs from the middle of Philly, shifted to start at time 0, and a cluster smaller than the original."""
    jobs = read_trace(TRACES / PHILLY).jobs[FIRST_JOB : FIRST_JOB + count]
    start = jobs[0].submitted
    return [msgspec.structs.replace(job, submitted=job.submitted - start) for job in jobs], read_cluster("40x8")


def accasim(count: int, allocator: accasim_simulator.Allocator) -> accasim_simulator.Result:
    """Run AccaSim; called in a fresh process."""
    return accasim_simulator.run(*workload(count), allocator, "easy")


def general(count: int) -> RefoldResult:
    """Run the general simulator after a warm-up that loads the kernels; called in a fresh process."""
    jobs, cluster = workload(count)
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


def compiled(count: int) -> RefoldResult:
    """Run the compiled replay after a warm-up that loads the kernels; called in a fresh process."""
    jobs, cluster = workload(count)
    tasks = task_columns(jobs)
    replay_easy(task_columns(jobs[:100]), cluster)
    replayed = replay_easy(tasks, cluster)
    elapsed = cpu_seconds(lambda: replay_easy(tasks, cluster))
    return RefoldResult(elapsed, float(np.mean(replayed.started - tasks.submitted)))
