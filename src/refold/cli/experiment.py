"""Simulate a workload under one or several policies: shared by `simulate`, `compare` and `replay`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from refold.cli.inputs import SelectedPolicy, Workload
from refold.cli.views import Advance, plural, progress
from refold.errors import BadFile, MissingExtra
from refold.model import format_duration

if TYPE_CHECKING:
    from refold.cli.experiment_options import ExperimentOptions, TraceOptions
    from refold.core import Header, Journal
    from refold.journal import History
    from refold.model import PreemptionOutlook
    from refold.simulator import Costs
    from refold.simulator.results import Recorded, ReportRun

JOURNAL_FILE_NAME = "journal.jsonl"
REPORT_FILE_NAME = "report.html"


def prepare_experiment(
    trace: str,
    cluster: str | None,
    policies: Sequence[SelectedPolicy],
    options: ExperimentOptions,
    read: Callable[[str, str | None, TraceOptions, Costs], Workload] | None = None,
) -> tuple[Workload, list[SelectedPolicy]]:
    """Read and check everything that the options describe; return the workload and the policies to simulate.

    `read`: reads the jobs and the cluster, if the trace is not a file.
    """
    from refold.cli import inputs
    from refold.cli.options import check_watch

    costs = options.costs.parse()
    for policy in policies:
        check_watch(policy.settings.get("watch"), costs.report_every)
    known = inputs.read_knowledge(options.speeds.knowledge, options.speeds.fits)
    charging = inputs.parse_charging(options.speeds.charge, known)
    selected = inputs.with_knowledge(policies, known, charging)
    options.faults.check(options.costs.checkpoint_every)
    options.never_ending.check(options.costs.report_every)
    workload = (read or inputs.read_workload)(trace, cluster, options.trace, costs)
    workload = inputs.with_preemption(workload, options.consent.preemption)
    workload = inputs.with_power_limits(workload, selected, options.trace.skip_bad)
    workload = inputs.with_charging(workload, options.speeds.charge, charging)
    workload = inputs.with_faults(workload, options.faults)
    return inputs.with_never_ending(workload, options.never_ending), selected


def run_policy(workload: Workload, policy: SelectedPolicy, journal: Path | None = None) -> ReportRun:
    """Simulate the workload under a policy. Write its journal to a file if given."""
    with progress(policy.name, len(workload.jobs)) as advance:
        return simulate_policy(workload, policy, journal, advance)


def simulate_policy(workload: Workload, selected: SelectedPolicy, path: Path | None, advance: Advance) -> ReportRun:
    """Simulate the workload under a policy; `advance` is called with the number of jobs that have finished since.

    The compiled replay is used if it gives the same result, and no journal is written.
    """
    from refold.cli.policy_guard import make_guarded_policy
    from refold.core import Header, Journals
    from refold.journal import HistoryJournal
    from refold.simulator import CrossingSpeeds, simulate
    from refold.simulator.results import ReportRun, measure

    policy = make_guarded_policy(selected.policy, selected.settings)  # checks the settings
    replayed = _replay(workload, selected) if path is None else None
    if replayed is not None:
        advance(len(workload.jobs))
        return ReportRun(selected.name, replayed, measure(replayed), is_oracle=selected.oracle)
    finished = 0

    def report_progress(now_finished: int) -> None:
        nonlocal finished
        advance(now_finished - finished)
        finished = now_finished

    recorder, charge = HistoryJournal(), workload.charging.charge(workload.cluster)
    header = Header(workload.cluster, selected.policy, dict(selected.settings))
    with _journal_file(path, header) as file:
        simulate(
            workload.jobs,
            workload.cluster,
            policy,
            journal=Journals(recorder, file) if file else recorder,
            charge=charge,
            costs=workload.costs,
            faults=workload.faults,
            never_end=workload.never_end,
            progress=report_progress,
        )
    report_progress(len(workload.jobs))
    history = recorder.history(workload.cluster)
    crossings = charge.crossings if isinstance(charge, CrossingSpeeds) else None
    return ReportRun(selected.name, history, measure(history, crossings), is_oracle=selected.oracle)


def _replay(workload: Workload, selected: SelectedPolicy) -> History | None:
    """Return the history of the compiled replay; None if there is none with the same result."""
    from refold.simulator.replays import Conditions, Experiment, find_replay
    from refold.simulator.results import replayed_history

    jobs, cluster, charging = workload.jobs, workload.cluster, workload.charging
    charge = charging.charge(cluster) if charging.count_affected(jobs, cluster) else None
    conditions = Conditions(charge, workload.costs, workload.faults, workload.never_end)
    replay = find_replay(Experiment(selected.policy, selected.settings, jobs, cluster, conditions))
    return None if replay is None else replayed_history(jobs, cluster, replay.run())


@contextmanager
def _journal_file(path: Path | None, header: Header) -> Iterator[Journal | None]:
    from refold.journal import JournalFile

    if path is None:
        yield None
        return
    try:
        with JournalFile(path, header) as file:
            yield file
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror or error}") from None


def count_node_faults(history: History) -> int:
    """Count the node faults before the last job ended. A node that was drained or removed is none."""
    return sum(not (change.up or change.drained) and change.gpu is None for change in history.node_changes)


def format_node_faults(runs: Sequence[ReportRun]) -> str:
    """Format '3 node faults', or '3 to 5 node faults' if policies differ in their makespan; '' if there were none."""
    counts = [count_node_faults(run.history) for run in runs]
    if not any(counts):
        return ""
    lowest, highest = min(counts), max(counts)
    return plural(highest, "node fault") if lowest == highest else f"{lowest:,} to {plural(highest, 'node fault')}"


def describe_conditions(workload: Workload, runs: Sequence[ReportRun]) -> str:
    """Describe the conditions of the simulation: overheads, preemptible jobs, source of job speeds, node faults."""
    from refold.cli.inputs import format_charging

    costs = workload.costs
    overheads = {"start": costs.start, "stop": costs.stop, "restart": costs.restart}
    parts = [f"{name} overhead {format_duration(seconds)}" for name, seconds in overheads.items() if seconds]
    parts = parts or ["no overhead of starts and stops"]
    preemptible = sum(job.preemptible for job in workload.jobs)
    parts.append(f"{preemptible:,} of {plural(len(workload.jobs), 'job')} preemptible")
    text = ", ".join(parts)
    charging = format_charging(workload.charging, workload.jobs, workload.cluster)
    text += f"; {charging}" if charging else ""
    faults = format_node_faults(runs)
    return f"Simulated: {text}{f'; {faults}' if faults else ''}."


def trace_notes(workload: Workload) -> list[str]:
    """Return the notes on reading the trace, on skipped rows, and on a record of some jobs, or of a larger cluster."""
    from refold.simulator.results import peak_gpus

    skipped = f"skipped {plural(workload.skipped_rows, 'row')} of {workload.name}"
    peak, gpus = peak_gpus(workload.jobs, workload.waits), workload.cluster.gpus
    larger = f"up to {peak:,} GPUs were in use at once when this was recorded; the cluster has {gpus:,}"
    known, jobs = sum(job.id in workload.waits for job in workload.jobs), len(workload.jobs)
    some = f"waits of {known:,} of {plural(jobs, 'job')} are recorded: the row 'recorded' has the waits of these alone"
    notes = [(skipped, workload.skipped_rows > 0), (some, 0 < known < jobs), (larger, peak > gpus)]
    return [*workload.notes, *(note for note, applies in notes if applies)]


def collect_notes(workload: Workload, runs: Sequence[ReportRun]) -> list[str]:
    """Return the notes to print with the results: on reading the trace, and on jobs that did not finish."""
    from refold.simulator.results import describe_unfinished

    notes = trace_notes(workload)
    unfinished = [describe_unfinished(run.history) for run in runs]
    if len(set(unfinished)) == 1:
        return notes + [text for text in unfinished[:1] if text]
    return notes + [f"{run.name}: {text}" for run, text in zip(runs, unfinished, strict=True) if text]


@contextmanager
def output_folder(folder: Path | None) -> Iterator[None]:
    """Create the output folder first, so that errors appear before the simulation; remove it if it stays empty."""
    from refold.cli.options import make_folder

    if folder is None:
        yield
        return
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    try:
        yield
    finally:
        for path in created:
            with suppress(OSError):  # not empty
                path.rmdir()


def try_write_report(
    folder: Path,
    runs: Sequence[ReportRun],
    title: str,
    conditions: str,
    notes: Sequence[str],
    outlook: PreemptionOutlook | None = None,
    recorded: Recorded | None = None,
) -> Path | None:
    """Write the report and return its path; if the plotting library is missing, print a note and return None.

    `notes` are about reading the trace; the report adds the jobs that did not finish itself.
    """
    from refold.cli.views import current_command_line, print_notes
    from refold.simulator.results import write_report

    path = folder / REPORT_FILE_NAME
    try:
        with progress("writing the report"):
            write_report(
                path,
                runs,
                title=title,
                workload=conditions,
                command=current_command_line(),
                notes=notes,
                outlook=outlook,
                recorded=recorded,
            )
    except MissingExtra as missing:
        print_notes([f"no report: {missing}"])
        return None
    return path
