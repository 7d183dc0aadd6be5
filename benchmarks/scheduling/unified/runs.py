"""Simulations: one per workload, policy and draw."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.scheduling.runs import settings_for
from benchmarks.scheduling.unified.decisions import decision_figures
from benchmarks.scheduling.unified.figures import measure_run
from benchmarks.scheduling.unified.targets import MEASURES, Figures
from benchmarks.scheduling.unified.workload import RESTART, Workload, variant_of
from benchmarks.scheduling.unified.workloads import workloads
from refold.journal import HistoryJournal
from refold.model import ChangeLimit
from refold.simulator import simulate
from refold.simulator.registry import make_policy

SHOWN = ("mean", "median", "delay", "wide_delay", "violations", "kept_in_worst_week", "event_ms", "cpu_seconds")
"""Measures in the progress line of a run, if it has them."""


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


def run_all(runs: Sequence[Run], workers: int, save: Callable[[Results], object]) -> Results:
    """Simulate all runs in this process or in several; after each, print a line on stderr and save all results."""
    found: dict[str, dict[str, dict[int, Figures]]] = defaultdict(lambda: defaultdict(dict))
    results: Results = {}
    for done, (run, figures) in enumerate(_simulate_all(runs, workers), start=1):
        found[run.workload][run.policy][run.draw] = figures
        label = f"{run.workload}  {run.policy}  draw {run.draw}"
        print(f"{done}/{len(runs)}  {label}: {_brief(figures)}", file=sys.stderr, flush=True)
        results = {
            name: {policy: [draws[draw] for draw in sorted(draws)] for policy, draws in by_policy.items()}
            for name, by_policy in found.items()
        }
        save(results)
    return results


def merge(*several: Results) -> Results:
    """Return all figures; of the same workload and policy, the last."""
    found: dict[str, dict[str, Sequence[Figures]]] = defaultdict(dict)
    for results in several:
        for workload, by_policy in results.items():
            found[workload] |= by_policy
    return dict(found)


def read_results(files: Sequence[Path]) -> Results:
    """Return the figures of earlier runs, written with --json or --write; of the same runs, those of the last file."""
    return merge(*(json.loads(file.read_text(encoding="utf-8"))["figures"] for file in files))


def write_results(file: Path, results: Results) -> None:
    """Write figures, one policy per line, rounded to six digits."""
    rounded = {
        workload: {
            policy: [{name: float(f"{value:.6g}") for name, value in figures.items()} for figures in draws]
            for policy, draws in by_policy.items()
        }
        for workload, by_policy in sorted(results.items())
    }
    parts = [
        f"{json.dumps(workload)}: {{\n"
        + ",\n".join(f"{json.dumps(policy)}: {json.dumps(draws)}" for policy, draws in by_policy.items())
        + "\n}"
        for workload, by_policy in rounded.items()
    ]
    file.write_text('{"figures": {\n' + ",\n".join(parts) + "\n}}\n", encoding="utf-8")


def _brief(figures: Figures) -> str:
    shown = [(MEASURES[name], figures[name]) for name in SHOWN if name in figures]
    return "; ".join(f"{measure.title} {measure.format(value)} {measure.unit}".rstrip() for measure, value in shown)


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
    if workload.setup is None:
        return decision_figures(run.policy)
    setup, journal = workload.setup(run.draw), HistoryJournal()
    variant = variant_of(run.policy)
    settings = settings_for(variant.policy, RESTART) | dict(workload.settings.get(run.policy, {})) | dict(run.settings)
    policy = make_policy(variant.policy, settings | dict(variant.settings))
    limit = None if variant.restarts_at_most is None else ChangeLimit(variant.restarts_at_most)
    jobs = [job if limit is None else msgspec.structs.replace(job, change_limit=limit) for job in setup.jobs]
    before = time.process_time()
    simulate(jobs, setup.cluster, policy, journal=journal, charge=setup.charge, costs=setup.costs)
    seconds = time.process_time() - before
    return {**measure_run(journal.history(setup.cluster), setup), "cpu_seconds": seconds}
