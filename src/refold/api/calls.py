"""What a daemon can be asked: one table, from which the routes, their description and the client are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from refold.api.queries import DrainQuery, EventsQuery, GpuQuery, JobsQuery, LogsQuery, SnapshotQuery
from refold.api.roles import Caller
from refold.api.wire import (
    DaemonInfo,
    Event,
    GpuStatus,
    Jobs,
    JobState,
    JobStatus,
    Logs,
    MadeToken,
    NewToken,
    NodeStatus,
    Preview,
    Role,
    Submission,
    TenantStatus,
    TokenStatus,
    Why,
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
    from refold.api.event_stream import EventStream  # it imports asyncio, which a client does not need

LARGEST_BODY = 1024 * 1024
"""Bytes of what may be sent with one call."""

MOST_SUBMISSIONS = 1000
"""Jobs that may be submitted at once."""

STATUSES: dict[type[RefoldError], int] = {
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
"""How an error goes over the wire. The client takes the first that has the status."""

OVER: frozenset[JobState] = frozenset({"finished", "failed", "cancelled"})
"""Where jobs stand for ever."""


class Call(msgspec.Struct, frozen=True):
    """One call of the API.

    `name` is the method of `Service` that answers it; the `{…}` of its path and the fields of `query` are arguments.
    `takes` and `gives` are the types of request body and answer. `repeatable`: the call is idempotent.
    """

    name: str
    method: Literal["GET", "POST", "DELETE"]
    path: str
    role: Role
    gives: Any
    summary: str
    takes: Any = None
    query: type[msgspec.Struct] | None = None
    status: int = 200
    media: str = "application/json"
    repeatable: bool = True


Submissions = Annotated[list[Submission], Meta(min_length=1, max_length=MOST_SUBMISSIONS)]
V1 = "/api/v1"
LINES = "application/jsonl"
STREAM = "text/event-stream"

CALLS: tuple[Call, ...] = (
    Call("about", "GET", f"{V1}/about", "reader", DaemonInfo, "The daemon, and who you are to it"),
    Call("submit", "POST", f"{V1}/jobs", "member", JobStatus, "Submit a job", takes=Submission, status=201),
    Call(
        "submit_all",
        "POST",
        f"{V1}/submissions",
        "member",
        Jobs,
        "Submit jobs, all or none",
        takes=Submissions,
        status=201,
    ),
    Call("preview", "POST", f"{V1}/preview", "reader", Preview, "What would become of a submission", takes=Submission),
    Call("jobs", "GET", f"{V1}/jobs", "reader", Jobs, "The queue, or what is over", query=JobsQuery),
    Call("job", "GET", f"{V1}/jobs/{{job}}", "reader", JobStatus, "One job"),
    Call("why", "GET", f"{V1}/jobs/{{job}}/why", "reader", Why, "The story of a job: why it waits, what happened"),
    Call("logs", "GET", f"{V1}/jobs/{{job}}/logs", "reader", Logs, "A piece of a run's output", query=LogsQuery),
    Call("cancel", "POST", f"{V1}/jobs/{{job}}/cancel", "member", JobStatus, "Cancel a job; its run is stopped"),
    Call("hold", "POST", f"{V1}/jobs/{{job}}/hold", "member", JobStatus, "Do not start a job until it is released"),
    Call("release", "POST", f"{V1}/jobs/{{job}}/release", "member", JobStatus, "Let a held job start"),
    Call("nodes", "GET", f"{V1}/nodes", "reader", list[NodeStatus], "The nodes"),
    Call(
        "drain",
        "POST",
        f"{V1}/nodes/{{node}}/drain",
        "owner",
        NodeStatus,
        "Give a node, or one GPU of it, no more work",
        query=DrainQuery,
    ),
    Call(
        "resume",
        "POST",
        f"{V1}/nodes/{{node}}/resume",
        "owner",
        NodeStatus,
        "Give a node, or one GPU of it, work again",
        query=GpuQuery,
    ),
    Call("gpus", "GET", f"{V1}/gpus", "reader", list[GpuStatus], "The GPUs: how busy, how hot, whose"),
    Call("tenants", "GET", f"{V1}/tenants", "reader", list[TenantStatus], "The tenants: quota and use"),
    Call("tokens", "GET", f"{V1}/tokens", "owner", list[TokenStatus], "The tokens, without their secrets"),
    Call(
        "new_token",
        "POST",
        f"{V1}/tokens",
        "owner",
        MadeToken,
        "Make a token; it is told once",
        takes=NewToken,
        status=201,
        repeatable=False,
    ),
    Call("revoke_token", "DELETE", f"{V1}/tokens/{{name}}", "owner", TokenStatus, "Let a token open nothing more"),
    Call(
        "snapshot",
        "GET",
        f"{V1}/snapshot",
        "owner",
        bytes,
        "The present as a journal",
        query=SnapshotQuery,
        media=LINES,
    ),
    Call("journal", "GET", f"{V1}/journal", "owner", bytes, "The journal so far", media=LINES),
    Call("events", "GET", f"{V1}/events", "reader", Event, "What happens, as it does", query=EventsQuery, media=STREAM),
)


class Service(Protocol):
    """The daemon as the API knows it. Every method may raise what `STATUSES` lists.

    A job is asked for by its id ('train-17'), its number ('17'), or its name if only one job has it. The API has
    checked the caller's role; whether the job is of the caller's tenant is for the service to check.
    """

    @property
    def feed(self) -> EventStream:
        """What happens, for those who listen."""
        ...

    def about(self, caller: Caller) -> DaemonInfo:
        """The daemon, and what the caller is to it."""
        ...

    def submit(self, caller: Caller, submission: Submission) -> Awaitable[JobStatus]:
        """The job, when it is on disk. The same `request` again gives the job that it gave first."""
        ...

    def submit_all(self, caller: Caller, submissions: list[Submission]) -> Awaitable[Jobs]:
        """All of them, in one commit, or none."""
        ...

    def preview(self, caller: Caller, submission: Submission) -> Awaitable[Preview]:
        """What would become of it. Nothing is done."""
        ...

    def jobs(
        self,
        caller: Caller,
        *,
        state: Sequence[JobState] | None,
        tenant: str,
        user: str,
        name: str,
        limit: int,
        after: int,
        ended: bool,
    ) -> Awaitable[Jobs]:
        """Jobs that are not over, running first, then in the order of the queue; with `ended` the others, latest first.

        Empty texts ask for nothing. `after` is a `next` from before, 0 the beginning.
        """
        ...

    def job(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """One job."""
        ...

    def why(self, caller: Caller, job: str) -> Awaitable[Why]:
        """Its story."""
        ...

    def logs(
        self, caller: Caller, job: str, *, run: int | None, instance: int, offset: int, limit: int
    ) -> Awaitable[Logs]:
        """A piece of output. Of a job that has not run yet: run 0, no text, not over."""
        ...

    def cancel(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Conflict if it is over; nothing more if it is being cancelled."""
        ...

    def hold(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Conflict if it runs or is over; nothing more if it is held."""
        ...

    def release(self, caller: Caller, job: str) -> Awaitable[JobStatus]:
        """Conflict if it is over; nothing more if it is not held."""
        ...

    def nodes(self, caller: Caller) -> list[NodeStatus]:
        """All of them."""
        ...

    def drain(self, caller: Caller, node: str, *, why: str, gpu: int | None, move: bool) -> Awaitable[NodeStatus]:
        """No more work for it. What runs on a node runs on, unless it is to move; from a GPU it always has to."""
        ...

    def resume(self, caller: Caller, node: str, *, gpu: int | None) -> Awaitable[NodeStatus]:
        """Work for it again."""
        ...

    def gpus(self, caller: Caller) -> Awaitable[list[GpuStatus]]:
        """All of them."""
        ...

    def tenants(self, caller: Caller) -> list[TenantStatus]:
        """All of them."""
        ...

    def tokens(self, caller: Caller) -> Awaitable[list[TokenStatus]]:
        """All of them, without secrets."""
        ...

    def new_token(self, caller: Caller, token: NewToken) -> Awaitable[MadeToken]:
        """Conflict if the name is taken."""
        ...

    def revoke_token(self, caller: Caller, name: str) -> Awaitable[TokenStatus]:
        """The token that was."""
        ...

    def snapshot(self, caller: Caller, *, whole: bool) -> Awaitable[bytes]:
        """A journal of the present that `refold replay` reads; `whole`: with what is for nobody else to know."""
        ...

    def journal(self, caller: Caller) -> AsyncIterator[bytes]:
        """The journal so far, in pieces of whole lines."""
        ...
