"""The daemon's queue: running jobs with their nodes, waiting jobs with the reason, and when they may start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from refold.cli import format_job_counts, format_job_gpus, format_placement, format_reason, list_jobs
from refold.cli.inputs import MAX_WAITING_FOR_FUTURES, ForecastOptions
from refold.cli.views.output import (
    call_slots,
    output_width,
    plural,
    print_json,
    print_line,
    print_notes,
    resource_text,
)
from refold.cli.views.tables import Column, Table, print_tables
from refold.cli.views.times import format_elapsed, format_interval, format_moment
from refold.errors import Forbidden

if TYPE_CHECKING:
    from refold.client import Client
    from refold.client.api import DaemonInfo, JobStatus, StartAccuracy, TimeEstimate
    from refold.model import StartEstimate

UNKNOWN = "not known yet"
"""Shown for a waiting job without a start estimate."""

DEFAULT_LIMIT = 50
"""Jobs that are shown without --limit."""

ALL_COLUMNS_WIDTH = 100
"""Line width from which all columns are shown."""


class LiveQueueOptions(NamedTuple):
    """What to print, and of which jobs. `limit`: maximum number of jobs; None: all."""

    forecast: ForecastOptions
    tenant: str = ""
    user: str = ""
    limit: int | None = None


def print_live_queue(client: Client, options: LiveQueueOptions, as_json: bool) -> None:
    queue = _read_queue(client, options)
    if as_json:
        print_json(queue.to_document())
    else:
        queue.print_text()


class _LiveQueue(NamedTuple):
    """The daemon's status and first jobs. `omitted`: the number of jobs beyond the limit.

    `estimates`: when each waiting job may start, and the source of that estimate, by job id.
    """

    info: DaemonInfo
    jobs: Sequence[JobStatus]
    omitted: int
    estimates: Mapping[str, tuple[TimeEstimate | None, str]] = MappingProxyType({})
    notes: Sequence[str] = ()
    with_estimates: bool = False

    def to_document(self) -> dict[str, Any]:
        """Return the queue for JSON output."""
        import msgspec

        info = self.info
        return {
            "cluster": info.cluster,
            "policy": info.policy,
            "now": info.now,
            "gpus": info.gpus,
            "free_gpus": info.free_gpus,
            "drained_gpus": info.drained_gpus,
            "running": info.running,
            "waiting": info.waiting,
            "held": info.held,
            "jobs": [self._job_document(job) for job in self.jobs],
            "omitted": self.omitted,
            **({"start_accuracy": msgspec.to_builtins(info.start_accuracy)} if self.with_estimates else {}),
            "notes": [*self.notes, *([info.storage] if info.storage else [])],
        }

    def _job_document(self, job: JobStatus) -> dict[str, Any]:
        import msgspec

        document: dict[str, Any] = msgspec.to_builtins(job)
        if job.id not in self.estimates:
            return document
        estimate, source = self.estimates[job.id]
        return {**document, "expected": msgspec.to_builtins(estimate), "source": source}

    def print_text(self) -> None:
        info = self.info
        call_slots(info.slots)
        free = resource_text(f"{info.free_gpus:g} of {info.gpus:,} GPUs free")
        free += f", {info.drained_gpus:,} drained" if info.drained_gpus else ""
        title = f"{format_job_counts(info)}, {free}, policy {info.policy}"
        footer = [f"… and {plural(self.omitted, 'more job')} (--all)"] if self.omitted else []
        if self.estimates:
            footer += format_accuracy(info.start_accuracy)
        print_notes([*self.notes, *([info.storage] if info.storage else [])])
        if not self.jobs:
            print_line(title)
            return
        print_tables(Table(title, _columns(self), self.jobs, footer, keys=2))


def _read_queue(client: Client, options: LiveQueueOptions) -> _LiveQueue:
    info = client.info()
    jobs, total = list_jobs(client, options.limit, tenant=options.tenant, user=options.user)
    omitted = total - len(jobs)
    if not options.forecast.enabled:
        return _LiveQueue(info, jobs, omitted)
    waiting = [job for job in jobs if job.state == "waiting"]
    estimates, notes = _estimate_starts(client, info, waiting, options.forecast)
    return _LiveQueue(info, jobs, omitted, estimates, notes, with_estimates=True)


def _estimate_starts(
    client: Client, info: DaemonInfo, waiting: Sequence[JobStatus], options: ForecastOptions
) -> tuple[dict[str, tuple[TimeEstimate | None, str]], list[str]]:
    """Return the daemon's start estimates; if it makes none, or for all jobs with --futures, simulated estimates."""
    source = "forecast" if info.forecasts_starts else "policy"
    by_daemon = {job.id: (job.start_estimate, source if job.start_estimate else "") for job in waiting}
    missing = [job.id for job in waiting if options.futures or job.start_estimate is None]
    if not missing or (info.forecasts_starts and not options.futures):
        return by_daemon, []
    if info.waiting > MAX_WAITING_FOR_FUTURES and not options.futures:
        return by_daemon, [
            f"policy {info.policy} is not simulated with {info.waiting:,} waiting jobs; --futures N does"
        ]
    try:
        simulated, notes = _simulate_starts(client, missing, options)
    except Forbidden:
        return by_daemon, ["only start estimates of the policy are shown: simulating futures requires the owner role"]
    return by_daemon | simulated, notes


