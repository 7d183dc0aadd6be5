"""Cost of ten times the jobs and of ten times the nodes, at the same generated load."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.measure import in_fresh_process, median_cpu_seconds
from benchmarks.table import Row, at_most
from benchmarks.workloads import general_seconds
from refold.simulator.replays import replay_fifo, task_columns
from refold.simulator.traces import everyday_workload, generate, read_cluster

GOAL = 12
LOAD = 0.7
"""Share of the GPUs. Below 1 because strict FIFO wastes GPUs and the queue must not grow with the trace length."""


class Size(NamedTuple):
    """Size of a workload: jobs, and nodes with 8 GPUs. The arrival rate follows from LOAD."""

    jobs: int
    nodes: int


def rows(quick: bool) -> list[Row]:
    """Measure ratios of CPU time for both simulators."""
    small = Size(2_000, 32) if quick else Size(5_000, 64)
    small_compiled = Size(20_000, 32) if quick else Size(50_000, 64)
    return [*_growth("general", general, small), *_growth("compiled", compiled, small_compiled)]


def _growth(name: str, seconds: Callable[[int, int], float], small: Size) -> list[Row]:
    base = in_fresh_process(seconds, *small)
    jobs = in_fresh_process(seconds, small.jobs * 10, small.nodes) / base
    nodes = in_fresh_process(seconds, small.jobs, small.nodes * 10) / base
    start = f"{name}, fifo + best-fit, from {small.jobs:,} jobs on {small.nodes} nodes"
    return [
        at_most(f"{start}: 10 × the jobs", jobs, GOAL, f"{jobs:.1f} ×"),
        at_most(f"{start}: 10 × the nodes, same load", nodes, GOAL, f"{nodes:.2f} ×"),
    ]


def general(jobs: int, nodes: int) -> float:
    """Return the median CPU seconds of the general simulator, journal on."""
    cluster = read_cluster(f"{nodes}x8:A100")
    generated = generate(everyday_workload(jobs).for_load(cluster, LOAD), seed=1).jobs
    return sorted(general_seconds(generated, cluster) for _ in range(3))[1]


def compiled(jobs: int, nodes: int) -> float:
    """Return the median CPU seconds of the compiled replay."""
    cluster = read_cluster(f"{nodes}x8:A100")
    tasks = task_columns(generate(everyday_workload(jobs).for_load(cluster, LOAD), seed=1).jobs)
    replay_fifo(tasks, cluster)
    return median_cpu_seconds(lambda: replay_fifo(tasks, cluster))
