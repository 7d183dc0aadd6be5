"""`refold events`: show scheduler events."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from refold.cli import TenantFilter, complete_jobs, connect, option, switch
from refold.cli.views import AsJson, format_clock, print_line, resource_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from refold.client.api import Event

DEFAULT_LIMIT = 100


def events(
    follow: Annotated[bool, switch("--follow", "Show new events until interrupted.", "-f")] = False,
    job: Annotated[str | None, option("JOB", "Only events of this job.", complete=complete_jobs)] = None,
    tenant: TenantFilter = None,
    limit: Annotated[int, option("N", "Number of past events to show.", min=1)] = DEFAULT_LIMIT,
    as_json: AsJson = False,
) -> None:
    """Show the latest scheduler events: submissions, starts, stops, ends, drained nodes; with -f, also new ones.

    With --json each event is one line of JSON.

    Examples: refold events · refold events -f --job train-17
    """
    from collections import deque

    client = connect()
    job_id = client.job(job).id if job else ""
    last = deque(client.events(0, job=job_id, tenant=tenant or "", follow=False), maxlen=limit)
    _print_events(last, as_json)
    if follow:
        since = last[-1].number if last else 0
        _print_events(client.events(since, job=job_id, tenant=tenant or ""), as_json)


def _print_events(events: Iterable[Event], as_json: bool) -> None:
    import msgspec

    for event in events:
        if as_json:
            print(msgspec.json.encode(event).decode())
        else:
            job = f"{event.job} " if event.job else ""
            run = f"(run {event.run}) " if event.run else ""
            print_line(f"{format_clock(event.at)}  {job}{event.kind} {run}{resource_text(event.text)}".rstrip())
        sys.stdout.flush()
