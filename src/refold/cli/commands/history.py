"""`refold history`: jobs that are over, and how they ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from refold.cli import OfTenant, OfUser, daemon, first_jobs
from refold.cli.views import AsJson, Column, Table, clock_near, duration, plural, print_json, print_tables, say

if TYPE_CHECKING:
    from refold.api import JobState, JobStatus
    from refold.client import Client

SHOWN = 50
OVER = ("finished", "failed", "cancelled")


def _states_beginning(incomplete: str) -> list[str]:
    return [state for state in OVER if state.startswith(incomplete)]


def history(
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Ended within the last 90m, 12h, 7d.")
    ] = None,
    tenant: OfTenant = None,
    user: OfUser = None,
    state: Annotated[
        str | None,
        typer.Option("--state", help="finished, failed or cancelled only.", autocompletion=_states_beginning),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="JOBS", help="So many, the latest.")] = SHOWN,
    everybody: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs that are over, the latest first: how they ended, and how long they waited and ran.

    Examples: refold history · refold history --since 1d --state failed
    """
    from refold.errors import UnknownName
    from refold.model import seconds_from_text

    if state is not None and state not in OVER:
        raise UnknownName("state", state, OVER)
    ago = None if since is None else seconds_from_text(since)
    client = daemon()
    now = client.about().now
    states = None if state is None else [cast("JobState", state)]
    which: dict[str, Any] = {"tenant": tenant or "", "user": user or "", "state": states, "ended": True}
    found, total = _ended_since(client, None if ago is None else now - ago, None if everybody else limit, which)
    if as_json:
        print_json(found)
        return
    if not found:
        say("no such job is over")
        return
    more = [f"… and {plural(total, 'job')} more (--all)"] if total else []
    print_tables(Table("", _columns(), [_row(job, now) for job in found], more))


def _ended_since(
    client: Client, since: float | None, limit: int | None, which: dict[str, Any]
) -> tuple[list[JobStatus], int]:
    """The latest first, and how many more there are; of those since then only that there may be more is not told."""
    if since is None:
        found, total = first_jobs(client, limit, **which)
        return found, total - len(found)
    found = []
    for job in client.history(**{key: value for key, value in which.items() if key != "ended"}):
        if (job.ended or 0.0) < since or len(found) == limit:
            break
        found.append(job)
    return found, 0


def _row(job: JobStatus, now: float) -> dict[str, str]:
    ended, started = job.ended, job.started
    return {
        "job": job.id,
        "demand": job.demand,
        "tenant": job.tenant,
        "user": job.user,
        "state": job.state,
        "ended": clock_near(ended, now) if ended is not None else "–",
        "waited": duration(max(0.0, started - job.submitted)) if started is not None else "–",
        "ran": duration(max(0.0, ended - started)) if ended is not None and started is not None else "–",
        "runs": f"{job.runs}",
        "why": job.why,
    }


def _columns() -> dict[str, Column]:
    colours = {"failed": "red", "cancelled": "yellow"}
    return {
        "job": Column("job", whole=True),
        "demand": Column("GPUs", whole=True),
        "tenant": Column("tenant", whole=True),
        "user": Column("user", whole=True),
        "state": Column("", style=lambda state: colours.get(state, ""), whole=True),
        "ended": Column("ended", number=True),
        "waited": Column("waited", number=True),
        "ran": Column("ran", number=True),
        "runs": Column("runs", number=True),
        "why": Column("why"),
    }
