"""What the daemon does for the calls of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from refold.client.api import (
    Alert,
    Caller,
    CancelQuery,
    Catalogue,
    CreatedToken,
    DaemonInfo,
    DrainQuery,
    GpuQuery,
    GpuStatus,
    JobEnvironment,
    JobExplanation,
    Jobs,
    JobsQuery,
    JobStatus,
    Logs,
    LogsQuery,
    NewEnvironment,
    NewToken,
    NodeStatus,
    PlanAnswer,
    PlanQuestion,
    PolicyComparison,
    PolicyQuestion,
    Preview,
    SnapshotQuery,
    StoredEnvironment,
    Submission,
    TenantStatus,
    Timeline,
    TimelineQuery,
    TokenStatus,
    UserStatus,
    WhatIf,
    WhatIfOutcome,
)
from refold.server.http.event_stream import EventStream


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
