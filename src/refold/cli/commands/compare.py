"""`refold compare`: compare policies on a trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import (
    ChargeBy,
    CheckpointEvery,
    ClusterFile,
    EndlessShare,
    Faults,
    FaultSeed,
    FitFiles,
    FormatName,
    KnowledgeFile,
    Limit,
    PlacementNames,
    PolicyNames,
    Repair,
    ReportEvery,
    RestartCost,
    Seed,
    SpreadPower,
    StartCost,
    StopCost,
    StuckSeed,
    StuckShare,
    TraceOrDemo,
    WatchOption,
    check_faults,
    check_never_ending,
    check_watch,
    parse_costs,
    parse_settings,
)
from refold.cli.commands.trace import GpusPerInstance, SkipBad
from refold.cli.views import AsJson, Column, Table, print_json, print_line, print_notes, print_tables

if TYPE_CHECKING:
    from refold.cli.inputs import SelectedPolicy, Workload
    from refold.results import ReportRun


def compare(
    trace: TraceOrDemo = "demo",
    cluster: ClusterFile = None,
    policies: PolicyNames = None,
    placements: PlacementNames = None,
    spread_power: SpreadPower = False,
    seed: Seed = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[POLICY.]KEY=VALUE", help="Setting of one or all policies; repeatable."),
    ] = None,
    format: FormatName = None,
    skip_bad: SkipBad = False,
    gpus_per_instance: GpusPerInstance = None,
    limit: Limit = None,
    start_cost: StartCost = None,
    stop_cost: StopCost = None,
    restart_cost: RestartCost = None,
    checkpoint_every: CheckpointEvery = None,
    report_every: ReportEvery = None,
    charge: ChargeBy = None,
    knowledge: KnowledgeFile = None,
    fits: FitFiles = None,
    faults: Faults = None,
    repair: Repair = None,
    fault_seed: FaultSeed = None,
    stuck: StuckShare = None,
    endless: EndlessShare = None,
    stuck_seed: StuckSeed = None,
    watch: WatchOption = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, help="Number of policies to simulate in parallel.")
    ] = 1,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write report.html to this folder.")] = Path(
        "refold-report"
    ),
    gap: Annotated[
        bool, typer.Option("--gap", help="Also measure the gap of each policy's decisions to the optimum.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare policies on a trace: print a table and write a report with charts.

    Every policy is simulated with the same jobs and cluster. Without arguments, all policies are compared on the demo
    trace.

    Example: refold compare jobs.csv --cluster 16x8:A100 --policies fifo,las,las/fgd,./mine.py
    """
    from refold.cli import (
        collect_notes,
        describe_conditions,
        output_folder,
        run_policies,
        trace_notes,
        try_write_report,
    )
    from refold.cli.inputs import (
        TraceReadOptions,
        parse_charging,
        parse_policies,
        power_limit_notes,
        read_knowledge,
        read_workload,
        with_charging,
        with_faults,
        with_knowledge,
        with_never_ending,
        with_power_limits,
    )

    given = parse_settings(settings, None, seed, watch)
    policy_names, placement_names = _parse_names(policies, placements, spread_power, given)
    selected = parse_policies(policy_names, placement_names, given)
    costs = parse_costs(start_cost, stop_cost, restart_cost, checkpoint_every, report_every)
    check_watch(given.get("watch"), costs.report_every)
    known = read_knowledge(knowledge, fits)
    charging = parse_charging(charge, known)
    selected = with_knowledge(selected, known, charging)
    check_faults(faults, checkpoint_every, repair, fault_seed)
    check_never_ending(stuck, endless, stuck_seed, report_every)
    workload = read_workload(trace, cluster, TraceReadOptions(format, skip_bad, gpus_per_instance, limit), costs)
    workload = with_power_limits(workload, selected, skip_bad)
    workload = with_charging(workload, charge, charging)
    workload = with_faults(workload, faults, repair, fault_seed or 0)
    workload = with_never_ending(workload, stuck, endless, stuck_seed or 0)
    with output_folder(out):
        runs = run_policies(workload, selected, processes, gap)
        notes = collect_notes(workload, runs) + power_limit_notes(selected, runs) + (_gap_notes(runs) if gap else [])
        title = f"{len(runs)} policies on {workload.name}"
        report = try_write_report(out, runs, title, describe_conditions(workload, runs), trace_notes(workload))
    if as_json:
        print_json(_document(workload, selected, runs, notes, report, gap))
        return
    print_notes(notes)
    _print_table(workload, selected, runs, gap)
    if report:
        print_line(f"report: {report}")


def _parse_names(
    policies: str | None, placements: str | None, spread_power: bool, given: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the names of policies and placements. Defaults: all policies, with --spread-power those that take one."""
    from refold.cli.inputs import POWER_PLACEMENT, check_spread_power, takes_placement
    from refold.registry import default_policies

    if policies is None:
        names = [name for name in default_policies() if not spread_power or takes_placement(name)]
    else:
        names = _split_list("--policies", policies)
    if not spread_power:
        return names, [] if placements is None else _split_list("--placements", placements)
    check_spread_power(names, {"--placements": placements}, given)
    return names, [POWER_PLACEMENT]


def _split_list(option: str, text: str) -> list[str]:
    from refold.errors import BadInput

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput(f"{option} is empty; expected names separated by commas")
    return names


def _document(
    workload: Workload,
    selected: list[SelectedPolicy],
    runs: list[ReportRun],
    notes: list[str],
    report: Path | None,
    gap: bool,
) -> object:
    from refold.cli import count_node_faults

    return {
        "trace": workload.name,
        "skipped_rows": workload.skipped_rows,
        "notes": notes,
        "runs": [
            {
                "name": run.name,
                "policy": choice.policy,
                "settings": choice.settings,
                "node_faults": count_node_faults(run.history),
                "measures": run.measures,
                **({"gap": _gap_of(run)} if gap else {}),
            }
            for choice, run in zip(selected, runs, strict=True)
        ],
        "report": report and str(report),
    }


def _print_table(workload: Workload, selected: list[SelectedPolicy], runs: list[ReportRun], gap: bool) -> None:
    from refold.cli import format_node_faults
    from refold.cli.inputs import spreads_power
    from refold.cli.views import comparison_table, start_estimate_tables

    oracles = {choice.name for choice in selected if choice.oracle}
    power = any(spreads_power(choice) for choice in selected)
    table = comparison_table(str(workload), runs, oracles, format_node_faults(runs), power)
    print_tables(_with_gaps(table, runs) if gap else table, *start_estimate_tables(runs))


def _with_gaps(table: Table, runs: list[ReportRun]) -> Table:
    """Return the table with a column of gaps."""
    from refold.results import format_value

    columns = {**table.columns, "gap": Column("mean gap to optimum", number=True)}
    rows = [{**row, "gap": format_value(_gap_of(run), "%")} for row, run in zip(table.rows, runs, strict=True)]
    return Table(table.title, columns, rows, table.after)


def _gap_of(run: ReportRun) -> float | None:
    from refold.research import GapRun

    return run.gap if isinstance(run, GapRun) else None


def _gap_notes(runs: list[ReportRun]) -> list[str]:
    from refold.research import gap_notes

    return gap_notes(runs)
