"""The compiled replay on PAI at full load, compared with the general simulator and a bare scan; its memory use."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.measure import cpu_seconds, in_fresh_process, median_cpu_seconds, peak_memory_bytes
from benchmarks.peers import bare_scan
from benchmarks.peers.build import compile_bare_scan
from benchmarks.table import Row, at_least, at_most, skipped
from benchmarks.workloads import (
    PAI,
    PAI_NODES,
    TRACES,
    missing,
    pai,
    simulate_with_journal,
    starts_in,
)
from refold.model import Cluster, Demand, Job
from refold.simulator.replays import ReplayResult, TaskColumns, replay_fifo, task_columns
from refold.simulator.traces import read_cluster

PLACEMENTS = ("first-fit", "best-fit", "tetris")
QUICK_SLICE = 30_000
GIB = 2**30


def rows(quick: bool) -> list[Row]:
    """Measure the speed of the replay and three ratios for each placement rule. Quick: simulate only a slice."""
    unavailable = missing(PAI, PAI_NODES)
    if unavailable:
        return [skipped("PAI, compiled replay", unavailable)]
    in_fresh_process(compile_bare_scan)
    with tempfile.TemporaryDirectory() as folder:
        trace = str(Path(folder) / "tasks")
        count, seconds = in_fresh_process(save, trace)
        found = [Row(f"PAI × 1/0.082 as columns, {count:,} tasks (task_columns)", f"{seconds:.2f} s")]
        for placement in PLACEMENTS:
            found += _placement_rows(placement, trace, count, QUICK_SLICE if quick else 0)
    return found


def _placement_rows(placement: str, trace: str, count: int, slice_length: int) -> list[Row]:
    replay, scan = in_fresh_process(replay_and_scan, trace, placement)
    general, compiled, tasks = in_fresh_process(general_and_replay, placement, slice_length)
    memory = in_fresh_process(memory_above_trace, trace, placement)
    part = "all tasks" if tasks == count else f"a slice of {tasks:,} tasks"
    return [
        Row(f"compiled replay, {placement}", f"{count / replay:,.0f} tasks/s ({replay:.2f} s)", count / replay),
        Row(f"general simulator, {placement}, {part}", f"{tasks / general:,.0f} tasks/s", tasks / general),
        at_least(f"compiled / general, {placement}, {part}", general / compiled, 30, f"{general / compiled:.0f} ×"),
        at_most(f"compiled / bare scan, {placement}", replay / scan, 3, f"{replay / scan:.2f} × (scan {scan:.2f} s)"),
        at_most(f"peak memory above the trace, {placement}", memory / GIB, 1, f"{memory / 2**20:,.0f} MiB", "GiB"),
    ]


def save(path: str) -> tuple[int, float]:
    """Save the enlarged trace as columns for the other processes; return its length and the time of task_columns."""
    jobs, _ = pai()
    seconds = median_cpu_seconds(lambda: task_columns(jobs))
    tasks = task_columns(jobs)
    np.savez(f"{path}.npz", submitted=tasks.submitted, work=tasks.work, demand_of=tasks.demand_of)
    Path(f"{path}.json").write_bytes(msgspec.json.encode(tasks.demands))
    return len(jobs), seconds


def _load(path: str) -> tuple[TaskColumns, Cluster]:
    columns = np.load(f"{path}.npz")
    demands = msgspec.json.decode(Path(f"{path}.json").read_bytes(), type=tuple[Demand, ...])
    tasks = TaskColumns(columns["submitted"], columns["work"], columns["demand_of"], demands)
    return tasks, read_cluster(TRACES / PAI_NODES)


def _first(tasks: TaskColumns, count: int) -> TaskColumns:
    return TaskColumns(tasks.submitted[:count], tasks.work[:count], tasks.demand_of[:count], tasks.demands)


def replay_and_scan(path: str, placement: str) -> tuple[float, float]:
    """Return the CPU seconds of the compiled replay and of the bare scan; check that all start times are equal."""
    tasks, cluster = _load(path)
    replay_fifo(_first(tasks, 10), cluster, placement)
    replayed = replay_fifo(tasks, cluster, placement)
    assert np.array_equal(_scan(_first(tasks, 10), cluster, placement), replayed.started[:10])
    assert np.array_equal(_scan(tasks, cluster, placement), replayed.started), "start times of the bare scan differ"
    return (
        median_cpu_seconds(lambda: replay_fifo(tasks, cluster, placement)),
        median_cpu_seconds(lambda: _scan(tasks, cluster, placement)),
    )


def _scan(tasks: TaskColumns, cluster: Cluster, placement: str) -> bare_scan.Floats:
    capacity = np.array([node.gpus for node in cluster.nodes], dtype=np.int64)
    instances = np.array([demand.instances for demand in tasks.demands], dtype=np.int64)[tasks.demand_of]
    gpus = np.array([demand.gpus for demand in tasks.demands], dtype=np.int64)[tasks.demand_of]
    return bare_scan.replay(placement, capacity, tasks.submitted, tasks.work, instances, gpus)


def general_and_replay(placement: str, slice_length: int) -> tuple[float, float, int]:
    """Return the CPU seconds of both simulators and the number of tasks; check that all start times are equal."""
    jobs, cluster = pai()
    if slice_length:
        middle = len(jobs) // 2
        jobs = jobs[middle : middle + slice_length]
    tasks = task_columns(jobs)
    replay_fifo(_first(tasks, 10), cluster, placement)
    replayed: list[ReplayResult] = []
    compiled = median_cpu_seconds(lambda: replayed.append(replay_fifo(tasks, cluster, placement)))
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        settings = {"placement": placement}
        simulate_with_journal(jobs[:100], cluster, "fifo", settings, journal)
        general = statistics.median(
            simulate_with_journal(jobs, cluster, "fifo", settings, journal) for _ in range(3 if slice_length else 1)
        )
        _assert_same_starts(jobs, journal, replayed[-1])
    return general, compiled, len(jobs)


def _assert_same_starts(jobs: Sequence[Job], journal: Path, replayed: ReplayResult) -> None:
    started = dict(starts_in(journal))
    in_general = np.array([started.get(job.id, np.nan) for job in jobs])
    assert np.array_equal(in_general, replayed.started, equal_nan=True), "start times of the two simulators differ"


def memory_above_trace(path: str, placement: str) -> int:
    """Return the peak memory of a process that replays the trace, including libraries, minus the trace's columns."""
    tasks, cluster = _load(path)
    cpu_seconds(lambda: replay_fifo(tasks, cluster, placement))
    return peak_memory_bytes() - tasks.submitted.nbytes - tasks.work.nbytes - tasks.demand_of.nbytes
