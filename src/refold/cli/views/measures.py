"""Measures as tables for people. What each means is in docs/measures.md."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from refold.cli.views.output import Column, Table, count

if TYPE_CHECKING:
    from refold.results import Cell, Comparison, MeasureGroup, Measures, PowerUse, ReportRun, Spread, StartEstimateGroup

MOST_TENANTS = 12
MOST_RACKS = 12
BEST = "*"
ORACLE = "†"
OF_FAULTS = ("failures", "lost")
"""What policies are compared by as well where nodes are lost."""


def measure_tables(title: str, run: ReportRun) -> list[Table]:
    """All that is measured of one run: as a whole, per class where there are two, per tenant, per size, per rack."""
    from refold.cli import faults_seen

    measures = run.measures
    largest = sorted(measures.tenants, key=lambda group: (-group.gpu_hours, group.name))
    classes = [_groups("Classes", "class", measures.classes, 2)] if len(measures.classes) > 1 else []
    return [
        _facts(title, measures, faults_seen(run.history)),
        _times(measures),
        *classes,
        _groups("Tenants", "tenant", largest[:MOST_TENANTS], len(largest)),
        _groups("Sizes", "size", measures.sizes, len(measures.sizes)),
        *([_racks(measures.power)] if measures.power else []),
    ]


def _facts(title: str, measures: Measures, faults: int) -> Table:
    from refold.results import text_of

    outcomes = measures.outcomes
    facts = {
        "jobs": count(measures.jobs),
        "finished": count(outcomes.finished),
        "failed": count(outcomes.failed) if outcomes.failed else "",
        "cancelled": count(outcomes.cancelled) if outcomes.cancelled else "",
        "not finished": count(outcomes.running + outcomes.waiting) if outcomes.running + outcomes.waiting else "",
        "never fit the cluster": count(outcomes.infeasible) if outcomes.infeasible else "",
        "makespan": text_of(measures.makespan, "s"),
        "GPU allocation, while jobs arrive": text_of(measures.allocation, "%"),
        "GPU allocation, to the end": text_of(measures.allocation_overall, "%"),
        "fragmentation": text_of(measures.fragmentation, "%"),
        "GPU-hours held": text_of(measures.gpu_hours, "h"),
        "GPU-hours of overhead": text_of(measures.overhead_gpu_hours, "h"),
        "overhead, of GPU-hours held": text_of(measures.overhead_share, "%") if measures.overhead_share else "",
        "GPU-hours lost": text_of(measures.lost_gpu_hours, "h"),
        "preemptions": count(measures.preemptions),
        "reshapes": count(measures.reshapes) if measures.reshapes else "",
        "node faults": count(faults) if faults else "",
        "failed runs": count(measures.failures),
        "Jain's index, tenants": text_of(measures.jain_tenants, "index"),
        "Jain's index, jobs": text_of(measures.jain_jobs, "index"),
        **(_power_facts(measures.power) if measures.power else {}),
        **(_promise_facts(measures.promises.all) if measures.promises else {}),
    }
    columns = {"fact": Column("", whole=True), "value": Column("", number=True)}
    return Table(title, columns, [{"fact": fact, "value": value} for fact, value in facts.items() if value])


def _power_facts(power: PowerUse) -> dict[str, str]:
    from refold.results import text_of

    each = power.kwh_per_finished_gpu_hour
    return {
        "energy, kWh": text_of(power.energy_kwh, "h"),
        "energy per GPU-hour of finished jobs, kWh": "–" if each is None else f"{each:.2f}",
        "unevenness of racks": text_of(power.unevenness, "%") if power.unevenness is not None else "",
        "a rack above its limit": text_of(power.above_limit_seconds, "s") if _limited(power) else "",
    }


def _promise_facts(promises: StartEstimateGroup) -> dict[str, str]:
    from refold.results import text_of

    return {
        "promised starts": count(promises.promised),
        "promises kept": text_of(promises.share_kept, "%"),
        "promises renewed": count(promises.renewals),
        "promised within, median": text_of(promises.width, "s"),
        "error of expected start, mean": text_of(promises.error.mean_absolute, "s"),
    }


def _limited(power: PowerUse) -> bool:
    return any(rack.limit_watts is not None for rack in power.racks)


def _racks(power: PowerUse) -> Table:
    """The racks nearest to their limits first; without limits, those that drew most."""
    from refold.results import nearest_to_limit_first, rack_text, text_of

    columns = {
        "rack": Column("rack", whole=True),
        "mean": Column("mean power", number=True),
        "peak": Column("peak", number=True),
        "limit": Column("limit", number=True),
        "above": Column("above it", number=True),
        "energy": Column("kWh", number=True),
    }
    rows = [
        {
            "rack": rack_text(rack.name),
            "mean": text_of(rack.mean_watts, "W"),
            "peak": text_of(rack.peak_watts, "W"),
            "limit": text_of(rack.limit_watts, "W"),
            "above": text_of(None if rack.limit_watts is None else rack.above_limit_seconds, "s"),
            "energy": text_of(rack.energy_kwh, "h"),
        }
        for rack in nearest_to_limit_first(power.racks)[:MOST_RACKS]
    ]
    more = len(power.racks) - MOST_RACKS
    return Table("Racks", columns, rows, after=[f"… and {more:,} more"] if more > 0 else [])


def _times(measures: Measures) -> Table:
    from refold.results import text_of

    def row(name: str, spread: Spread, unit: str) -> dict[str, str]:
        values = {
            "mean": spread.mean,
            "median": spread.median,
            "p90": spread.p90,
            "p99": spread.p99,
            "most": spread.most,
        }
        return {"name": name, **{key: text_of(value, unit) for key, value in values.items()}}

    columns = {"name": Column("", whole=True)} | {
        key: Column(key, number=True) for key in ("mean", "median", "p90", "p99", "most")
    }
    rows = [
        row("completion", measures.completion, "s"),
        row("waiting", measures.waiting, "s"),
        row("to first start", measures.to_first_start, "s"),
        row("slowdown", measures.slowdown, "×"),
        row("fairness (ρ)", measures.finish_time_fairness, "×"),
        row("jobs that passed it", measures.passed_over, "jobs"),
    ]
    return Table("Times", columns, rows)


def _groups(title: str, what: str, groups: Sequence[MeasureGroup], of_all: int) -> Table:
    from refold.results import text_of

    columns = {
        "name": Column(what, whole=True),
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


def comparison_table(
    title: str, runs: Sequence[ReportRun], oracles: Collection[str], faults: str, power: bool = False
) -> Table:
    """The runs side by side: the best of each column and policies that know durations are marked.

    With `power`, that of racks is compared as well.
    """
    from refold.results import MAIN, MORE, POWER, measure_table

    measured = (*MAIN, *(one for one in MORE if faults and one[0].key in OF_FAULTS), *(POWER if power else ()))
    comparison = measure_table([(run.name, run.measures) for run in runs], measured)
    return _side_by_side(title, comparison, oracles, _footnotes(comparison, runs, oracles, faults))


def promises_tables(runs: Sequence[ReportRun]) -> list[Table]:
    """How well promised starts were kept, and how far jobs were passed over; nothing where nobody promised any."""
    from refold.results import PROMISES, measure_table

    if all(run.measures.promises is None for run in runs):
        return []
    comparison = measure_table([(run.name, run.measures) for run in runs], PROMISES)
    return [_side_by_side("Promised starts, and jobs passed over", comparison, (), [])]


def _side_by_side(title: str, comparison: Comparison, oracles: Collection[str], after: Sequence[str]) -> Table:
    rows: list[dict[str, Any]] = [
        {"name": f"{row.name} {ORACLE}" if row.name in oracles else row.name}
        | {column.key: cell for column, cell in zip(comparison.columns, row.cells, strict=True)}
        for row in comparison.rows
    ]
    columns = {"name": Column("policy", whole=True)} | {
        column.key: Column(column.name, _text_of_cell, number=True, style=_style_of_cell)
        for column in comparison.columns
    }
    return Table(title, columns, rows, after)


def _footnotes(comparison: Comparison, runs: Sequence[ReportRun], oracles: Collection[str], faults: str) -> list[str]:
    said = {
        f"{BEST} the best of its column": any(cell.best for row in comparison.rows for cell in row.cells),
        f"{ORACLE} knows how long jobs will take": any(run.name in oracles for run in runs),
        f"{faults} while jobs were there": bool(faults),
        _alike(runs): len(runs) > 1 and len({tuple(cell.text for cell in row.cells) for row in comparison.rows}) == 1,
    }
    return [line for line, true in said.items() if true]


def _alike(runs: Sequence[ReportRun]) -> str:
    nobody_waited = not any(
        run.measures.waiting.most or run.measures.outcomes.finished < run.measures.jobs for run in runs
    )
    return f"{'nobody waited: ' if nobody_waited else ''}all policies are alike here"


def _text_of_cell(cell: Cell) -> str:
    return f"{cell.text} {BEST if cell.best else ' '}"


def _style_of_cell(cell: Cell) -> str:
    return "bold green" if cell.best else ""
