"""`refold run`: run a list of jobs on this machine without a daemon."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import (
    PlacementName,
    PolicyName,
    Settings,
    WatchOption,
    argument,
    make_folder,
    option,
    parse_duration_option,
    parse_settings,
)
from refold.cli.views import AsJson, Column, Table, print_json, print_line, print_notes, print_tables, printable
from refold.errors import BadDecision, BadFile, BadInput
from refold.model import WHOLE, format_duration

if TYPE_CHECKING:
    from refold.core import Header, Policy
    from refold.journal import Change
    from refold.model import Allocation, Job
    from refold.server import JobOutcome, LoopStep

JOURNAL_FILE_NAME = "journal.jsonl"
LOGS_FOLDER_NAME = "logs"
MAX_LOG_LINES = 5
MAX_LOG_BYTES = 8192
CONTROL_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(
    jobs: Annotated[Path, argument("JOBS", "Job file, as for 'refold submit' (docs/jobs.md).")],
    slots: Annotated[int, option("N", "Number of slots (GPUs).", min=1, max=62)],
    policy: PolicyName = "fifo",
    placement: PlacementName = None,
    settings: Settings = None,
    out: Annotated[Path | None, option("DIR", "Folder for journal and logs (default: refold-runs/DATE-TIME).")] = None,
    grace: Annotated[str, option("TIME", "Time that a run has to stop before it is killed.")] = "10s",
    watch: WatchOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a list of jobs on this machine without a daemon, under any policy.

    Exit status: 0 all jobs finished, 1 some did not, 130 interrupted.

    Example: refold run jobs.yaml --slots 4 --policy las --set threshold_gpu_seconds=600
    """
    import asyncio

    from refold.cli import make_guarded_policy
    from refold.cli.inputs import parse_policy
    from refold.client.jobspec import read_jobs
    from refold.core import Header
    from refold.engines.local import local_cluster

    (jobs_read, notes), grace_seconds = read_jobs(jobs), parse_duration_option("--grace", grace)
    print_notes(notes)
    choice = parse_policy(policy, parse_settings(settings, placement, watch=watch))
    _check_watch(choice.settings)
    header = Header(local_cluster(slots), choice.policy, dict(choice.settings))
    made_policy = make_guarded_policy(header.policy, header.settings)
    folder = _new_folder(out)
    printer = _ProgressPrinter(jobs_read, folder, as_json)
    outcomes, interrupted = asyncio.run(_run_jobs(jobs_read, header, made_policy, folder, grace_seconds, printer))
    if as_json:
        print_json({"journal": str(folder / JOURNAL_FILE_NAME), "jobs": outcomes})
    else:
        print_line()
        print_tables(_table(outcomes, folder))
    raise typer.Exit(interrupted or int(any(outcome.state != "finished" for outcome in outcomes)))


def _check_watch(settings: Mapping[str, Any]) -> None:
    """Reject `no-progress`: commands cannot report progress yet."""
    from refold.policies.common import WatchRules

    rules = WatchRules.from_settings(settings["watch"]) if "watch" in settings else None
    if rules is not None and rules.no_progress is not None and not rules.silent_too:
        raise BadInput(
            "--watch no-progress needs progress reports, which `refold run` does not support: "
            "give jobs a time_limit and use --watch beyond-limit, or add silent-too to end every run after that time"
        )


async def _run_jobs(
    jobs: list[Job], header: Header, policy: Policy, folder: Path, grace: float, printer: _ProgressPrinter
) -> tuple[list[JobOutcome], int]:
    """Run the jobs until all have ended; return their outcomes, and the exit status if a signal ended them, else 0."""
    from asyncio import CancelledError

    from refold.core import Scheduler
    from refold.engines.local import LocalBackend
    from refold.journal import JournalFile
    from refold.server import BatchRun, WallClock, interruptible

    with JournalFile(folder / JOURNAL_FILE_NAME, header, durable=True) as journal:
        scheduler = Scheduler(header.cluster, policy, on_rejection=printer.rejected)
        batch = BatchRun(jobs, scheduler, header, journal, WallClock(), printer.step)

        def stop() -> None:
            batch.cancel_all()
            printer.interrupted(grace)

        with interruptible(stop) as interruption:
            try:
                await batch.run(LocalBackend(batch.report, folder / LOGS_FOLDER_NAME, grace))
            except CancelledError:
                printer.print("killed the remaining runs")
        return list(batch.outcomes().values()), interruption.exit_code


