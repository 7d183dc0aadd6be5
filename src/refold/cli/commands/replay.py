"""`refold replay`: does a journal come out the same again, and what would another policy have done?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import (
    OtherPolicy,
    OutFolder,
    PlacementName,
    RestartCost,
    Seed,
    Settings,
    StartCost,
    StopCost,
    costs_from,
    refuse_without,
    settings_from,
)
from refold.cli.inputs import Workload, recorded_in, workload_of
from refold.cli.views import AsJson, plural, print_json, print_tables, progress, say, tell

if TYPE_CHECKING:
    from refold.cli.inputs import Choice
    from refold.core import Entry, Header, Order, Policy
    from refold.model import Cluster
    from refold.results import ReportRun
    from refold.simulator import Costs


MOST_ORDERS = 5
"""How many orders of a difference are told."""


def replay(
    journal: Annotated[Path, typer.Argument(metavar="JOURNAL", help="A journal.jsonl, plain or .gz.")],
    policy: OtherPolicy = None,
    placement: PlacementName = None,
    seed: Seed = None,
    settings: Settings = None,
    start_cost: StartCost = None,
    stop_cost: StopCost = None,
    restart_cost: RestartCost = None,
    out: OutFolder = None,
    as_json: AsJson = False,
) -> None:
    """Replay a journal, or ask what another policy would have done.

    The facts of the journal, of a simulation or of real runs, are fed to its policy once more, and the orders are
    compared. Exit status: 0 the same orders came out, 1 others did.

    With --policy it is another question: what would that policy have done? When runs end depends on when they
    were started, so the facts cannot be fed to it. Instead the jobs are simulated again, each as long as it really
    worked, with the nodes lost when they were; and both are shown side by side. Jobs that were never seen to end
    are left out, unless their work is known. The costs of starting and stopping are those you give.

    Example: refold replay out/journal.jsonl --policy srtf --out what-if
    """
    from refold.cli import output_folder
    from refold.cli.inputs import chosen_policy

    if policy is None:
        costs = {"--start-cost": start_cost, "--stop-cost": stop_cost, "--restart-cost": restart_cost}
        given = {"--placement": placement, "--seed": seed, "--set": settings or None, **costs}
        refuse_without("--policy", given, "a journal replays with the policy and settings it was made with")
        with output_folder(out):
            _replay_itself(journal, out, as_json)
        return
    choice = chosen_policy(policy, settings_from(settings, placement, seed))
    with output_folder(out):
        _what_if(journal, choice, costs_from(start_cost, stop_cost, restart_cost, None), out, as_json)


def _replay_itself(path: Path, out: Path | None, as_json: bool) -> None:
    from refold.cli import make_guarded
    from refold.errors import BadInput
    from refold.journal import read_journal

    header, entries = read_journal(path)
    if header.snapshot:
        raise BadInput(f"{path} is a snapshot, in which nothing was decided: ask with --policy what one would do")
    seen = _Counted(entries)
    with progress(f"replaying {path.name}"):
        difference = _difference(header, iter(seen), make_guarded(header.policy, header.settings))
    report = _report(path, out, [recorded_in(path)[0]], "As it was recorded.") if out else None
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
        for line in difference or [f"{_entries_text(seen.entries)}, {plural(seen.orders, 'order')}: identical"]:
            say(line)
        if report:
            say(f"report: {report}")
    raise typer.Exit(int(bool(difference)))


def _entries_text(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries:,} entries"


def _difference(header: Header, entries: Iterator[Entry], policy: Policy) -> list[str]:
    """Where orders first come out otherwise than recorded, and which: a line each. Nothing, if none do."""
    from refold.journal import replay

    for number, (recorded, again) in enumerate(replay(header, entries, policy), start=1):
        if recorded.orders != again.orders:
            only = [order for order in recorded.orders if order not in again.orders]
            other = [order for order in again.orders if order not in recorded.orders]
            return [
                f"entry {number}, at {recorded.now:g} s, differs",
                *_ordered("the journal has", only, header.cluster),
                *_ordered("replay gives", other, header.cluster),
                *(["the same orders, in another order"] if not only and not other else []),
            ]
    return []


def _ordered(who: str, orders: Sequence[Order], cluster: Cluster) -> list[str]:
    lines = [f"{who}: {_order_text(order, cluster)}" for order in orders[:MOST_ORDERS]]
    more = len(orders) - MOST_ORDERS
    return [*lines, f"{who}: {plural(more, 'order')} more"] if more > 0 else lines


def _order_text(order: Order, cluster: Cluster) -> str:
    """'start run 1 of job a on n0 (GPUs 0, 1), n1 (GPU 3)', 'stop run 2 of job b (for c)'."""
    from refold.core import StartRun

    what = f"run {order.run} of job {order.job}"
    if isinstance(order, StartRun):
        return f"start {what} on {order.allocation.text(cluster)}"
    return f"stop {what}" + (f" ({order.why})" if order.why else "")


class _Counted:
    """Entries, counted while they pass."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self.entries = 0
        self.orders = 0

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self.entries += 1
            self.orders += len(entry.orders)
            yield entry


def _what_if(path: Path, choice: Choice, costs: Costs, out: Path | None, as_json: bool) -> None:
    from refold.cli import conditions_of, faults_text, notes_of
    from refold.cli.inputs import is_oracle
    from refold.cli.views import comparison_table, promises_tables
    from refold.journal import read_journal

    header, _ = read_journal(path)
    runs, workload = (_both_simulated if header.snapshot else _beside_recorded)(path, choice, costs)
    notes = notes_of(workload, runs[1:])
    report = _report(path, out, runs, conditions_of(workload, runs[1:]), workload.notes) if out else None
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
    tell(notes)
    knowing = (is_oracle(header.policy), choice.oracle)
    oracles = {run.name for run, oracle in zip(runs, knowing, strict=True) if oracle}
    print_tables(comparison_table(str(workload), runs, oracles, faults_text(runs)), *promises_tables(runs))
    if report:
        say(f"report: {report}")


def _beside_recorded(path: Path, choice: Choice, costs: Costs) -> tuple[list[ReportRun], Workload]:
    """What happened, and what the other policy would have done."""
    recorded, _ = recorded_in(path)
    workload = workload_of(path, recorded.history, costs)
    return [recorded, _simulated(workload, choice)], workload


def _both_simulated(path: Path, choice: Choice, costs: Costs) -> tuple[list[ReportRun], Workload]:
    """Of a snapshot nobody knows yet what will happen: what its own policy would do, and what the other."""
    from refold.cli.inputs import Choice, TraceReadOptions, is_oracle, name_of, read_queued
    from refold.journal import read_journal

    header, _ = read_journal(path)
    workload = read_queued(str(path), None, TraceReadOptions(), costs)
    name = name_of(header.policy, header.settings)
    own = Choice(header.policy, header.settings, name, is_oracle(header.policy))
    return [_simulated(workload, own), _simulated(workload, choice)], workload


def _simulated(workload: Workload, choice: Choice) -> ReportRun:
    from refold.cli import simulated
    from refold.results import ReportRun

    run = simulated(workload, choice)
    return ReportRun(f"{run.name} (simulated)", run.history, run.measures)


def _report(
    path: Path, out: Path, runs: Sequence[ReportRun], conditions: str, notes: Sequence[str] = ()
) -> Path | None:
    from refold.cli import try_report

    return try_report(out, runs, f"Journal {path.name}", conditions, notes)
