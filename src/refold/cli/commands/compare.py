"""`refold compare`: compare policies on a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.cli import (
    ClusterFile,
    ExperimentOptions,
    PlacementNames,
    PolicyNames,
    PreemptionMode,
    PreemptionOptions,
    Seed,
    SourceOptions,
    SpreadPower,
    TraceOrDemo,
    option,
    parse_settings,
    switch,
    with_option_groups,
)
from refold.cli.views import AsJson, print_json, print_line, print_notes, print_paragraph, print_tables
from refold.errors import BadInput
from refold.model import format_count, format_duration

if TYPE_CHECKING:
    from refold.cli.inputs import SelectedPolicy, Workload
    from refold.model import Job, PreemptionOutlook
    from refold.simulator.results import Measures, Recorded, ReportRun, Reproduction


SLURM = "slurm"
"""The policy that simulates Slurm's own order."""


@dataclass(frozen=True, slots=True)
class _SeveralPolicies:
    policies: PolicyNames = None
    placements: PlacementNames = None
    spread_power: SpreadPower = False
    seed: Seed = None
    settings: Annotated[
        list[str] | None, option("[POLICY.]KEY=VALUE", "Setting of one or all policies; repeatable.", "--set")
    ] = None
    start_estimates: Annotated[
        bool,
        switch(
            "--start-estimates",
            "Estimate every hour when waiting jobs start, and measure the estimates; slow if queues are long.",
        ),
    ] = False

    def select(self, watch: str | None) -> list[SelectedPolicy]:
        """Return the policies with their placements and settings."""
        from refold.cli.inputs import POWER_PLACEMENT, check_spread_power, parse_policies, with_start_estimates

        given = parse_settings(self.settings, None, self.seed, watch)
        names = self._names()
        placements = [] if self.placements is None else _split_list("--placements", self.placements)
        if self.spread_power:
            check_spread_power(names, {"--placements": self.placements}, given)
            placements = [POWER_PLACEMENT]
        selected = parse_policies(names, placements, given)
        return [with_start_estimates(policy) for policy in selected] if self.start_estimates else selected

    def _names(self) -> list[str]:
        """Return the names of the policies. Default: all; with --spread-power, all that take a placement."""
        from refold.cli.inputs import takes_placement
        from refold.simulator import default_policies

        if self.policies is not None:
            return _split_list("--policies", self.policies)
        return [name for name in default_policies() if not self.spread_power or takes_placement(name)]


class _Workers(StrEnum):
    """Where policies are simulated in parallel."""

    RAY = "ray"


@dataclass(frozen=True, slots=True)
class _OutputOptions:
    """How to run the comparison and what to write."""

    processes: Annotated[int, option("N", "Number of policies to simulate in parallel.", min=1, max=256)] = 1
    workers: Annotated[
        _Workers | None,
        option(
            "ray",
            "Simulate the policies in parallel on a Ray cluster: that of RAY_ADDRESS, or of this machine "
            "(default: on this machine, see --processes).",
        ),
    ] = None
    out: Annotated[Path, option("DIR", "Write report.html to this folder.")] = Path("refold-compare")
    as_json: AsJson = False

    def run(self, workload: Workload, policies: list[SelectedPolicy]) -> list[ReportRun]:
        from refold.cli import run_policies, run_policies_on_ray, stoppable

        if self.workers is None:
            with stoppable("no report is written"):
                return run_policies(workload, policies, self.processes)
        if self.processes != 1:
            raise BadInput("--processes is the number of processes of this machine; --workers ray uses all CPUs of Ray")
        return run_policies_on_ray(workload, policies)


@with_option_groups
def compare(
    *,
    trace: TraceOrDemo = "demo",
    cluster: ClusterFile = None,
    source: SourceOptions,
    policies: _SeveralPolicies,
    experiment: ExperimentOptions,
    output: _OutputOptions,
) -> None:
    """Compare policies on a trace: print a table and write a report with charts.

    Every policy is simulated with the same jobs and cluster. Without arguments, the default policies are compared on
    the demo trace. With --from slurm, the jobs of the last weeks are read from Slurm's accounting, and two rows come
    first: what Slurm did, and its own order, simulated. How far these differ is how far the other rows can be believed.

    With `refold` among the policies, it is simulated up to three times, to show the costs and benefits of preemption;
    --preemption never leaves that out.

    Examples: refold compare jobs.csv --cluster 16x8:A100 --policies fifo,las,las/fgd,./mine.py ·
    refold compare --from slurm --since 14d --policies fifo,easy,refold
    """
    from refold.cli import (
        collect_notes,
        describe_conditions,
        output_folder,
        prepare_experiment,
        trace_notes,
        try_write_report,
    )
    from refold.cli.inputs import DEMO, power_limit_notes
    from refold.simulator.results import measure_waits

    out = output.out
    reader = source.reader(None if trace == DEMO else trace)
    chosen, mode = policies.select(experiment.watch), experiment.consent.preemption
    if mode is PreemptionMode.ALWAYS:
        experiment = replace(experiment, consent=PreemptionOptions())
    workload, selected = prepare_experiment(trace, cluster, chosen, experiment, reader)
    if workload.engine_policy is not None:
        selected = [workload.engine_policy, *(policy for policy in selected if policy.policy != SLURM)]
    with output_folder(out):
        results = _simulate(workload, selected, mode, output)
        selected, runs = results.policies, results.runs
        if workload.engine_policy is not None:
            runs[0] = replace(runs[0], is_reference=True)
        reproduction = _reproduction(workload, runs)
        notes = [*collect_notes(workload, runs), *power_limit_notes(selected, runs), *_reproduction_notes(reproduction)]
        title = f"{len(runs)} policies on {workload.name}"
        shown = [*([workload.recorded] if workload.recorded else []), *runs]
        conditions, recorded = describe_conditions(workload, runs), measure_waits(workload.jobs, workload.waits)
        report = try_write_report(out, shown, title, conditions, trace_notes(workload), results.outlook, recorded)
    if output.as_json:
        document = _document(workload, results, recorded, conditions, notes, report)
        print_json({**document, **({"reproduction": reproduction._asdict()} if reproduction else {})})
        return
    print_notes(notes)
    _print_tables(workload, results, shown, recorded)
    print_paragraph(conditions)
    if report:
        print_line(f"report: {report}")


