"""Tables of measures. docs/measures.md defines each measure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from refold.cli.views.output import format_number, plural
from refold.cli.views.tables import Column, Table, fact_table

if TYPE_CHECKING:
    from refold.model import PreemptionOutlook
    from refold.simulator.results import (
        Comparison,
        GuaranteeReport,
        MeasureGroup,
        MeasureRow,
        Measures,
        PowerUse,
        QuotaWait,
        RackPower,
        Recorded,
        ReportRun,
        Spread,
        StartEstimateGroup,
        TopologyUse,
    )

MAX_TENANTS = 12
MAX_RACKS = 12
MAX_WAITS = 12
BEST_MARK = "*"
ORACLE_MARK = "†"
HEADLINE_MEASURES = ("waiting_mean", "waiting_p99")
"""Keys of the measures of which the best values are stated below comparisons."""

FAULT_MEASURES = ("failures", "lost", "goodput")
"""Keys of the measures that are added to comparisons with node faults."""


def measure_tables(title: str, run: ReportRun) -> list[Table]:
    """Return the tables of one run: totals, times, per job class (if there are two), tenant, job size and rack."""
    from refold.cli import count_node_faults

    measures = run.measures
    largest = sorted(measures.tenants, key=lambda group: (-group.gpu_hours, group.name))
    classes = [_groups("Classes", "class", measures.classes, 2)] if len(measures.classes) > 1 else []
    return [
        _facts(title, measures, count_node_faults(run.history)),
        _times(measures),
        *classes,
        _groups("Tenants", "tenant", largest[:MAX_TENANTS], len(largest)),
        _groups("Sizes", "size", measures.sizes, len(measures.sizes)),
        *([_racks(measures.power)] if measures.power else []),
    ]


def guarantee_tables(guarantees: GuaranteeReport | None) -> list[Table]:
    """Return the table of guaranteed jobs that waited within their tenant's quota; none without quotas."""
    from refold.simulator.results import format_value

    if guarantees is None:
        return []
    columns: list[Column[QuotaWait]] = [
        Column("job", lambda wait: wait.job, whole=True),
        Column("from", lambda wait: format_value(wait.since, "s"), number=True),
        Column("for", lambda wait: format_value(wait.until - wait.since, "s"), number=True),
        Column("cause", lambda wait: wait.cause),
    ]
    longest = sorted(guarantees.waits, key=lambda wait: wait.since - wait.until)
    more = len(longest) - MAX_WAITS
    after = [
        *([f"… and {more:,} more"] if more > 0 else []),
        f"{guarantees.violated_jobs:,} of {guarantees.guaranteed_jobs:,} guarantees violated",
    ]
    return [Table("Waits within quota", columns, longest[:MAX_WAITS], after)]


def _facts(title: str, measures: Measures, faults: int) -> Table:
    from refold.simulator.results import format_value

    outcomes = measures.outcomes
    facts = {
        "jobs": format_number(measures.jobs),
        "finished": format_number(outcomes.finished),
        "failed": format_number(outcomes.failed) if outcomes.failed else "",
        "cancelled": format_number(outcomes.cancelled) if outcomes.cancelled else "",
        "not finished": format_number(outcomes.running + outcomes.waiting)
        if outcomes.running + outcomes.waiting
        else "",
        "infeasible": format_number(outcomes.infeasible) if outcomes.infeasible else "",
        "makespan": format_value(measures.makespan, "s"),
        "GPU allocation until last submission": format_value(measures.allocation, "%"),
        "GPU allocation overall": format_value(measures.allocation_overall, "%"),
        "fragmentation": format_value(measures.fragmentation, "%"),
        "GPU-hours held": format_value(measures.gpu_hours, "h"),
        "goodput": format_value(measures.goodput, "%"),
        "GPU-hours of overhead": format_value(measures.overhead_gpu_hours, "h"),
        "overhead share of GPU-hours": format_value(measures.overhead_share, "%") if measures.overhead_share else "",
        "GPU-hours lost": format_value(measures.lost_gpu_hours, "h"),
        "preemptions": format_number(measures.preemptions),
        "reshapes": format_number(measures.reshapes) if measures.reshapes else "",
        "node faults": format_number(faults) if faults else "",
        "failed runs": format_number(measures.failures),
        "Jain index, tenants": format_value(measures.jain_tenants, "index"),
        "Jain index, jobs": format_value(measures.jain_jobs, "index"),
        **(_topology_facts(measures.topology) if measures.topology else {}),
        **(_power_facts(measures.power) if measures.power else {}),
        **(_estimate_facts(measures.start_estimates.all) if measures.start_estimates else {}),
    }
    return fact_table(title, facts, numbers=True)


