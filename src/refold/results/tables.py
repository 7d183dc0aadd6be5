"""The comparison of several policies as rows and columns: plain data, for a terminal, a page or JSON to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from refold.model import text_from_seconds
from refold.results.measures import MeasureGroup, Measures
from refold.results.power import PowerUse
from refold.results.start_estimates import StartEstimateGroup

Better = Literal["less", "more", "neither"]


class MeasureColumn(msgspec.Struct, frozen=True):
    """One measure: its name, its unit and which way is better."""

    key: str
    name: str
    unit: str
    better: Better


class Cell(msgspec.Struct, frozen=True):
    """One value, how people read it, whether it is the best of its column, and its part of the column's largest."""

    value: float | None
    text: str
    best: bool = False
    part: float = 0.0


class MeasureRow(msgspec.Struct, frozen=True):
    """One policy, or one group of jobs under one policy: a cell per column."""

    name: str
    cells: tuple[Cell, ...]


class Comparison(msgspec.Struct, frozen=True):
    """A table: every row has as many cells as there are columns."""

    columns: tuple[MeasureColumn, ...]
    rows: tuple[MeasureRow, ...]


Measured = tuple[MeasureColumn, Callable[[Measures], float | None]]

MAIN: tuple[Measured, ...] = (
    (MeasureColumn("completion_mean", "mean completion", "s", "less"), lambda one: one.completion.mean),
    (MeasureColumn("completion_median", "median completion", "s", "less"), lambda one: one.completion.median),
    (MeasureColumn("completion_p99", "p99 completion", "s", "less"), lambda one: one.completion.p99),
    (MeasureColumn("waiting_mean", "mean waiting", "s", "less"), lambda one: one.waiting.mean),
    (MeasureColumn("waiting_p99", "p99 waiting", "s", "less"), lambda one: one.waiting.p99),
    (MeasureColumn("makespan", "makespan", "s", "less"), lambda one: one.makespan),
    (MeasureColumn("allocation", "GPU allocation", "%", "more"), lambda one: one.allocation),
    (MeasureColumn("fragmentation", "fragmentation", "%", "less"), lambda one: one.fragmentation),
    (MeasureColumn("preemptions", "preemptions", "", "neither"), lambda one: one.preemptions),
    (MeasureColumn("jain_tenants", "Jain, tenants", "index", "more"), lambda one: one.jain_tenants),
)
"""What policies are compared by."""

UNFINISHED: Measured = (
    MeasureColumn("not_finished", "not finished", "", "less"),
    lambda one: one.jobs - one.outcomes.finished,
)
"""What comes first where any policy left jobs unfinished: the other measures do not count those."""

MORE: tuple[Measured, ...] = (
    (MeasureColumn("finished", "finished", "", "neither"), lambda one: one.outcomes.finished),
    (MeasureColumn("to_first_start_mean", "mean to first start", "s", "less"), lambda one: one.to_first_start.mean),
    (MeasureColumn("slowdown_mean", "mean slowdown", "×", "less"), lambda one: one.slowdown.mean),
    (
        MeasureColumn("fairness_mean", "mean finish-time fairness", "×", "less"),
        lambda one: one.finish_time_fairness.mean,
    ),
    (MeasureColumn("fairness_p99", "p99 finish-time fairness", "×", "less"), lambda one: one.finish_time_fairness.p99),
    (MeasureColumn("jain_jobs", "Jain, jobs", "index", "more"), lambda one: one.jain_jobs),
    (MeasureColumn("gpu_hours", "GPU-hours held", "h", "neither"), lambda one: one.gpu_hours),
    (MeasureColumn("reshapes", "reshapes", "", "neither"), lambda one: one.reshapes),
    (MeasureColumn("failures", "failed runs", "", "neither"), lambda one: one.failures),
    (MeasureColumn("lost", "GPU-hours lost", "h", "less"), lambda one: one.lost_gpu_hours),
    (MeasureColumn("overhead", "GPU-hours of overhead", "h", "less"), lambda one: one.overhead_gpu_hours),
)
"""What else there is to say."""


def _of_power(read: Callable[[PowerUse], float | None]) -> Callable[[Measures], float | None]:
    return lambda one: None if one.power is None else read(one.power)


