"""Placement over a day: `python -m benchmarks.placement.figures [--quick] [--seeds N] [--write] [--json F]`.

The paper's figures 3 and 4 on PAI at full load and on openb: GPU utilisation by number of scheduled tasks, and task
times; then for varying load and varying share of tasks that share a GPU. Waiting tasks are placed in order of arrival;
tasks that do not fit are skipped (fifo-skip).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from benchmarks.charts import LineChart, Series
from benchmarks.placement import workloads
from benchmarks.placement.confidence import Interval, interval
from benchmarks.placement.result_cache import cached_results
from benchmarks.result_page import measurement_parser, publish
from benchmarks.table import markdown
from refold.core import Entry, RunFinished, StartRun
from refold.model import DAY, HOUR, Cluster, Job
from refold.placement import RULES, Floats
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.replays import replay_fifo, task_columns

PAGE = Path(__file__).with_name("day.md")
COMPARED = ("first-fit", "round-robin", "tetris", "best-fit", "fgd", *workloads.OURS)
PAPER = {"round-robin": 12.8, "first-fit": 6.5, "tetris": 6.6}
"""Gain of the paper's genetic search over each rule, in percent."""

SEEDS = 10
PARTS = 24
"""Number of points in figure 3, each the mean over equally many tasks."""

FIRST_DAY, DAYS = 44, 2
"""The first day fills the cluster; the second is measured."""

LOADS = (0.75, 1.0, 1.25)
SHARINGS = (0.0, 0.5, 1.0)
TOO_SLOW = {("pai", "genetic-paper")}
"""Combinations of trace and rule that take more than a quarter of an hour for ten seeds."""

SWEEP_SEEDS = 2
TITLES = {"pai": "PAI at full load", "openb": "openb at full load"}


class Run(msgspec.Struct, frozen=True):
    """One simulation with one placement rule."""

    trace: str
    rule: str
    seed: int
    load: float = 1.0
    sharing: float | None = None


class Day(msgspec.Struct, frozen=True):
    """Results of the measured day.

    `by_tasks`: mean GPU utilisation while each part of the day's tasks was scheduled; `over_day`: its mean over time.
    In hours: `running` from start to end, `completion` from submission to end, `waiting` from submission to start.
    """

    tasks: int
    unplaced: int
    offered: float
    by_tasks: list[float]
    over_day: float
    running: float
    completion: float
    waiting: float


# --- simulation ---------------------------------------------------------------------------------------------


def jobs_and_cluster(run: Run) -> tuple[tuple[Job, ...], Cluster, float]:
    """Return the jobs, the cluster, and the time at which the measured day begins."""
    begin = (DAYS - 1) * DAY
    if run.trace == "openb":
        return workloads.openb_days(DAYS, run.seed, run.load), workloads.openb_nodes(), begin
    return workloads.pai(FIRST_DAY, DAYS, run.seed, run.load, run.sharing), workloads.pai_nodes(), begin


def simulate_day(run: Run) -> Day:
    """Simulate a run and measure the day."""
    jobs, cluster, begin = jobs_and_cluster(run)
    started, ended = start_and_end_times(jobs, cluster, run.rule, run.seed)
    return measure_day(jobs, cluster.gpus, begin, started, ended)


def start_and_end_times(jobs: Sequence[Job], cluster: Cluster, rule: str, seed: int) -> tuple[Floats, Floats]:
    """Return the start and end time of each task (NaN: never).

    The compiled replay supports the greedy rules and gives the same times as the general simulator.
    """
    if rule not in workloads.GENETIC:
        replayed = replay_fifo(task_columns(jobs), cluster, rule, "fifo-skip", seed)
        return replayed.started, replayed.ended
    journal = _Times()
    simulate(jobs, cluster, make_policy("fifo-skip", {"placement": rule, "seed": seed}), journal=journal)
    return tuple(  # type: ignore[return-value]
        np.array([found.get(job.id, np.nan) for job in jobs]) for found in (journal.started, journal.ended)
    )


