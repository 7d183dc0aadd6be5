"""EASY backfill beside AccaSim's, with the same run times known, on 5,000 Philly jobs that wait for hours."""

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
from refold.simulator import replay_easy, simulate, tasks_of
from refold.traces import read_cluster, read_trace

FIRST, COUNT, QUICK = 20_000, 5_000, 1_000
SETTINGS = {"durations": "known"}
REPEATED = 3


class Ours(NamedTuple):
    """What came of Refold's run."""

    cpu_seconds: float
    mean_waiting: float


def rows(quick: bool) -> list[Row]:
    """Jobs per second and mean waiting of both: the median of three, run in turns."""
    why_not = missing(PHILLY)
    if why_not:
        return [skipped("Philly, EASY", why_not)]
    count = QUICK if quick else COUNT
    allocator = min(accasim_simulator.ALLOCATORS, key=lambda name: in_fresh_process(accasim, QUICK, name)[0])
    runs = [
        (
            accasim_simulator.Outcome(*in_fresh_process(accasim, count, allocator)),
            Ours(*in_fresh_process(general, count)),
            Ours(*in_fresh_process(compiled, count)),
        )
        for _ in range(REPEATED)
    ]
    theirs, simulated, replayed = runs[0]
    assert theirs.finished == count
    slow, fast = (statistics.median(run[0].cpu_seconds / run[ours].cpu_seconds for run in runs) for ours in (1, 2))
    what = f"{count:,} Philly jobs on 40 × 8 GPUs"
    waits = f"{replayed.mean_waiting:,.0f} s, AccaSim {theirs.mean_waiting:,.0f} s"
    return [
        Row(f"AccaSim EASY + {allocator}, {what}", f"{count / _median(runs, 0):,.0f} jobs/s"),
        Row(f"Refold easy, general simulator, journal on, {what}", f"{count / _median(runs, 1):,.0f} jobs/s"),
        Row(f"Refold easy, compiled replay, {what}", f"{count / _median(runs, 2):,.0f} jobs/s"),
        at_least("general simulator / AccaSim, with its faster allocator", slow, 20, f"{slow:.1f} ×"),
        at_least("compiled replay / AccaSim, with its faster allocator", fast, 20, f"{fast:.1f} ×"),
        at_most("mean waiting / AccaSim's", replayed.mean_waiting / theirs.mean_waiting, 1, waits),
        Row("the two simulators' mean waiting", f"{simulated.mean_waiting:,.1f} s and {replayed.mean_waiting:,.1f} s"),
    ]


def _median(runs: list[tuple[accasim_simulator.Outcome, Ours, Ours]], which: int) -> float:
    return statistics.median(run[which].cpu_seconds for run in runs)


def workload(count: int) -> tuple[list[Job], Cluster]:
    """Jobs from the middle of Philly, from time 0 on, on fewer GPUs than they would have had."""
    jobs = read_trace(TRACES / PHILLY).jobs[FIRST : FIRST + count]
    start = jobs[0].submitted
    return [msgspec.structs.replace(job, submitted=job.submitted - start) for job in jobs], read_cluster("40x8")


def accasim(count: int, allocator: accasim_simulator.Allocator) -> accasim_simulator.Outcome:
    """AccaSim's run, in a process of its own."""
    return accasim_simulator.run(*workload(count), allocator, "easy")


def general(count: int) -> Ours:
    """The general simulator's run, in a process of its own; the kernels are loaded before."""
    jobs, cluster = workload(count)
    simulate(jobs[:100], cluster, make_policy("easy", SETTINGS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"

        def run() -> None:
            with JournalFile(path, Header(cluster, "easy", SETTINGS)) as file:
                simulate(jobs, cluster, make_policy("easy", SETTINGS), journal=file)

        spent = cpu_seconds(run)
        submitted = {job.id: job.submitted for job in jobs}
        first: dict[str, float] = {}
        for job, start in starts_in(path):
            first.setdefault(job, start)
    return Ours(spent, statistics.mean(start - submitted[job] for job, start in first.items()))


def compiled(count: int) -> Ours:
    """The compiled replay's run, in a process of its own; the kernels are loaded before."""
    jobs, cluster = workload(count)
    tasks = tasks_of(jobs)
    replay_easy(tasks_of(jobs[:100]), cluster)
    replayed = replay_easy(tasks, cluster)
    spent = cpu_seconds(lambda: replay_easy(tasks, cluster))
    return Ours(spent, float(np.mean(replayed.started - tasks.submitted)))
