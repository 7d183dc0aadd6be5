"""`refold replay`: does a journal come out the same again, and what would another policy have done?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.options import (
    OtherPolicy,
    OutFolder,
    PlacementName,
    RestartCost,
    Seed,
    Settings,
    StartCost,
    StopCost,
    costs_from,
    settings_from,
)
from refold.cli.output import AsJson, output_width, print_json, print_tables, progress
from refold.cli.workload import Workload

if TYPE_CHECKING:
    from refold.cli.experiment import Choice
    from refold.core import Entry, Header
    from refold.model import Job
    from refold.results import History, ReportRun
    from refold.simulator import Costs, Fault


def replay(
    journal: Annotated[Path, typer.Argument(metavar="JOURNAL", help="A journal.jsonl, plain or .gz.")],
    policy: OtherPolicy = None,
    placement: PlacementName = None,
    seed: Seed = None,
    settings: Settings = None,
    start_cost: StartCost = "0s",
    stop_cost: StopCost = "0s",
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
    if policy is None:
        _replay_itself(journal, out, as_json)
        return
    from refold.cli.experiment import chosen_policy

    choice = chosen_policy(policy, settings_from(settings, placement, seed))
    _what_if(journal, choice, costs_from(start_cost, stop_cost, restart_cost, None), out, as_json)


def _replay_itself(path: Path, out: Path | None, as_json: bool) -> None:
    from refold.errors import BadJournal
    from refold.journal import check_replay, read_journal
    from refold.registry import make_policy

    header, entries = read_journal(path)
    seen = _Counted(entries)
    difference = None
    with progress(f"replaying {path.name}"):
        try:
            check_replay(header, iter(seen), make_policy(header.policy, header.settings))
        except BadJournal as error:
            difference = str(error)
    report = _report(path, out, [_recorded(path)[0]], "As it was recorded.") if out else None
    if as_json:
        print_json(
            {
                "policy": header.policy,
                "entries": seen.entries,
                "orders": seen.orders,
                "identical": difference is None,
                "difference": difference,
                "report": report and str(report),
            }
        )
    else:
        typer.echo(difference or f"{seen.entries:,} entries, {seen.orders:,} orders: identical")
        if report:
            typer.echo(f"report: {report}")
    raise typer.Exit(int(difference is not None))


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


def _recorded(path: Path) -> tuple[ReportRun, Header]:
    """What happened, as the journal tells it."""
    from refold.cli.experiment import name_of
    from refold.journal import read_journal
    from refold.results import History, ReportRun, measure

    with progress(f"reading {path.name}"):
        header, entries = read_journal(path)
        history = History.from_entries(header.cluster, entries)
        name = f"{name_of(header.policy, header.settings)} (recorded)"
        return ReportRun(name, history, measure(history)), header


def _what_if(path: Path, choice: Choice, costs: Costs, out: Path | None, as_json: bool) -> None:
    from refold.cli.experiment import simulated
    from refold.cli.measured import comparison_tables
    from refold.results import ReportRun, compare

    recorded, header = _recorded(path)
    workload = _workload_of(path, recorded.history, costs)
    other = simulated(workload, choice)
    runs = [recorded, ReportRun(f"{other.name} (simulated)", other.history, other.measures)]
    report = _report(path, out, runs, workload.conditions) if out else None
    if as_json:
        policies = [(header.policy, header.settings), (choice.policy, choice.settings)]
        print_json(
            {
                "journal": str(path),
                "notes": workload.notes,
                "runs": [
                    {"name": run.name, "policy": policy, "settings": settings, "measures": run.measures}
                    for run, (policy, settings) in zip(runs, policies, strict=True)
                ],
                "report": report and str(report),
            }
        )
        return
    workload.tell()
    comparison = compare([(run.name, run.measures) for run in runs])
    print_tables(*comparison_tables(str(workload), comparison, output_width()))
    if report:
        typer.echo(f"report: {report}")


def _report(path: Path, out: Path, runs: Sequence[ReportRun], conditions: str) -> Path | None:
    from refold.cli.experiment import try_report

    return try_report(out, runs, f"Journal {path.name}", conditions)


def _workload_of(path: Path, history: History, costs: Costs) -> Workload:
    """The jobs of a history with the work they really did, and the nodes that were lost, to simulate once more."""
    from refold.errors import BadInput

    jobs = _jobs_of(history)
    if not jobs:
        raise BadInput(f"{path}: no job of it was seen to end, so there is nothing to simulate")
    without = len(history.jobs) - len(jobs)
    notes = [f"left out {without:,} jobs that were not seen to end"] if without else []
    return Workload(path.name, jobs, history.cluster, costs, _faults_of(history), notes=notes)


def _jobs_of(history: History) -> list[Job]:
    """In order of submission, which a live journal need not have them in."""
    import msgspec

    worked = _work_done(history)
    jobs = [
        msgspec.structs.replace(job, work=worked.get(index, job.work))
        for index, job in enumerate(history.jobs.jobs)
        if index in worked or job.work is not None
    ]
    return sorted(jobs, key=lambda job: job.submitted)


def _work_done(history: History) -> dict[int, float]:
    """Of each job that has ended: what its last run could go on from, and what that run did itself.

    Where this is what the job said beforehand, but for rounding, it is taken at its word.
    """
    from math import isclose

    from refold.results.history import Outcome
    from refold.simulator import AsRecorded

    charge, runs = AsRecorded(history.cluster), history.runs
    ended = (Outcome.FINISHED, Outcome.FAILED, Outcome.CANCELLED)
    worked: dict[int, float] = {}
    for run in range(len(runs)):
        index = int(runs.job[run])
        if history.jobs.outcome[index] not in ended:
            continue
        job = history.jobs.jobs[index]
        computed = max(0.0, float(runs.end[run] - runs.computing[run]))
        done = float(runs.kept_before[run]) + computed * charge.speed(job, runs.allocations[run])
        said = job.work is not None and isclose(done, job.work, rel_tol=1e-6, abs_tol=1e-3)
        worked[index] = job.work if said and job.work is not None else done
    return worked


def _faults_of(history: History) -> list[Fault]:
    """When nodes were lost; one that had not returned when the journal ends does so then."""
    from refold.simulator import Fault

    lost: dict[int, float] = {}
    faults: list[Fault] = []
    for change in history.node_changes:
        if not change.up:
            lost.setdefault(change.node, change.at)
        elif change.node in lost and lost[change.node] < change.at:
            faults.append(Fault(change.node, lost.pop(change.node), change.at))
    faults += [Fault(node, at, history.until) for node, at in lost.items() if at < history.until]
    return sorted(faults, key=lambda fault: (fault.lost, fault.node))