class _Times:
    """A journal that records only starts and ends."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def write(self, entry: Entry) -> None:
        """Record one entry."""
        for event in entry.events:
            if isinstance(event, RunFinished):
                self.ended[event.job] = entry.now
        for order in entry.orders:
            if isinstance(order, StartRun):
                self.started[order.job] = entry.now


def measure_day(jobs: Sequence[Job], gpus: int, begin: float, started: Floats, ended: Floats) -> Day:
    """Measure the day that begins at `begin`."""
    submitted = np.array([job.submitted for job in jobs])
    requested = np.array([job.demand.total_gpus for job in jobs])
    work = np.array([job.work or 0.0 for job in jobs])
    placed = ~np.isnan(started)
    of_day = (submitted >= begin) & placed
    overlap = np.minimum(ended[placed], begin + DAY) - np.maximum(started[placed], begin)
    offered = requested * work
    return Day(
        tasks=int((submitted >= begin).sum()),
        unplaced=int((~placed).sum()),
        offered=float(offered[submitted >= begin].sum() / (gpus * DAY)),
        by_tasks=by_tasks(started[placed], ended[placed], requested[placed], gpus, begin, int(of_day.sum())),
        over_day=float((np.maximum(overlap, 0.0) * requested[placed]).sum() / (gpus * DAY)),
        running=float(np.mean((ended - started)[of_day]) / HOUR),
        completion=float(np.mean((ended - submitted)[of_day]) / HOUR),
        waiting=float(np.mean((started - submitted)[of_day]) / HOUR),
    )


def by_tasks(started: Floats, ended: Floats, requested: Floats, gpus: int, begin: float, count: int) -> list[float]:
    """Return the mean GPU utilisation at the starts from `begin` on, in PARTS parts with equally many starts."""
    starts = np.sort(started[started >= begin])[:count]
    start_order, end_order = np.argsort(started, kind="stable"), np.argsort(ended, kind="stable")
    allocated = np.concatenate([[0.0], np.cumsum(requested[start_order])])
    released = np.concatenate([[0.0], np.cumsum(requested[end_order])])
    in_use = (
        allocated[np.searchsorted(started[start_order], starts, side="right")]
        - released[np.searchsorted(ended[end_order], starts, side="right")]
    )
    return [float(part.mean()) / gpus for part in np.array_split(in_use, min(PARTS, len(in_use)))]


# --- tables and charts --------------------------------------------------------------------------------------

DaysByRule = Mapping[str, Sequence[Day]]
"""The results of each rule, by seed."""


def simulate_rules(trace: str, seeds: int, load: float = 1.0, sharing: float | None = None) -> dict[str, list[Day]]:
    """Simulate all rules and seeds, as far as results are not cached."""
    rules = [rule for rule in COMPARED if rule in RULES and (trace, rule) not in TOO_SLOW]
    runs = {rule: [Run(trace, rule, seed, load, sharing) for seed in range(seeds)] for rule in rules}
    folders = ("simulator", "replays", "policies/queueing", "policies/common")
    sources = tuple(f"src/refold/{folder}/*.py" for folder in folders)
    results = cached_results(simulate_day, [run for of in runs.values() for run in of], Day, sources)
    return {rule: [results[run] for run in of] for rule, of in runs.items()}


def table(found: DaysByRule) -> str:
    """Format utilisation and task times by rule."""
    rows = [
        [
            rule,
            interval([day.over_day for day in days]).text(),
            interval([fmean(day.by_tasks) for day in days]).text(),
            interval([day.running for day in days]).text(3, 1.0),
            interval([day.waiting for day in days]).text(3, 1.0),
            interval([day.completion for day in days]).text(3, 1.0),
        ]
        for rule, days in found.items()
    ]
    titles = ["rule", "GPU over time, %", "GPU by tasks, %", "start to end, h", "waiting, h", "submission to end, h"]
    return markdown(titles, rows)


def gains(found: DaysByRule, rule: str) -> str:
    """Format the gain of a rule over the three rules in the paper, and the published gain."""
    rows = []
    for other, published in PAPER.items():
        gain = _gain(found[rule], found[other])
        rows.append([other, *(one.text(2, 1.0) for one in gain), f"{published:g}"])
    return markdown([f"gain of {rule} over", "over time, %", "by tasks, %", "paper, %"], rows)


def _gain(days: Sequence[Day], others: Sequence[Day]) -> tuple[Interval, Interval]:
    """Return the relative gain in percent, over time and by tasks, as means of paired differences."""
    over_day = [100 * (day.over_day / other.over_day - 1) for day, other in zip(days, others, strict=True)]
    tasks = [100 * (fmean(day.by_tasks) / fmean(other.by_tasks) - 1) for day, other in zip(days, others, strict=True)]
    return interval(over_day), interval(tasks)


def chart(trace: str, found: DaysByRule) -> LineChart:
    """Return figure 3: utilisation by number of scheduled tasks."""
    count = fmean(day.tasks for days in found.values() for day in days)
    x_values = [(part + 0.5) * count / PARTS for part in range(PARTS)]
    x_labels = [f"{value:,.0f}" if part % 4 == 1 else "" for part, value in enumerate(x_values)]
    series = []
    for rule, days in found.items():
        intervals = [interval([100 * day.by_tasks[part] for day in days]) for part in range(PARTS)]
        series.append(Series(rule, [one.mean for one in intervals], [one.half for one in intervals]))
    subtitle = f"{TITLES[trace]}: allocated GPU share as tasks are scheduled; bands are 95 % confidence intervals"
    return LineChart("GPU utilisation by number of scheduled tasks", subtitle, "tasks", "%", x_values, x_labels, series)


def sweep_table(name: str, by_value: Mapping[float, DaysByRule]) -> str:
    """Format the GPU utilisation over time by rule and parameter value."""
    rules = list(next(iter(by_value.values())))
    rows = [
        [rule, *(interval([day.over_day for day in found[rule]]).text() for found in by_value.values())]
        for rule in rules
    ]
    offered = [fmean(day.offered for days in found.values() for day in days) for found in by_value.values()]
    rows.append(["offered load", *(f"{100 * value:.0f}" for value in offered)])
    return markdown([name, *(f"{value:g}" for value in by_value)], rows)


HEADING = """# Placement over a day

