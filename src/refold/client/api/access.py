"""JSON types of the API: access tokens, and signing in to the web UI."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from refold.client.api.submissions import MAX_NAME_CHARS, PlainName, Role, check_name


class TokenStatus(msgspec.Struct, frozen=True):
    """An access token, without its secret."""

    name: str
    role: Role
    tenant: str
    user: str
    created: float


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to create an access token."""

    name: PlainName
    role: Role = "member"
    tenant: PlainName = "default"
    user: Annotated[str, Meta(max_length=MAX_NAME_CHARS)] = ""

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_name("tenant", self.tenant)


class CreatedToken(msgspec.Struct, frozen=True):
    """A new access token with its text, which is returned only once."""

    token: str
    name: str


class SignIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to sign in to the web UI: with a `token`, or the `code` of a one-time link."""

    token: Annotated[str, Meta(max_length=256)] = ""
    code: Annotated[str, Meta(max_length=256)] = ""


class SignInLink(msgspec.Struct, frozen=True):
    """A link that signs in to the web UI once, until it expires."""

    url: str
    expires: float


class SessionStatus(msgspec.Struct, frozen=True):
    """Who is signed in to the web UI. `csrf_token`: the header `X-CSRF-Token` of requests that change something."""

    signed_in: bool = False
    role: str = ""
    tenant: str = ""
    user: str = ""
    own_jobs_only: bool = False
    csrf_token: str = ""
