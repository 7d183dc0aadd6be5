"""Over a day: `python -m benchmarks.placement.figures [--quick] [--seeds N] [--write] [--json F]`.

The paper's figures 3 and 4 on PAI at full load and on openb: GPU utilisation against tasks scheduled, and how long
tasks take; then as the load and the share of tasks that share a GPU change. Waiting tasks are placed in the order of
their arrival, and one that has no place is passed over (fifo-skip).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from benchmarks.measure import REPOSITORY
from benchmarks.placement import world
from benchmarks.placement.kept import answers
from benchmarks.placement.pictures import BandsPicture, Series
from benchmarks.placement.spread import Spread, spread
from benchmarks.table import markdown
from refold.core import Entry, RunFinished, StartRun
from refold.model import DAY, HOUR, Cluster, Job
from refold.packing import RULES, Floats
from refold.registry import make_policy
from refold.simulator import replay_compiled, simulate, tasks_of

FOLDER = REPOSITORY / "docs" / "results"
PAGE = FOLDER / "placement_day.md"
SHOWN = ("first-fit", "round-robin", "tetris", "best-fit", "fgd", *world.OURS)
PAPER = {"round-robin": 12.8, "first-fit": 6.5, "tetris": 6.6}
"""By how many percent the paper's genetic search is above each of them."""

SEEDS = 10
PARTS = 24
"""Into so many parts of equally many tasks figure 3 is cut."""

FIRST_DAY, DAYS = 44, 2
"""The day that is looked at is the second of these; the first fills the cluster."""

LOADS = (0.75, 1.0, 1.25)
SHARINGS = (0.0, 0.5, 1.0)
TOO_SLOW = {("pai", "genetic-paper")}
"""What would take more than a quarter of an hour for ten seeds."""
SWEEP_SEEDS = 2
TITLES = {"pai": "PAI at full load", "openb": "openb at full load"}


class Run(msgspec.Struct, frozen=True):
    """One day under one rule."""

    trace: str
    rule: str
    seed: int
    load: float = 1.0
    sharing: float | None = None


class Day(msgspec.Struct, frozen=True):
    """What came out.

    `by_tasks`: GPU utilisation while each part of the day's tasks was scheduled. `over_day`: its mean over the day.
    Hours: `running` from start to end, `completion` from arrival to end, `waiting` from arrival to start.
    """

    tasks: int
    unplaced: int
    offered: float
    by_tasks: list[float]
    over_day: float
    running: float
    completion: float
    waiting: float


# --- simulating ---------------------------------------------------------------------------------------------


def jobs_and_cluster(run: Run) -> tuple[tuple[Job, ...], Cluster, float]:
    """Who comes, where to, and when the day begins that is looked at."""
    begin = (DAYS - 1) * DAY
    if run.trace == "openb":
        return world.openb_days(DAYS, run.seed, run.load), world.openb_nodes(), begin
    return world.pai(FIRST_DAY, DAYS, run.seed, run.load, run.sharing), world.pai_nodes(), begin


def day_of(run: Run) -> Day:
    """Simulate, and measure."""
    jobs, cluster, begin = jobs_and_cluster(run)
    started, ended = times(jobs, cluster, run.rule, run.seed)
    return measured(jobs, cluster.gpus, begin, started, ended)


def times(jobs: Sequence[Job], cluster: Cluster, rule: str, seed: int) -> tuple[Floats, Floats]:
    """When each task started and ended (never: NaN). The compiled replay knows the greedy rules, and they agree."""
    if rule not in world.GENETIC:
        replayed = replay_compiled(tasks_of(jobs), cluster, rule, "fifo-skip", seed)
        return replayed.started, replayed.ended
    journal = _Times()
    simulate(jobs, cluster, make_policy("fifo-skip", {"placement": rule, "seed": seed}), journal=journal)
    return tuple(  # type: ignore[return-value]
        np.array([found.get(job.id, np.nan) for job in jobs]) for found in (journal.started, journal.ended)
    )


