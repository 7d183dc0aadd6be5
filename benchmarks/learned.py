"""The learned policy compared with simple policies and with tuned `refold`, on jobs that training has not seen.

The weights that ship with the package are trained, and the settings of `refold` are chosen (`--tune`), on the first
34,000 jobs of Philly and Helios; everything is compared on later jobs of these traces and on other traces.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.result_page import FOLDER, page_parser, publish
from benchmarks.scheduling.unified.figures import measure_times
from benchmarks.scheduling.unified.mixtures import fractions_setup
from benchmarks.scheduling.unified.workload import COSTS, RESTART, Setup, feasible, shifted
from benchmarks.table import markdown
from benchmarks.workloads import HELIOS, PAI, PHILLY, trace_slice
from refold.journal import HistoryJournal
from refold.model import HOUR
from refold.registry import default_settings, make_policy
from refold.simulator import simulate
from refold.traces import everyday_workload, generate, read_cluster

SLICE_JOBS = 1_500
TRAINING_JOBS = 34_000
PAGE, NUMBERS = FOLDER / "learned.md", FOLDER / "learned.json"
TRAINING_COMMAND = (
    "refold learn ../shared/data/traces/jobs_philly.csv.gz ../shared/data/traces/jobs_helios_venus.csv.gz "
    f"--cluster 40x8 --cluster 64x8 --limit {TRAINING_JOBS} --out weights.yaml"
)
START: dict[str, Any] = {
    "features": {"service": 1.0, "gpus": 1.0, "wide": -2.0, "delay": -1.0},
    "preemption_margin": 1.1,
    "patience_seconds": 86_400.0,
    "protection": 1.0,
}
POLICIES = {
    "fifo": ("fifo", {}),
    "fifo-skip": ("fifo-skip", {}),
    "easy": ("easy", {}),
    "las": ("las", {}),
    "tiresias": ("tiresias", {}),
    "srtf\\*": ("srtf", {}),
    "refold": ("refold", {}),
    "refold, tuned": ("refold", {}),
    "learned, before training": ("learned", {"weights": START}),
    "learned": ("learned", {}),
}
TUNED, LEARNED, ORACLE = "refold, tuned", "learned", "srtf\\*"
SEARCHED = {
    "weight_doubling_seconds": (3_600.0, 57_600.0),
    "delay_doubling_seconds": (900.0, 14_400.0),
    "wide_weight": (1.0, 32.0),
    "preemption_margin": (1.5, 8.0),
    "starvation_seconds": (6 * 3600.0, 72 * 3600.0),
}
"""Settings of `refold` that are searched, with the range of each; values are drawn log-uniformly."""

TUNING_DRAWS, TUNING_SEED = 6, 1
MEASURES = {
    "delay": "mean delay, h",
    "delay_p99": "p99 of delays, h",
    "wide_delay": "mean delay, ≥ 8 GPUs, h",
    "delay_max": "longest delay, h",
    "preemptions": "preemptions per 100 jobs",
}
COMPARED = ("delay", "delay_p99", "wide_delay")
MIN_DELAY_HOURS = 1 / 60
"""Added to delays before their ratio is taken, as in training."""

Figures = Mapping[str, float]
Results = dict[str, dict[str, Figures]]
"""Figures by slice and policy."""


class Slice(NamedTuple):
    """Jobs that are compared. `seen`: earlier jobs of the same trace were used for training."""

    seen: bool
    setup: Callable[[], Setup]


def trace_setup(file: str, nodes: str, first: int) -> Setup:
    """Return jobs of a trace on a cluster."""
    cluster = read_cluster(nodes)
    return Setup(cluster, shifted(feasible(trace_slice(file, first, SLICE_JOBS), cluster), 0))


def synthetic_setup(seed: int) -> Setup:
    """Return generated jobs, without the time limits, which no other slice has."""
    cluster = read_cluster("16x8")
    shape = everyday_workload(SLICE_JOBS).for_load(cluster, 0.95)
    return Setup(cluster, tuple(feasible(generate(shape, seed).jobs, cluster)))


SLICES = {
    **{
        f"philly-{first}": Slice(True, partial(trace_setup, PHILLY, "40x8", first))
        for first in (35_000, 50_000, 56_000)
    },
    **{
        f"helios-{first}": Slice(True, partial(trace_setup, HELIOS, "64x8", first))
        for first in (40_000, 60_000, 80_000)
    },
    **{f"pai-{first}": Slice(False, partial(trace_setup, PAI, "48x8", first)) for first in (10_000, 30_000)},
    "openb-4000": Slice(False, partial(fractions_setup, 4_000, 0)),
    **{f"synthetic-{seed}": Slice(False, partial(synthetic_setup, seed)) for seed in (1, 2)},
}
TRAINING_SLICES = (
    ("philly", 27_646, 0.76),
    ("helios", 27_866, 1.04),
    ("philly", 16_368, 1.04),
    ("helios", 31_878, 0.99),
)
"""Some of the slices on which the shipped weights were trained: trace, first job, factor of intervals."""


def tuning_setup(trace: str, first: int, scale: float) -> Setup:
    """Return a slice on which the weights were trained."""
    setup = trace_setup(*{"philly": (PHILLY, "40x8"), "helios": (HELIOS, "64x8")}[trace], first)
    jobs = tuple(msgspec.structs.replace(job, submitted=scale * job.submitted) for job in setup.jobs)
    return setup._replace(jobs=jobs)


def run_policy(setup: Setup, policy: str, settings: Mapping[str, Any]) -> Figures:
    """Simulate a policy and return its measures."""
    own = {"restart_seconds": RESTART} if "restart_seconds" in default_settings(policy) else {}
    journal, before = HistoryJournal(), time.process_time()
    simulate(setup.jobs, setup.cluster, make_policy(policy, own | dict(settings)), journal=journal, costs=COSTS)
    seconds = time.process_time() - before
    history = journal.history(setup.cluster)
    work = np.array([job.work for job in history.jobs.jobs], dtype=np.float64)
    more = {
        "delay_max": float((history.jobs.ended - history.jobs.submitted - work).max()) / HOUR,
        "preemptions": 100 * (len(history.runs.job) - len(setup.jobs)) / len(setup.jobs),
        "cpu_seconds": seconds,
    }
    return {**measure_times(history, setup), **more}


def run_slice(name: str, label: str, tuned: Mapping[str, Any]) -> Figures:
    """Run one policy on one slice."""
    policy, settings = POLICIES[label]
    return run_policy(SLICES[name].setup(), policy, tuned if label == TUNED else settings)


def tuning_figures(settings: Mapping[str, float]) -> list[Figures]:
    """Return the figures of `refold` with these settings on the slices on which it is tuned."""
    return [run_policy(tuning_setup(*one), "refold", settings) for one in TRAINING_SLICES]


def log_ratio(figures: Figures, others: Figures, measure: str) -> float:
    """Return the logarithm of the ratio of two delays."""
    return log((figures[measure] + MIN_DELAY_HOURS) / (others[measure] + MIN_DELAY_HOURS))


def tune(workers: int) -> dict[str, float]:
    """Return the settings of `refold` with the least cost, by random search, with its defaults as the first draw.

    The cost is that of training: the mean logarithm of the mean delay (half), its 99th percentile and the mean delay
    of wide jobs (a quarter each).
    """
    rng = np.random.default_rng(TUNING_SEED)
    draws: list[dict[str, float]] = [{}]
    for _ in range(TUNING_DRAWS - 1):
        draws.append({name: float(exp(rng.uniform(log(low), log(high)))) for name, (low, high) in SEARCHED.items()})
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(tuning_figures, draws))
    costs = [
        fmean(
            weight * log_ratio(figures, default, measure)
            for figures, default in zip(one, found[0], strict=True)
            for measure, weight in zip(COMPARED, (0.5, 0.25, 0.25), strict=True)
        )
        for one in found
    ]
    for draw, cost in zip(draws, costs, strict=True):
        print(f"{cost:+.3f}  {draw}", file=sys.stderr)
    return draws[int(np.argmin(costs))]


def run_all(tuned: Mapping[str, float], only: Sequence[str], workers: int) -> Iterator[tuple[str, str, Figures]]:
    """Yield the slice, policy and figures of each run."""
    runs = [(name, label) for name in SLICES for label in POLICIES if not only or label in only]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run_slice, name, label, tuned): (name, label) for name, label in runs}
        for done, future in enumerate(as_completed(futures), start=1):
            name, label = futures[future]
            figures = future.result()
            print(f"{done}/{len(runs)}  {name}  {label}: {figures['delay']:.3f} h", file=sys.stderr, flush=True)
            yield name, label, figures


def ratio_text(results: Results, label: str, seen: bool, measure: str) -> str:
    """Return the geometric mean of a policy's delay relative to tuned `refold`, with its range over slices."""
    logs = [
        log_ratio(by_policy[label], by_policy[TUNED], measure)
        for name, by_policy in results.items()
        if SLICES[name].seen == seen and measure in by_policy[label]
    ]
    return f"{exp(fmean(logs)):.2f} ({exp(min(logs)):.2f} – {exp(max(logs)):.2f})"


