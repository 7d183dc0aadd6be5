"""Access tokens: creation, storage as hashes, and authentication of requests."""

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
"""The prefix of every token, by which people and secret scanners recognise it."""

TOKEN_BYTES = 32
"""Random bytes of a token."""


class StoredToken(msgspec.Struct, frozen=True):
    """A token as it is stored: the identity it stands for, and its hash instead of the secret."""

    name: str
    role: Role
    tenant: str
    user: str
    created: float
    hash: str

    def caller(self) -> Caller:
        """Return the identity that the token stands for."""
        return Caller(self.name, self.role, self.tenant, self.user)

    def status(self) -> TokenStatus:
        """Return the token's public fields."""
        return TokenStatus(self.name, self.role, self.tenant, self.user, self.created)


def make_token(request: NewToken, now: float) -> tuple[str, StoredToken]:
    """Create a token: its text, to be shown once, and the record to store."""
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, StoredToken(request.name, request.role, request.tenant, request.user, now, hash_token(token))


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal.

    Slow, salted hashes protect passwords, which can be guessed. A token has 256 random bits, so it cannot be guessed
    and is in no rainbow table; a fast hash keeps the check of every request cheap.
    """
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenAuthenticator:
    """Authenticates requests. The mapping (token by hash) is read on each request, so revocation is immediate."""

    def __init__(self, tokens: Mapping[str, StoredToken]) -> None:
        self._tokens = tokens

    def is_valid(self, authorization: str | None) -> bool:
        """Whether an `Authorization` header still authenticates."""
        try:
            self.authenticate(authorization)
        except Unauthenticated:
            return False
        return True

    def authenticate(self, authorization: str | None) -> Caller:
        """Return the caller that an `Authorization` header identifies, or raise `Unauthenticated`."""
        if not authorization:
            raise Unauthenticated("no token, expected a header 'Authorization: Bearer rf_…'")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated("the Authorization header is malformed, expected 'Authorization: Bearer rf_…'")
        token_hash = hash_token(token.strip())
        stored = self._tokens.get(token_hash)
        # The lookup is by hash, so its timing says nothing about a stored token. The comparison in constant time covers
        # mappings whose lookup does not compare the whole key.
        if stored is None or not hmac.compare_digest(stored.hash, token_hash):
            raise Unauthenticated("unknown token: it may have been revoked, or belong to another daemon")
        return stored.caller()
