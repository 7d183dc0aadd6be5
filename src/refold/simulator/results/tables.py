"""Comparison tables of several policies as plain data, and jobs that did not finish, which means do not include."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from refold.journal import History, Outcome
from refold.model import Cluster, Job, PreemptionOutlook, format_count, format_duration
from refold.simulator.results.measures import MeasureGroup, Measures
from refold.simulator.results.power import PowerUse
from refold.simulator.results.start_estimates import StartEstimateGroup
from refold.simulator.results.topology import TopologyUse

Better = Literal["less", "more", "neither"]

GroupMeasure = Literal["completion", "waiting", "slowdown"]

_REASONS = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "cancelled",
    Outcome.RUNNING: "still running at the end",
    Outcome.WAITING: "still waiting at the end",
}


class MeasureColumn(msgspec.Struct, frozen=True):
    """A column: the measure's name, its unit, and whether smaller or larger values are better."""

    key: str
    name: str
    unit: str
    better: Better


class Cell(msgspec.Struct, frozen=True):
    """A value, its text, whether it is the best of its column, and its ratio to the largest value of the column."""

    value: float | None
    text: str
    best: bool = False
    ratio: float = 0.0


class MeasureRow(msgspec.Struct, frozen=True):
    """The row of a policy or of a group of jobs: one cell per column."""

    name: str
    cells: tuple[Cell, ...]


class Comparison(msgspec.Struct, frozen=True):
    """A table; every row has one cell per column."""

    columns: tuple[MeasureColumn, ...]
    rows: tuple[MeasureRow, ...]


MeasureDefinition = tuple[MeasureColumn, Callable[[Measures], float | None]]

MAIN_MEASURES: tuple[MeasureDefinition, ...] = (
    (MeasureColumn("completion_mean", "mean completion", "s", "less"), lambda measures: measures.completion.mean),
    (MeasureColumn("completion_median", "median completion", "s", "less"), lambda measures: measures.completion.median),
    (MeasureColumn("completion_p99", "p99 completion", "s", "less"), lambda measures: measures.completion.p99),
    (MeasureColumn("waiting_mean", "mean waiting", "s", "less"), lambda measures: measures.waiting.mean),
    (MeasureColumn("waiting_p99", "p99 waiting", "s", "less"), lambda measures: measures.waiting.p99),
    (MeasureColumn("makespan", "makespan", "s", "less"), lambda measures: measures.makespan),
    (MeasureColumn("allocation", "GPU allocation", "%", "more"), lambda measures: measures.allocation),
    (MeasureColumn("fragmentation", "fragmentation", "%", "less"), lambda measures: measures.fragmentation),
    (MeasureColumn("preemptions", "preemptions", "", "neither"), lambda measures: measures.preemptions),
    (MeasureColumn("jain_tenants", "Jain, tenants", "index", "more"), lambda measures: measures.jain_tenants),
)
"""The measures that policies are compared by."""

WAITING_MEDIAN: MeasureDefinition = (
    MeasureColumn("waiting_median", "median waiting", "s", "less"),
    lambda measures: measures.waiting.median,
)
"""A column beside what was recorded."""

UNFINISHED: MeasureDefinition = (
    MeasureColumn("not_finished", "not finished", "", "less"),
    lambda measures: measures.jobs - measures.outcomes.finished,
)
"""The first column if any policy left jobs unfinished; means and percentiles do not include these jobs."""

MORE_MEASURES: tuple[MeasureDefinition, ...] = (
    (MeasureColumn("finished", "finished", "", "neither"), lambda measures: measures.outcomes.finished),
    (
        MeasureColumn("to_first_start_mean", "mean time to first start", "s", "less"),
        lambda measures: measures.to_first_start.mean,
    ),
    (MeasureColumn("slowdown_mean", "mean slowdown", "×", "less"), lambda measures: measures.slowdown.mean),
    (
        MeasureColumn("fairness_mean", "mean finish-time fairness", "×", "less"),
        lambda measures: measures.finish_time_fairness.mean,
    ),
    (
        MeasureColumn("fairness_p99", "p99 finish-time fairness", "×", "less"),
        lambda measures: measures.finish_time_fairness.p99,
    ),
    (MeasureColumn("jain_jobs", "Jain, jobs", "index", "more"), lambda measures: measures.jain_jobs),
    (MeasureColumn("gpu_hours", "GPU-hours held", "h", "neither"), lambda measures: measures.gpu_hours),
    (MeasureColumn("reshapes", "reshapes", "", "neither"), lambda measures: measures.reshapes),
    (MeasureColumn("failures", "failed runs", "", "neither"), lambda measures: measures.failures),
    (MeasureColumn("goodput", "goodput", "%", "more"), lambda measures: measures.goodput),
    (MeasureColumn("lost", "GPU-hours lost", "h", "less"), lambda measures: measures.lost_gpu_hours),
    (MeasureColumn("overhead", "GPU-hours of overhead", "h", "less"), lambda measures: measures.overhead_gpu_hours),
)
"""Further measures."""


