"""`refold history`: list ended jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from refold.cli import (
    TenantFilter,
    UserFilter,
    format_job_gpus,
    list_jobs,
    make_client,
    option,
    parse_optional_duration,
    switch,
)
from refold.cli.commands.logs import ENDED_STATES
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    call_slots,
    format_clock_near,
    format_elapsed,
    format_peak,
    plural,
    print_json,
    print_line,
    print_tables,
    resource_text,
)
from refold.errors import UnknownName

if TYPE_CHECKING:
    from refold.client import Client
    from refold.client.api import JobState, JobStatus

DEFAULT_LIMIT = 50


def _complete_states(incomplete: str) -> list[str]:
    return [state for state in ENDED_STATES if state.startswith(incomplete)]


def history(
    since: Annotated[str | None, option("TIME", "Only jobs that ended within this time, such as 12h or 7d.")] = None,
    tenant: TenantFilter = None,
    user: UserFilter = None,
    state: Annotated[
        str | None,
        option(
            "STATE", "Only jobs in this state: finished, failed, timed out or cancelled.", complete=_complete_states
        ),
    ] = None,
    limit: Annotated[int, option("JOBS", "Maximum number of jobs.", min=1)] = DEFAULT_LIMIT,
    show_all: Annotated[bool, switch("--all", "Show all jobs.")] = False,
    as_json: AsJson = False,
) -> None:
    """List ended jobs, the latest first: state, waiting time and run time.

    Examples: refold history · refold history --since 1d --state failed
    """
    if state is not None and state not in ENDED_STATES:
        raise UnknownName("state", state, ENDED_STATES)
    window = parse_optional_duration("--since", since)
    client = make_client()
    info = client.info()
    call_slots(info.slots)
    states = None if state is None else [cast("JobState", state)]
    filters: dict[str, Any] = {"tenant": tenant or "", "user": user or "", "state": states, "ended": True}
    jobs, omitted = _list_ended(
        client, None if window is None else info.now - window, None if show_all else limit, filters
    )
    if as_json:
        print_json(jobs)
        return
    if not jobs:
        print_line("no matching jobs have ended")
        return
    footer = [f"… and {plural(omitted, 'more job')} (--all)"] if omitted else []
    is_measured = any(job.cpu_seconds is not None for job in jobs)
    print_tables(Table("", [*_columns(info.now), *(_usage_columns() if is_measured else []), _REASON], jobs, footer))


def _list_ended(
    client: Client, since: float | None, limit: int | None, filters: dict[str, Any]
) -> tuple[list[JobStatus], int]:
    """Return the ended jobs, the latest first, and the number of jobs beyond the limit (with `since` always 0)."""
    if since is None:
        jobs, total = list_jobs(client, limit, **filters)
        return jobs, total - len(jobs)
    jobs = []
    for job in client.history(**{key: value for key, value in filters.items() if key != "ended"}):
        if (job.ended or 0.0) < since or len(jobs) == limit:
            break
        jobs.append(job)
    return jobs, 0


_REASON: Column[JobStatus] = Column("reason", lambda job: resource_text(job.message))


def _columns(now: float) -> list[Column[JobStatus]]:
    colours = {"failed": "red", "timed out": "red", "cancelled": "yellow"}
    return [
        Column("job", lambda job: job.id, whole=True),
        Column(resource_text("GPUs"), format_job_gpus, whole=True),
        Column("tenant", lambda job: job.tenant, whole=True),
        Column("user", lambda job: job.user, whole=True),
        Column("state", lambda job: job.state, style=lambda job: colours.get(job.state, ""), whole=True),
        Column("ended", lambda job: format_clock_near(job.ended, now) if job.ended is not None else "–", number=True),
        Column("waiting time", lambda job: _format_span(job.submitted, job.started), number=True),
        Column("run time", lambda job: _format_span(job.started, job.ended), number=True),
        Column("runs", lambda job: f"{job.runs}", number=True),
    ]


def _usage_columns() -> list[Column[JobStatus]]:
    return [
        Column("CPU time", lambda job: _format_span(0.0, job.cpu_seconds), number=True),
        Column("peak memory", lambda job: format_peak(job.peak_memory_mib), number=True),
    ]


def _format_span(begin: float | None, end: float | None) -> str:
    return "–" if begin is None or end is None else format_elapsed(max(0.0, end - begin))