def _new_folder(out: Path | None) -> Path:
    from datetime import datetime

    folder = out or Path("refold-runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if (folder / JOURNAL_FILE_NAME).exists():
        raise BadFile(folder, "contains the journal of an earlier run; choose another folder with --out")
    return make_folder(folder)


class _ProgressPrinter:
    def __init__(self, jobs: list[Job], folder: Path, on_stderr: bool) -> None:
        self._folder = folder
        self._on_stderr = on_stderr
        self._width = min(30, max(len(printable(job.id)) for job in jobs))

    def print(self, text: str, fg: str | None = None) -> None:
        """Print a line. Ignore errors: closed output must not end the jobs."""
        with suppress(OSError):
            print_line(text, err=self._on_stderr, fg=fg)

    def step(self, step: LoopStep) -> None:
        from refold.journal import Flagged

        now = step.entry.now
        for notice in step.notices:
            if notice.kind == "infeasible" and notice.job is not None:
                self.print(self._format(now, notice.job, f"infeasible: requests {notice.job.demand}"))
        for change in step.changes:
            if isinstance(change, Flagged):
                self.print(self._format(now, change.record.job, f"warning: {change.why}"), typer.colors.YELLOW)
            for line in self._change_lines(now, change):
                self.print(line)

    def rejected(self, rejection: BadDecision) -> None:
        self.print(f"rejected: {rejection}", typer.colors.YELLOW)

    def interrupted(self, grace: float) -> None:
        self.print(f"interrupted: runs have {grace:g} s to stop; interrupt again to kill them now")

    def _change_lines(self, now: float, change: Change) -> list[str]:
        from refold.journal import RunBegan, RunEnded, StopOrdered

        match change:
            case RunBegan(record, run):
                number = f", run {run.number}" if run.number > 1 else ""
                return [self._format(now, record.job, f"started on {_format_slots(run.allocation)}{number}")]
            case StopOrdered(record, _, why):
                return [self._format(now, record.job, f"stopping ({why})")]
            case RunEnded(record, run) if run.failure is not None:
                failed = self._format(now, record.job, f"failed: {run.failure.why}")
                return [failed, *self._last_lines(record.job.id, run.number)]
            case RunEnded(record, run):
                return [self._format(now, record.job, "finished" if run.end_report is None else "stopped")]
            case _:
                return []

    def _format(self, now: float, job: Job, text: str) -> str:
        return f"{now:8.1f} s  {printable(job.id):{self._width}}  {text}"

    def _last_lines(self, job_id: str, number: int) -> list[str]:
        from refold.server.output import log_path

        logs = log_path(self._folder / LOGS_FOLDER_NAME, job_id, number, 0).parent.glob(f"run-{number}.*.log")
        return [f"{'':12}{path.name}: {line}" for path in sorted(logs) for line in _tail(path)]


def _tail(path: Path) -> list[str]:
    """Return the last lines of a log as a terminal would show them, without control sequences."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
        text = log.read().decode(errors="replace")
    visible = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    lines = [printable(CONTROL_SEQUENCES.sub("", line)).strip() for line in visible]
    return [line for line in lines if line][-MAX_LOG_LINES:]


def _format_slots(allocation: Allocation | None) -> str:
    """Format 'slots 0-1, 3', '0.5 of slot 2'."""
    held = sorted({slot for share in allocation.placement for slot in share.gpus}) if allocation else []
    if not allocation or not held:
        return "no slot"
    gaps = [0, *(at for at, (one, other) in enumerate(pairwise(held), start=1) if other != one + 1), len(held)]
    spans = [held[begin:end] for begin, end in pairwise(gaps)]
    text = ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
    part = allocation.placement[0].gpu_milli
    return f"{'' if part == WHOLE else f'{part / WHOLE:g} of '}slot{'s' if len(held) > 1 else ''} {text}"


def _table(outcomes: list[JobOutcome], folder: Path) -> Table:
    def format_span(begin: float | None, end: float | None) -> str:
        return "–" if begin is None or end is None else format_duration(end - begin)

    columns: list[Column[JobOutcome]] = [
        Column("job", lambda outcome: outcome.job, whole=True),
        Column("state", lambda outcome: outcome.state),
        Column("last slots", lambda outcome: _format_slots(outcome.allocation) if outcome.runs else "–"),
        Column("waiting time", lambda outcome: format_span(outcome.submitted, outcome.first_started), number=True),
        Column("last run time", lambda outcome: format_span(outcome.started, outcome.ended), number=True),
        Column("runs", lambda outcome: str(outcome.runs), number=True),
        Column("reason", lambda outcome: outcome.why),
    ]
    return Table("Jobs", columns, outcomes, after=[f"journal and logs: {folder}"])
