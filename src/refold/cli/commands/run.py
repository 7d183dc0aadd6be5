"""`refold run`: run a list of commands on the slots of this machine, under any policy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import PlacementName, PolicyName, Settings, WatchRules, make_folder, settings_from
from refold.cli.views import AsJson, Column, Table, print_json, print_tables, printable, say

if TYPE_CHECKING:
    from refold.core import Entry, Event, Header, Policy, View
    from refold.errors import BadDecision
    from refold.model import Allocation, Job
    from refold.server import JobOutcome, JobOutcomes

JOURNAL = "journal.jsonl"
LOGS = "logs"
LAST_LINES = 5
LAST_BYTES = 8192
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(
    jobs: Annotated[Path, typer.Argument(metavar="JOBS", help="A YAML list of jobs; see examples/jobs.yaml.")],
    slots: Annotated[int, typer.Option("--slots", min=1, max=62, help="How many slots (GPUs) there are.")],
    policy: PolicyName = "fifo",
    placement: PlacementName = None,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A folder for journal and logs [refold-runs/DATE-TIME].")
    ] = None,
    grace: Annotated[str, typer.Option("--grace", help="How long a run may take to stop before it is killed.")] = "10s",
    watch: WatchRules = None,
    as_json: AsJson = False,
) -> None:
    """Run a list of commands on the slots of this machine. Exit status: 0 all finished, 1 not all, 130 interrupted.

    Example: refold run jobs.yaml --slots 4 --policy las --set threshold_gpu_seconds=600
    """
    import asyncio

    from refold.backends.local import local_cluster
    from refold.cli import make_guarded
    from refold.cli.inputs import chosen_policy
    from refold.core import Header
    from refold.jobspec import read_jobs
    from refold.model import seconds_from_text
    from refold.server import JobOutcomes

    wanted, patience = read_jobs(jobs), seconds_from_text(grace)
    choice = chosen_policy(policy, settings_from(settings, placement, watch=watch))
    _check_watch(choice.settings)
    header = Header(local_cluster(slots), choice.policy, dict(choice.settings))
    made = make_guarded(header.policy, header.settings)
    _rehearse(header, wanted)
    folder = _new_folder(out)
    outcomes = JobOutcomes(wanted)
    interrupted = asyncio.run(
        _drive(wanted, header, made, folder, patience, _ProgressPrinter(outcomes, folder, as_json))
    )
    if as_json:
        print_json({"journal": str(folder / JOURNAL), "jobs": list(outcomes.of.values())})
    else:
        say()
        print_tables(_table(outcomes, folder))
    raise typer.Exit(interrupted or int(not outcomes.all_finished()))


def _check_watch(settings: Mapping[str, Any]) -> None:
    """Processes do not report progress yet, so none of them can be said to make none."""
    from refold.errors import BadInput
    from refold.policies.common import WatchRules

    rules = WatchRules.of(settings["watch"]) if "watch" in settings else None
    if rules is not None and rules.no_progress is not None and not rules.silent_too:
        raise BadInput(
            "--watch no-progress is about runs that report progress, which commands cannot do yet: "
            "give jobs a time_limit and --watch beyond-limit, or add silent-too to end every run after that time"
        )


def _rehearse(header: Header, jobs: list[Job]) -> None:
    """Let another such policy decide once, for nothing: what is compiled on first use is so before the clock runs."""
    from refold.cli import make_guarded
    from refold.core import JobSubmitted, Scheduler

    scheduler = Scheduler(header.cluster, make_guarded(header.policy, header.settings), refused=lambda _: None)
    scheduler.step(0.0, [JobSubmitted(job) for job in jobs])


async def _drive(
    jobs: list[Job], header: Header, policy: Policy, folder: Path, grace: float, teller: _ProgressPrinter
) -> int:
    """Run them to their end; the exit status if that was brought about by a signal, else 0."""
    from asyncio import CancelledError

    from refold.backends.local import LocalBackend
    from refold.core import Scheduler
    from refold.journal import JournalFile
    from refold.server import LiveDriver, WallClock, interruptible

    with JournalFile(folder / JOURNAL, header, safe=True) as journal:
        scheduler = Scheduler(header.cluster, policy, journal, teller.refused)
        driver = LiveDriver(scheduler, jobs, WallClock(), teller.step)

        def stop() -> None:
            driver.cancel_all()
            teller.interrupted(grace)

        with interruptible(stop) as interruption:
            try:
                await driver.drive(LocalBackend(driver.report, folder / LOGS, grace))
            except CancelledError:
                teller.line("killed what was left")
        return interruption.exit_code


def _new_folder(out: Path | None) -> Path:
    from datetime import datetime

    from refold.errors import BadFile

    folder = out or Path("refold-runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    if (folder / JOURNAL).exists():
        raise BadFile(folder, "has a journal of an earlier run already; name another folder with --out")
    return make_folder(folder)


class _ProgressPrinter:
    """Tells a person what happens while it happens."""

    def __init__(self, outcomes: JobOutcomes, folder: Path, on_stderr: bool) -> None:
        self._outcomes = outcomes
        self._folder = folder
        self._on_stderr = on_stderr
        self._width = min(30, max(len(printable(job)) for job in outcomes.of))

    def line(self, text: str, fg: str | None = None) -> None:
        """Say something. That nobody listens any more is no reason to end the jobs."""
        with suppress(OSError):
            say(text, err=self._on_stderr, fg=fg)

    def step(self, entry: Entry, view: View) -> None:
        """What was new in a step, and what will be stopped because of it."""
        from refold.core import StopRun

        for event in self._outcomes.note(entry, view):
            for line in self._lines(event, view):
                self.line(line)
        for flag in entry.flags:
            self.line(self._say(entry.now, flag.job, f"warning: {flag.why}"), typer.colors.YELLOW)
        for order in entry.orders:
            if isinstance(order, StopRun):
                self.line(self._say(entry.now, order.job, f"is to stop ({order.why})"))

    def refused(self, refusal: BadDecision) -> None:
        self.line(f"refused: {refusal}", typer.colors.YELLOW)

    def interrupted(self, grace: float) -> None:
        self.line(f"interrupted: every run has {grace:g} s to stop; once more to kill them now")

    def _lines(self, event: Event, view: View) -> list[str]:
        from refold.core import JobSubmitted, RunFailed, RunFinished, RunStarted, RunStopped

        match event:
            case JobSubmitted(job) if job.id in view.infeasible:
                return [self._say(view.now, job.id, f"can never run here: it asks for {job.demand}")]
            case RunStarted(job_id, number):
                again = f", run {number}" if number > 1 else ""
                return [
                    self._say(view.now, job_id, f"started on {_slots(self._outcomes.of[job_id].allocation)}{again}")
                ]
            case RunFinished(job_id):
                return [self._say(view.now, job_id, "finished")]
            case RunStopped(job_id):
                return [self._say(view.now, job_id, "stopped")]
            case RunFailed(job_id, number, why):
                return [self._say(view.now, job_id, f"failed: {why}"), *self._last_lines(job_id, number)]
            case _:
                return []

    def _say(self, now: float, job_id: str, what: str) -> str:
        return f"{now:8.1f} s  {printable(job_id):{self._width}}  {what}"

    def _last_lines(self, job_id: str, number: int) -> list[str]:
        from refold.backends.local import log_path

        logs = log_path(self._folder / LOGS, job_id, number, 0).parent.glob(f"run-{number}.*.log")
        return [f"{'':12}{path.name}: {line}" for path in sorted(logs) for line in _tail(path)]


def _tail(path: Path) -> list[str]:
    """The last lines of a log as they look on a screen, without what would move the cursor about."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - LAST_BYTES))
        text = log.read().decode(errors="replace")
    seen = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    lines = [printable(COLOURS.sub("", line)).strip() for line in seen]
    return [line for line in lines if line][-LAST_LINES:]


