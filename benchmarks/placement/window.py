"""Our `genetic-paper` beside PyGAD's: `python -m benchmarks.placement.window [--quick] [--write] [--json F]`.

The same instances, the same operators; what both reach should be the same within noise. Three contests at 70, 85, 95
and 99 % full: one task for 1,000 machines, ten tasks for 100 machines, and the first decision for 100 tasks and 1,000
machines. Each is measured by the part of what the exact pairwise greedy places.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
from scipy.stats import mannwhitneyu

from benchmarks.measure import REPOSITORY
from benchmarks.peers import pairwise, pygad_placement
from benchmarks.peers.pygad_placement import GENERATIONS, MISFIT, Pairs, Whole
from benchmarks.placement import world
from benchmarks.placement.instances import Instance, drawn
from benchmarks.placement.kept import answers
from benchmarks.placement.spread import paired, spread
from benchmarks.table import markdown
from refold.model import Demand, Placement
from refold.packing import RULES, Placer, best_pair

PAGE = REPOSITORY / "docs" / "results" / "placement_window.md"
LEVELS = (0.70, 0.85, 0.95, 0.99)
OURS = "genetic-paper"
WHOLE_TASKS = (2, 5, 10, 20)
SOURCES = (
    "benchmarks/placement/instances.py",
    "benchmarks/peers/pygad_placement.py",
    "benchmarks/peers/pairwise.py",
)


class Contest(msgspec.Struct, frozen=True):
    """How many machines and tasks, and how many instances of them."""

    machines: int
    tasks: int
    instances: int
    first_only: bool = False

    @property
    def title(self) -> str:
        """For people."""
        what = "the first decision for " if self.first_only else ""
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        return f"{what}{tasks} on {self.machines:,} machines"


CONTESTS = (Contest(1000, 1, 60), Contest(100, 10, 20), Contest(1000, 100, 60, first_only=True))


class Case(msgspec.Struct, frozen=True):
    """One instance of a contest."""

    contest: Contest
    level: float
    seed: int


class Reached(msgspec.Struct, frozen=True):
    """The part of the optimum, by who was asked; None where there is nothing to reach."""

    parts: dict[str, float | None]


def reached(case: Case) -> Reached:
    """Everybody on one instance."""
    contest = case.contest
    instance = drawn(contest.machines, contest.tasks, case.level, case.seed)
    if contest.first_only:
        return Reached(_first_decision(instance, case.seed))
    best = _placed(instance.demands, pairwise.place_all(instance.free.copy(), instance.demands))
    if best == 0:
        return Reached({"PyGAD": None, OURS: None})
    found = {"PyGAD": pygad_placement.place_all(instance.free.copy(), instance.demands, case.seed)}
    if OURS in RULES:
        found[OURS] = Placer(OURS, case.seed).place_all(instance.free.copy(), list(instance.demands))
    return Reached({who: _placed(instance.demands, placements) / best for who, placements in found.items()})


class WholeCase(msgspec.Struct, frozen=True):
    """One instance for the other reading of the paper: a gene for each task."""

    tasks: int
    level: float
    seed: int


class Feasible(msgspec.Struct, frozen=True):
    """Whether any individual of a search had a place for every task."""

    found: bool


def whole(case: WholeCase) -> Feasible:
    """PyGAD with one gene for each task, on 100 machines."""
    instance = drawn(100, case.tasks, case.level, case.seed)
    return Feasible(Whole().search(instance.free, instance.demands, case.seed) != MISFIT)


def whole_section(count: int) -> tuple[str, dict[str, Any]]:
    """How often a search with one gene for each task finds places for all of them."""
    cases = {
        (tasks, level): [WholeCase(tasks, level, seed) for seed in range(count)]
        for tasks in WHOLE_TASKS
        for level in LEVELS
    }
    answered = answers(whole, [case for of in cases.values() for case in of], Feasible, SOURCES)
    parts = {key: fmean(answered[case].found for case in of) for key, of in cases.items()}
    rows = [[f"{tasks}", *(f"{parts[tasks, level]:.0%}" for level in LEVELS)] for tasks in WHOLE_TASKS]
    table = markdown(["tasks", *(f"{level:.0%} full" for level in LEVELS)], rows)
    return WHOLE_HEADING.format(count=count, table=table), {f"{key}": part for key, part in parts.items()}


def _placed(demands: Sequence[Demand], placements: Sequence[Placement | None]) -> int:
    return sum(
        demand.total_gpu_milli for demand, placement in zip(demands, placements, strict=True) if placement is not None
    )


def _first_decision(instance: Instance, seed: int) -> dict[str, float | None]:
    """The fitness of the first pair that each finds, as a part of the best pair's; 0 for a misfit."""
    gain = pygad_placement.gains(instance.free, instance.demands)
    best = float(gain.max())
    if best <= 0.0:
        return {"PyGAD": None, OURS: None}
    vectors = np.concatenate([instance.free.vector(demand) for demand in instance.demands])
    tasks, memory = np.arange(len(vectors)), np.array([seed], dtype=np.int64)
    ours, _, _ = best_pair(instance.free.nodes, instance.free.gpus, vectors, tasks, GENERATIONS, memory)
    theirs = Pairs().search(gain, seed).fitness
    return {"PyGAD": max(0.0, theirs) / best, OURS: max(0.0, ours) / best}


