"""`refold replay`: replay a journal, with its own or another policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import (
    OtherPolicy,
    OutFolder,
    OverheadOptions,
    PlacementName,
    Seed,
    Settings,
    argument,
    parse_settings,
    require_option,
    with_option_groups,
)
from refold.cli.inputs import Workload, read_recorded_run, workload_from_history
from refold.cli.views import AsJson, plural, print_json, print_line, print_notes, print_tables, progress
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.cli.inputs import SelectedPolicy
    from refold.core import Entry, Header, Order, Policy
    from refold.model import Cluster
    from refold.simulator import Costs
    from refold.simulator.results import ReportRun


MAX_ORDERS = 5
"""Orders of a difference that are printed."""


@with_option_groups
def replay(
    *,
    journal: Annotated[Path, argument("JOURNAL", "Journal file (plain or .gz).")],
    policy: OtherPolicy = None,
    placement: PlacementName = None,
    seed: Seed = None,
    settings: Settings = None,
    overheads: OverheadOptions,
    out: OutFolder = None,
    as_json: AsJson = False,
) -> None:
    """Replay a journal, with its own or another policy.

    The events of the journal, of a simulation or of a real cluster, are fed to its policy, and the resulting orders are
    compared with the recorded ones. Exit status: 0 identical orders, 1 different orders.

    With --policy the journal's jobs are simulated under another policy, and both results are shown side by side. Each
    job does its recorded work, and nodes fail as recorded. Jobs that did not end in the journal are skipped
    unless their work is known. Start and stop overheads are those of the options.

    Example: refold replay out/journal.jsonl --policy srtf --out what-if
    """
    from refold.cli import output_folder
    from refold.cli.inputs import parse_policy

    if policy is None:
        given = {"--placement": placement, "--seed": seed, "--set": settings or None, **overheads.given()}
        require_option("--policy", given, "without it, the journal's own policy and settings are used")
        with output_folder(out):
            _replay_own_policy(journal, out, as_json)
        return
    choice = parse_policy(policy, parse_settings(settings, placement, seed))
    with output_folder(out):
        _simulate_other_policy(journal, choice, overheads.parse(), out, as_json)


def _replay_own_policy(path: Path, out: Path | None, as_json: bool) -> None:
    from refold.cli import make_guarded_policy
    from refold.journal import read_journal

    header, entries = read_journal(path)
    if header.snapshot:
        raise BadInput(f"{path} is a snapshot, which has no decisions to replay; use --policy to simulate one")
    seen = _EntryCounter(entries)
    with progress(f"replaying {path.name}"):
        difference = _difference(header, iter(seen), make_guarded_policy(header.policy, header.settings))
    report = _write_report(path, out, [read_recorded_run(path)[0]], "As recorded.") if out else None
    if as_json:
        print_json(
            {
                "policy": header.policy,
                "entries": seen.entries,
                "orders": seen.orders,
                "identical": not difference,
                "difference": "; ".join(difference) or None,
                "report": report and str(report),
            }
        )
    else:
        for line in difference or [f"{_format_entries(seen.entries)}, {plural(seen.orders, 'order')}: identical"]:
            print_line(line)
        if report:
            print_line(f"report: {report}")
    raise typer.Exit(int(bool(difference)))


def _format_entries(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries:,} entries"


def _difference(header: Header, entries: Iterator[Entry], policy: Policy) -> list[str]:
    """Return lines that describe the first entry whose replayed orders differ from the recorded ones; none if equal."""
    from refold.journal import replay

    for number, (recorded, again) in enumerate(replay(header, entries, policy), start=1):
        if recorded.orders != again.orders:
            only = [order for order in recorded.orders if order not in again.orders]
            other = [order for order in again.orders if order not in recorded.orders]
            return [
                f"entry {number} at {recorded.now:g} s differs",
                *_format_orders("journal", only, header.cluster),
                *_format_orders("replay", other, header.cluster),
                *(["same orders in a different sequence"] if not only and not other else []),
            ]
    return []


def _format_orders(source: str, orders: Sequence[Order], cluster: Cluster) -> list[str]:
    lines = [f"{source}: {_format_order(order, cluster)}" for order in orders[:MAX_ORDERS]]
    more = len(orders) - MAX_ORDERS
    return [*lines, f"{source}: {plural(more, 'more order')}"] if more > 0 else lines


def _format_order(order: Order, cluster: Cluster) -> str:
    """Format 'start run 1 of job a on n0 (GPUs 0, 1), n1 (GPU 3)', 'stop run 2 of job b (preempted by c)'."""
    from refold.core import StartRun

    run = f"run {order.run} of job {order.job}"
    if isinstance(order, StartRun):
        return f"start {run} on {order.allocation.text(cluster)}"
    return f"stop {run}" + (f" ({order.why})" if order.why else "")


class _EntryCounter:
    """An iterable of entries that counts the entries and orders read."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self.entries = 0
        self.orders = 0

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self.entries += 1
            self.orders += len(entry.orders)
            yield entry


def _simulate_other_policy(path: Path, choice: SelectedPolicy, costs: Costs, out: Path | None, as_json: bool) -> None:
    from refold.cli import collect_notes, describe_conditions, format_node_faults
    from refold.cli.views import comparison_table, start_estimate_tables
    from refold.journal import read_journal

    header, _ = read_journal(path)
    runs, workload = (_both_simulated if header.snapshot else _recorded_and_simulated)(path, choice, costs)
    notes = collect_notes(workload, runs[1:])
    report = _write_report(path, out, runs, describe_conditions(workload, runs[1:]), workload.notes) if out else None
    if as_json:
        policies = [(header.policy, header.settings), (choice.policy, choice.settings)]
        print_json(
            {
                "journal": str(path),
                "notes": notes,
                "runs": [
                    {"name": run.name, "policy": policy, "settings": settings, "measures": run.measures}
                    for run, (policy, settings) in zip(runs, policies, strict=True)
                ],
                "report": report and str(report),
            }
        )
        return
    print_notes(notes)
    print_tables(comparison_table(str(workload), runs, format_node_faults(runs)), *start_estimate_tables(runs))
    if report:
        print_line(f"report: {report}")


def _recorded_and_simulated(path: Path, choice: SelectedPolicy, costs: Costs) -> tuple[list[ReportRun], Workload]:
    recorded, _ = read_recorded_run(path)
    workload = workload_from_history(path, recorded.history, costs)
    return [recorded, _simulate(workload, choice)], workload


def _both_simulated(path: Path, choice: SelectedPolicy, costs: Costs) -> tuple[list[ReportRun], Workload]:
    """Return simulated runs of a snapshot's own policy and of the other one: a snapshot has no recorded run."""
    from refold.cli import TraceOptions
    from refold.cli.inputs import SelectedPolicy, is_oracle, policy_label, read_backlog
    from refold.journal import read_journal

    header, _ = read_journal(path)
    workload = read_backlog(str(path), None, TraceOptions(), costs)
    name = policy_label(header.policy, header.settings)
    own = SelectedPolicy(header.policy, header.settings, name, is_oracle(header.policy))
    return [_simulate(workload, own), _simulate(workload, choice)], workload


def _simulate(workload: Workload, choice: SelectedPolicy) -> ReportRun:
    from refold.cli import run_policy

    run = run_policy(workload, choice)
    return replace(run, name=f"{run.name} (simulated)")


def _write_report(
    path: Path, out: Path, runs: Sequence[ReportRun], conditions: str, notes: Sequence[str] = ()
) -> Path | None:
    from refold.cli import try_write_report

    return try_write_report(out, runs, f"Journal {path.name}", conditions, notes)
