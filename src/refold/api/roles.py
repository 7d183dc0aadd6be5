"""Roles, and the caller that a token identifies."""

from __future__ import annotations

import msgspec

from refold.api.wire import Role

ROLES: tuple[Role, ...] = ("reader", "member", "owner")
"""Each may do what those before it may."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks, as the token tells. `tenant` is whose jobs a member may touch, and whose a reader sees wholly."""

    name: str
    role: Role
    tenant: str
    user: str

    def may(self, role: Role) -> bool:
        """Whether this one may do what takes `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, tenant: str) -> bool:
        """Whether this one may see everything of a tenant: output, environment, what went wrong."""
        return self.role == "owner" or self.tenant == tenant
