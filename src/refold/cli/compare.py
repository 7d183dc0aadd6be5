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
    FormatName,
    Limit,
    PlacementNames,
    PolicyNames,
    Repair,
    RestartCost,
    Seed,
    StartCost,
    StopCost,
    TraceOrDemo,
    check_faults,
    costs_from,
    settings_from,
)
from refold.cli.output import AsJson, print_json, print_tables, say, tell
from refold.cli.trace import GpusPerInstance, SkipBad

if TYPE_CHECKING:
    from refold.cli.choices import Choice
    from refold.cli.workload import Workload
    from refold.results import ReportRun


def compare(
    trace: TraceOrDemo = "demo",
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
    gpus_per_instance: GpusPerInstance = None,
    limit: Limit = None,
    start_cost: StartCost = None,
    stop_cost: StopCost = None,
    restart_cost: RestartCost = None,
    checkpoint_every: CheckpointEvery = None,
    faults: Faults = None,
    repair: Repair = None,
    fault_seed: FaultSeed = None,
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
    from refold.cli.choices import chosen_policies
    from refold.cli.experiment import all_simulated, conditions_of, notes_of, output_folder, reading_notes, try_report
    from refold.cli.workload import Reading, read_workload, with_faults
    from refold.registry import policy_names

    wanted = policy_names() if policies is None else _listed("--policies", policies)
    where = [] if placements is None else _listed("--placements", placements)
    chosen = chosen_policies(wanted, where, settings_from(settings, None, seed))
    costs = costs_from(start_cost, stop_cost, restart_cost, checkpoint_every)
    check_faults(faults, checkpoint_every, repair, fault_seed)
    workload = read_workload(trace, cluster, Reading(format, skip_bad, gpus_per_instance, limit), costs)
    workload = with_faults(workload, faults, repair, fault_seed or 0)
    with output_folder(out):
        runs = all_simulated(workload, chosen, processes)
        notes = notes_of(workload, runs)
        title = f"{len(runs)} policies on {workload.name}"
        report = try_report(out, runs, title, conditions_of(workload, runs), reading_notes(workload))
    if as_json:
        print_json(_document(workload, chosen, runs, notes, report))
        return
    tell(notes)
    _print_table(workload, chosen, runs)
    if report:
        say(f"report: {report}")


def _listed(option: str, text: str) -> list[str]:
    from refold.errors import BadInput

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput(f"{option} is empty; name some, parted by commas, or leave it out")
    return names


def _document(
    workload: Workload, chosen: list[Choice], runs: list[ReportRun], notes: list[str], report: Path | None
) -> object:
    from refold.cli.experiment import faults_seen

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
            }
            for choice, run in zip(chosen, runs, strict=True)
        ],
        "report": report and str(report),
    }


def _print_table(workload: Workload, chosen: list[Choice], runs: list[ReportRun]) -> None:
    from refold.cli.experiment import faults_text
    from refold.cli.measured import comparison_table

    oracles = {choice.name for choice in chosen if choice.oracle}
    print_tables(comparison_table(str(workload), runs, oracles, faults_text(runs)))
