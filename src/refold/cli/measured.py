"""Measures as tables for people. What each means is in docs/measures.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from refold.cli.output import Column, Table, count

if TYPE_CHECKING:
    from refold.results import Measures
    from refold.results.measures import Group, Spread
    from refold.results.tables import Cell, Comparison

MOST_TENANTS = 12
BEST = "*"
GAP = 2
"""Characters between two columns."""


def tables_of(title: str, measures: Measures) -> list[Table]:
    """All that is measured of one run: as a whole, per tenant, per size."""
    largest = sorted(measures.tenants, key=lambda group: (-group.gpu_hours, group.name))
    return [
        _facts(title, measures),
        _times(measures),
        _groups("Tenants", "tenant", largest[:MOST_TENANTS], len(largest)),
        _groups("Sizes", "size", measures.sizes, len(measures.sizes)),
    ]


def _facts(title: str, measures: Measures) -> Table:
    from refold.results.tables import text_of

    outcomes = measures.outcomes
    facts = {
        "jobs": count(measures.jobs),
        "finished": count(outcomes.finished),
        "failed": count(outcomes.failed) if outcomes.failed else "",
        "cancelled": count(outcomes.cancelled) if outcomes.cancelled else "",
        "not finished": count(outcomes.running + outcomes.waiting) if outcomes.running + outcomes.waiting else "",
        "too large for the cluster": count(outcomes.never) if outcomes.never else "",
        "makespan": text_of(measures.makespan, "s"),
        "GPU allocation, while jobs arrive": text_of(measures.allocation, "%"),
        "GPU allocation, to the end": text_of(measures.allocation_overall, "%"),
        "fragmentation": text_of(measures.fragmentation, "%"),
        "GPU-hours held": text_of(measures.gpu_hours, "h"),
        "GPU-hours of overhead": text_of(measures.overhead_gpu_hours, "h"),
        "GPU-hours lost": text_of(measures.lost_gpu_hours, "h"),
        "preemptions": count(measures.preemptions),
        "failed runs": count(measures.failures),
        "Jain's index, tenants": text_of(measures.jain_tenants, "index"),
        "Jain's index, jobs": text_of(measures.jain_jobs, "index"),
    }
    columns = {"fact": Column(""), "value": Column("", number=True)}
    return Table(title, columns, [{"fact": fact, "value": value} for fact, value in facts.items() if value])


def _times(measures: Measures) -> Table:
    from refold.results.tables import text_of

    def row(name: str, spread: Spread, unit: str) -> dict[str, str]:
        values = {
            "mean": spread.mean,
            "median": spread.median,
            "p90": spread.p90,
            "p99": spread.p99,
            "most": spread.most,
        }
        return {"name": name, **{key: text_of(value, unit) for key, value in values.items()}}

    columns = {"name": Column("")} | {key: Column(key, number=True) for key in ("mean", "median", "p90", "p99", "most")}
    rows = [
        row("completion", measures.completion, "s"),
        row("waiting", measures.waiting, "s"),
        row("to first start", measures.to_first_start, "s"),
        row("slowdown", measures.slowdown, "×"),
        row("fairness (ρ)", measures.finish_time_fairness, "×"),
    ]
    return Table("Times", columns, rows)


def _groups(title: str, what: str, groups: Sequence[Group], of_all: int) -> Table:
    from refold.results.tables import text_of

    columns = {
        "name": Column(what),
        "jobs": Column("jobs", count, number=True),
        "completion": Column("mean completion", number=True),
        "waiting": Column("mean waiting", number=True),
        "slowdown": Column("mean slowdown", number=True),
        "gpu_hours": Column("GPU-hours", count, number=True),
        "preemptions": Column("preemptions", count, number=True),
    }
    rows = [
        {
            "name": group.name,
            "jobs": group.jobs,
            "completion": text_of(group.completion.mean, "s"),
            "waiting": text_of(group.waiting.mean, "s"),
            "slowdown": text_of(group.slowdown.mean, "×"),
            "gpu_hours": group.gpu_hours,
            "preemptions": group.preemptions,
        }
        for group in groups
    ]
    more = of_all - len(groups)
    return Table(title, columns, rows, after=[f"… and {more} more"] if more > 0 else [])


def comparison_tables(title: str, comparison: Comparison, width: int) -> list[Table]:
    """The comparison as one table, or as several below each other where a line has no room for all columns."""
    names = {"name": Column("policy")}
    rows: list[dict[str, Any]] = [
        {"name": row.name} | {column.key: cell for column, cell in zip(comparison.columns, row.cells, strict=True)}
        for row in comparison.rows
    ]
    columns = {
        column.key: Column(column.name, _text_of_cell, number=True, style=_style_of_cell)
        for column in comparison.columns
    }
    first = max([len("policy"), *(len(row["name"]) for row in rows)])
    needed = {key: GAP + _width(column, [row[key] for row in rows]) for key, column in columns.items()}
    blocks = _blocks(needed, width - first)
    after = (
        [f"{BEST} the best of its column"] if any(cell.best for row in comparison.rows for cell in row.cells) else []
    )
    return [
        Table(
            title if place == 0 else "",
            names | {key: columns[key] for key in block},
            rows,
            after if place == len(blocks) - 1 else [],
        )
        for place, block in enumerate(blocks)
    ]


def _width(column: Column, cells: Sequence[Cell]) -> int:
    """How wide a column gets; its title may be broken between words."""
    return max(*(len(word) for word in column.title.split()), *(len(_text_of_cell(cell)) for cell in cells))


def _blocks(needed: dict[str, int], room: int) -> list[list[str]]:
    """The columns in order, parted into as few lines as have room for them."""
    blocks: list[list[str]] = [[]]
    used = 0
    for key, width in needed.items():
        if blocks[-1] and used + width > room:
            blocks.append([])
            used = 0
        blocks[-1].append(key)
        used += width
    return blocks


def _text_of_cell(cell: Cell) -> str:
    return f"{cell.text} {BEST if cell.best else ' '}"


def _style_of_cell(cell: Cell) -> str:
    return "bold green" if cell.best else ""
