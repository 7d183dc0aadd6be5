"""`refold compare`: several policies on one trace, a table and a report."""

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
    WatchRules,
    check_faults,
    check_never_ending,
    check_watch,
    costs_from,
    settings_from,
)
from refold.cli.commands.trace import GpusPerInstance, SkipBad
from refold.cli.views import AsJson, Column, Table, print_json, print_tables, say, tell

if TYPE_CHECKING:
    from refold.cli.inputs import Choice, Workload
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
        typer.Option("--set", metavar="[POLICY.]KEY=VALUE", help="A setting of all policies, or of one; repeatable."),
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
    watch: WatchRules = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, help="Simulate so many policies at the same time.")
    ] = 1,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write report.html into this folder.")] = Path(
        "refold-report"
    ),
    gap: Annotated[
        bool, typer.Option("--gap", help="Also how far each policy is from the optimum, decision by decision.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare policies on a trace: a table, and a report with pictures.

    Every policy is simulated on the same jobs and cluster. Without arguments: all policies, on the workload that
    comes with Refold.

    Example: refold compare jobs.csv --cluster 16x8:A100 --policies fifo,las,las/fgd,./mine.py
    """
    from refold.cli import all_simulated, conditions_of, notes_of, output_folder, reading_notes, try_report
    from refold.cli.inputs import (
        TraceReadOptions,
        charging_from,
        chosen_policies,
        knowledge_from,
        limit_notes,
        read_workload,
        told,
        with_charging,
        with_faults,
        with_never_ending,
        within_limits,
    )

    given = settings_from(settings, None, seed, watch)
    wanted, where = _asked_for(policies, placements, spread_power, given)
    chosen = chosen_policies(wanted, where, given)
    costs = costs_from(start_cost, stop_cost, restart_cost, checkpoint_every, report_every)
    check_watch(given.get("watch"), costs.report_every)
    known = knowledge_from(knowledge, fits)
    charging = charging_from(charge, known)
    chosen = told(chosen, known, charging)
    check_faults(faults, checkpoint_every, repair, fault_seed)
    check_never_ending(stuck, endless, stuck_seed, report_every)
    workload = read_workload(trace, cluster, TraceReadOptions(format, skip_bad, gpus_per_instance, limit), costs)
    workload = within_limits(workload, chosen, skip_bad)
    workload = with_charging(workload, charge, charging)
    workload = with_faults(workload, faults, repair, fault_seed or 0)
    workload = with_never_ending(workload, stuck, endless, stuck_seed or 0)
    with output_folder(out):
        runs = all_simulated(workload, chosen, processes, gap)
        notes = notes_of(workload, runs) + limit_notes(chosen, runs) + (_gap_notes(runs) if gap else [])
        title = f"{len(runs)} policies on {workload.name}"
        report = try_report(out, runs, title, conditions_of(workload, runs), reading_notes(workload))
    if as_json:
        print_json(_document(workload, chosen, runs, notes, report, gap))
        return
    tell(notes)
    _print_table(workload, chosen, runs, gap)
    if report:
        say(f"report: {report}")


def _asked_for(
    policies: str | None, placements: str | None, spread_power: bool, given: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Policies and placements; all usual ones where nobody named any, or with --spread-power, those that take one."""
    from refold.cli.inputs import SPREAD, refuse_other_places, takes_placement
    from refold.registry import usual_policies

    usual = [name for name in usual_policies() if not spread_power or takes_placement(name)] if policies is None else []
    wanted = usual if policies is None else _listed("--policies", policies)
    if not spread_power:
        return wanted, [] if placements is None else _listed("--placements", placements)
    refuse_other_places(wanted, {"--placements": placements}, given)
    return wanted, [SPREAD]


def _listed(option: str, text: str) -> list[str]:
    from refold.errors import BadInput

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput(f"{option} is empty; name some, parted by commas, or leave it out")
    return names


def _document(
    workload: Workload, chosen: list[Choice], runs: list[ReportRun], notes: list[str], report: Path | None, gap: bool
) -> object:
    from refold.cli import faults_seen

    return {
        "trace": workload.name,
        "left_out": workload.left_out,
        "notes": notes,
        "runs": [
            {
                "name": run.name,
                "policy": choice.policy,
                "settings": choice.settings,
                "node_faults": faults_seen(run.history),
                "measures": run.measures,
                **({"gap": _gap_of(run)} if gap else {}),
            }
            for choice, run in zip(chosen, runs, strict=True)
        ],
        "report": report and str(report),
    }


def _print_table(workload: Workload, chosen: list[Choice], runs: list[ReportRun], gap: bool) -> None:
    from refold.cli import faults_text
    from refold.cli.inputs import spreads_power
    from refold.cli.views import comparison_table, promises_tables

    oracles = {choice.name for choice in chosen if choice.oracle}
    power = any(spreads_power(choice) for choice in chosen)
    table = comparison_table(str(workload), runs, oracles, faults_text(runs), power)
    print_tables(_with_gaps(table, runs) if gap else table, *promises_tables(runs))


def _with_gaps(table: Table, runs: list[ReportRun]) -> Table:
    """The same with one more column."""
    from refold.results import text_of

    columns = {**table.columns, "gap": Column("mean gap to the optimum", number=True)}
    rows = [{**row, "gap": text_of(_gap_of(run), "%")} for row, run in zip(table.rows, runs, strict=True)]
    return Table(table.title, columns, rows, table.after)


def _gap_of(run: ReportRun) -> float | None:
    from refold.research import GapRun

    return run.gap if isinstance(run, GapRun) else None


def _gap_notes(runs: list[ReportRun]) -> list[str]:
    from refold.research import gap_notes

    return gap_notes(runs)
