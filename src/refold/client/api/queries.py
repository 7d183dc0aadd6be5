"""Query parameters of the calls: one struct each, with types, limits and defaults."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from refold.client.api.submissions import MAX_NAME_CHARS, JobState, Role, Text

MAX_LOG_BYTES = 1024 * 1024
"""Maximum size of the job output in one answer."""

MAX_PAGE_JOBS = 1000
"""Maximum number of jobs in one answer."""

MAX_JSON_INTEGER = 2**53
"""The largest integer that all JSON parsers read exactly."""

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Number = Annotated[int, Meta(ge=0, le=MAX_JSON_INTEGER)]


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query parameters of a call."""


class JobsQuery(Query, frozen=True):
    """Select jobs: running, then waiting ones in queue order; with `ended` the ended ones, latest first.

    Empty strings do not filter. `match` selects active jobs by pattern ('train-*'), by array ('12', 'train-12') or by
    tasks of an array ('12_3', '12_[0-3,7]'). `after` is the `next` of the previous page; 0 returns the first page.
    """

    state: Annotated[list[JobState], Meta(max_length=8)] | None = None
    tenant: Name = ""
    user: Name = ""
    name: Name = ""
    match: Annotated[str, Meta(max_length=256)] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_JOBS)] = 100
    after: Number = 0
    ended: bool = False


class LogsQuery(Query, frozen=True):
    """Select a chunk of job output. `run` defaults to the latest run; a negative `offset` counts from the end."""

    run: Annotated[int, Meta(ge=1, le=MAX_JSON_INTEGER)] | None = None
    instance: Annotated[int, Meta(ge=0, le=MAX_JSON_INTEGER)] = 0
    offset: Annotated[int, Meta(ge=-MAX_JSON_INTEGER, le=MAX_JSON_INTEGER)] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_LOG_BYTES)] = 64 * 1024


class GpuQuery(Query, frozen=True):
    """Select one GPU of a node by index; without `gpu`, the whole node."""

    gpu: Annotated[int, Meta(ge=0, le=2**16)] | None = None


class CancelQuery(Query, frozen=True):
    """`now`: kill a running job at once, without its grace period."""

    now: bool = False


class DrainQuery(GpuQuery, frozen=True):
    """What to drain, and why. `move`: requeue the jobs that run on the node (on a single GPU they always are).

    `now`: kill them without their grace period, and requeue them.
    """

    reason: Text = ""
    move: bool = False
    now: bool = False


class TimelineQuery(Query, frozen=True):
    """How far to look back, in seconds."""

    seconds: Annotated[float, Meta(gt=0, le=31 * 86400)] = 6 * 3600.0


class SnapshotQuery(Query, frozen=True):
    """`whole`: include confidential fields of jobs: commands, environment variables, notification addresses."""

    whole: bool = False


class IdentityQuery(Query, frozen=True):
    """Prove to a client that the daemon knows the token with the id `token`, by an HMAC of `nonce`."""

    token: str = ""
    nonce: str = ""


class EventsQuery(Query, frozen=True):
    """Select events: after number `since` (default: from now on), of one job or tenant.

    Without `follow` the stream ends after the latest event.
    """

    since: Number | None = None
    job: Name = ""
    tenant: Name = ""
    follow: bool = True


# Roles, and the caller that a token identifies.

ROLES: tuple[Role, ...] = ("reader", "member", "owner")
"""In ascending order: each role includes the permissions of those before it."""

UNIX_PREFIX = "unix:"
"""Prefix of the names of callers from the Unix socket. Names of tokens have no colon."""


class Caller(msgspec.Struct, frozen=True):
    """The identity behind a token, or the user at the other end of the Unix socket.

    A member may submit and change jobs of its own `tenant`, a reader may see their details; an owner may do both for
    all tenants. `own_jobs_only`: only those jobs of the tenant that belong to the caller's `user`.
    """

    name: str
    role: Role
    tenant: str
    user: str
    own_jobs_only: bool = False

    @property
    def label(self) -> str:
        is_user = self.name.startswith(UNIX_PREFIX)
        return f"user {self.name.removeprefix(UNIX_PREFIX)!r}" if is_user else f"the token {self.name!r}"

    def has_role(self, role: Role) -> bool:
        """Whether the caller has `role` or a higher one."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def can_submit_for(self, tenant: str) -> bool:
        """Whether the caller may submit jobs of a tenant, if its role may submit any."""
        return self.role == "owner" or self.tenant == tenant

    def can_read(self, tenant: str, user: str) -> bool:
        """Whether the caller may see the details of a job of this tenant and user: output, messages and progress."""
        return self.can_submit_for(tenant) and (self.role == "owner" or not self.own_jobs_only or self.user == user)