def _power_measure(read: Callable[[PowerUse], float | None]) -> Callable[[Measures], float | None]:
    return lambda measures: None if measures.power is None else read(measures.power)


def _topology_measure(read: Callable[[TopologyUse], float | None]) -> Callable[[Measures], float | None]:
    return lambda measures: None if measures.topology is None else read(measures.topology)


TOPOLOGY_MEASURES: tuple[MeasureDefinition, ...] = (
    (
        MeasureColumn("crossing", "GPU time lost across domains", "%", "less"),
        _topology_measure(lambda use: use.crossing_share),
    ),
    (
        MeasureColumn("idle_by_topology", "GPUs idle by topology", "%", "less"),
        _topology_measure(lambda use: use.idle_share),
    ),
)
"""Measures of topology, for clusters with levels."""

POWER_MEASURES: tuple[MeasureDefinition, ...] = (
    (
        MeasureColumn("above_power_limit", "rack above power limit", "s", "less"),
        _power_measure(lambda power: power.above_limit_seconds),
    ),
    (
        MeasureColumn("power_imbalance", "rack power imbalance", "%", "less"),
        _power_measure(lambda power: power.imbalance),
    ),
    (MeasureColumn("energy", "energy, kWh", "h", "less"), _power_measure(lambda power: power.energy_kwh)),
)
"""Measures of power, for clusters with known power."""


def _start_estimate_measure(read: Callable[[StartEstimateGroup], float | None]) -> Callable[[Measures], float | None]:
    return lambda measures: None if measures.start_estimates is None else read(measures.start_estimates.all)


START_ESTIMATE_MEASURES: tuple[MeasureDefinition, ...] = (
    (
        MeasureColumn("start_coverage", "start bounds met", "%", "more"),
        _start_estimate_measure(lambda estimates: estimates.coverage),
    ),
    (
        MeasureColumn("start_postponements", "bounds postponed", "", "less"),
        _start_estimate_measure(lambda estimates: estimates.postponements),
    ),
    (
        MeasureColumn("start_bound_width", "median time to bound", "s", "less"),
        _start_estimate_measure(lambda estimates: estimates.width),
    ),
    (
        MeasureColumn("start_error", "mean start error", "s", "less"),
        _start_estimate_measure(lambda estimates: estimates.error.mean_absolute),
    ),
    (MeasureColumn("overtaken_mean", "mean overtaken by", "jobs", "less"), lambda measures: measures.overtaken.mean),
    (MeasureColumn("overtaken_max", "max overtaken by", "", "less"), lambda measures: measures.overtaken.max),
)
"""Accuracy of start estimates, for policies that make them, and how many later jobs overtook a job."""


class Recorded(msgspec.Struct, frozen=True):
    """What is known of a history or a run: its values by the keys of their columns. `jobs`: the number with values."""

    name: str
    jobs: int
    values: Mapping[str, float | None]


def measure_table(
    runs: Sequence[tuple[str, Measures]],
    measures: tuple[MeasureDefinition, ...] = MAIN_MEASURES,
    recorded: Recorded | None = None,
) -> Comparison:
    """Return a table with one row per policy and one column per measure. The best cells are marked.

    If the measures begin with MAIN_MEASURES and any policy left jobs unfinished, their number is the first column. The
    first row is what was `recorded`, if given, with the median of waiting times as another column.
    """
    if recorded is not None:
        place = next((place for place, (column, _) in enumerate(measures) if column.key == "waiting_p99"), 0)
        measures = (*measures[:place], WAITING_MEDIAN, *measures[place:])
    if measures[: len(MAIN_MEASURES)] == MAIN_MEASURES and any(run.jobs > run.outcomes.finished for _, run in runs):
        measures = (UNFINISHED, *measures)
    first = [recorded] if recorded is not None else []
    columns = [
        _cells(column, [*(each.values.get(column.key) for each in first), *(get(run) for _, run in runs)])
        for column, get in measures
    ]
    names = [*(each.name for each in first), *(name for name, _ in runs)]
    rows = [MeasureRow(name, tuple(cells[row] for cells in columns)) for row, name in enumerate(names)]
    return Comparison(tuple(column for column, _ in measures), tuple(rows))


OUTLOOK_COLUMNS = (
    MeasureColumn("mean_wait", "mean waiting", "s", "less"),
    MeasureColumn("longest_wait", "longest waiting", "s", "less"),
    MeasureColumn("preemptions", "preemptions", "", "neither"),
    MeasureColumn("overhead", "GPU-hours of overhead", "h", "less"),
)


def outlook_table(outlook: PreemptionOutlook) -> Comparison:
    """Return a table with one row per rule of preemption."""
    outcomes = [
        (outcome.mean_wait, outcome.longest_wait, outcome.preemptions, outcome.overhead_gpu_hours)
        for _, outcome in outlook.rows
    ]
    columns = [_cells(column, [outcome[index] for outcome in outcomes]) for index, column in enumerate(OUTLOOK_COLUMNS)]
    rows = [MeasureRow(who, tuple(cells[row] for cells in columns)) for row, (who, _) in enumerate(outlook.rows)]
    return Comparison(OUTLOOK_COLUMNS, tuple(rows))