def _slots(allocation: Allocation | None) -> str:
    """'slots 0-1, 3', '0.5 of slot 2'."""
    from refold.model import WHOLE

    held = sorted({slot for share in allocation.placement for slot in share.gpus}) if allocation else []
    if not allocation or not held:
        return "no slot"
    gaps = [0, *(at for at, (one, other) in enumerate(pairwise(held), start=1) if other != one + 1), len(held)]
    spans = [held[begin:end] for begin, end in pairwise(gaps)]
    text = ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
    part = allocation.placement[0].gpu_milli
    return f"{'' if part == WHOLE else f'{part / WHOLE:g} of '}slot{'s' if len(held) > 1 else ''} {text}"


def _table(outcomes: JobOutcomes, folder: Path) -> Table:
    from refold.model import text_from_seconds

    def lasted(begin: float | None, end: float | None) -> str:
        return "–" if begin is None or end is None else text_from_seconds(end - begin)

    def row(outcome: JobOutcome) -> dict[str, Any]:
        return {
            "job": outcome.job,
            "state": outcome.state,
            "slots": _slots(outcome.allocation) if outcome.runs else "–",
            "waited": lasted(outcome.submitted, outcome.first_started),
            "ran": lasted(outcome.started, outcome.ended),
            "runs": outcome.runs,
            "why": outcome.why,
        }

    columns = {
        "job": Column("job", whole=True),
        "state": Column("outcome"),
        "slots": Column("last on"),
        "waited": Column("waited", number=True),
        "ran": Column("last run", number=True),
        "runs": Column("runs", number=True),
        "why": Column("why"),
    }
    rows = [row(outcome) for outcome in outcomes.of.values()]
    return Table("Jobs", columns, rows, after=[f"journal and logs: {folder}"])
