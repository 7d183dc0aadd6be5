"""Roles, and the caller that a token identifies."""

from __future__ import annotations

import msgspec

from refold.client.api.wire import Role

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
        """How messages name the caller."""
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
