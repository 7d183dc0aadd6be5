"""`refold cancel`: jobs that nobody wants any more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import AnyLiveJobs, OfTenant, OfUser, daemon, first_jobs, on_each
from refold.cli.views import AsJson, plural

if TYPE_CHECKING:
    from refold.api import JobStatus
    from refold.client import Client

MOST_NAMED = 10


def cancel(
    jobs: AnyLiveJobs = None,
    tenant: OfTenant = None,
    user: OfUser = None,
    everybody: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also if there are many.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs. Those that run are asked to stop, and ended after their grace.

    Jobs are named, or all of a tenant, of a user, or of everybody are meant; then you are asked first.

    Examples: refold cancel train-17 train-18 · refold cancel --user ann
    """
    from refold.errors import BadInput

    many = everybody or tenant is not None or user is not None
    if bool(jobs) == many:
        raise BadInput("cancel which jobs? Name them, or say --tenant NAME, --user NAME or --all")
    client = daemon()
    found = jobs or _asked_about(client, tenant or "", user or "", yes)
    on_each(found, client.cancel, "is cancelled", as_json)


def _asked_about(client: Client, tenant: str, user: str, yes: bool) -> list[str]:
    from refold.errors import BadInput

    found, _ = first_jobs(client, None, tenant=tenant, user=user)
    if not found:
        raise BadInput("no job of theirs waits or runs, so that there is nothing to cancel")
    if yes:
        return [job.id for job in found]
    if not sys.stdin.isatty():
        raise BadInput(f"{plural(len(found), 'job')} would be cancelled, and there is nobody to ask: add --yes")
    if not typer.confirm(f"cancel {_names(found)}?", default=False):
        raise typer.Exit(1)
    return [job.id for job in found]


def _names(jobs: list[JobStatus]) -> str:
    told = ", ".join(job.id for job in jobs[:MOST_NAMED])
    return f"{plural(len(jobs), 'job')} ({told}{', …' if len(jobs) > MOST_NAMED else ''})"
