"""Tokens: made, kept as hashes, and known again."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256

import msgspec

from refold.api.roles import Caller
from refold.api.wire import NewToken, Role, TokenStatus
from refold.errors import Unauthenticated

PREFIX = "rf_"
"""What a token begins with, so that people and scanners for leaked secrets see what it is."""

BYTES_OF_CHANCE = 32


class StoredToken(msgspec.Struct, frozen=True):
    """A token as it is kept: whom it stands for, and a hash that tells it from others but does not open anything."""

    name: str
    role: Role
    tenant: str
    user: str
    created: float
    hash: str

    def caller(self) -> Caller:
        """Who it is that brings it."""
        return Caller(self.name, self.role, self.tenant, self.user)

    def status(self) -> TokenStatus:
        """What may be told of it."""
        return TokenStatus(self.name, self.role, self.tenant, self.user, self.created)


def make_token(asked: NewToken, now: float) -> tuple[str, StoredToken]:
    """A new token, to be told once, and what is kept of it."""
    token = PREFIX + secrets.token_urlsafe(BYTES_OF_CHANCE)
    return token, StoredToken(asked.name, asked.role, asked.tenant, asked.user, now, hash_of(token))


def hash_of(token: str) -> str:
    """SHA-256, in hexadecimal.

    Slow, salted hashes are for passwords, which can be guessed. A token is 256 bits of chance: nobody can go through
    them however fast the hash is, no table of hashes has it, and a fast one lets every call be checked.
    """
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenAuthenticator:
    """Who is known, by the hash of the token. The mapping is read at each call: what is revoked is out at once."""

    def __init__(self, known: Mapping[str, StoredToken]) -> None:
        self._known = known

    def knows(self, authorization: str | None) -> bool:
        """Whether what opened something would do so again."""
        try:
            self.caller(authorization)
        except Unauthenticated:
            return False
        return True

    def caller(self, authorization: str | None) -> Caller:
        """Who asks, by the header that comes with the question."""
        if not authorization:
            raise Unauthenticated("no token came with this call, expected a header 'Authorization: Bearer rf_…'")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("the header Authorization is not understood, expected 'Authorization: Bearer rf_…'")
        hashed = hash_of(token.strip())
        known = self._known.get(hashed)
        # What is looked up is a hash, so that how long it takes tells nothing about a token that is there; and what is
        # found is compared in constant time, in case the mapping should find by less than the whole.
        if known is None or not hmac.compare_digest(known.hash, hashed):
            raise Unauthenticated("the token is not known: it may have been revoked, or be for another daemon")
        return known.caller()
