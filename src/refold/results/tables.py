"""The comparison of several policies as rows and columns: plain data, for a terminal, a page or JSON to show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from refold.model.units import text_from_seconds
from refold.results.measures import Group, Measures

Better = Literal["less", "more", "neither"]


class Column(msgspec.Struct, frozen=True):
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


class Row(msgspec.Struct, frozen=True):
    """One policy, or one group of jobs under one policy: a cell per column."""

    name: str
    cells: tuple[Cell, ...]


class Comparison(msgspec.Struct, frozen=True):
    """A table: every row has as many cells as there are columns."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


_Of = Callable[[Measures], float | None]
_OfGroup = Callable[[Group], float | None]

_COMPARED: tuple[tuple[Column, _Of], ...] = (
    (Column("completion_mean", "mean completion", "s", "less"), lambda one: one.completion.mean),
    (Column("completion_median", "median completion", "s", "less"), lambda one: one.completion.median),
    (Column("completion_p99", "p99 completion", "s", "less"), lambda one: one.completion.p99),
    (Column("waiting_mean", "mean waiting", "s", "less"), lambda one: one.waiting.mean),
    (Column("waiting_p99", "p99 waiting", "s", "less"), lambda one: one.waiting.p99),
    (Column("makespan", "makespan", "s", "less"), lambda one: one.makespan),
    (Column("allocation", "GPU allocation", "%", "more"), lambda one: one.allocation),
    (Column("fragmentation", "fragmentation", "%", "less"), lambda one: one.fragmentation),
    (Column("preemptions", "preemptions", "", "neither"), lambda one: one.preemptions),
    (Column("jain_tenants", "Jain, tenants", "index", "more"), lambda one: one.jain_tenants),
)

_GROUPED: tuple[tuple[Column, _OfGroup], ...] = (
    (Column("jobs", "jobs", "", "neither"), lambda group: group.jobs),
    (Column("completion_mean", "mean completion", "s", "less"), lambda group: group.completion.mean),
    (Column("completion_p99", "p99 completion", "s", "less"), lambda group: group.completion.p99),
    (Column("waiting_mean", "mean waiting", "s", "less"), lambda group: group.waiting.mean),
    (Column("slowdown_mean", "mean slowdown", "×", "less"), lambda group: group.slowdown.mean),
    (Column("gpu_hours", "GPU-hours", "h", "neither"), lambda group: group.gpu_hours),
)


def compare(runs: Sequence[tuple[str, Measures]]) -> Comparison:
    """One row per policy. What is best is marked where there are two or more policies that differ."""
    columns = tuple(column for column, _ in _COMPARED)
    values = [[of(measures) for _, of in _COMPARED] for _, measures in runs]
    return _comparison(columns, [name for name, _ in runs], values)


def compare_groups(groups: Sequence[tuple[str, Group]]) -> Comparison:
    """One row per name: the same tenant, or the same size of jobs, under several policies."""
    columns = tuple(column for column, _ in _GROUPED)
    values = [[of(group) for _, of in _GROUPED] for _, group in groups]
    return _comparison(columns, [name for name, _ in groups], values)


def _comparison(columns: tuple[Column, ...], names: list[str], values: list[list[float | None]]) -> Comparison:
    down = [_cells(column, [row[index] for row in values]) for index, column in enumerate(columns)]
    return Comparison(columns, tuple(Row(name, tuple(cells[row] for cells in down)) for row, name in enumerate(names)))


def _cells(column: Column, values: list[float | None]) -> list[Cell]:
    known = [value for value in values if value is not None]
    best = _best(column.better, known)
    largest = max((abs(value) for value in known), default=0.0) or 1.0
    return [
        Cell(
            value,
            text_of(value, column.unit),
            best=value is not None and value == best,
            part=0.0 if value is None else abs(value) / largest,
        )
        for value in values
    ]


def _best(better: Better, known: list[float]) -> float | None:
    if better == "neither" or len(set(known)) < 2:
        return None
    return min(known) if better == "less" else max(known)


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
        case "h":
            return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"
        case _:
            return f"{value:,.0f}"