def wins(results: Results, seen: bool) -> str:
    """Return on how many slices `learned` has a shorter mean delay than tuned `refold`."""
    chosen = [by_policy for name, by_policy in results.items() if SLICES[name].seen == seen]
    won = sum(by_policy[LEARNED]["delay"] < by_policy[TUNED]["delay"] for by_policy in chosen)
    return f"{won} of {len(chosen)}"


def page(numbers: Mapping[str, Any]) -> str:
    """Return the page."""
    results: Results = numbers["figures"]
    rows = [
        [label, *(ratio_text(results, label, seen, measure) for seen in (True, False) for measure in COMPARED)]
        for label in POLICIES
    ]
    titles = [f"{MEASURES[measure].removesuffix(', h')}, {part}" for part in ("later", "other") for measure in COMPARED]
    tables = [
        f"### {title[0].upper()}{title[1:]}\n\n"
        + markdown(
            ["policy", *results],
            [
                [label, *(f"{by[label][measure]:.2f}" if measure in by[label] else "" for by in results.values())]
                for label in POLICIES
            ],
        )
        for measure, title in MEASURES.items()
    ]
    settings = ", ".join(f"`{name}={value:.3g}`" for name, value in numbers["tuned"].items()) or "its defaults"
    return PAGE_TEXT.format(
        command=TRAINING_COMMAND,
        slice_jobs=f"{SLICE_JOBS:,}",
        training_jobs=f"{TRAINING_JOBS:,}",
        settings=settings,
        draws=TUNING_DRAWS,
        later=wins(results, True),
        other=wins(results, False),
        summary=markdown(["policy", *titles], rows),
        tables="\n\n".join(tables),
    )


