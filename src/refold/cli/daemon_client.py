"""Access to the daemon: the client, shell completion, and arguments and texts that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli.views import format_gpus, plural, print_json, print_line

if TYPE_CHECKING:
    from refold.api import DaemonInfo, JobState, JobStatus, NodeGpus, NodeStatus
    from refold.client import Client

COMPLETION_TIMEOUT_SECONDS = 0.5
"""Time that shell completion waits for the daemon."""

MAX_COMPLETIONS = 200
PAGE_SIZE = 1000
"""Maximum number of jobs per request."""

MAX_LISTED = 10
"""Jobs that are listed in a message."""

LIVE_STATES: tuple[JobState, ...] = ("running", "stopping", "waiting", "held", "infeasible")
"""States of jobs that have not ended."""


def make_client() -> Client:
    """Return a client of the configured daemon. It connects on the first request."""
    from refold.client import Client

    return Client()


def list_jobs(client: Client, limit: int | None, **filters: Any) -> tuple[list[JobStatus], int]:
    """Return the first `limit` jobs that match the filters of `Client.jobs` (None: all), and the number that match."""
    jobs: list[JobStatus] = []
    after = 0
    while True:
        page_size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(jobs))
        page = client.jobs(limit=page_size, after=after, **filters)
        jobs += page.jobs
        if page.next is None or not page.jobs or (limit is not None and len(jobs) >= limit):
            return jobs, page.total
        after = page.next


def _complete(incomplete: str, fetch_names: Callable[[Client], Iterable[str]]) -> list[str]:
    """Return the names that start with `incomplete`; none on errors, which shell completion cannot show."""
    from refold.client import Client
    from refold.errors import RefoldError

    try:
        names = fetch_names(Client(timeout=COMPLETION_TIMEOUT_SECONDS))
        return [name for name in names if name.startswith(incomplete)]
    except (RefoldError, OSError):
        return []


def _complete_live_jobs(incomplete: str) -> list[str]:
    return _complete(incomplete, lambda client: [job.id for job in client.jobs(limit=MAX_COMPLETIONS).jobs])


def complete_jobs(incomplete: str) -> list[str]:
    """Complete job ids: live jobs and the most recently ended ones."""

    def ids(client: Client) -> list[str]:
        pages = client.jobs(limit=MAX_COMPLETIONS), client.jobs(limit=MAX_COMPLETIONS, ended=True)
        return [job.id for page in pages for job in page.jobs]

    return _complete(incomplete, ids)


def complete_tenants(incomplete: str) -> list[str]:
    """Complete tenant names."""
    return _complete(incomplete, lambda client: [tenant.name for tenant in client.tenants()])


def _complete_nodes(incomplete: str) -> list[str]:
    return _complete(incomplete, lambda client: [node.name for node in client.nodes()])


def complete_tokens(incomplete: str) -> list[str]:
    """Complete token names, which only an owner may list."""
    return _complete(incomplete, lambda client: [token.name for token in client.tokens()])


JOB_HELP = "Job id, number, or unique name."
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=complete_jobs)]
JOBS_HELP = "Job id, number or unique name; array (12), tasks (12_[0-3]) or pattern ('train-*')."
LiveJobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB", help=JOBS_HELP, autocompletion=_complete_live_jobs)
]
OptionalLiveJobs = Annotated[
    list[str] | None, typer.Argument(metavar="JOB", help=JOBS_HELP, autocompletion=_complete_live_jobs)
]
GpuIndex = Annotated[int | None, typer.Option("--gpu", min=0, metavar="N", help="Only the GPU with this index.")]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="Node name (see 'refold nodes').", autocompletion=_complete_nodes)
]
TenantFilter = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="Only jobs of this tenant.", autocompletion=complete_tenants),
]
UserFilter = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Only jobs of this user.")]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        help="Tenant of the job (default: the tenant of your token).",
        autocompletion=complete_tenants,
    ),
]
DependencyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        "--dependency",
        metavar="JOB",
        help="Start after this job has finished; also afterany:JOB, afternotok:JOB and singleton; repeatable.",
        autocompletion=_complete_live_jobs,
    ),
]


def format_placement(placement: Iterable[NodeGpus]) -> str:
    """Format the GPUs of a run: 'n0 (GPUs 0, 1), n1 (0.5 of GPU 3)'."""

    def format_node(node: NodeGpus) -> str:
        fraction = "" if node.share == 1 else f"{node.share:g} of "
        numbers = ", ".join(map(str, node.gpus))
        return f"{node.node} ({fraction}GPU{'s' * (len(node.gpus) != 1)} {numbers})" if node.gpus else node.node

    return ", ".join(map(format_node, placement))


def format_job_gpus(job: JobStatus) -> str:
    """Format the GPUs that a job holds or held; before its first run, those that it requested."""
    return format_held_gpus(job.demand, job.requested_gpus, job.gpus)


def format_held_gpus(demand: str, requested: float, held: float) -> str:
    """Format the GPUs of a run: the demand, if the run has what was requested, else their number."""
    return demand if held == requested else format_gpus(held)


def format_job_counts(info: DaemonInfo) -> str:
    """Format the number of jobs by state: '3 running, 1 waiting, 8 held'."""
    held = f", {info.held:,} held" if info.held else ""
    return f"{info.running:,} running, {info.waiting:,} waiting{held}"


def format_rack(node: NodeStatus) -> str:
    """Format the rack of a node and its power: 'r1: 2,400 of 3,000 W'."""
    if node.rack_watts is None:
        return node.rack
    limit = "" if node.rack_limit_watts is None else f" of {node.rack_limit_watts:,.0f}"
    return f"{node.rack}: {node.rack_watts:,.0f}{limit} W"


def format_reason(job: JobStatus) -> str:
    """Format why a job waits, as squeue does: '(Resources: 0 of 2 nodes fit)'."""
    if not job.reason:
        return f"({job.message})" if job.message else ""
    return f"({job.reason}: {job.message})" if job.message else f"({job.reason})"


def select_jobs(client: Client, words: Sequence[str], states: Sequence[JobState]) -> list[str]:
    """Return the jobs that are named, or that match as patterns or arrays. Only the latter have to be in these states.

    A line on stderr says what a pattern or array matches; one without a match is an error.
    """
    selected = [job for word in words for job in _matching_jobs(client, word, states)]
    return list(dict.fromkeys(selected))


def _matching_jobs(client: Client, word: str, states: Sequence[JobState]) -> list[str]:
    from refold.errors import BadInput

    if not word:
        raise BadInput("a job name is empty")
    found, _ = list_jobs(client, None, match=word)
    is_pattern = any(character in word for character in "*?[")
    if [job.id for job in found] == [word] or not (found or is_pattern):
        return [word]
    caller = client.info()
    own = [job for job in found if caller.role == "owner" or job.tenant == caller.tenant]
    ids = [job.id for job in own if job.state in states]
    if not ids:
        raise BadInput(f"no {'active' if states == LIVE_STATES else ' or '.join(states)} job matches {word!r}")
    more = f", … {ids[-1]}" if len(ids) > MAX_LISTED else ""
    print_line(f"{word} matches {plural(len(ids), 'job')}: {', '.join(ids[:MAX_LISTED])}{more}", err=True)
    return ids


def apply_to_jobs(jobs: Sequence[str], action: Callable[[str], JobStatus], done: str, as_json: bool) -> None:
    """Apply an action to each job. Rejected jobs are printed and set exit status 1; the other jobs are changed."""
    from refold.errors import Refused

    changed: list[JobStatus] = []
    rejected: list[tuple[str, str]] = []
    for job in jobs:
        try:
            changed.append(action(job))
        except Refused as problem:
            if len(jobs) == 1:
                raise
            rejected.append((job, str(problem)))
    if as_json:
        print_json({"jobs": changed, "rejected": [{"job": job, "error": error} for job, error in rejected]})
    else:
        for status in changed:
            print_line(f"{status.id} {done}")
    for job, error in rejected:
        print_line(f"{job}: {error}", err=True)
    if rejected:
        raise typer.Exit(1)


def print_node_change(node: NodeStatus, gpu: int | None, change: str, as_json: bool) -> None:
    """Print the new state of a node, or of one of its GPUs."""
    if as_json:
        print_json(node)
        return
    print_line(f"{f'node {node.name}' if gpu is None else f'GPU {gpu} of node {node.name}'} {change}")
