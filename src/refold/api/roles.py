"""Roles, and the caller that a token identifies."""

from __future__ import annotations

import msgspec

from refold.api.wire import Role

ROLES: tuple[Role, ...] = ("reader", "member", "owner")
"""In ascending order: each role includes the permissions of those before it."""


class Caller(msgspec.Struct, frozen=True):
    """The identity behind a token.

    A member may submit and change jobs of its own `tenant`, a reader may see their details; an owner may do both for
    all tenants.
    """

    name: str
    role: Role
    tenant: str
    user: str

    def has_role(self, role: Role) -> bool:
        """Whether the caller has `role` or a higher one."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def can_read(self, tenant: str) -> bool:
        """Whether the caller may see the details of a tenant's jobs: output, user, messages and progress."""
        return self.role == "owner" or self.tenant == tenant