@dataclass(frozen=True, slots=True)
class _Results:
    """The run of each policy, and the costs and benefits of preemption under one of them."""

    policies: list[SelectedPolicy]
    runs: list[ReportRun]
    outlook: PreemptionOutlook | None = None


def _simulate(
    workload: Workload, selected: list[SelectedPolicy], mode: PreemptionMode, output: _OutputOptions
) -> _Results:
    """Simulate the policies, with `always` in further rows with all jobs preemptible where that changes something."""
    from refold.cli.inputs import with_preemption

    runs = output.run(workload, selected)
    if mode is PreemptionMode.NEVER:
        return _Results(selected, runs)
    if mode is PreemptionMode.CONSENT:
        return _Results(selected, runs, _simulate_outlook(workload, selected, output, [(workload, runs)]))
    all_preemptible = with_preemption(workload, PreemptionMode.ALWAYS)
    others = output.run(all_preemptible, selected)
    rows: list[tuple[SelectedPolicy, ReportRun]] = []
    for choice, run, other in zip(selected, runs, others, strict=True):
        rows.append((choice, run))
        if other.measures != run.measures:
            rows.append((choice, replace(other, name=f"{other.name}, all preemptible")))
    outlook = _simulate_outlook(workload, selected, output, [(workload, runs), (all_preemptible, others)])
    return _Results([choice for choice, _ in rows], [run for _, run in rows], outlook)


def _simulate_outlook(
    workload: Workload,
    selected: list[SelectedPolicy],
    output: _OutputOptions,
    simulated: list[tuple[Workload, list[ReportRun]]],
) -> PreemptionOutlook | None:
    """Return the costs and benefits of preemption under the daemon's default policy, if it is compared."""
    from refold.simulator import DEFAULT_POLICY, compute_outlook

    names = [choice.policy for choice in selected]
    if DEFAULT_POLICY not in names:
        return None
    number = names.index(DEFAULT_POLICY)
    choice = selected[number]

    def measure_jobs(jobs: list[Job]) -> Measures:
        return output.run(replace(workload, jobs=jobs), [choice])[0].measures

    known = [(each.jobs, runs[number].measures) for each, runs in simulated]
    return compute_outlook(workload.name, choice.name, workload.jobs, measure_jobs, has_consent=True, known=known)


def _reproduction(workload: Workload, runs: list[ReportRun]) -> Reproduction | None:
    """Return how well the order of the engine, simulated first, reproduces what was recorded."""
    from refold.simulator.results import measure_reproduction

    if workload.recorded is None or workload.engine_policy is None:
        return None
    return measure_reproduction(workload.recorded.history.jobs, runs[0].history.jobs)


def _reproduction_notes(found: Reproduction | None) -> list[str]:
    if found is None:
        return []
    waits = f"mean waiting time {format_duration(found.simulated)}, recorded {format_duration(found.recorded)}"
    jobs = format_count(found.jobs, "job")
    note = f"Slurm's backfill, simulated: {waits}; starts of {jobs} differ by {format_duration(found.error)} on average"
    if found.is_close:
        return [note]
    doubt = (
        "the simulation does not reproduce what Slurm did: reservations, nodes that were down and limits at that time "
        "are not known. Compare the policies with the simulated row, and do not rely on small differences"
    )
    return [note, doubt]


def _split_list(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput(f"{option} is empty; expected names separated by commas")
    return names


def _document(
    workload: Workload,
    results: _Results,
    recorded: Recorded | None,
    conditions: str,
    notes: list[str],
    report: Path | None,
) -> dict[str, object]:
    from refold.cli import count_node_faults

    return {
        "trace": workload.name,
        "skipped_rows": workload.skipped_rows,
        "conditions": conditions,
        "notes": notes,
        "runs": [
            {
                "name": run.name,
                "policy": choice.policy,
                "settings": choice.settings,
                "node_faults": count_node_faults(run.history),
                "measures": run.measures,
            }
            for choice, run in zip(results.policies, results.runs, strict=True)
        ],
        "preemption": results.outlook,
        **({"recorded": workload.recorded.measures} if workload.recorded else {}),
        **({"recorded_waits": recorded} if recorded else {}),
        "report": report and str(report),
    }


def _print_tables(workload: Workload, results: _Results, runs: list[ReportRun], recorded: Recorded | None) -> None:
    from refold.cli import format_node_faults
    from refold.cli.inputs import spreads_power
    from refold.cli.views import comparison_table, outlook_table, start_estimate_tables

    power = any(spreads_power(choice) for choice in results.policies)
    table = comparison_table(str(workload), runs, format_node_faults(runs), power, recorded)
    outlook = [outlook_table(results.outlook)] if results.outlook else []
    print_tables(table, *start_estimate_tables(runs), *outlook)