def _topology_facts(use: TopologyUse) -> dict[str, str]:
    from refold.simulator.results import format_value

    return {
        "GPU-hours lost across domains": format_value(use.crossing_gpu_hours, "h"),
        "GPUs idle by topology": format_value(use.idle_share, "%"),
    }


def _power_facts(power: PowerUse) -> dict[str, str]:
    from refold.simulator.results import format_value

    each = power.kwh_per_finished_gpu_hour
    return {
        "energy, kWh": format_value(power.energy_kwh, "h"),
        "energy per GPU-hour of finished jobs, kWh": "–" if each is None else f"{each:.2f}",
        "rack power imbalance": format_value(power.imbalance, "%") if power.imbalance is not None else "",
        "rack above power limit": format_value(power.above_limit_seconds, "s") if _has_limits(power) else "",
    }


def _estimate_facts(estimates: StartEstimateGroup) -> dict[str, str]:
    from refold.simulator.results import format_value

    return {
        "jobs with a start bound": format_number(estimates.bounded),
        "start bounds met": format_value(estimates.coverage, "%"),
        "bounds postponed": format_number(estimates.postponements),
        "median time to bound": format_value(estimates.width, "s"),
        "mean start error": format_value(estimates.error.mean_absolute, "s"),
    }


def _has_limits(power: PowerUse) -> bool:
    return any(rack.limit_watts is not None for rack in power.racks)


def _racks(power: PowerUse) -> Table:
    """Return the table of racks, those closest to their limits first; without limits, those with the highest power."""
    from refold.simulator.results import format_rack_name, format_value, sort_by_limit_margin

    def above_limit(rack: RackPower) -> float | None:
        return None if rack.limit_watts is None else rack.above_limit_seconds

    columns: list[Column[RackPower]] = [
        Column("rack", lambda rack: format_rack_name(rack.name), whole=True),
        Column("mean power", lambda rack: format_value(rack.mean_watts, "W"), number=True),
        Column("peak", lambda rack: format_value(rack.peak_watts, "W"), number=True),
        Column("limit", lambda rack: format_value(rack.limit_watts, "W"), number=True),
        Column("above limit", lambda rack: format_value(above_limit(rack), "s"), number=True),
        Column("kWh", lambda rack: format_value(rack.energy_kwh, "h"), number=True),
    ]
    more = len(power.racks) - MAX_RACKS
    return Table(
        "Racks",
        columns,
        sort_by_limit_margin(power.racks)[:MAX_RACKS],
        after=[f"… and {more:,} more"] if more > 0 else [],
    )


def _times(measures: Measures) -> Table:
    from refold.simulator.results import format_value

    columns: list[Column[tuple[str, Spread, str]]] = [
        Column("", lambda row: row[0], whole=True),
        Column("mean", lambda row: format_value(row[1].mean, row[2]), number=True),
        Column("median", lambda row: format_value(row[1].median, row[2]), number=True),
        Column("p90", lambda row: format_value(row[1].p90, row[2]), number=True),
        Column("p99", lambda row: format_value(row[1].p99, row[2]), number=True),
        Column("max", lambda row: format_value(row[1].max, row[2]), number=True),
    ]
    rows = [
        ("completion time", measures.completion, "s"),
        ("waiting time", measures.waiting, "s"),
        ("time to first start", measures.to_first_start, "s"),
        ("slowdown", measures.slowdown, "×"),
        ("finish-time fairness (ρ)", measures.finish_time_fairness, "×"),
        ("overtaken by", measures.overtaken, "jobs"),
    ]
    return Table("Times", columns, rows)


def _groups(title: str, what: str, groups: Sequence[MeasureGroup], total: int) -> Table:
    from refold.simulator.results import format_value

    columns: list[Column[MeasureGroup]] = [
        Column(what, lambda group: group.name, whole=True),
        Column("jobs", lambda group: format_number(group.jobs), number=True),
        Column("mean completion time", lambda group: format_value(group.completion.mean, "s"), number=True),
        Column("mean waiting time", lambda group: format_value(group.waiting.mean, "s"), number=True),
        Column("mean slowdown", lambda group: format_value(group.slowdown.mean, "×"), number=True),
        Column("GPU-hours", lambda group: format_number(group.gpu_hours), number=True),
        Column("preemptions", lambda group: format_number(group.preemptions), number=True),
    ]
    more = total - len(groups)
    return Table(title, columns, groups, after=[f"… and {more} more"] if more > 0 else [])