PAGE_TEXT = """# A learned policy

[`learned`](../policies/learned.md) orders, preempts and reserves by a score that was trained in simulations. This page
compares it with simple policies and with `refold`, as it is and tuned, on jobs that training has not seen. Generated by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.learned --tune --write
```

- Trained on random slices of the first {training_jobs} jobs of Philly and Helios:

  <!-- not run: reads the published traces, which are not part of this repository -->
  ```sh
  {command}
  ```
- `refold, tuned`: of {draws} random settings of `refold`, those with the least cost on four of the slices on which
  `learned` was trained:
  {settings}.
- *Later*: Philly and Helios from later jobs on. *Other*: traces of which training has seen nothing: PAI, openb, and
  generated workloads. Each slice has {slice_jobs} rigid jobs that may be stopped; restarts take 78 s. Only the policy
  with \\* knows run times. The number in a slice's name is its first job, or the random seed.

## Result

`learned` has a shorter mean delay than tuned `refold` on {later} later slices, and on {other} slices of other traces.
Delays relative to tuned `refold`: geometric means over slices, with the smallest and the largest (below 1: shorter).

{summary}

## All slices

{tables}
"""


def main() -> None:
    """Run all policies on all slices, and print or write the page."""
    parser = page_parser("benchmarks.learned", __doc__, "the page and its numbers to docs/results")
    parser.add_argument("--tune", action="store_true", help="tune refold again (default: settings of the last page)")
    parser.add_argument("--only", nargs="*", default=[], help="run these policies; figures of others: of the last page")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    options = parser.parse_args()
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {"tuned": {}, "figures": {}}
    tuned = tune(options.workers) if options.tune else numbers["tuned"]
    results: Results = {name: dict(numbers["figures"].get(name, {})) for name in SLICES}
    for name, label, figures in run_all(tuned, options.only, options.workers):
        results[name][label] = {measure: float(f"{value:.6g}") for measure, value in figures.items()}
        if options.write:
            write_numbers(NUMBERS, tuned, results)
    publish(options, PAGE, page({"tuned": tuned, "figures": results}))


def write_numbers(file: Path, tuned: Mapping[str, float], results: Results) -> None:
    """Write the settings and figures, one slice per line."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(by_policy)}" for name, by_policy in results.items())
    file.write_text(f'{{"tuned": {json.dumps(tuned)},\n"figures": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