The paper's figures 3 and 4, on every fourth node with GPUs of two clusters, with a fourth of the tasks. *PAI*: the
tasks of two days of the published sample (days {first} and {last}), enlarged to full load; a task of n GPUs is a gang
of n instances with one GPU, and the request of an instance is that of a random openb pod with one GPU. *openb*: random
pods at random times that together request the full GPU capacity; each runs four times as long as in the trace, but at
most a day. The first day fills the cluster, the second is measured. Tasks are placed in order of arrival; tasks that do
not fit are skipped. `genetic-paper` is not shown on PAI, where it takes minutes per day because of the many pairs of
machines and gang instances.

*GPU over time*: the mean allocated share of the GPU capacity over the day. *By tasks*: the mean over the times at which
tasks were scheduled, as in the paper's figure 3. Mean of {seeds} seeds ± half of the 95 % confidence interval. The
paper does not state the load of its cluster; it reports +12.8 % over round-robin, +6.5 % over first-fit, +6.6 % over
Tetris, and about equal times from start to end.

Generated by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.placement.figures --write
```
"""


def report(quick: bool, seeds: int) -> tuple[str, dict[str, Any], dict[str, LineChart]]:
    """Return the page, its numbers and its charts."""
    parts = [HEADING.format(first=FIRST_DAY, last=FIRST_DAY + 1, seeds=seeds)]
    plain: dict[str, Any] = {}
    charts = {}
    for trace, title in TITLES.items():
        found = simulate_rules(trace, seeds)
        charts[f"placement_{trace}.svg"] = chart(trace, found)
        parts += [
            f"## {title}\n",
            f"![GPU utilisation by number of scheduled tasks](placement_{trace}.svg)\n",
            table(found),
            "",
        ]
        for rule in (rule for rule in workloads.GENETIC if rule in found):
            parts += [gains(found, rule), ""]
        plain[trace] = msgspec.to_builtins(found)
    if not quick:
        sweep_seeds = min(seeds, SWEEP_SEEDS)
        loads = {load: simulate_rules("pai", sweep_seeds, load) for load in LOADS}
        sharings = {share: simulate_rules("pai", sweep_seeds, 1.0, share) for share in SHARINGS}
        parts += [
            f"## PAI by load: GPU over time in percent, {sweep_seeds} seeds\n",
            sweep_table("load relative to full load", loads),
        ]
        title = f"## PAI by share of tasks that share a GPU: GPU over time in percent, {sweep_seeds} seeds\n"
        parts += ["", title, sweep_table("share of GPU-sharing tasks", sharings), ""]
    return "\n".join(parts), plain, charts


def main() -> None:
    """Print the page; write it and its charts with --write."""
    quick, writes = "use two seeds and skip the sweeps", "the page and its charts beside this file"
    parser = measurement_parser("benchmarks.placement.figures", __doc__, quick, writes=writes)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of random seeds [{SEEDS}]")
    options = parser.parse_args()
    if message := workloads.missing_data():
        print(message)
        return
    text, plain, charts = report(options.quick, 2 if options.quick else options.seeds)
    publish(options, PAGE, text, plain, {name: one.svg() for name, one in charts.items()})


if __name__ == "__main__":
    main()
