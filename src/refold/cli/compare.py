"""`refold compare`: several policies on one trace, a table and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.options import (
    CheckpointEvery,
    ClusterFile,
    Faults,
    FaultSeed,
    Limit,
    PlacementNames,
    PolicyNames,
    Repair,
    RestartCost,
    Seed,
    StartCost,
    StopCost,
    costs_from,
    settings_from,
)
from refold.cli.output import AsJson, output_width, print_json, print_tables
from refold.cli.trace import FormatName, GpusPerInstance, SkipBad

if TYPE_CHECKING:
    from refold.cli.experiment import Choice
    from refold.cli.workload import Workload
    from refold.results import ReportRun


def compare(
    trace: Annotated[str, typer.Argument(metavar="[TRACE]", help="A trace file (plain or .gz), or 'demo'.")] = "demo",
    cluster: ClusterFile = None,
    policies: PolicyNames = None,
    placements: PlacementNames = None,
    seed: Seed = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[POLICY.]KEY=VALUE", help="A setting of all policies, or of one; repeatable."),
    ] = None,
    format: FormatName = None,
    skip_bad: SkipBad = False,
    gpus_per_instance: GpusPerInstance = 8,
    limit: Limit = None,
    start_cost: StartCost = "0s",
    stop_cost: StopCost = "0s",
    restart_cost: RestartCost = None,
    checkpoint_every: CheckpointEvery = None,
    faults: Faults = None,
    repair: Repair = None,
    fault_seed: FaultSeed = 0,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=256, help="Simulate so many policies at the same time.")
    ] = 1,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write report.html into this folder.")] = Path(
        "refold-report"
    ),
    as_json: AsJson = False,
) -> None:
    """Compare policies on a trace: a table, and a report with pictures.

    Every policy is simulated on the same jobs and cluster. Without arguments: all policies, on the workload that
    comes with Refold.

    Example: refold compare jobs.csv --cluster 16x8:A100 --policies fifo,las,las/fgd,./mine.py
    """
    from refold.cli.experiment import all_simulated, chosen_policies, try_report
    from refold.cli.workload import Reading, read_workload, with_faults
    from refold.registry import policy_names

    wanted = policy_names() if policies is None else _listed("--policies", policies)
    where = [] if placements is None else _listed("--placements", placements)
    chosen = chosen_policies(wanted, where, settings_from(None, None, seed), settings_from(settings))
    costs = costs_from(start_cost, stop_cost, restart_cost, checkpoint_every)
    workload = read_workload(trace, cluster, Reading(format, skip_bad, gpus_per_instance, limit), costs)
    workload = with_faults(workload, faults, repair, fault_seed)
    runs = all_simulated(workload, chosen, processes)
    report = try_report(out, runs, f"{len(runs)} policies on {workload.name}", workload.conditions)
    if as_json:
        print_json(_document(workload, chosen, runs, report))
        return
    workload.tell()
    _print_table(workload, runs)
    if report:
        typer.echo(f"report: {report}")


def _listed(option: str, text: str) -> list[str]:
    from refold.errors import BadInput

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput(f"{option} is empty; name some, parted by commas, or leave it out")
    return names


def _document(workload: Workload, chosen: list[Choice], runs: list[ReportRun], report: Path | None) -> object:
    return {
        "trace": workload.name,
        "left_out": workload.left_out,
        "notes": workload.notes,
        "runs": [
            {"name": run.name, "policy": choice.policy, "settings": choice.settings, "measures": run.measures}
            for choice, run in zip(chosen, runs, strict=True)
        ],
        "report": report and str(report),
    }


def _print_table(workload: Workload, runs: list[ReportRun]) -> None:
    from refold.cli.measured import comparison_tables
    from refold.results import compare

    comparison = compare([(run.name, run.measures) for run in runs])
    print_tables(*comparison_tables(str(workload), comparison, output_width()))
    never = runs[0].measures.outcomes.never
    if never:
        typer.echo(f"note: {never:,} jobs are too large for the cluster and never ran", err=True)
