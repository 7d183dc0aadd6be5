"""`refold simulate`: simulate one policy on a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.cli import (
    ClusterFile,
    ExperimentOptions,
    PlacementName,
    PolicyName,
    Seed,
    Settings,
    SpreadPower,
    TraceName,
    option,
    parse_settings,
    with_option_groups,
)
from refold.cli.views import AsJson, print_json, print_line, print_notes, print_paragraph, print_tables

if TYPE_CHECKING:
    from refold.cli.inputs import SelectedPolicy


@dataclass(frozen=True, slots=True)
class _OnePolicy:
    policy: PolicyName = "fifo"
    placement: PlacementName = None
    spread_power: SpreadPower = False
    seed: Seed = None
    settings: Settings = None

    def select(self, watch: str | None) -> SelectedPolicy:
        """Return the policy with its placement and settings."""
        from refold.cli.inputs import POWER_PLACEMENT, check_spread_power, parse_policy

        placement = self.placement
        if self.spread_power:
            check_spread_power([self.policy], {"--placement": placement}, parse_settings(self.settings))
            placement = POWER_PLACEMENT
        return parse_policy(self.policy, parse_settings(self.settings, placement, self.seed, watch))


@with_option_groups
def simulate(
    *,
    trace: TraceName,
    cluster: ClusterFile = None,
    policy: _OnePolicy,
    experiment: ExperimentOptions,
    out: Annotated[Path | None, option("DIR", "Write journal.jsonl and report.html to this folder.")] = None,
    journal: Annotated[
        Path | None, option("FILE", "Write the journal to this file; compressed if it ends in .gz.")
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
        prepare_experiment,
        run_policy,
        trace_notes,
        try_write_report,
    )
    from refold.cli.inputs import power_limit_notes
    from refold.cli.views import guarantee_tables, measure_tables
    from refold.simulator.results import check_guarantees

    workload, [choice] = prepare_experiment(trace, cluster, [policy.select(experiment.watch)], experiment)
    with output_folder(out):
        journal = journal or (out / JOURNAL_FILE_NAME if out else None)
        run = run_policy(workload, choice, journal)
        notes = collect_notes(workload, [run]) + power_limit_notes([choice], [run])
        title, conditions = f"{run.name} on {workload.name}", describe_conditions(workload, [run])
        report = try_write_report(out, [run], title, conditions, trace_notes(workload)) if out else None
    guarantees = check_guarantees(run.history)
    if as_json:
        print_json(
            {
                "trace": workload.name,
                "policy": choice.policy,
                "settings": choice.settings,
                "node_faults": count_node_faults(run.history),
                "measures": run.measures,
                "guarantees": guarantees,
                "skipped_rows": workload.skipped_rows,
                "conditions": conditions,
                "notes": notes,
                "journal": journal and str(journal),
                "report": report and str(report),
            }
        )
        return
    print_notes(notes)
    print_tables(*measure_tables(f"{run.name} on {workload}", run), *guarantee_tables(guarantees))
    print_paragraph(conditions)
    for name, path in (("journal", journal), ("report", report)):
        if path:
            print_line(f"{name}: {path}")