class _Times:
    """A journal that keeps starts and ends alone."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def write(self, entry: Entry) -> None:
        """Look at one step."""
        for event in entry.events:
            if isinstance(event, RunFinished):
                self.ended[event.job] = entry.now
        for order in entry.orders:
            if isinstance(order, StartRun):
                self.started[order.job] = entry.now


def measured(jobs: Sequence[Job], gpus: int, begin: float, started: Floats, ended: Floats) -> Day:
    """The figures of the day that begins at `begin`."""
    submitted = np.array([job.submitted for job in jobs])
    asked = np.array([job.demand.total_gpus for job in jobs])
    work = np.array([job.work or 0.0 for job in jobs])
    placed = ~np.isnan(started)
    of_day = (submitted >= begin) & placed
    overlap = np.minimum(ended[placed], begin + DAY) - np.maximum(started[placed], begin)
    offered = asked * work
    return Day(
        tasks=int((submitted >= begin).sum()),
        unplaced=int((~placed).sum()),
        offered=float(offered[submitted >= begin].sum() / (gpus * DAY)),
        by_tasks=by_tasks(started[placed], ended[placed], asked[placed], gpus, begin, int(of_day.sum())),
        over_day=float((np.maximum(overlap, 0.0) * asked[placed]).sum() / (gpus * DAY)),
        running=float(np.mean((ended - started)[of_day]) / HOUR),
        completion=float(np.mean((ended - submitted)[of_day]) / HOUR),
        waiting=float(np.mean((started - submitted)[of_day]) / HOUR),
    )


def by_tasks(started: Floats, ended: Floats, asked: Floats, gpus: int, begin: float, count: int) -> list[float]:
    """GPU utilisation at each start from `begin` on, in parts of equally many starts; the mean of each part."""
    moments = np.sort(started[started >= begin])[:count]
    at_start, at_end = np.argsort(started, kind="stable"), np.argsort(ended, kind="stable")
    taken = np.concatenate([[0.0], np.cumsum(asked[at_start])])
    given = np.concatenate([[0.0], np.cumsum(asked[at_end])])
    in_use = (
        taken[np.searchsorted(started[at_start], moments, side="right")]
        - given[np.searchsorted(ended[at_end], moments, side="right")]
    )
    return [float(part.mean()) / gpus for part in np.array_split(in_use, min(PARTS, len(in_use)))]


# --- telling ------------------------------------------------------------------------------------------------

Found = Mapping[str, Sequence[Day]]
"""The days of every rule, seed by seed."""


def found_for(trace: str, seeds: int, load: float = 1.0, sharing: float | None = None) -> dict[str, list[Day]]:
    """Simulate what is missing."""
    shown = [rule for rule in SHOWN if rule in RULES and (trace, rule) not in TOO_SLOW]
    runs = {rule: [Run(trace, rule, seed, load, sharing) for seed in range(seeds)] for rule in shown}
    sources = ("src/refold/simulator/*.py", "src/refold/policies/queue.py", "src/refold/policies/lines.py")
    answered = answers(day_of, [run for of in runs.values() for run in of], Day, sources)
    return {rule: [answered[run] for run in of] for rule, of in runs.items()}


def table(found: Found) -> str:
    """Utilisation over the day and by tasks, and hours, a row for each rule."""
    rows = [
        [
            rule,
            spread([day.over_day for day in days]).text(),
            spread([fmean(day.by_tasks) for day in days]).text(),
            spread([day.running for day in days]).text(3, 1.0),
            spread([day.waiting for day in days]).text(3, 1.0),
            spread([day.completion for day in days]).text(3, 1.0),
        ]
        for rule, days in found.items()
    ]
    titles = ["rule", "GPU over the day, %", "GPU by tasks, %", "start to end, h", "waiting, h", "arrival to end, h"]
    return markdown(titles, rows)


def gains(found: Found, rule: str) -> str:
    """By how many percent one rule is above the paper's three, seed by seed, and what the paper says."""
    rows = []
    for other, claimed in PAPER.items():
        above = _above(found[rule], found[other])
        rows.append([other, *(one.text(2, 1.0) for one in above), f"{claimed:g}"])
    return markdown([f"{rule} above", "over the day, %", "by tasks, %", "the paper, %"], rows)


def _above(days: Sequence[Day], others: Sequence[Day]) -> tuple[Spread, Spread]:
    over_day = [100 * (day.over_day / other.over_day - 1) for day, other in zip(days, others, strict=True)]
    tasks = [100 * (fmean(day.by_tasks) / fmean(other.by_tasks) - 1) for day, other in zip(days, others, strict=True)]
    return spread(over_day), spread(tasks)


