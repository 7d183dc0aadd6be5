"""Our `genetic-paper` compared with PyGAD: `python -m benchmarks.placement.window [--quick] [--write] [--json F]`.

Instances and genetic operators are the same, so the results should be equal within noise. Three experiments at 70, 85,
95 and 99 % full: one task on 1,000 machines, ten tasks on 100 machines, and the first decision for 100 tasks on 1,000
machines. Results are shares of what the exact pairwise greedy placement achieves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
from scipy.stats import mannwhitneyu

from benchmarks.peers import pairwise, pygad_placement
from benchmarks.peers.pygad_placement import GENERATIONS, MISFIT, PairSearch, WindowSearch
from benchmarks.placement import workloads
from benchmarks.placement.confidence import interval, paired
from benchmarks.placement.instances import Instance, draw_instance
from benchmarks.placement.result_cache import cached_results
from benchmarks.result_page import measurement_parser, publish
from benchmarks.table import markdown
from refold.model import Demand, Placement
from refold.placement import RULES, Placer, Random, best_pair

PAGE = Path(__file__).with_name("window.md")
LEVELS = (0.70, 0.85, 0.95, 0.99)
OURS = "genetic-paper"
WINDOW_SIZES = (2, 5, 10, 20)
SOURCES = (
    "benchmarks/placement/instances.py",
    "benchmarks/peers/pygad_placement.py",
    "benchmarks/peers/pairwise.py",
)


class Experiment(msgspec.Struct, frozen=True):
    """Numbers of machines, tasks and instances. `first_only`: only the first decision is compared."""

    machines: int
    tasks: int
    instances: int
    first_only: bool = False

    @property
    def title(self) -> str:
        """Heading of the section."""
        prefix = "first decision for " if self.first_only else ""
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        return f"{prefix}{tasks} on {self.machines:,} machines"


EXPERIMENTS = (Experiment(1000, 1, 60), Experiment(100, 10, 20), Experiment(1000, 100, 60, first_only=True))


class Case(msgspec.Struct, frozen=True):
    """One instance of an experiment."""

    experiment: Experiment
    level: float
    seed: int


class Comparison(msgspec.Struct, frozen=True):
    """Share of the pairwise greedy result by algorithm; None if no task fits."""

    shares: dict[str, float | None]


def compare_algorithms(case: Case) -> Comparison:
    """Run both algorithms on one instance."""
    experiment = case.experiment
    instance = draw_instance(experiment.machines, experiment.tasks, case.level, case.seed)
    if experiment.first_only:
        return Comparison(_first_decision(instance, case.seed))
    best = _placed(instance.demands, pairwise.place_all(instance.free.copy(), instance.demands))
    if best == 0:
        return Comparison({"PyGAD": None, OURS: None})
    found = {"PyGAD": pygad_placement.place_all(instance.free.copy(), instance.demands, case.seed)}
    if OURS in RULES:
        found[OURS] = Placer(OURS, case.seed).place_all(instance.free.copy(), list(instance.demands))
    return Comparison({name: _placed(instance.demands, placements) / best for name, placements in found.items()})


class WindowCase(msgspec.Struct, frozen=True):
    """One instance for the other interpretation of the paper: one gene per task."""

    tasks: int
    level: float
    seed: int


class Feasible(msgspec.Struct, frozen=True):
    """Whether a search found an individual in which all tasks fit."""

    found: bool


def search_window(case: WindowCase) -> Feasible:
    """Run PyGAD with one gene per task on 100 machines."""
    instance = draw_instance(100, case.tasks, case.level, case.seed)
    return Feasible(WindowSearch().search(instance.free, instance.demands, case.seed) != MISFIT)


def window_section(count: int) -> tuple[str, dict[str, Any]]:
    """Measure how often a search with one gene per task finds a feasible individual."""
    cases = {
        (tasks, level): [WindowCase(tasks, level, seed) for seed in range(count)]
        for tasks in WINDOW_SIZES
        for level in LEVELS
    }
    results = cached_results(search_window, [case for of in cases.values() for case in of], Feasible, SOURCES)
    shares = {key: fmean(results[case].found for case in of) for key, of in cases.items()}
    rows = [[f"{tasks}", *(f"{shares[tasks, level]:.0%}" for level in LEVELS)] for tasks in WINDOW_SIZES]
    table = markdown(["tasks", *(f"{level:.0%} full" for level in LEVELS)], rows)
    return WINDOW_HEADING.format(count=count, table=table), {f"{key}": share for key, share in shares.items()}


def _placed(demands: Sequence[Demand], placements: Sequence[Placement | None]) -> int:
    return sum(
        demand.total_gpu_milli for demand, placement in zip(demands, placements, strict=True) if placement is not None
    )


def _first_decision(instance: Instance, seed: int) -> dict[str, float | None]:
    """Return the fitness of the first pair found by each algorithm, relative to the best pair; 0 if it does not fit."""
    gain = pygad_placement.gains(instance.free, instance.demands)
    best = float(gain.max())
    if best <= 0.0:
        return {"PyGAD": None, OURS: None}
    vectors = np.concatenate([instance.free.vector(demand) for demand in instance.demands])
    tasks = np.arange(len(vectors))
    ours, _, _ = best_pair(instance.free.arrays, vectors, tasks, GENERATIONS, Random(seed))
    pygad = PairSearch().search(gain, seed).fitness
    return {"PyGAD": max(0.0, pygad) / best, OURS: max(0.0, ours) / best}


def section(experiment: Experiment, found: dict[float, list[Comparison]]) -> str:
    """Format the results of one experiment by level, with a test for equal distributions."""
    rows = []
    for level, results in found.items():
        values = {name: [one.shares.get(name) for one in results] for name in ("PyGAD", OURS)}
        rows.append([f"{level:.0%}", *_cells(values["PyGAD"], values[OURS])])
    titles = ["full", "instances", "PyGAD", OURS, "difference", "Mann–Whitney p"]
    return f"## {experiment.title.capitalize()}\n\n{markdown(titles, rows)}\n"


def _cells(pygad: Sequence[float | None], ours: Sequence[float | None]) -> list[str]:
    measured = [value for value in pygad if value is not None]
    if not measured:
        return ["0", "", "", "", ""]
    pairs = [(one, other) for one, other in zip(pygad, ours, strict=True) if one is not None and other is not None]
    if not pairs:
        return [str(len(measured)), interval(measured).text(1), "", "", ""]
    first, second = (list(values) for values in zip(*pairs, strict=True))
    p_value = float(mannwhitneyu(first, second).pvalue) if np.ptp([*first, *second]) else 1.0
    difference = paired(second, first).text(1)
    return [str(len(measured)), interval(first).text(1), interval(second).text(1), difference, f"{p_value:.2f}"]


HEADING = """# The paper's genetic search: ours and PyGAD

