"""The queue at a time of a journal: jobs, why they wait, and when they may start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.cli import format_held_gpus
from refold.cli.inputs import ForecastOptions, JournalState, forecast_starts, read_journal_state
from refold.cli.views.live_queue import policy_source
from refold.cli.views.output import call_slots, plural, print_json, print_notes, resource_text
from refold.cli.views.tables import Column, Table, print_tables
from refold.cli.views.times import format_clock, format_elapsed, format_interval, format_moment

if TYPE_CHECKING:
    from refold.model import Job, StartEstimate, Wait


@dataclass(frozen=True, slots=True)
class JournalQueueOptions:
    """What to print. `limit`: maximum number of rows; None: all."""

    forecast: ForecastOptions
    running: bool = False
    limit: int | None = None


def print_journal_queue(journal: Path, at: str | None, options: JournalQueueOptions, as_json: bool) -> None:
    state = read_journal_state(journal, at)
    queue = _read_queue(state, options)
    if as_json:
        print_json(queue.to_document(state))
    else:
        queue.print_text(state)


@dataclass(frozen=True, slots=True)
class _JournalQueue:
    """Rows to print; `omitted`: the number of waiting jobs beyond the limit."""

    waiting: list[dict[str, Any]]
    running: list[dict[str, Any]] | None
    has_estimates: bool
    omitted: int
    notes: list[str]
    scheduler: str = ""

    def to_document(self, state: JournalState) -> dict[str, Any]:
        view = state.present.view
        return {
            "journal": str(state.path),
            "policy": state.header.policy,
            "now": state.now,
            "free_gpus": view.free_gpus,
            "gpus": state.header.cluster.gpus,
            "waiting": self.waiting,
            **({} if self.running is None else {"running": self.running}),
            "notes": self.notes,
        }

    def print_text(self, state: JournalState) -> None:
        view, header = state.present.view, state.header
        held = f", {len(view.held):,} held" if view.held else ""
        counts = f"{len(view.waiting) + len(view.infeasible):,} waiting{held}, {len(view.runs):,} running"
        call_slots(header.cluster.has_slots)
        free = resource_text(f"{view.free_gpus:g} of {header.cluster.gpus:,} GPUs free")
        title = f"{format_clock(state.now)}: {counts}, {free}, policy {header.policy}"
        footer = [f"… and {plural(self.omitted, 'more job')}"] if self.omitted else []
        print_notes(self.notes)
        print_tables(Table(title, _waiting_columns(self.has_estimates, self.scheduler), self.waiting, footer, keys=2))
        if self.running is not None:
            print_tables(Table("Running jobs", _running_columns(), self.running))


def _read_queue(state: JournalState, options: JournalQueueOptions) -> _JournalQueue:
    view = state.present.view
    jobs = [*view.waiting.values(), *view.infeasible.values(), *view.held.values()]
    rows = [_waiting_row(state, job, position) for position, job in enumerate(jobs[: options.limit], start=1)]
    notes: list[str] = []
    if options.forecast.enabled:
        notes = _add_start_estimates(state, options.forecast, rows)
    running = _running_rows(state)[: options.limit] if options.running else None
    omitted, scheduler = len(jobs) - len(rows), state.header.scheduler
    return _JournalQueue(rows, running, options.forecast.enabled, omitted, notes, scheduler)


def _waiting_row(state: JournalState, job: Job, position: int) -> dict[str, Any]:
    present = state.present
    wait = present.view.reason(job.id)
    since = present.waiting_since.get(job.id, job.submitted)
    if state.header.snapshot:  # its jobs were waiting before the snapshot begins
        since = job.submitted
    return {
        "position": position,
        "job": job.id,
        "demand": str(job.demand),
        "gpus": job.demand.total_gpus,
        "tenant": job.tenant,
        "since": since,
        "waited": state.now - since,
        "reason": wait.reason.value,
        "message": _format_wait(wait, job),
    }


def _format_wait(wait: Wait, job: Job) -> str:
    """Format why a job waits: '(Resources: 0 of 12 nodes fit: 12 have fewer than 8 free GPUs)'."""
    if wait.shortage is not None:
        return f"({wait.reason.value}: {wait.shortage.text(job.demand)})"
    return f"({wait.reason.value}: {plural(wait.ahead, 'job')} ahead)" if wait.ahead else f"({wait.reason.value})"


def _add_start_estimates(state: JournalState, options: ForecastOptions, rows: list[dict[str, Any]]) -> list[str]:
    """Add to each row when the job may start and the source of that estimate; return notes on the estimates.

    The source is the policy's own estimate. Jobs without one, or all jobs with --futures, are simulated. The estimates
    of another scheduler are shown beside.
    """
    view, scheduler = state.present.view, state.header.scheduler
    estimates = {row["job"]: view.start_estimate(row["job"]) for row in rows}
    if scheduler:
        for row in rows:
            other = estimates[row["job"]]
            row["scheduler_estimate"] = other and other.at
        estimates = dict.fromkeys(estimates)
    forecast_jobs = [job for job in estimates if job in view.waiting and (options.futures or not estimates[job])]
    futures = forecast_starts(state, forecast_jobs, options) if forecast_jobs else None
    in_forecast = set(forecast_jobs)
    for row in rows:
        if row["job"] in in_forecast and futures is not None:
            _add_start_estimate(row, futures.start(row["job"]), plural(options.future_count, "future"))
        else:
            estimate = estimates[row["job"]]
            _add_start_estimate(row, estimate, policy_source(estimate, state.now))
    return [options.note] if forecast_jobs else []


def _add_start_estimate(row: dict[str, Any], estimate: StartEstimate | None, source: str) -> None:
    row |= {
        "expected": estimate and estimate.at,
        "soonest": estimate and estimate.soonest,
        "latest": estimate and estimate.latest,
        "source": source,
    }
    row["range"] = (row["soonest"], row["latest"])


def _running_rows(state: JournalState) -> list[dict[str, Any]]:
    """Return a row for each run, ordered by the expected end."""
    present = state.present
    rows: list[dict[str, Any]] = []
    for run in present.view.runs.values():
        job, end = present.view.active[run.job], present.end_estimate(run)
        rows.append(
            {
                "job": run.job,
                "demand": str(job.demand),
                "requested_gpus": job.demand.total_gpus,
                "gpus": run.allocation.gpu_milli / 1000,
                "tenant": job.tenant,
                "since": run.since,
                "ran": state.now - run.since,
                "placement": run.allocation.text(state.header.cluster),
                "stopping": run.stopping,
                "expected": end.at,
                "soonest": end.soonest,
                "latest": end.latest,
                "range": (end.soonest, end.latest),
            }
        )
    return sorted(rows, key=lambda row: (row["expected"], row["job"]))


Row = dict[str, Any]


def _waiting_columns(has_estimates: bool, scheduler: str = "") -> list[Column[Row]]:
    """Return the columns. `scheduler`: whose estimates are shown beside ours."""
    estimates: list[Column[Row]] = [
        Column("start estimate", lambda row: format_moment(row["expected"]), number=True),
        Column("range", lambda row: format_interval(row["range"]), number=True, optional=5),
        Column("source", lambda row: row["source"], whole=True, optional=7),
    ]
    if scheduler:
        other: Column[Row] = Column(
            f"{scheduler}'s", lambda row: format_moment(row.get("scheduler_estimate")), number=True
        )
        estimates.insert(1, other)
    return [
        Column("", lambda row: str(row["position"]), number=True, optional=2),
        Column("job", lambda row: row["job"], whole=True),
        Column(resource_text("GPUs"), lambda row: resource_text(row["demand"]), whole=True, optional=3),
        Column("tenant", lambda row: row["tenant"], whole=True, optional=6),
        Column("waiting time", lambda row: format_elapsed(row["waited"]), number=True, optional=4),
        *(estimates if has_estimates else []),
        Column("reason", lambda row: resource_text(row["message"]), optional=1),
    ]


def _format_held(row: Row) -> str:
    return format_held_gpus(row["demand"], row["requested_gpus"], row["gpus"])


def _running_columns() -> list[Column[Row]]:
    return [
        Column("job", lambda row: row["job"], whole=True),
        Column(resource_text("GPUs"), _format_held, whole=True, optional=1),
        Column("tenant", lambda row: row["tenant"], whole=True, optional=4),
        Column("run time", lambda row: format_elapsed(row["ran"]), number=True, optional=2),
        Column("end estimate", lambda row: format_moment(row["expected"]), number=True),
        Column("range", lambda row: format_interval(row["range"]), number=True, optional=3),
        Column("nodes", lambda row: resource_text(row["placement"])),
    ]
