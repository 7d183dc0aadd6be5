"""`refold simulate`: simulate one policy on a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    PlacementName,
    PolicyName,
    Repair,
    ReportEvery,
    RestartCost,
    Seed,
    Settings,
    SpreadPower,
    StartCost,
    StopCost,
    StuckSeed,
    StuckShare,
    TraceName,
    WatchOption,
    check_faults,
    check_never_ending,
    check_watch,
    parse_costs,
    parse_settings,
)
from refold.cli.commands.trace import GpusPerInstance, SkipBad
from refold.cli.views import AsJson, print_json, print_line, print_notes, print_tables


def simulate(
    trace: TraceName,
    cluster: ClusterFile = None,
    policy: PolicyName = "fifo",
    placement: PlacementName = None,
    spread_power: SpreadPower = False,
    seed: Seed = None,
    settings: Settings = None,
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
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write journal.jsonl and report.html to this folder.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option("--journal", metavar="FILE", help="Write the journal to this file; compressed if it ends in .gz."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one policy on a trace and print its measures.

    Measures are shown for all jobs, per tenant and per job size; docs/measures.md defines them.

    Example: refold simulate jobs.csv --cluster 16x8:A100 --policy las --placement fgd --out las
    """
    from refold.cli import (
        JOURNAL_FILE_NAME,
        collect_notes,
        count_node_faults,
        describe_conditions,
        output_folder,
        run_policy,
        trace_notes,
        try_write_report,
    )
    from refold.cli.inputs import (
        POWER_PLACEMENT,
        TraceReadOptions,
        check_spread_power,
        parse_charging,
        parse_policy,
        power_limit_notes,
        read_knowledge,
        read_workload,
        with_charging,
        with_faults,
        with_knowledge,
        with_never_ending,
        with_power_limits,
    )
    from refold.cli.views import measure_tables

    if spread_power:
        check_spread_power([policy], {"--placement": placement}, parse_settings(settings))
        placement = POWER_PLACEMENT
    choice = parse_policy(policy, parse_settings(settings, placement, seed, watch))
    costs = parse_costs(start_cost, stop_cost, restart_cost, checkpoint_every, report_every)
    check_watch(choice.settings.get("watch"), costs.report_every)
    known = read_knowledge(knowledge, fits)
    charging = parse_charging(charge, known)
    [choice] = with_knowledge([choice], known, charging)
    check_faults(faults, checkpoint_every, repair, fault_seed)
    check_never_ending(stuck, endless, stuck_seed, report_every)
    workload = read_workload(trace, cluster, TraceReadOptions(format, skip_bad, gpus_per_instance, limit), costs)
    workload = with_power_limits(workload, [choice], skip_bad)
    workload = with_charging(workload, charge, charging)
    workload = with_faults(workload, faults, repair, fault_seed or 0)
    workload = with_never_ending(workload, stuck, endless, stuck_seed or 0)
    with output_folder(out):
        journal = journal or (out / JOURNAL_FILE_NAME if out else None)
        run = run_policy(workload, choice, journal)
        notes = collect_notes(workload, [run]) + power_limit_notes([choice], [run])
        title, conditions = f"{run.name} on {workload.name}", describe_conditions(workload, [run])
        report = try_write_report(out, [run], title, conditions, trace_notes(workload)) if out else None
    if as_json:
        print_json(
            {
                "trace": workload.name,
                "policy": choice.policy,
                "settings": choice.settings,
                "node_faults": count_node_faults(run.history),
                "measures": run.measures,
                "skipped_rows": workload.skipped_rows,
                "notes": notes,
                "journal": journal and str(journal),
                "report": report and str(report),
            }
        )
        return
    print_notes(notes)
    print_tables(*measure_tables(f"{run.name} on {workload}", run))
    for name, path in (("journal", journal), ("report", report)):
        if path:
            print_line(f"{name}: {path}")
