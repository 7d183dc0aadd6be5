"""Simulations: one per workload, policy and draw."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

import numpy as np

from benchmarks.scheduling.runs import settings_for
from benchmarks.scheduling.unified.targets import Figures
from benchmarks.scheduling.unified.workloads import RESTART, Setup, Workload, workloads
from refold.journal import History, HistoryJournal
from refold.model import HOUR
from refold.packing import Floats
from refold.registry import make_policy
from refold.simulator import simulate

WIDE_GPUS = 8


class Run(NamedTuple):
    """A simulation. `settings`: further settings of the policy, given on the command line."""

    workload: str
    tuning: bool
    policy: str
    draw: int
    settings: tuple[tuple[str, Any], ...] = ()


Results = Mapping[str, Mapping[str, Sequence[Figures]]]
"""Figures of each draw, by workload and policy."""


def plan_runs(
    chosen: Iterable[Workload], tuning: bool, policies: Sequence[str], draws: int | None, settings: Mapping[str, Any]
) -> list[Run]:
    """Return the runs of these workloads; `policies`: only these, and `settings` those of refold."""
    return [
        Run(workload.name, tuning, policy, draw, tuple(settings.items()) if policy == "refold" else ())
        for workload in chosen
        for policy in workload.policies
        if not policies or policy in policies
        for draw in range(workload.draws if draws is None else min(draws, workload.draws))
    ]


def run_all(runs: Sequence[Run], workers: int) -> Results:
    """Simulate all runs in this process or in several; print a line for each on stderr."""
    found: dict[str, dict[str, dict[int, Figures]]] = defaultdict(lambda: defaultdict(dict))
    for done, (run, figures) in enumerate(_simulate_all(runs, workers), start=1):
        found[run.workload][run.policy][run.draw] = figures
        label = f"{run.workload}  {run.policy}  draw {run.draw}"
        print(f"{done}/{len(runs)}  {label}: {_brief(figures)}", file=sys.stderr, flush=True)
    return {
        name: {policy: [draws[draw] for draw in sorted(draws)] for policy, draws in by_policy.items()}
        for name, by_policy in found.items()
    }


def _brief(figures: Figures) -> str:
    return (
        f"mean {figures['mean']:.3f} h, delay {figures['delay']:.3f} h (wide {figures['wide_delay']:.3f} h),"
        f" {figures['cpu_seconds']:.1f} s of CPU"
    )


def _simulate_all(runs: Sequence[Run], workers: int) -> Iterator[tuple[Run, Figures]]:
    if workers == 1:
        for run in runs:
            yield run, simulate_run(run)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(simulate_run, run): run for run in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def simulate_run(run: Run) -> Figures:
    """Simulate one run until all jobs have ended."""
    workload = workloads(run.tuning)[run.workload]
    setup, journal = workload.setup(run.draw), HistoryJournal()
    settings = settings_for(run.policy, RESTART) | dict(workload.settings.get(run.policy, {})) | dict(run.settings)
    policy = make_policy(run.policy, settings)
    before = time.process_time()
    simulate(setup.jobs, setup.cluster, policy, journal=journal, charge=setup.charge, costs=setup.costs)
    seconds = time.process_time() - before
    return {**measure_run(journal.history(setup.cluster), setup), "cpu_seconds": seconds}


def measure_run(history: History, setup: Setup) -> dict[str, float]:
    """Return the measures of a history in which all jobs have ended (times in hours, the median in seconds)."""
    jobs = history.jobs
    work = np.array([setup.charge.work(job) if setup.charge else job.work for job in jobs.jobs], dtype=np.float64)
    completion: Floats = jobs.ended - jobs.submitted
    delay: Floats = (completion - work) / HOUR
    wide = jobs.gpus >= WIDE_GPUS
    runs_of_job = np.bincount(history.runs.job, minlength=len(jobs))
    return {
        "mean": float(completion.mean()) / HOUR,
        "median": float(np.median(completion)),
        "p99": float(np.percentile(completion, 99)) / HOUR,
        "makespan": (float(history.run_end.max()) - history.first_submission) / HOUR,
        "delay": float(delay.mean()),
        "wide_delay": float(delay[wide].mean()),
        "delay_p99": float(np.percentile(delay, 99)),
        "wide_delay_p99": float(np.percentile(delay[wide], 99)),
        "restarts": float(runs_of_job.max() - 1),
    }
