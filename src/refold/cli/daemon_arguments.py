"""Arguments and options of commands that ask the daemon, with shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

from refold.cli.declare import argument, option
from refold.errors import RefoldError

if TYPE_CHECKING:
    from refold.client import Client

COMPLETION_TIMEOUT_SECONDS = 0.5
"""Time that shell completion waits for the daemon."""

MAX_COMPLETIONS = 200


def _complete(incomplete: str, fetch_names: Callable[[Client], Iterable[str]]) -> list[str]:
    """Return the names that start with `incomplete`; none on errors, which shell completion cannot show."""
    from refold.client import Client

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
    return _complete(incomplete, lambda client: [tenant.name for tenant in client.tenants()])


def _complete_nodes(incomplete: str) -> list[str]:
    return _complete(incomplete, lambda client: [node.name for node in client.nodes()])


def complete_tokens(incomplete: str) -> list[str]:
    """Complete token names, which only an owner may list."""
    return _complete(incomplete, lambda client: [token.name for token in client.tokens()])


JOB_HELP = "Job id, number, or unique name."
JobArgument = Annotated[str, argument("JOB", JOB_HELP, complete=complete_jobs)]
JOBS_HELP = "Job id, number or unique name; array (12), tasks (12_[0-3]) or pattern ('train-*')."
LiveJobsArgument = Annotated[list[str], argument("JOB", JOBS_HELP, complete=_complete_live_jobs)]
OptionalLiveJobs = Annotated[list[str] | None, argument("JOB", JOBS_HELP, complete=_complete_live_jobs)]
GpuIndex = Annotated[int | None, option("N", "Only the GPU with this index.", "--gpu", min=0)]
NodeName = Annotated[str, argument("NODE", "Node name (see 'refold nodes').", complete=_complete_nodes)]
TenantFilter = Annotated[str | None, option("NAME", "Only jobs of this tenant.", "--tenant", complete=complete_tenants)]
UserFilter = Annotated[str | None, option("NAME", "Only jobs of this user.", "--user")]
TenantOption = Annotated[
    str | None,
    option("NAME", "Tenant of the job (default: the tenant of your token).", "--tenant", complete=complete_tenants),
]
DependencyOption = Annotated[
    list[str] | None,
    option(
        "JOB",
        "Start after this job has finished; also afterany:JOB, afternotok:JOB and singleton; repeatable.",
        "--after",
        "--dependency",
        complete=_complete_live_jobs,
    ),
]
