"""`refold events`: what happens, a line each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import OfTenant, daemon, jobs_beginning
from refold.cli.views import AsJson, clock, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from refold.api import Event

LAST = 100
"""Events that are told, where nobody says how many."""


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until interrupted.")] = False,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Only of this job.", autocompletion=jobs_beginning)
    ] = None,
    tenant: OfTenant = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Only the last so many of those that there are.")
    ] = LAST,
    as_json: AsJson = False,
) -> None:
    """Tell what happened lately: submissions, starts, stops, ends, drained nodes; with -f, also what comes.

    With --json each is a line of JSON, for programs.

    Examples: refold events · refold events -f --job train-17
    """
    from collections import deque

    client = daemon()
    job_id = client.job(job).id if job else ""
    last = deque(client.events(0, job=job_id, tenant=tenant or "", follow=False), maxlen=limit)
    _tell(last, as_json)
    if follow:
        since = last[-1].number if last else 0
        _tell(client.events(since, job=job_id, tenant=tenant or ""), as_json)


def _tell(events: Iterable[Event], as_json: bool) -> None:
    import msgspec

    for event in events:
        if as_json:
            print(msgspec.json.encode(event).decode())
        else:
            whose = f"{event.job} " if event.job else ""
            run = f"(run {event.run}) " if event.run else ""
            say(f"{clock(event.at)}  {whose}{event.kind} {run}{event.text}".rstrip())
        sys.stdout.flush()