def group_table(
    runs: Sequence[tuple[str, Sequence[MeasureGroup]]], measure: GroupMeasure, max_rows: int | None = None
) -> Comparison:
    """Return the mean of a measure, with one row per group of jobs (tenants, sizes) and one column per policy.

    With `max_rows`, only the groups with the most GPU-hours under the first policy, in their original order.
    """
    unit = "×" if measure == "slowdown" else "s"
    columns = tuple(MeasureColumn(name, name, unit, "less") for name, _ in runs)
    by_name = [{group.name: group for group in groups} for _, groups in runs]
    rows = [
        MeasureRow(
            group.name,
            tuple(
                _cells(
                    MeasureColumn("", "", unit, "less"), [_mean(groups.get(group.name), measure) for groups in by_name]
                )
            ),
        )
        for group in (_largest(runs[0][1], max_rows) if runs else ())
    ]
    return Comparison(columns, tuple(rows))


def _mean(group: MeasureGroup | None, measure: GroupMeasure) -> float | None:
    if group is None:
        return None
    match measure:
        case "completion":
            return group.completion.mean
        case "waiting":
            return group.waiting.mean
        case "slowdown":
            return group.slowdown.mean


def _largest(groups: Sequence[MeasureGroup], max_rows: int | None) -> Sequence[MeasureGroup]:
    if max_rows is None or len(groups) <= max_rows:
        return groups
    largest = {group.name for group in sorted(groups, key=lambda group: -group.gpu_hours)[:max_rows]}
    return [group for group in groups if group.name in largest]


def _cells(column: MeasureColumn, values: list[float | None]) -> list[Cell]:
    texts = [format_value(value, column.unit) for value in values]
    known = [value for value in values if value is not None]
    largest = max((abs(value) for value in known), default=0.0) or 1.0
    best = _best_text(column, known)
    return [
        Cell(value, text, text == best, 0.0 if value is None else abs(value) / largest)
        for value, text in zip(values, texts, strict=True)
    ]


def _best_text(column: MeasureColumn, known: list[float]) -> str | None:
    """Return the text of the best value, or None if no value is best. Values with the same text are equally good."""
    if column.better == "neither" or not known:
        return None
    if len({format_value(value, column.unit) for value in known}) < 2:
        return None
    return format_value(min(known) if column.better == "less" else max(known), column.unit)


def format_value(value: float | None, unit: str) -> str:
    """Format a value with its unit."""
    if value is None:
        return "–"
    match unit:
        case "s":
            return format_duration(value)
        case "%":
            return f"{value * 100:.1f} %"
        case "×":
            return f"{value:,.2f} ×" if value < 10 else f"{value:,.0f} ×"
        case "index":
            return f"{value:.3f}"
        case "h" | "jobs":
            return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"
        case "W":
            return f"{value / 1000:,.2f} kW" if value < 9_995 else f"{value / 1000:,.1f} kW"
        case _:
            return f"{value:,.0f}"


def describe_unfinished(history: History) -> str:
    """Describe the jobs that did not finish, such as '2 of 60 jobs did not finish: 2 failed'; '' if all finished."""
    jobs = history.jobs
    unfinished = jobs.outcome != Outcome.FINISHED
    count = int(unfinished.sum())
    if not count:
        return ""
    never_started = int((unfinished & np.isnan(jobs.first_start)).sum())
    started = f" ({never_started:,} never started)" if never_started else ""
    summary = f"{count:,} of {format_count(len(jobs), 'job')} did not finish{started}"
    return f"{summary}: {' · '.join(_reasons(history))}"


def _reasons(history: History) -> list[str]:
    outcome = history.jobs.outcome
    infeasible = [history.jobs.jobs[index] for index in np.flatnonzero(outcome == Outcome.INFEASIBLE).tolist()]
    absent = sum(requests_only_absent_types(job, history.cluster) for job in infeasible)
    reasons = []
    if absent:
        reasons.append(f"{absent:,} can never fit: the cluster has only {_list_types(history.cluster.type_names)}")
    if len(infeasible) > absent:
        reasons.append(f"{len(infeasible) - absent:,} can never fit, even on the empty cluster")
    counts = {why: int((outcome == code).sum()) for code, why in _REASONS.items()}
    return reasons + [f"{count:,} {why}" for why, count in counts.items() if count]


def requests_only_absent_types(job: Job, cluster: Cluster) -> bool:
    demand = job.demand
    return bool(demand.gpus and demand.gpu_types) and not set(demand.gpu_types) & set(cluster.type_names)


def _list_types(names: Sequence[str]) -> str:
    return ", ".join(names) or "no GPUs"
