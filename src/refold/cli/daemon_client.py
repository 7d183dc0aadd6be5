"""Access to the daemon: the client, and texts that several commands share.

Nothing here needs typer, so that `refold queue` does without it (`plain_queue`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from refold.cli.views import call_slots, format_gpus, plural, print_json, print_line, resource_text
from refold.errors import BadInput

if TYPE_CHECKING:
    from refold.client import Client
    from refold.client.api import DaemonInfo, JobAction, JobState, JobStatus, NodeGpus, NodeStatus

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


def connect() -> Client:
    """Return a client of the configured daemon; from now on, texts have the word for its resources, GPUs or slots."""
    client = make_client()
    call_slots(client.info().slots)
    return client


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


def format_placement(placement: Iterable[NodeGpus]) -> str:
    """Format the GPUs of a run: 'n0 (GPUs 0, 1), n1 (0.5 of GPU 3)'."""

    def format_node(node: NodeGpus) -> str:
        fraction = "" if node.share == 1 else f"{node.share:g} of "
        numbers = f"GPU{'s' if len(node.gpus) > 1 else ''} {', '.join(map(str, node.gpus))}"
        return f"{node.node} ({fraction}{numbers})" if node.gpus else node.node

    return resource_text(", ".join(map(format_node, placement)))


def format_job_gpus(job: JobStatus) -> str:
    """Format the GPUs that a job holds or held; before its first run, those that it requested."""
    return format_held_gpus(job.demand, job.requested_gpus, job.gpus)


def format_held_gpus(demand: str, requested: float, held: float) -> str:
    """Format the GPUs of a run: the demand, if the run has what was requested, else their number."""
    return resource_text(demand if held == requested else format_gpus(held))


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
    return resource_text(f"({job.reason}: {job.message})") if job.message else f"({job.reason})"


def select_jobs(client: Client, words: Sequence[str], states: Sequence[JobState]) -> list[str]:
    """Return the jobs that are named, or that match as patterns or arrays. Only the latter have to be in these states.

    A line on stderr says what a pattern or array matches; one without a match is an error.
    """
    selected = [job for word in words for job in _matching_jobs(client, word, states)]
    return list(dict.fromkeys(selected))


def _matching_jobs(client: Client, word: str, states: Sequence[JobState]) -> list[str]:
    if not word:
        raise BadInput("a job name is empty")
    found, _ = list_jobs(client, None, match=word)
    is_pattern = any(character in word for character in "*?[")
    if [job.id for job in found] == [word] or not (found or is_pattern):
        return [word]
    caller = client.info()
    own = [
        job
        for job in found
        if caller.role == "owner"
        or (job.tenant == caller.tenant and (not caller.own_jobs_only or job.user == caller.user))
    ]
    ids = [job.id for job in own if job.state in states]
    if not ids:
        raise BadInput(f"no {'active' if states == LIVE_STATES else ' or '.join(states)} job matches {word!r}")
    more = f", … {ids[-1]}" if len(ids) > MAX_LISTED else ""
    print_line(f"{word} matches {plural(len(ids), 'job')}: {', '.join(ids[:MAX_LISTED])}{more}", err=True)
    return ids


def _change_job(client: Client, action: JobAction, job: str, now: bool) -> JobStatus:
    match action:
        case "cancel":
            return client.cancel(job, now=now)
        case "hold":
            return client.hold(job)
        case "release":
            return client.release(job)


DONE: dict[JobAction, str] = {"cancel": "cancelled", "hold": "held", "release": "released"}


def change_jobs(client: Client, action: JobAction, jobs: Sequence[str], as_json: bool, *, now: bool = False) -> None:
    """Change jobs. Rejected ones are printed and set exit status 1; the others are changed."""
    import typer

    from refold.client.api import ChangedJob, RejectedChange

    changed: list[ChangedJob] = []
    rejected: list[RejectedChange] = []
    if len(jobs) == 1:
        status = _change_job(client, action, jobs[0], now)
        changed.append(ChangedJob(status.id, status.state))
    else:
        for begin in range(0, len(jobs), PAGE_SIZE):
            outcome = client.change_jobs(action, jobs[begin : begin + PAGE_SIZE], now=now)
            changed += outcome.changed
            rejected += outcome.rejected
    if as_json:
        print_json({"jobs": changed, "rejected": rejected})
    else:
        for job in changed:
            print_line(f"{job.id} {DONE[action]}")
    for one in rejected:
        print_line(f"{one.job}: {one.error}", err=True)
    if rejected:
        raise typer.Exit(1)


def print_node_change(node: NodeStatus, gpu: int | None, change: str, as_json: bool) -> None:
    if as_json:
        print_json(node)
        return
    print_line(f"{f'node {node.name}' if gpu is None else resource_text(f'GPU {gpu} of node {node.name}')} {change}")