def section(contest: Contest, found: dict[float, list[Reached]]) -> str:
    """One contest: the part reached at each level, and whether both are the same."""
    rows = []
    for level, answered in found.items():
        values = {who: [one.parts.get(who) for one in answered] for who in ("PyGAD", OURS)}
        rows.append([f"{level:.0%}", *_cells(values["PyGAD"], values[OURS])])
    titles = ["full", "instances", "PyGAD", OURS, "difference", "Mann–Whitney p"]
    return f"## {contest.title.capitalize()}\n\n{markdown(titles, rows)}\n"


def _cells(theirs: Sequence[float | None], ours: Sequence[float | None]) -> list[str]:
    some = [value for value in theirs if value is not None]
    if not some:
        return ["0", "", "", "", ""]
    pairs = [(one, other) for one, other in zip(theirs, ours, strict=True) if one is not None and other is not None]
    if not pairs:
        return [str(len(some)), spread(some).text(1), "", "", ""]
    first, second = (list(values) for values in zip(*pairs, strict=True))
    same = float(mannwhitneyu(first, second).pvalue) if np.ptp([*first, *second]) else 1.0
    difference = paired(second, first).text(1)
    return [str(len(some)), spread(first).text(1), spread(second).text(1), difference, f"{same:.2f}"]


HEADING = """# The paper's search, ours and PyGAD's

Both look for the fittest pair of a task and a machine: population 100, tournaments of 20, one-point crossover,
adaptive mutation (0.25 below the mean, 0.1 above it), 40 children a generation, 50 generations a decision; fitness is
the gain in GPU utilisation of the machine, −1 for a misfit. Pairs are placed one after the other until a search finds
none. Machines are drawn from openb's nodes with GPUs, filled and then emptied to a level; tasks are GPU pods.

Percent of what the exact pairwise greedy (of all pairs the best, again and again) places or gains: mean ± half of its
95 % confidence interval; the difference instance by instance; and the p-value of a two-sided Mann–Whitney test that
both come from the same distribution. PyGAD {version}.

Made by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.window --write
```
"""


WHOLE_HEADING = """## One gene for each task

The other reading of the paper: an individual has a machine for every task of the window, and is worth −1 if any of them
does not fit. The part of {count} searches of PyGAD that found any individual that fits, on 100 machines:

{table}
"""


def report(quick: bool) -> tuple[str, dict[str, Any]]:
    """The page, and its numbers."""
    import pygad

    parts, plain = [HEADING.format(version=pygad.__version__)], {}
    for contest in CONTESTS:
        count = 5 if quick else contest.instances
        cases = {level: [Case(contest, level, seed) for seed in range(count)] for level in LEVELS}
        sources = [
            f"benchmarks/{name}.py" for name in ("placement/instances", "peers/pygad_placement", "peers/pairwise")
        ]
        answered = answers(reached, [case for of in cases.values() for case in of], Reached, sources)
        found = {level: [answered[case] for case in of] for level, of in cases.items()}
        parts.append(section(contest, found))
        plain[contest.title] = {str(level): msgspec.to_builtins(of) for level, of in found.items()}
    text, plain["one gene for each task"] = whole_section(3 if quick else 20)
    return "\n".join([*parts, text]), plain


def main() -> None:
    """Print the page; keep it with --write."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.placement.window", description=__doc__)
    words.add_argument("--write", action="store_true", help="keep the page in docs/results")
    words.add_argument("--quick", action="store_true", help="five instances each")
    words.add_argument("--json", type=Path, help="keep the numbers here")
    asked = words.parse_args()
    if world.why_not():
        print(world.why_not())
        return
    text, plain = report(asked.quick)
    print(text)
    if asked.json:
        asked.json.write_text(json.dumps(plain), encoding="utf-8")
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
