"""The daemon's queue: who runs where, who waits and why, and when they may start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from refold.cli import STATES, first_jobs, reason_text, where_text
from refold.cli.inputs import ForecastOptions, futures_of, state_of_daemon
from refold.cli.views.output import Column, Table, output_width, plural, print_json, print_tables, say, tell
from refold.cli.views.times import between_text, duration, moment_text

if TYPE_CHECKING:
    from refold.api import DaemonInfo, Interval, JobStatus
    from refold.client import Client
    from refold.model import StartEstimate

PROMISE = "promise"

WIDE = 100
"""Characters of a line that have room for all columns."""


@dataclass(frozen=True, slots=True)
class LiveQueueOptions:
    """What is to be told, and of whom; no limit: of all."""

    ahead: ForecastOptions
    tenant: str = ""
    user: str = ""
    limit: int | None = None


def show_daemon(client: Client, asked: LiveQueueOptions, as_json: bool) -> None:
    """Tell how things stand with the daemon."""
    found = _read_queue(client, asked)
    if as_json:
        print_json(found.document())
    else:
        found.tell()


@dataclass(frozen=True, slots=True)
class _Queue:
    """What the daemon says: itself, the first of its jobs, how many more there are, and when those that wait may start.

    `starts`: by the job, when, and who says so.
    """

    about: DaemonInfo
    jobs: Sequence[JobStatus]
    left_out: int
    starts: dict[str, tuple[Interval | None, str]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """For programs."""
        about = self.about
        return {
            "cluster": about.cluster,
            "policy": about.policy,
            "now": about.now,
            "gpus": about.gpus,
            "free_gpus": about.free_gpus,
            "running": about.running,
            "waiting": about.waiting,
            "jobs": [self._document_of(job) for job in self.jobs],
            "left_out": self.left_out,
            "notes": self.notes,
        }

    def _document_of(self, job: JobStatus) -> dict[str, Any]:
        import msgspec

        document: dict[str, Any] = msgspec.to_builtins(job)
        if job.id not in self.starts:
            return document
        expected, by = self.starts[job.id]
        return {**document, "expected": msgspec.to_builtins(expected), "by": by}

    def tell(self) -> None:
        """For people."""
        about = self.about
        free = f"{about.free_gpus:g} of {about.gpus:,} GPUs free"
        title = f"{plural(about.running, 'job')} run, {about.waiting:,} wait, under {about.policy}; {free}"
        title = title.replace("1 job run,", "1 job runs,").replace(" 1 wait,", " 1 waits,")
        after = [f"… and {plural(self.left_out, 'job')} more (--all)"] if self.left_out else []
        tell([*self.notes, *([about.storage] if about.storage else [])])
        if not self.jobs:
            say(title)
            return
        rows = [_row(job, about.now) | _start_row(self.starts.get(job.id), about.now) for job in self.jobs]
        print_tables(Table(title, _columns(bool(self.starts), _left_out(self.jobs)), rows, after))


def _read_queue(client: Client, asked: LiveQueueOptions) -> _Queue:
    """Ask the daemon."""
    about = client.about()
    jobs, total = first_jobs(client, asked.limit, tenant=asked.tenant, user=asked.user)
    left_out = total - len(jobs)
    if not asked.ahead.wanted:
        return _Queue(about, jobs, left_out)
    starts, notes = _starts(client, about, [job for job in jobs if job.state == "waiting"], asked.ahead)
    return _Queue(about, jobs, left_out, starts, notes)


def _starts(
    client: Client, about: DaemonInfo, waiting: Sequence[JobStatus], ahead: ForecastOptions
) -> tuple[dict[str, tuple[Interval | None, str]], list[str]]:
    """What the policy has promised; to whom it has promised nothing, or with --futures to all, what may come."""
    from refold.errors import Forbidden

    told = {job.id: (job.start_estimate, _promise_text(job.start_estimate, about.now)) for job in waiting}
    without = [job.id for job in waiting if ahead.futures or job.start_estimate is None]
    if not without:
        return told, []
    try:
        seen, notes = _looked_ahead(client, without, ahead)
    except Forbidden:
        return told, ["only an owner can look ahead: what the policy has promised is told, and nothing else"]
    return told | seen, notes


def _looked_ahead(
    client: Client, job_ids: Sequence[str], ahead: ForecastOptions
) -> tuple[dict[str, tuple[Interval | None, str]], list[str]]:
    with state_of_daemon(client) as state:
        there = [job_id for job_id in job_ids if job_id in state.present.view.waiting]
        futures = futures_of(state, there, ahead)
    by = plural(ahead.count, "future")
    return {job_id: (_moved(futures.start(job_id), state.later), by) for job_id in there}, [ahead.note]


def _moved(expected: StartEstimate | None, later: float) -> Interval | None:
    """The same by the daemon's clock."""
    from refold.api import Interval

    if expected is None:
        return None
    bounds = [None if moment is None else moment + later for moment in (expected.soonest, expected.latest)]
    return Interval(expected.at + later, *bounds)


def _promise_text(promised: Interval | None, now: float) -> str:
    if promised is None:
        return ""
    if promised.latest is not None and promised.latest < now:
        return f"{PROMISE}, passed"
    return f"{PROMISE}, late" if promised.at < now else PROMISE


def _row(job: JobStatus, now: float) -> dict[str, Any]:
    since = job.started if job.state in ("running", "stopping") and job.started is not None else job.submitted
    where = where_text(job.where)
    steps = f"{job.steps_done:,} of {plural(job.steps, 'step')}" if job.steps and job.steps_done else ""
    told = [where, job.plan, steps] if where else [reason_text(job)]
    warning = f"! {job.warning}" if job.warning else ""
    return {
        "place": f"{job.place}" if job.place and job.state == "waiting" else "",
        "job": job.id,
        "demand": job.demand,
        "tenant": job.tenant,
        "user": job.user,
        "state": STATES.get(job.state, job.state),
        "since": duration(max(0.0, now - since)),
        "where": " ".join(part for part in (", ".join(filter(None, told)), warning) if part),
    }


def _start_row(start: tuple[Interval | None, str] | None, now: float) -> dict[str, Any]:
    expected, by = start or (None, "")
    if expected is None:
        return {"expected": "–" if start else "", "between": "", "by": by}
    between = between_text((expected.soonest, expected.latest), now)
    return {"expected": moment_text(expected.at, now), "between": between, "by": by}


def _left_out(jobs: Sequence[JobStatus]) -> set[str]:
    """On a narrow screen, columns that say the same of everybody."""
    if output_width() >= WIDE:
        return set()
    return {key for key in ("tenant", "user") if len({getattr(job, key) for job in jobs}) == 1}


def _columns(starts: bool, left_out: set[str]) -> dict[str, Column]:
    when = {
        "expected": Column("may start", number=True),
        "between": Column("between", number=True),
        "by": Column("by", whole=True),
    }
    columns = {
        "place": Column("", number=True),
        "job": Column("job", whole=True),
        "demand": Column("GPUs", whole=True),
        "tenant": Column("tenant", whole=True),
        "user": Column("user", whole=True),
        "state": Column("", whole=True),
        "since": Column("for", number=True),
        **(when if starts else {}),
        "where": Column("on (reason)"),
    }
    return {key: column for key, column in columns.items() if key not in left_out}
