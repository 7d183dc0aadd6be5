"""The table of REST calls: routes, the OpenAPI description and the client are derived from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from refold.client.api.queries import (
    CancelQuery,
    DrainQuery,
    EventsQuery,
    GpuQuery,
    JobsQuery,
    LogsQuery,
    SnapshotQuery,
    TimelineQuery,
)
from refold.client.api.roles import Caller
from refold.client.api.wire import (
    Alert,
    Catalogue,
    CreatedToken,
    DaemonInfo,
    Event,
    GpuStatus,
    JobEnvironment,
    JobExplanation,
    Jobs,
    JobState,
    JobStatus,
    Logs,
    NewEnvironment,
    NewToken,
    NodeStatus,
    PlanAnswer,
    PlanQuestion,
    PolicyComparison,
    PolicyQuestion,
    Preview,
    Role,
    SignInLink,
    StoredEnvironment,
    Submission,
    TenantStatus,
    Timeline,
    TokenStatus,
    UserStatus,
    WhatIf,
    WhatIfOutcome,
)
from refold.errors import (
    BadInput,
    BadValue,
    Conflict,
    Forbidden,
    NotFound,
    RefoldError,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)

if TYPE_CHECKING:
    from refold.server.http import EventStream  # imports asyncio, which a client does not need

MAX_BODY_BYTES = 1024 * 1024
"""Maximum size of a request body, unless the daemon is configured otherwise."""

MAX_REQUEST_BYTES = 8 * MAX_BODY_BYTES
"""Maximum size of a request body that a daemon can be configured to accept."""

MAX_SUBMISSIONS = 1000
"""Maximum number of jobs in one request."""

HTTP_STATUS: dict[type[RefoldError], int] = {
    BadInput: 422,
    BadValue: 422,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    TooLarge: 413,
    TooManyRequests: 429,
    Unavailable: 503,
}
"""The HTTP status of each error. The client maps a status back to the first error that has it."""

ENDED_STATES: frozenset[JobState] = frozenset({"finished", "failed", "cancelled"})
"""Final job states."""


class Call(msgspec.Struct, frozen=True):
    """One call of the API.

    `name` is the method of `Service` that implements it; path parameters (`{…}`), body and `query` are its
    arguments. `repeatable`: the call is idempotent, so a client may retry it.
    """

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    role: Role
    response_type: Any
    summary: str
    request_type: Any = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    media: str = "application/json"
    repeatable: bool = True


Submissions = Annotated[list[Submission], Meta(min_length=1, max_length=MAX_SUBMISSIONS)]
V1 = "/api/v1"
JSON_LINES = "application/jsonl"
EVENT_STREAM = "text/event-stream"

CALLS: tuple[Call, ...] = (
    Call("info", "GET", f"{V1}/info", "reader", DaemonInfo, "Show the daemon's status and the caller's identity."),
    Call("submit", "POST", f"{V1}/jobs", "member", JobStatus, "Submit a job.", request_type=Submission, status=201),
    Call(
        "submit_all",
        "POST",
        f"{V1}/submissions",
        "member",
        Jobs,
        "Submit several jobs, all or none.",
        request_type=Submissions,
        status=201,
    ),
    Call(
        "preview",
        "POST",
        f"{V1}/preview",
        "reader",
        Preview,
        "Validate a submission and estimate its start, without submitting it.",
        request_type=Submission,
    ),
    Call(
        "whatif",
        "POST",
        f"{V1}/whatif",
        "reader",
        WhatIfOutcome,
        "Estimate when variants of a job would start and end, and how they would delay others.",
        request_type=WhatIf,
    ),
    Call(
        "compare_policies",
        "POST",
        f"{V1}/whatif/policies",
        "reader",
        PolicyComparison,
        "Simulate the present jobs under other policies.",
        request_type=PolicyQuestion,
    ),
    Call(
        "catalogue",
        "GET",
        f"{V1}/catalogue",
        "reader",
        Catalogue,
        "List models, GPUs, frameworks and policies for questions.",
    ),
    Call(
        "plan",
        "POST",
        f"{V1}/plan",
        "reader",
        PlanAnswer,
        "Find the best plans of a model on given GPUs.",
        request_type=PlanQuestion,
    ),
    Call(
        "create_environment",
        "POST",
        f"{V1}/environments",
        "member",
        StoredEnvironment,
        "Store the environment variables that submitted jobs inherit.",
        request_type=NewEnvironment,
        status=201,
    ),
    Call("jobs", "GET", f"{V1}/jobs", "reader", Jobs, "List jobs.", query=JobsQuery),
    Call("job", "GET", f"{V1}/jobs/{{job}}", "reader", JobStatus, "Show a job."),
    Call(
        "why",
        "GET",
        f"{V1}/jobs/{{job}}/why",
        "reader",
        JobExplanation,
        "Explain why a job is waiting, and show its history.",
    ),
    Call(
        "environment",
        "GET",
        f"{V1}/jobs/{{job}}/environment",
        "reader",
        JobEnvironment,
        "List the variables that a job inherits from its submitter; values only for the job's user.",
    ),
    Call("logs", "GET", f"{V1}/jobs/{{job}}/logs", "reader", Logs, "Read job output.", query=LogsQuery),
    Call(
        "cancel",
        "POST",
        f"{V1}/jobs/{{job}}/cancel",
        "member",
        JobStatus,
        "Cancel a job; if `now`, without its grace period.",
        query=CancelQuery,
    ),
    Call("hold", "POST", f"{V1}/jobs/{{job}}/hold", "member", JobStatus, "Hold a job: do not start it until released."),
    Call("release", "POST", f"{V1}/jobs/{{job}}/release", "member", JobStatus, "Release a held job."),
    Call("nodes", "GET", f"{V1}/nodes", "reader", list[NodeStatus], "List nodes."),
    Call(
        "drain",
        "POST",
        f"{V1}/nodes/{{node}}/drain",
        "owner",
        NodeStatus,
        "Drain a node or one of its GPUs.",
        query=DrainQuery,
    ),
    Call(
        "resume",
        "POST",
        f"{V1}/nodes/{{node}}/resume",
        "owner",
        NodeStatus,
        "Return a drained node or GPU to service.",
        query=GpuQuery,
    ),
    Call("gpus", "GET", f"{V1}/gpus", "reader", list[GpuStatus], "List GPUs: jobs, memory, utilisation, temperature."),
    Call(
        "alerts", "GET", f"{V1}/alerts", "reader", list[Alert], "List what needs attention: faults, hangs, late starts."
    ),
    Call(
        "timeline", "GET", f"{V1}/timeline", "reader", Timeline, "Show what ran where, and when.", query=TimelineQuery
    ),
    Call("tenants", "GET", f"{V1}/tenants", "reader", list[TenantStatus], "List tenants with quota and usage."),
    Call("users", "GET", f"{V1}/users", "reader", list[UserStatus], "List users with their jobs and GPU time used."),
    Call("tokens", "GET", f"{V1}/tokens", "owner", list[TokenStatus], "List access tokens, without their secrets."),
    Call(
        "create_token",
        "POST",
        f"{V1}/tokens",
        "owner",
        CreatedToken,
        "Create an access token; its text is returned only once.",
        request_type=NewToken,
        status=201,
        repeatable=False,
    ),
    Call("revoke_token", "DELETE", f"{V1}/tokens/{{name}}", "owner", TokenStatus, "Revoke an access token."),
    Call(
        "snapshot",
        "GET",
        f"{V1}/snapshot",
        "owner",
        bytes,
        "Export the current state as a journal.",
        query=SnapshotQuery,
        media=JSON_LINES,
    ),
    Call("journal", "GET", f"{V1}/journal", "owner", bytes, "Export the journal.", media=JSON_LINES),
    Call("events", "GET", f"{V1}/events", "reader", Event, "Stream events.", query=EventsQuery, media=EVENT_STREAM),
)

LINK_PATH = "/session/link"
LINK_CALL = Call(
    "sign_in_link", "POST", LINK_PATH, "reader", SignInLink, "Make a one-time link.", status=201, repeatable=False
)
"""The call of `refold open`. It is none of the API: only people sign in."""


class Service(Protocol):
    """The daemon's operations behind the API. Each may raise the errors that `HTTP_STATUS` lists.

    A job is named by its id ('train-17'), its number ('17'), or its name if that is unique. The API has already checked
    the caller's role; the service checks that the caller may access the job's tenant.
    """

    @property
    def event_stream(self) -> EventStream:
        """The stream that subscribers read."""

    def info(self, caller: Caller) -> DaemonInfo:
        """Return the daemon's status and the caller's identity."""

    def submit(self, caller: Caller, submission: Submission) -> Awaitable[JobStatus]:
        """Return the new job once it is on disk. A repeated `request` returns the job of the first submission."""

    def submit_all(self, caller: Caller, submissions: list[Submission]) -> Awaitable[Jobs]:
        """Submit all jobs in one transaction, or none."""

    def preview(self, caller: Caller, submission: Submission) -> Awaitable[Preview]:
        """Return what submitting the job would result in, without submitting it."""

    def whatif(self, caller: Caller, question: WhatIf) -> Awaitable[WhatIfOutcome]:
        """Return what submitting each of several variants of a job would result in, without submitting any."""

    def compare_policies(self, caller: Caller, question: PolicyQuestion) -> Awaitable[PolicyComparison]:
        """Return when the present jobs would start and end under other policies."""

    def catalogue(self, caller: Caller) -> Catalogue:
        """Return the names that a question about plans or policies may use."""

    def plan(self, caller: Caller, question: PlanQuestion) -> Awaitable[PlanAnswer]:
        """Return the best plans of a model on given GPUs."""

    def create_environment(self, caller: Caller, environment: NewEnvironment) -> Awaitable[StoredEnvironment]:
        """Store variables and return their id. It can be used by submissions of the same user."""

    def environment(self, caller: Caller, job: str) -> Awaitable[JobEnvironment]:
        """Return the names of the variables that a job inherits from its submitter; values only to the job's user."""

    def jobs(self, caller: Caller, query: JobsQuery) -> Awaitable[Jobs]:
        """Return a page of jobs."""

    def job(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Return one job."""

    def why(self, caller: Caller, job: str) -> Awaitable[JobExplanation]:
        """Return a job and its history."""

    def logs(self, caller: Caller, job: str, query: LogsQuery) -> Awaitable[Logs]:
        """Return a chunk of output. For a job without runs: run 0, no text, not ended."""

    def cancel(self, caller: Caller, job: str, query: CancelQuery) -> Awaitable[JobStatus]:
        """Cancel a job. Raises Conflict if it has ended; no effect if it is being cancelled, except with `now`."""

    def hold(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Hold a waiting job. Raises Conflict if it is running or has ended; no effect if it is held."""

    def release(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Release a held job. Raises Conflict if it has ended; no effect if it is not held."""

    def nodes(self, caller: Caller) -> list[NodeStatus]:
        """Return all nodes."""

    def drain(self, caller: Caller, node: str, query: DrainQuery) -> Awaitable[NodeStatus]:
        """Drain a node or a GPU. Runs on a node continue unless `move`; runs on a single GPU are always requeued."""

    def resume(self, caller: Caller, node: str, query: GpuQuery) -> Awaitable[NodeStatus]:
        """Return a drained node or GPU to service."""

    def gpus(self, caller: Caller) -> Awaitable[list[GpuStatus]]:
        """Return all GPUs."""

    def alerts(self, caller: Caller) -> list[Alert]:
        """Return what needs attention now, of what the caller may see."""

    def timeline(self, caller: Caller, query: TimelineQuery) -> Awaitable[Timeline]:
        """Return the runs of the recent past."""

    def tenants(self, caller: Caller) -> list[TenantStatus]:
        """Return all tenants."""

    def users(self, caller: Caller) -> list[UserStatus]:
        """Return all users."""

    def tokens(self, caller: Caller) -> Awaitable[list[TokenStatus]]:
        """Return all tokens, without secrets."""

    def create_token(self, caller: Caller, token: NewToken) -> Awaitable[CreatedToken]:
        """Create a token. Raises Conflict if the name is taken."""

    def revoke_token(self, caller: Caller, name: str) -> Awaitable[TokenStatus]:
        """Revoke a token and return its last status."""

    def snapshot(self, caller: Caller, query: SnapshotQuery) -> Awaitable[bytes]:
        """Return the current state as a journal for `refold replay`."""

    def journal(self, caller: Caller) -> AsyncIterator[bytes]:
        """Return the journal in chunks of whole lines."""