Both search for the fittest pair of a task and a machine: population 100, tournaments of 20, one-point crossover,
adaptive mutation (0.25 below the mean, 0.1 above it), 40 children per generation, 50 generations per decision. Fitness
is the gain in GPU utilisation of the machine, −1 if the task does not fit. Pairs are placed one after the other until a
search finds none. Machines are drawn from the openb nodes with GPUs, filled and then emptied to a level; tasks are GPU
pods.

Results are in percent of the exact pairwise greedy placement, which repeatedly places the best of all pairs: mean ±
half of the 95 % confidence interval; the mean of paired differences; and the p-value of a two-sided Mann–Whitney test
of equal distributions. PyGAD {version}.

Generated by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.window --write
```
"""


WINDOW_HEADING = """## One gene per task

The other interpretation of the paper: an individual assigns a machine to every task of the window, and its fitness is
−1 if any task does not fit. Share of {count} PyGAD searches that found a feasible individual, on 100 machines:

{table}
"""


def report(quick: bool) -> tuple[str, dict[str, Any]]:
    """Return the page and its numbers."""
    import pygad

    parts, plain = [HEADING.format(version=pygad.__version__)], {}
    for experiment in EXPERIMENTS:
        count = 5 if quick else experiment.instances
        cases = {level: [Case(experiment, level, seed) for seed in range(count)] for level in LEVELS}
        sources = [
            f"benchmarks/{name}.py" for name in ("placement/instances", "peers/pygad_placement", "peers/pairwise")
        ]
        results = cached_results(
            compare_algorithms, [case for of in cases.values() for case in of], Comparison, sources
        )
        found = {level: [results[case] for case in of] for level, of in cases.items()}
        parts.append(section(experiment, found))
        plain[experiment.title] = {str(level): msgspec.to_builtins(of) for level, of in found.items()}
    text, plain["one gene per task"] = window_section(3 if quick else 20)
    return "\n".join([*parts, text]), plain


def main() -> None:
    """Print the page; write it with --write."""
    options = measurement_parser("benchmarks.placement.window", __doc__, "use five instances each").parse_args()
    if message := workloads.missing_data():
        print(message)
        return
    text, plain = report(options.quick)
    publish(options, PAGE, text, plain)


if __name__ == "__main__":
    main()
