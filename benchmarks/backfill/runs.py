"""Simulations in two processes; the result of each is stored under build/ when it is done."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.backfill.experiment import CONFIGS, PolicyConfig, Workload
from benchmarks.measure import REPOSITORY
from benchmarks.placement.result_cache import print_progress
from refold.journal import History, HistoryJournal
from refold.model import Job
from refold.placement import Ints
from refold.simulator import Costs, simulate
from refold.simulator.results import Spread, StartEstimateGroup, compute_spread, measure

RESULTS = REPOSITORY / "build" / "backfill"
PROCESSES = 2
COSTS = Costs(restart=60.0)
"""A preempted job does no work for this many seconds after its restart."""

WARM_UP_JOBS = 200
"""Number of jobs simulated before the measurement, so that nothing is imported in it."""

IDLE_RANK_PENALTY = 1.5
"""Added to the rank of runs on workloads with little waiting, which are less informative, so that they run later."""

ONE, SEVERAL, WHOLE_NODES = "one GPU", "several GPUs", "whole nodes"
SIZES = (ONE, SEVERAL, WHOLE_NODES)
WHOLE_NODE = 8


class Run(msgspec.Struct, frozen=True):
    """A policy configuration on a workload."""

    workload: Workload
    config: PolicyConfig


class Result(msgspec.Struct, frozen=True):
    """Result of a run. Times are seconds; `source_hash` identifies the source files that produced it."""

    jobs: int
    waiting: Spread
    slowdown: Spread
    sizes: dict[str, Spread]
    overtaken: Spread
    start_estimates: StartEstimateGroup | None
    preemptions: int
    overhead_gpu_hours: float
    gpu_hours: float
    cpu_seconds: float
    source_hash: str


Results = Mapping[Run, Result]


def simulate_run(run: Run) -> Result:
    """Simulate from the first submission until all jobs have ended."""
    jobs, cluster = run.workload.jobs(run.config.uses_limits), run.workload.cluster
    simulate(jobs[:WARM_UP_JOBS], cluster, run.config.make(), journal=HistoryJournal(), costs=COSTS)
    journal = HistoryJournal()
    start = time.process_time()
    simulate(jobs, cluster, run.config.make(), journal=journal, costs=COSTS)
    seconds = time.process_time() - start
    history = journal.history(cluster)
    measures = measure(history)
    return Result(
        measures.jobs,
        measures.waiting,
        measures.slowdown,
        _waiting_by_size(history),
        measures.overtaken,
        measures.start_estimates.all if measures.start_estimates else None,
        measures.preemptions,
        measures.overhead_gpu_hours,
        measures.gpu_hours,
        seconds,
        source_hash(),
    )


def size_of(job: Job) -> int:
    """Return the index of the job's size in SIZES. A gang whose instances need less than a node has several GPUs."""
    if job.demand.gpus >= WHOLE_NODE:
        return 2
    return int(job.demand.total_gpus > 1)


def _waiting_by_size(history: History) -> dict[str, Spread]:
    sizes: Ints = np.array([size_of(job) for job in history.jobs.jobs], dtype=np.int64)
    waiting = np.maximum(history.jobs.ended - history.jobs.submitted - history.time_running, 0.0)
    return {name: compute_spread(waiting[sizes == number]) for number, name in enumerate(SIZES)}


def run_all(workloads: Sequence[Workload], configs: Sequence[PolicyConfig] = CONFIGS, again: bool = False) -> Results:
    """Run every policy on every workload. Stored results are reused unless `again`; progress is printed on stderr."""
    runs = [Run(workload, config) for workload in workloads for config in configs]
    missing = [run for run in runs if again or not _path(run).exists()]
    missing.sort(key=lambda run: run.config.rank + (0 if run.workload.busy else IDLE_RANK_PENALTY))
    RESULTS.mkdir(parents=True, exist_ok=True)
    for done, (run, result) in enumerate(_simulate_runs(missing), start=1):
        _path(run).write_bytes(msgspec.json.encode(result))
        print_progress(f"{done}/{len(missing)}  {run.workload.title}  {run.config.name}  {result.cpu_seconds:.0f} s")
    return stored_results(workloads, configs)


def stored_results(workloads: Sequence[Workload], configs: Sequence[PolicyConfig] = CONFIGS) -> Results:
    """Return the stored results; warn if the source files have changed since."""
    runs = [Run(workload, config) for workload in workloads for config in configs]
    found = {run: msgspec.json.decode(_path(run).read_bytes(), type=Result) for run in runs if _path(run).exists()}
    outdated = sum(result.source_hash != source_hash() for result in found.values())
    if outdated:
        print_progress(f"{outdated} of {len(found)} stored results are from other sources; --again repeats all runs")
    return found


def _simulate_runs(runs: Sequence[Run]) -> Iterable[tuple[Run, Result]]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=spawn) as pool:
        futures = {pool.submit(simulate_run, run): run for run in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _path(run: Run) -> Path:
    config = run.config.name.replace(", ", "_").replace(" ", "-")
    return RESULTS / f"{run.workload.key}-{config}.json"


@cache
def source_hash() -> str:
    """Return a hash of the source files on which a run depends."""
    folders = ("model", "predict", "packing", "core", "policies", "simulator", "results", "plans")
    files = sorted(path for folder in folders for path in (REPOSITORY / "src" / "refold" / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
