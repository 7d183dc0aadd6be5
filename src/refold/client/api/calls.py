"""The table of REST calls: routes, the OpenAPI description and the client are derived from it."""

# No `from __future__ import annotations`: `call` reads the annotations when a client starts.

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from refold.client.api.access import CreatedToken, NewToken, SignInLink, TokenStatus
from refold.client.api.queries import (
    Caller,
    CancelQuery,
    DrainQuery,
    EventsQuery,
    GpuQuery,
    JobsQuery,
    LogsQuery,
    Query,
    SnapshotQuery,
    TimelineQuery,
)
from refold.client.api.questions import (
    Catalogue,
    PlanAnswer,
    PlanQuestion,
    PolicyComparison,
    PolicyQuestion,
    Preview,
    WhatIf,
    WhatIfOutcome,
)
from refold.client.api.submissions import JobEnvironment, JobState, NewEnvironment, Role, StoredEnvironment, Submission
from refold.client.api.wire import (
    Alert,
    DaemonInfo,
    Event,
    GpuStatus,
    JobChange,
    JobChanges,
    JobExplanation,
    Jobs,
    JobStatus,
    JobUse,
    Logs,
    NodeStatus,
    TenantStatus,
    Timeline,
    UserStatus,
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
from refold.model import PreemptionOutlook

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

ENDED_STATES: frozenset[JobState] = frozenset({"finished", "failed", "timed out", "cancelled"})
"""Final job states."""


Verb = Literal["GET", "POST", "DELETE"]


class Call(msgspec.Struct, frozen=True):
    """One call of the API.

    `name` is the method of `Service` that implements it; path parameters (`{…}`), body and `query` are its
    arguments. `repeatable`: the call is idempotent, so a client may retry it. `may_be_missing`: there may be no answer
    yet (404). `is_costly`: it is given up if the client leaves, and changes nothing.
    """

    name: str
    method: Verb
    path: str
    role: Role
    response_type: Any
    summary: str
    request_type: Any = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    media: str = "application/json"
    repeatable: bool = True
    may_be_missing: bool = False
    is_costly: bool = False


Submissions = Annotated[list[Submission], Meta(min_length=1, max_length=MAX_SUBMISSIONS)]
V1 = "/api/v1"
JSON_LINES = "application/jsonl"
EVENT_STREAM = "text/event-stream"

Method = TypeVar("Method", bound=Callable[..., Any])
_declared: list[Call] = []


def call(verb: Verb, path: str, role: Role, **more: Any) -> Callable[[Method], Method]:
    """Declare a method of `Service` as a call; `more`: further fields of `Call`.

    Parameters after the caller are those of the path, then the query or the body. The first line of the docstring
    describes the call.
    """

    def declare(method: Method) -> Method:
        types = dict(method.__annotations__)
        answer = types.pop("return")
        given = [type_ for name, type_ in types.items() if name != "caller" and f"{{{name}}}" not in path]
        query = next((type_ for type_ in given if isinstance(type_, type) and issubclass(type_, Query)), None)
        _declared.append(
            Call(
                method.__name__,
                verb,
                V1 + path,
                role,
                get_args(answer)[0] if get_origin(answer) in (Awaitable, AsyncIterator) else answer,
                (method.__doc__ or "").partition("\n")[0],
                request_type=given[0] if given and query is None else None,
                query=query,
                **more,
            )
        )
        return method

    return declare


class Service(Protocol):
    """The calls, as the daemon implements them. Each may raise the errors that `HTTP_STATUS` lists.

    A job is named by its id ('train-17'), its number ('17'), or its name if that is unique. The API has already checked
    the caller's role; the service checks that the caller may access the job's tenant.
    """

    @call("GET", "/info", "reader")
    def info(self, caller: Caller) -> DaemonInfo:
        """Show the daemon's status and the caller's identity."""

    @call("POST", "/jobs", "member", status=201)
    def submit(self, caller: Caller, submission: Submission) -> Awaitable[JobStatus]:
        """Submit a job.

        Returns once the job is on disk. A repeated `request` returns the job of the first submission.
        """

    @call("POST", "/submissions", "member", status=201)
    def submit_all(self, caller: Caller, submissions: Submissions) -> Awaitable[Jobs]:
        """Submit several jobs, all or none."""

    @call("POST", "/preview", "reader", is_costly=True)
    def preview(self, caller: Caller, submission: Submission) -> Awaitable[Preview]:
        """Validate a submission and estimate its start, without submitting it."""

    @call("POST", "/whatif", "reader", is_costly=True)
    def whatif(self, caller: Caller, question: WhatIf) -> Awaitable[WhatIfOutcome]:
        """Estimate when variants of a job would start and end, and how they would delay others."""

    @call("POST", "/whatif/policies", "reader", is_costly=True)
    def compare_policies(self, caller: Caller, question: PolicyQuestion) -> Awaitable[PolicyComparison]:
        """Simulate the current jobs under other policies."""

    @call("GET", "/whatif/preemption", "reader", may_be_missing=True, is_costly=True)
    def preemption_outlook(self, caller: Caller) -> Awaitable[PreemptionOutlook]:
        """Simulate the latest jobs with all, some and none preemptible."""

    @call("GET", "/catalogue", "reader")
    def catalogue(self, caller: Caller) -> Catalogue:
        """List models, GPUs, frameworks and policies for questions."""

    @call("POST", "/plan", "reader", is_costly=True)
    def plan(self, caller: Caller, question: PlanQuestion) -> Awaitable[PlanAnswer]:
        """Find the best plans of a model on given GPUs."""

    @call("POST", "/environments", "member", status=201)
    def create_environment(self, caller: Caller, environment: NewEnvironment) -> Awaitable[StoredEnvironment]:
        """Store the environment variables that submitted jobs inherit.

        The id can be used by submissions of the same user.
        """

    @call("GET", "/jobs", "reader")
    def jobs(self, caller: Caller, query: JobsQuery) -> Awaitable[Jobs]:
        """List jobs."""

    @call("GET", "/jobs/{job}", "reader")
    def job(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Show a job."""

    @call("GET", "/jobs/{job}/why", "reader")
    def why(self, caller: Caller, job: str) -> Awaitable[JobExplanation]:
        """Explain why a job is waiting, and show its history."""

    @call("GET", "/jobs/{job}/environment", "reader")
    def environment(self, caller: Caller, job: str) -> Awaitable[JobEnvironment]:
        """List the variables that a job inherits from its submitter; values only for the job's user."""

    @call("GET", "/jobs/{job}/logs", "reader")
    def logs(self, caller: Caller, job: str, query: LogsQuery) -> Awaitable[Logs]:
        """Read job output.

        For a job without runs: run 0, no text, not ended.
        """

    @call("GET", "/jobs/{job}/use", "reader")
    def use(self, caller: Caller, job: str) -> JobUse:
        """Show what a job has used over time: CPUs, memory, GPUs.

        Kept until ten minutes after its end, while the daemon runs; at most 400 samples.
        """

    @call("POST", "/jobs/{job}/cancel", "member", repeatable=False)
    def cancel(self, caller: Caller, job: str, query: CancelQuery) -> Awaitable[JobStatus]:
        """Cancel a job; if `now`, or if it is being cancelled already, without its grace period.

        Raises Conflict if it has ended.
        """

    @call("POST", "/jobs/{job}/hold", "member")
    def hold(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Hold a job: do not start it until released.

        Raises Conflict if it is running or has ended; no effect if it is held.
        """

    @call("POST", "/jobs/{job}/release", "member")
    def release(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Release a held job.

        Raises Conflict if it has ended; no effect if it is not held.
        """

    @call("POST", "/changes", "member", repeatable=False)
    def change_jobs(self, caller: Caller, change: JobChange) -> Awaitable[JobChanges]:
        """Cancel, hold or release several jobs.

        Each job is changed if it can be; the answer says which were not, and why.
        """

    @call("GET", "/nodes", "reader")
    def nodes(self, caller: Caller) -> list[NodeStatus]:
        """List nodes."""

    @call("POST", "/nodes/{node}/drain", "owner")
    def drain(self, caller: Caller, node: str, query: DrainQuery) -> Awaitable[NodeStatus]:
        """Drain a node or one of its GPUs.

        Runs on a node continue unless `move`; runs on a single GPU are always requeued.
        """

    @call("POST", "/nodes/{node}/resume", "owner")
    def resume(self, caller: Caller, node: str, query: GpuQuery) -> Awaitable[NodeStatus]:
        """Return a drained node or GPU to service."""

    @call("GET", "/gpus", "reader")
    def gpus(self, caller: Caller) -> Awaitable[list[GpuStatus]]:
        """List GPUs: jobs, memory, utilisation, temperature."""

    @call("GET", "/alerts", "reader")
    def alerts(self, caller: Caller) -> list[Alert]:
        """List what needs attention: faults, hangs, late starts."""

    @call("GET", "/timeline", "reader")
    def timeline(self, caller: Caller, query: TimelineQuery) -> Awaitable[Timeline]:
        """Show what ran where, and when."""

    @call("GET", "/tenants", "reader")
    def tenants(self, caller: Caller) -> list[TenantStatus]:
        """List tenants with quota and usage."""

    @call("GET", "/users", "reader")
    def users(self, caller: Caller) -> list[UserStatus]:
        """List users with their jobs and GPU time used."""

    @call("GET", "/tokens", "owner")
    def tokens(self, caller: Caller) -> Awaitable[list[TokenStatus]]:
        """List access tokens, without their secrets."""

    @call("POST", "/tokens", "owner", status=201, repeatable=False)
    def create_token(self, caller: Caller, token: NewToken) -> Awaitable[CreatedToken]:
        """Create an access token; its text is returned only once.

        Raises Conflict if the name is taken.
        """

    @call("DELETE", "/tokens/{name}", "owner")
    def revoke_token(self, caller: Caller, name: str) -> Awaitable[TokenStatus]:
        """Revoke an access token."""

    @call("GET", "/snapshot", "owner", media=JSON_LINES)
    def snapshot(self, caller: Caller, query: SnapshotQuery) -> Awaitable[bytes]:
        """Export the current state as a journal."""

    @call("GET", "/journal", "owner", media=JSON_LINES)
    def journal(self, caller: Caller) -> AsyncIterator[bytes]:
        """Export the journal.

        In chunks of whole lines.
        """


CALLS: tuple[Call, ...] = (
    *_declared,
    Call("events", "GET", f"{V1}/events", "reader", Event, "Stream events.", query=EventsQuery, media=EVENT_STREAM),
)

LINK_PATH = "/session/link"
LINK_CALL = Call(
    "sign_in_link", "POST", LINK_PATH, "reader", SignInLink, "Make a one-time link.", status=201, repeatable=False
)
"""The call of `refold open`. It is none of the API: only people sign in."""