def picture(trace: str, found: Found) -> BandsPicture:
    """Figure 3: utilisation against tasks scheduled."""
    count = fmean(day.tasks for days in found.values() for day in days)
    places = [(part + 0.5) * count / PARTS for part in range(PARTS)]
    texts = [f"{place:,.0f}" if part % 4 == 1 else "" for part, place in enumerate(places)]
    series = []
    for rule, days in found.items():
        spreads = [spread([100 * day.by_tasks[part] for day in days]) for part in range(PARTS)]
        series.append(Series(rule, [one.mean for one in spreads], [one.half for one in spreads]))
    about = f"{TITLES[trace]}: GPU allocated while tasks are scheduled; bands are 95 % confidence intervals"
    return BandsPicture("GPU utilisation against tasks scheduled", about, "tasks", "%", places, texts, series)


def sweep_table(name: str, by_value: Mapping[float, Found]) -> str:
    """GPU over the day as one thing changes."""
    rules = list(next(iter(by_value.values())))
    rows = [
        [rule, *(spread([day.over_day for day in found[rule]]).text() for found in by_value.values())] for rule in rules
    ]
    offered = [fmean(day.offered for days in found.values() for day in days) for found in by_value.values()]
    rows.append(["offered", *(f"{100 * value:.0f}" for value in offered)])
    return markdown([name, *(f"{value:g}" for value in by_value)], rows)


HEADING = """# Placement over a day

The paper's figures 3 and 4, on every fourth node of two clusters that have GPUs, with a fourth of the tasks. *PAI*: the
tasks of two days of the published sample (days {first} and {last}), enlarged to full load; a task of n GPUs is a gang
of n instances of one GPU, and what an instance needs is that of a random openb pod of one GPU. *openb*: random pods at
random times, each lasting four times as long as in the trace and at most a day, as many as ask for all GPU. The first
day fills the cluster, the second is looked at. Tasks are placed in the order of arrival, and passed over while they
have no place. `genetic-paper` is not shown on PAI: it takes minutes for a day, since the gangs there are many pairs of
machine and instance.

*GPU over the day*: the part of all GPU that was allocated, in the mean over the day's time. *By tasks*: in the mean
over the moments at which tasks were scheduled, as in the paper's figure 3. Mean of {seeds} seeds ± half of the 95 %
confidence interval. The paper does not say how full its cluster was; it claims +12.8 % over round-robin, +6.5 % over
first-fit, +6.6 % over Tetris, and times from start to end that are about equal.

Made by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.figures --write
```
"""


def report(quick: bool, seeds: int) -> tuple[str, dict[str, Any], dict[str, BandsPicture]]:
    """The page, its numbers, its pictures."""
    parts = [HEADING.format(first=FIRST_DAY, last=FIRST_DAY + 1, seeds=seeds)]
    plain: dict[str, Any] = {}
    drawn = {}
    for trace, title in TITLES.items():
        found = found_for(trace, seeds)
        drawn[f"placement_{trace}.svg"] = picture(trace, found)
        parts += [
            f"## {title}\n",
            f"![GPU utilisation against tasks scheduled](placement_{trace}.svg)\n",
            table(found),
            "",
        ]
        for rule in (rule for rule in world.GENETIC if rule in found):
            parts += [gains(found, rule), ""]
        plain[trace] = msgspec.to_builtins(found)
    if not quick:
        few = min(seeds, SWEEP_SEEDS)
        loads = {load: found_for("pai", few, load) for load in LOADS}
        sharings = {part: found_for("pai", few, 1.0, part) for part in SHARINGS}
        parts += [
            f"## PAI as the load changes: GPU over the day, {few} seeds\n",
            sweep_table("times the full load", loads),
        ]
        title = f"## PAI as the part of tasks that share a GPU changes: GPU over the day, {few} seeds\n"
        parts += ["", title, sweep_table("part of tasks that share", sharings), ""]
    return "\n".join(parts), plain, drawn


def main() -> None:
    """Print the page; keep it and its pictures with --write."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.placement.figures", description=__doc__)
    words.add_argument("--write", action="store_true", help="keep the page and the pictures in docs/results")
    words.add_argument("--quick", action="store_true", help="two seeds, no sweeps")
    words.add_argument("--seeds", type=int, default=SEEDS)
    words.add_argument("--json", type=Path, help="keep the numbers here")
    asked = words.parse_args()
    if world.why_not():
        print(world.why_not())
        return
    text, plain, drawn = report(asked.quick, 2 if asked.quick else asked.seeds)
    print(text)
    if asked.json:
        asked.json.write_text(json.dumps(plain), encoding="utf-8")
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")
        for name, one in drawn.items():
            (FOLDER / name).write_text(one.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
