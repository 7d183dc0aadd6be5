"""How commands reach the daemon, and what shells complete by asking it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli.views import print_json, say

if TYPE_CHECKING:
    from refold.api import JobStatus, Place
    from refold.client import Client

COMPLETE_WITHIN = 0.5
"""Seconds that somebody who presses the tabulator waits at most."""

MOST_COMPLETED = 200
PAGE = 1000
"""Jobs that are asked for at once, at most."""

STATES = {"running": "runs", "stopping": "stops", "waiting": "waits", "held": "held", "infeasible": "infeasible"}
"""Where jobs stand that are not over, and what people read for it."""


def daemon() -> Client:
    """The daemon that is known here; nobody is asked yet."""
    from refold.client import Client

    return Client()


def first_jobs(client: Client, limit: int | None, **which: Any) -> tuple[list[JobStatus], int]:
    """The first so many jobs of those asked for, or all; and how many there are. Takes what `Client.jobs` takes."""
    found: list[JobStatus] = []
    after = 0
    while True:
        page = client.jobs(limit=min(PAGE, PAGE if limit is None else limit - len(found)), after=after, **which)
        found += page.jobs
        if page.next is None or not page.jobs or (limit is not None and len(found) >= limit):
            return found, page.total
        after = page.next


def _completed(incomplete: str, ask: Callable[[Client], Iterable[str]]) -> list[str]:
    """Names that begin so. A shell that completes has no place for complaints, whatever goes wrong."""
    from refold.client import Client
    from refold.errors import RefoldError

    try:
        return [name for name in ask(Client(timeout=COMPLETE_WITHIN)) if name.startswith(incomplete)]
    except (RefoldError, OSError):
        return []


def _live_jobs(incomplete: str) -> list[str]:
    return _completed(incomplete, lambda client: [job.id for job in client.jobs(limit=MOST_COMPLETED).jobs])


def jobs_beginning(incomplete: str) -> list[str]:
    """Ids of jobs; of those that are over, the latest."""

    def ids(client: Client) -> list[str]:
        pages = client.jobs(limit=MOST_COMPLETED), client.jobs(limit=MOST_COMPLETED, ended=True)
        return [job.id for page in pages for job in page.jobs]

    return _completed(incomplete, ids)


def tenants_beginning(incomplete: str) -> list[str]:
    """Names of tenants."""
    return _completed(incomplete, lambda client: [tenant.name for tenant in client.tenants()])


def _nodes(incomplete: str) -> list[str]:
    return _completed(incomplete, lambda client: [node.name for node in client.nodes()])


def tokens_beginning(incomplete: str) -> list[str]:
    """Names of tokens, for an owner."""
    return _completed(incomplete, lambda client: [token.name for token in client.tokens()])


JOB_HELP = "Its id, its number, or its name if only one job has it."
AnyJob = Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=jobs_beginning)]
LiveJobs = Annotated[list[str], typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=_live_jobs)]
AnyLiveJobs = Annotated[list[str] | None, typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=_live_jobs)]
OneGpu = Annotated[int | None, typer.Option("--gpu", min=0, metavar="N", help="Only this GPU of it, by its number.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="See 'refold nodes'.", autocompletion=_nodes)]
OfTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's.", autocompletion=tenants_beginning)
]
OfUser = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Only this user's.")]
ForTenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Who asks [yours].", autocompletion=tenants_beginning)
]
AfterJobs = Annotated[
    list[str] | None,
    typer.Option(
        "--after", metavar="JOB", help="Not before this one has finished; repeatable.", autocompletion=_live_jobs
    ),
]


def where_text(places: Iterable[Place]) -> str:
    """'n0 (GPUs 0, 1), n1 (0.5 of GPU 3)'."""

    def text(place: Place) -> str:
        part = "" if place.share == 1 else f"{place.share:g} of "
        numbers = ", ".join(map(str, place.gpus))
        return f"{place.node} ({part}GPU{'s' * (len(place.gpus) != 1)} {numbers})" if place.gpus else place.node

    return ", ".join(map(text, places))


def reason_text(job: JobStatus) -> str:
    """'(Resources: 0 of 2 nodes fit)', as squeue has it."""
    if not job.reason:
        return f"({job.why})" if job.why else ""
    return f"({job.reason}: {job.why})" if job.why else f"({job.reason})"


def on_each(jobs: Sequence[str], act: Callable[[str], JobStatus], done: str, as_json: bool) -> None:
    """Do something to each job; what is refused is told, the others are done all the same, and the status is 1."""
    from refold.errors import Refused

    changed: list[JobStatus] = []
    refused: list[tuple[str, str]] = []
    for job in jobs:
        try:
            changed.append(act(job))
        except Refused as problem:
            if len(jobs) == 1:
                raise
            refused.append((job, str(problem)))
    if as_json:
        print_json({"jobs": changed, "refused": [{"job": job, "error": error} for job, error in refused]})
    else:
        for status in changed:
            say(f"{status.id} {done}")
    for job, error in refused:
        say(f"{job}: {error}", err=True)
    if refused:
        raise typer.Exit(1)