POWER: tuple[Measured, ...] = (
    (
        MeasureColumn("above_power_limit", "rack above its limit", "s", "less"),
        _of_power(lambda one: one.above_limit_seconds),
    ),
    (MeasureColumn("power_unevenness", "unevenness of racks", "%", "less"), _of_power(lambda one: one.unevenness)),
    (MeasureColumn("energy", "energy, kWh", "h", "less"), _of_power(lambda one: one.energy_kwh)),
)
"""What there is to say of power, where the cluster knows it."""


def _of_promises(read: Callable[[StartEstimateGroup], float | None]) -> Callable[[Measures], float | None]:
    return lambda one: None if one.promises is None else read(one.promises.all)


PROMISES: tuple[Measured, ...] = (
    (MeasureColumn("promises_kept", "promises kept", "%", "more"), _of_promises(lambda one: one.share_kept)),
    (MeasureColumn("promises_renewed", "renewed", "", "less"), _of_promises(lambda one: one.renewals)),
    (MeasureColumn("promise_width", "promised within", "s", "less"), _of_promises(lambda one: one.width)),
    (MeasureColumn("start_error", "error of start", "s", "less"), _of_promises(lambda one: one.error.mean_absolute)),
    (MeasureColumn("passed_over_mean", "mean passed over", "jobs", "less"), lambda one: one.passed_over.mean),
    (MeasureColumn("passed_over_most", "most passed over", "", "less"), lambda one: one.passed_over.most),
)
"""What there is to say of promised starts, where any policy made some; beside them, how far jobs were passed over."""

GroupMeasure = Literal["completion", "waiting", "slowdown"]


def measure_table(runs: Sequence[tuple[str, Measures]], measures: tuple[Measured, ...] = MAIN) -> Comparison:
    """One row per policy, one column per measure. The best is marked where policies differ.

    Where policies are compared by MAIN, and perhaps more, and any of them left jobs unfinished, that comes first.
    """
    if measures[: len(MAIN)] == MAIN and any(one.jobs > one.outcomes.finished for _, one in runs):
        measures = (UNFINISHED, *measures)
    columns = [_cells(column, [of(one) for _, one in runs]) for column, of in measures]
    rows = [MeasureRow(name, tuple(cells[row] for cells in columns)) for row, (name, _) in enumerate(runs)]
    return Comparison(tuple(column for column, _ in measures), tuple(rows))


def group_table(
    runs: Sequence[tuple[str, Sequence[MeasureGroup]]], of: GroupMeasure, most: int | None = None
) -> Comparison:
    """One row per group of jobs (tenants, sizes), one column per policy: the mean of one measure.

    With `most`, only the groups that held most GPU-hours under the first policy, in their own order.
    """
    unit = "×" if of == "slowdown" else "s"
    columns = tuple(MeasureColumn(name, name, unit, "less") for name, _ in runs)
    by_name = [{group.name: group for group in groups} for _, groups in runs]
    rows = [
        MeasureRow(
            group.name,
            tuple(
                _cells(MeasureColumn("", "", unit, "less"), [_mean(groups.get(group.name), of) for groups in by_name])
            ),
        )
        for group in (_largest(runs[0][1], most) if runs else ())
    ]
    return Comparison(columns, tuple(rows))


def _mean(group: MeasureGroup | None, of: GroupMeasure) -> float | None:
    if group is None:
        return None
    match of:
        case "completion":
            return group.completion.mean
        case "waiting":
            return group.waiting.mean
        case "slowdown":
            return group.slowdown.mean


def _largest(groups: Sequence[MeasureGroup], most: int | None) -> Sequence[MeasureGroup]:
    if most is None or len(groups) <= most:
        return groups
    kept = {group.name for group in sorted(groups, key=lambda group: -group.gpu_hours)[:most]}
    return [group for group in groups if group.name in kept]


def _cells(column: MeasureColumn, values: list[float | None]) -> list[Cell]:
    texts = [text_of(value, column.unit) for value in values]
    known = [value for value in values if value is not None]
    largest = max((abs(value) for value in known), default=0.0) or 1.0
    best = _best_text(column, known)
    return [
        Cell(value, text, text == best, 0.0 if value is None else abs(value) / largest)
        for value, text in zip(values, texts, strict=True)
    ]


def _best_text(column: MeasureColumn, known: list[float]) -> str | None:
    """How the best value reads; None where there is none. Values that read the same are equally good."""
    if column.better == "neither" or not known:
        return None
    if len({text_of(value, column.unit) for value in known}) < 2:
        return None
    return text_of(min(known) if column.better == "less" else max(known), column.unit)


def text_of(value: float | None, unit: str) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    match unit:
        case "s":
            return text_from_seconds(value)
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