def comparison_table(
    title: str,
    runs: Sequence[ReportRun],
    faults: str,
    power: bool = False,
    recorded: Recorded | None = None,
) -> Table:
    """Return the comparison of runs. The best value of each column and policies that know run times are marked.

    With `power`, the measures of rack power are included. Below it stand the best values, compared with what was
    recorded or with a usual baseline.
    """
    from refold.simulator.results import (
        MAIN_MEASURES,
        MORE_MEASURES,
        POWER_MEASURES,
        TOPOLOGY_MEASURES,
        compare_with_record,
        measure_table,
    )

    measured = (
        *MAIN_MEASURES,
        *(one for one in MORE_MEASURES if faults and one[0].key in FAULT_MEASURES),
        *(POWER_MEASURES if power else ()),
        *(TOPOLOGY_MEASURES if any(run.measures.topology is not None for run in runs) else ()),
    )
    comparison = measure_table([(run.name, run.measures) for run in runs], measured, recorded)
    best = [
        f"{one.title.lower()}: {one.policy} {one.value}, {one.remark}"
        for one in compare_with_record(runs, recorded)
        if one.key in HEADLINE_MEASURES and one.policy and one.remark
    ]
    oracles = {run.name for run in runs if run.is_oracle}
    return _side_by_side(title, comparison, oracles, [*_footnotes(comparison, runs, faults), *best])


def outlook_table(outlook: PreemptionOutlook) -> Table:
    from refold.simulator.results import outlook_table as compared

    title = f"Costs and benefits of preemption: {plural(outlook.jobs, 'job')} under {outlook.policy}"
    after = [
        "`preemption` in refold.yaml decides. Stopped jobs are assumed to continue where they were stopped: jobs "
        "without checkpoints would lose their work."
    ]
    return _side_by_side(title, compared(outlook), (), after, "jobs that may be preempted")


def start_estimate_tables(runs: Sequence[ReportRun]) -> list[Table]:
    """Return a table of start estimates and overtaking; none if no policy made start estimates."""
    from refold.simulator.results import START_ESTIMATE_MEASURES, measure_table

    if all(run.measures.start_estimates is None for run in runs):
        return []
    comparison = measure_table([(run.name, run.measures) for run in runs], START_ESTIMATE_MEASURES)
    return [_side_by_side("Start estimates and overtaking", comparison, (), [])]


def _side_by_side(
    title: str, comparison: Comparison, oracles: Collection[str], after: Sequence[str], first: str = "policy"
) -> Table:
    def name(row: MeasureRow) -> str:
        return f"{row.name} {ORACLE_MARK}" if row.name in oracles else row.name

    columns: list[Column[MeasureRow]] = [Column(first, name, whole=True)]
    columns += [_measure_column(column.name, index) for index, column in enumerate(comparison.columns)]
    return Table(title, columns, comparison.rows, after)


def _measure_column(title: str, index: int) -> Column[MeasureRow]:
    def text(row: MeasureRow) -> str:
        return f"{row.cells[index].text} {BEST_MARK if row.cells[index].best else ' '}"

    return Column(title, text, number=True, style=lambda row: "bold green" if row.cells[index].best else "")


def _footnotes(comparison: Comparison, runs: Sequence[ReportRun], faults: str) -> list[str]:
    all_equal = len(runs) > 1 and len({tuple(cell.text for cell in row.cells) for row in comparison.rows}) == 1
    footnotes = {
        f"{BEST_MARK} best of the column": any(cell.best for row in comparison.rows for cell in row.cells),
        f"{ORACLE_MARK} knows run times in advance": any(run.is_oracle for run in runs),
        f"{faults} before the last job ended": bool(faults),
        _equal_footnote(runs): all_equal,
    }
    return [line for line, applies in footnotes.items() if applies]


def _equal_footnote(runs: Sequence[ReportRun]) -> str:
    no_waiting = not any(run.measures.waiting.max or run.measures.outcomes.finished < run.measures.jobs for run in runs)
    return f"all policies give the same result{': no job waited' if no_waiting else ''}"