def _simulate_starts(
    client: Client, job_ids: Sequence[str], options: ForecastOptions
) -> tuple[dict[str, tuple[TimeEstimate | None, str]], list[str]]:
    from refold.cli.inputs import forecast_starts, read_daemon_state

    with read_daemon_state(client) as state:
        waiting = [job_id for job_id in job_ids if job_id in state.present.view.waiting]
        if not state.present.knows_run_times:
            return dict.fromkeys(waiting, (None, "")), []
        futures = forecast_starts(state, waiting, options)
    source = plural(futures.count, "future")
    return {job_id: (_shift(futures.start(job_id), state.clock_offset), source) for job_id in waiting}, [options.note]


def _shift(estimate: StartEstimate | None, offset: float) -> TimeEstimate | None:
    """Convert an estimate from journal time to the daemon's clock."""
    from refold.client.api import TimeEstimate

    if estimate is None:
        return None
    bounds = [None if time is None else time + offset for time in (estimate.soonest, estimate.latest)]
    return TimeEstimate(estimate.at + offset, *bounds)


def format_accuracy(accuracy: StartAccuracy) -> list[str]:
    """Return a line that says how good the daemon's estimates were so far; nothing if no job has started."""
    if accuracy.median_error is None:
        return []
    bounds = f", {accuracy.coverage:.0%} of bounds met" if accuracy.coverage is not None else ""
    return [
        f"estimates of {plural(accuracy.jobs, 'job')}: median error {format_elapsed(accuracy.median_error)}{bounds}"
    ]


def policy_source(estimate: StartEstimate | TimeEstimate | None, now: float) -> str:
    """Return 'policy', with a remark if the estimated time or its bound has passed; '' without an estimate."""
    if estimate is None:
        return ""
    if estimate.latest is not None and estimate.latest < now:
        return "policy, bound passed"
    return "policy, late" if estimate.at < now else "policy"


def _format_position(job: JobStatus) -> str:
    return f"{job.position}" if job.position and job.state == "waiting" else ""


def _format_time(job: JobStatus, now: float) -> str:
    since = job.started if job.state in ("running", "stopping") and job.started is not None else job.submitted
    return format_elapsed(max(0.0, now - since))


def _format_details(job: JobStatus) -> str:
    nodes = format_placement(job.placement)
    steps = f"{job.steps_done:,} of {plural(job.steps, 'step')}" if job.steps and job.steps_done else ""
    measures = [
        f"loss {job.loss:.4g}" if job.loss is not None else "",
        f"{job.samples_per_second:.4g} samples/s" if job.samples_per_second is not None else "",
    ]
    starting = job.message if job.reason else ""  # what a run waits for that was submitted to an engine
    details = [nodes, starting, job.plan, steps, *measures] if nodes else [format_reason(job)]
    warning = f"! {job.warning}" if job.warning else ""
    return " ".join(part for part in (", ".join(filter(None, details)), warning) if part)


def _columns(queue: _LiveQueue) -> list[Column[JobStatus]]:
    now = queue.info.now
    columns: list[Column[JobStatus]] = [
        Column("", _format_position, number=True, optional=3),
        Column("job", lambda job: job.id, whole=True),
        Column(resource_text("GPUs"), format_job_gpus, whole=True, optional=4),
        Column("tenant", lambda job: job.tenant, whole=True, optional=7),
        Column("user", lambda job: job.user, whole=True, optional=8),
        Column("state", lambda job: job.state, whole=True, optional=2),
        Column("time", lambda job: _format_time(job, now), number=True, optional=5),
        *(_estimate_columns(queue.estimates, now) if queue.estimates else []),
        Column("nodes (reason)", _format_details, optional=1),
    ]
    if output_width() >= ALL_COLUMNS_WIDTH:
        return columns
    return [
        column for column in columns if not (column.title in ("tenant", "user") and _is_constant(column, queue.jobs))
    ]


def _is_constant(column: Column[JobStatus], jobs: Sequence[JobStatus]) -> bool:
    return len({column.text(job) for job in jobs}) == 1


def _estimate_columns(estimates: Mapping[str, tuple[TimeEstimate | None, str]], now: float) -> list[Column[JobStatus]]:
    def expected(job: JobStatus) -> str:
        if job.id not in estimates:
            return ""
        estimate, _ = estimates[job.id]
        return format_moment(estimate.at, now) if estimate else UNKNOWN

    def interval(job: JobStatus) -> str:
        estimate, _ = estimates.get(job.id, (None, ""))
        return format_interval((estimate.soonest, estimate.latest), now) if estimate else ""

    return [
        Column("start estimate", expected, number=True),
        Column("range", interval, number=True, optional=6),
        Column("source", lambda job: estimates.get(job.id, (None, ""))[1], whole=True, optional=9),
    ]
