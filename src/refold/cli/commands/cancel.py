"""`refold cancel`, `hold` and `release`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import (
    LIVE_STATES,
    MAX_LISTED,
    LiveJobsArgument,
    OptionalLiveJobs,
    TenantFilter,
    UserFilter,
    change_jobs,
    list_jobs,
    make_client,
    select_jobs,
    switch,
)
from refold.cli.views import AsJson, plural
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.client import Client
    from refold.client.api import JobStatus


def cancel(
    jobs: OptionalLiveJobs = None,
    tenant: TenantFilter = None,
    user: UserFilter = None,
    cancel_all: Annotated[bool, switch("--all", "Cancel all jobs.")] = False,
    now: Annotated[bool, switch("--now", "Kill running jobs at once, without their grace period.")] = False,
    yes: Annotated[bool, switch("--yes", "Do not ask for confirmation.", "-y")] = False,
    as_json: AsJson = False,
) -> None:
    """Cancel jobs. Running jobs are signalled to stop, and killed after their grace period, or when cancelled again.

    Give jobs, arrays or patterns; or select all jobs of a tenant or user, or all jobs, after a confirmation.

    Examples: refold cancel train-17 train-18 · refold cancel 12_[0-3] · refold cancel 'train-*' ·
    refold cancel --user ann
    """
    filtered = cancel_all or tenant is not None or user is not None
    if bool(jobs) == filtered:
        raise BadInput("expected either job ids, or --tenant NAME, --user NAME or --all")
    client = make_client()
    selected = select_jobs(client, jobs, LIVE_STATES) if jobs else _filter_jobs(client, tenant or "", user or "", yes)
    change_jobs(client, "cancel", selected, as_json, now=now)


def _filter_jobs(client: Client, tenant: str, user: str, yes: bool) -> list[str]:
    """Return the ids of the matching jobs after a confirmation."""
    jobs, _ = list_jobs(client, None, tenant=tenant, user=user)
    if not jobs:
        raise BadInput("nothing to cancel: no matching jobs are waiting or running")
    if yes:
        return [job.id for job in jobs]
    if not sys.stdin.isatty():
        raise BadInput(
            f"cancelling {plural(len(jobs), 'job')} needs confirmation, and stdin is not a terminal: add --yes"
        )
    if not typer.confirm(f"cancel {_format_jobs(jobs)}?", default=False):
        raise typer.Exit(1)
    return [job.id for job in jobs]


def _format_jobs(jobs: list[JobStatus]) -> str:
    ids = ", ".join(job.id for job in jobs[:MAX_LISTED])
    return f"{plural(len(jobs), 'job')} ({ids}{', …' if len(jobs) > MAX_LISTED else ''})"


def hold(jobs: LiveJobsArgument, as_json: AsJson = False) -> None:
    """Hold jobs so that they do not start until they are released.

    Examples: refold hold train-17 · refold hold 'train-*' · refold hold 12_[0-3]
    """
    client = make_client()
    change_jobs(client, "hold", select_jobs(client, jobs, ("waiting", "held")), as_json)


def release(jobs: LiveJobsArgument, as_json: AsJson = False) -> None:
    """Release held jobs, so that they can be scheduled.

    Examples: refold release train-17 · refold release 'train-*'
    """
    client = make_client()
    change_jobs(client, "release", select_jobs(client, jobs, ("held",)), as_json)
