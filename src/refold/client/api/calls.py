"""The table of REST calls: routes, the OpenAPI description and the client are derived from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
