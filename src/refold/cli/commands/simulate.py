"""`refold simulate`: one policy on one trace."""

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
    WatchRules,
    check_faults,
    check_never_ending,
    check_watch,
    costs_from,
    settings_from,
)
from refold.cli.commands.trace import GpusPerInstance, SkipBad
from refold.cli.views import AsJson, print_json, print_tables, say, tell


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
    watch: WatchRules = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write journal.jsonl and report.html into this folder.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option("--journal", metavar="FILE", help="Write the journal here; gzipped if it ends in .gz."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one policy on a trace, and measure it.

    Measures are of all jobs, per tenant and per size; docs/measures.md says what each means.

    Example: refold simulate jobs.csv --cluster 16x8:A100 --policy las --placement fgd --out las
    """
    from refold.cli import (
        JOURNAL,
        conditions_of,
        faults_seen,
        notes_of,
        output_folder,
        reading_notes,
        simulated,
        try_report,
    )
    from refold.cli.inputs import (
        SPREAD,
        TraceReadOptions,
        charging_from,
        chosen_policy,
        knowledge_from,
        limit_notes,
        read_workload,
        refuse_other_places,
        told,
        with_charging,
        with_faults,
        with_never_ending,
        within_limits,
    )
    from refold.cli.views import measure_tables

    if spread_power:
        refuse_other_places([policy], {"--placement": placement}, settings_from(settings))
        placement = SPREAD
    choice = chosen_policy(policy, settings_from(settings, placement, seed, watch))
    costs = costs_from(start_cost, stop_cost, restart_cost, checkpoint_every, report_every)
    check_watch(choice.settings.get("watch"), costs.report_every)
    known = knowledge_from(knowledge, fits)
    charging = charging_from(charge, known)
    [choice] = told([choice], known, charging)
    check_faults(faults, checkpoint_every, repair, fault_seed)
    check_never_ending(stuck, endless, stuck_seed, report_every)
    workload = read_workload(trace, cluster, TraceReadOptions(format, skip_bad, gpus_per_instance, limit), costs)
    workload = within_limits(workload, [choice], skip_bad)
    workload = with_charging(workload, charge, charging)
    workload = with_faults(workload, faults, repair, fault_seed or 0)
    workload = with_never_ending(workload, stuck, endless, stuck_seed or 0)
    with output_folder(out):
        journal = journal or (out / JOURNAL if out else None)
        run = simulated(workload, choice, journal)
        notes = notes_of(workload, [run]) + limit_notes([choice], [run])
        title, conditions = f"{run.name} on {workload.name}", conditions_of(workload, [run])
        report = try_report(out, [run], title, conditions, reading_notes(workload)) if out else None
    if as_json:
        print_json(
            {
                "trace": workload.name,
                "policy": choice.policy,
                "settings": choice.settings,
                "node_faults": faults_seen(run.history),
                "measures": run.measures,
                "left_out": workload.left_out,
                "notes": notes,
                "journal": journal and str(journal),
                "report": report and str(report),
            }
        )
        return
    tell(notes)
    print_tables(*measure_tables(f"{run.name} on {workload}", run))
    for what, path in (("journal", journal), ("report", report)):
        if path:
            say(f"{what}: {path}")
