"""`refold why`: what became of a job, told by the daemon or by a journal."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import STATES, daemon, jobs_beginning, reason_text, where_text
from refold.cli.views import AsJson, Column, Table, clock, duration, print_json, print_tables, progress

if TYPE_CHECKING:
    from refold.journal import History

COLUMNS = {"at": Column("at", number=True), "event": Column("", whole=True), "text": Column("")}

MOST_JOBS = 20
"""How many jobs are listed where none was asked about."""

MOST_SHAPES = 6
"""How many of a job's shapes are told there."""


def why(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOURNAL] [JOB]",
            help="A job; or a journal.jsonl, plain or .gz, and a job of that, else who was changed most.",
            autocompletion=jobs_beginning,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what became of a job, and why: waiting, starts, stops, other shapes.

    One line for each thing that happened to it, with what it was promised and what came of that. The daemon tells it,
    or a journal. Of a journal without a job: those that were stopped and started most.

    Examples: refold why train-17 · refold why out/journal.jsonl job-17
    """
    from refold.errors import BadInput

    match words or []:
        case [journal, job]:
            _tell_of_journal(Path(journal), job, as_json)
        case [one] if _is_journal(one):
            _list_changed(Path(one), as_json)
        case [job]:
            _tell_of_daemon(job, as_json)
        case _:
            raise BadInput("of which job? Such as refold why train-17, or refold why journal.jsonl train-17")


def _is_journal(word: str) -> bool:
    """A file; also one that is not there, if it is called so, since no job is."""
    return Path(word).is_file() or "/" in word or word.endswith((".jsonl", ".gz"))


def _tell_of_daemon(job: str, as_json: bool) -> None:
    found = daemon().why(job)
    if as_json:
        print_json(found)
        return
    rows = [{"at": clock(one.at), "event": one.kind, "text": one.text} for one in found.story]
    status = found.job
    now = f"on {where_text(status.where)}" if status.where else reason_text(status)
    how = {"held": "is held", "infeasible": "never fits"}.get(status.state, STATES.get(status.state))
    after = [f"it {how} {now}".rstrip()] if how else []
    print_tables(Table(f"{status.id}, {status.demand}, {status.job_class}, of {status.tenant}", COLUMNS, rows, after))


def _tell_of_journal(journal: Path, job: str, as_json: bool) -> None:
    from refold.cli.views import story_of
    from refold.journal import read_journal

    header, entries = read_journal(journal)
    with progress(f"reading {journal.name}"):
        story = story_of(header, entries, job, f"refold why {journal}")
    if as_json:
        print_json({"job": story.job, "policy": header.policy, "events": story.told})
        return
    rows = [{"at": clock(one.at), "event": one.event, "text": one.text} for one in story.told]
    print_tables(Table(f"{job}, under {header.policy}", COLUMNS, rows))


def _list_changed(journal: Path, as_json: bool) -> None:
    from refold.journal import History, read_journal

    header, entries = read_journal(journal)
    with progress(f"reading {journal.name}"):
        rows = _changed(History.from_entries(header.cluster, entries))
    if as_json:
        print_json({"policy": header.policy, "jobs": rows})
        return
    columns = {
        "job": Column("job", whole=True),
        "runs": Column("runs", number=True),
        "stopped": Column("stopped", number=True),
        "failed": Column("failed", number=True),
        "gpus": Column("GPUs of its runs", _shapes_text),
        "waited": Column("waited", lambda seconds: duration(seconds) if seconds is not None else "–", number=True),
    }
    after = [] if rows else ["no job was started more than once"]
    print_tables(Table(f"Jobs with the most runs, under {header.policy}", columns, rows, after))


def _changed(history: History) -> list[dict[str, Any]]:
    """Jobs with more than one run, those with most first."""
    from refold.journal import Ending

    runs_of: dict[int, list[int]] = {}
    for run, job in enumerate(history.runs.job.tolist()):
        runs_of.setdefault(job, []).append(run)
    most = sorted((job for job in runs_of if len(runs_of[job]) > 1), key=lambda job: (-len(runs_of[job]), job))
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
        for job in most[:MOST_JOBS]
    ]


def _waited(history: History, job: int) -> float | None:
    """Seconds without a run, of a job that ended."""
    waited = float(history.jobs.ended[job] - history.jobs.submitted[job] - history.time_running[job])
    return max(0.0, waited) if not isnan(waited) else None


def _shapes_text(gpus: list[float]) -> str:
    shown = " → ".join(f"{count:g}" for count in gpus[:MOST_SHAPES])
    return f"{shown} → …" if len(gpus) > MOST_SHAPES else shown
