"""`refold why`: show the history of a job and the reason for each change."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from refold.cli import LIVE_STATES, argument, complete_jobs, connect, format_placement, format_reason
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    call_slots,
    format_clock,
    format_elapsed,
    format_peak,
    print_json,
    print_tables,
    progress,
    resource_text,
)
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.client.api import JobStatus, TimeEstimate
    from refold.journal import History


MAX_JOBS = 20
"""Jobs that are listed if no job is given."""

MAX_COMMAND_CHARS = 500
"""Characters of a command that are shown; --json has all."""

MAX_RUNS = 6
"""Runs whose GPUs are shown in that list."""


def why(
    words: Annotated[
        list[str] | None,
        argument(
            "[JOURNAL] [JOB]",
            "Job of the daemon; or a journal file (plain or .gz) and one of its jobs.",
            complete=complete_jobs,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the history of a job and the reason for each change: waiting, starts, stops, reshapes.

    Shows one line per event, with start estimates and whether they were met. The job is one of the daemon, or of a
    journal. With a journal only, the jobs with the most runs are listed.

    Examples: refold why train-17 · refold why out/journal.jsonl job-17
    """
    match words or []:
        case [journal, job]:
            _print_from_journal(Path(journal), job, as_json)
        case [one] if _is_journal(one):
            _print_most_restarted(Path(one), as_json)
        case [job]:
            _print_from_daemon(job, as_json)
        case _:
            raise BadInput("expected a job: refold why train-17, or refold why journal.jsonl train-17")


def _is_journal(word: str) -> bool:
    """Whether a word is a file, or looks like the path of one rather than a job id."""
    return Path(word).is_file() or "/" in word or word.endswith((".jsonl", ".gz"))


def _print_from_daemon(job: str, as_json: bool) -> None:
    from refold.model import Consent, format_count

    found = connect().why(job)
    if as_json:
        print_json(found)
        return
    events = [(one.at, one.kind, one.text) for one in found.events]
    status = found.job
    now = f"on {format_placement(status.placement)}" if status.placement else format_reason(status)
    after: list[str] = []
    if status.state in LIVE_STATES:
        waiting = [f"start estimate: {_format_estimate(status.start_estimate)}"] if status.state == "waiting" else []
        consent = f"preemptible: {Consent(status.preemptible, status.consent)}"
        domains = [f"{format_count(len(names), level)}: {', '.join(names)}" for level, names in status.domains.items()]
        after = [f"{status.state} {now}".rstrip(), *domains, *waiting, consent]
    after += status.auto
    if status.cpu_seconds is not None:
        peak = format_peak(status.peak_memory_mib)
        after.append(f"used so far: {format_elapsed(status.cpu_seconds)} of CPU time, peak memory {peak}")
    after += _launch_lines(status)
    title = f"{status.id}, {status.demand}, {status.job_class}, tenant {status.tenant}"
    print_tables(_event_table(title, events, after))


def _launch_lines(status: JobStatus) -> list[str]:
    """Return what a job runs, where, and the names of its variables, as far as the caller may know them."""
    from shlex import join
    from textwrap import shorten

    command = shorten(join(status.command), MAX_COMMAND_CHARS, placeholder=" …")
    facts = {"command": command, "folder": status.folder, "variables": ", ".join(status.variables)}
    return [f"{name}: {value}" for name, value in facts.items() if value]


def _format_estimate(estimate: TimeEstimate | None) -> str:
    """Format '2026-11-15 08:30:00, between 08:20:00 and 09:00:00'."""
    if estimate is None:
        return "not known yet"
    soonest, latest = (None if time is None else format_clock(time) for time in (estimate.soonest, estimate.latest))
    between = f", between {soonest} and {latest}" if soonest and latest else ""
    return f"{format_clock(estimate.at)}{between}"


def _print_from_journal(journal: Path, job: str, as_json: bool) -> None:
    from refold.cli.views import read_timeline
    from refold.journal import read_journal

    header, entries = read_journal(journal)
    with progress(f"reading {journal.name}"):
        timeline = read_timeline(header, entries, job, f"refold why {journal}")
    if as_json:
        print_json({"job": timeline.job, "policy": header.policy, "events": timeline.entries})
        return
    call_slots(header.cluster.has_slots)
    events = [(one.at, one.event, one.text) for one in timeline.entries]
    print_tables(_event_table(f"{job}, policy {header.policy}", events))


def _event_table(title: str, events: Sequence[tuple[float, str, str]], after: Sequence[str] = ()) -> Table:
    columns: list[Column[tuple[float, str, str]]] = [
        Column("time", lambda event: format_clock(event[0]), number=True),
        Column("event", lambda event: event[1], whole=True),
        Column("details", lambda event: resource_text(event[2])),
    ]
    return Table(resource_text(title), columns, events, after)


def _print_most_restarted(journal: Path, as_json: bool) -> None:
    from refold.journal import PackedHistoryJournal, read_journal

    header, entries = read_journal(journal)
    recorded = PackedHistoryJournal(header.cluster)
    with progress(f"reading {journal.name}"):
        for entry in entries:
            recorded.write(entry)
        rows = _restarted_jobs(recorded.packed_history())
    if as_json:
        print_json({"policy": header.policy, "jobs": rows})
        return
    call_slots(header.cluster.has_slots)
    columns: list[Column[dict[str, Any]]] = [
        Column("job", lambda row: row["job"], whole=True),
        Column("runs", lambda row: str(row["runs"]), number=True),
        Column("stopped", lambda row: str(row["stopped"]), number=True),
        Column("failed", lambda row: str(row["failed"]), number=True),
        Column(resource_text("GPUs per run"), lambda row: _format_gpus_per_run(row["gpus"])),
        Column(
            "waiting time", lambda row: "–" if row["waited"] is None else format_elapsed(row["waited"]), number=True
        ),
    ]
    after = [] if rows else ["no job was started more than once"]
    print_tables(Table(f"Jobs with the most runs, policy {header.policy}", columns, rows, after))


def _restarted_jobs(history: History) -> list[dict[str, Any]]:
    """Return a row for each job with more than one run, those with the most runs first."""
    import numpy as np

    from refold.journal import Ending

    counts = np.bincount(history.runs.job, minlength=len(history.jobs))
    most = [job for job in np.argsort(-counts, kind="stable")[:MAX_JOBS].tolist() if counts[job] > 1]
    runs_of = {job: np.flatnonzero(history.runs.job == job).tolist() for job in most}
    ending = history.runs.ending
    return [
        {
            "job": history.jobs.jobs[job].id,
            "runs": len(runs_of[job]),
            "stopped": sum(int(ending[run] == Ending.STOPPED) for run in runs_of[job]),
            "failed": sum(int(ending[run] == Ending.FAILED) for run in runs_of[job]),
            "gpus": [float(history.runs.gpus[run]) for run in runs_of[job]],
            "waited": _waited(history, job),
        }
        for job in most
    ]


def _waited(history: History, job: int) -> float | None:
    """Return the seconds in which an ended job had no run; None if it has not ended."""
    waited = float(history.jobs.ended[job] - history.jobs.submitted[job] - history.time_running[job])
    return max(0.0, waited) if not isnan(waited) else None


def _format_gpus_per_run(gpus: list[float]) -> str:
    shown = " → ".join(f"{count:g}" for count in gpus[:MAX_RUNS])
    return f"{shown} → …" if len(gpus) > MAX_RUNS else shown
