"""Access tokens: creation, storage as hashes, and authentication of requests."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from functools import lru_cache
from time import time

import msgspec

from refold.client.api import (
    SCHEME,
    Caller,
    NewToken,
    Role,
    TokenStatus,
    hash_token,
    parse_signature,
    recover_token,
    token_id,
)
from refold.errors import Unauthenticated

PREFIX = "rf_"
"""The prefix of every token, by which people and secret scanners recognise it."""

TOKEN_BYTES = 32
"""Random bytes of a token."""

UNKNOWN_TOKEN = "unknown token: it may have been revoked, or belong to another daemon"


class StoredToken(msgspec.Struct, frozen=True):
    """A token as it is stored: the identity it stands for, and its hash instead of the secret."""

    name: str
    role: Role
    tenant: str
    user: str
    created: float
    hash: str

    def caller(self) -> Caller:
        return Caller(self.name, self.role, self.tenant, self.user)

    def status(self) -> TokenStatus:
        """Return the token's public fields."""
        return TokenStatus(self.name, self.role, self.tenant, self.user, self.created)


def make_token(request: NewToken, now: float) -> tuple[str, StoredToken]:
    """Create a token: its text, to be shown once, and the record to store."""
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, StoredToken(request.name, request.role, request.tenant, request.user, now, hash_token(token))


class TokenAuthenticator:
    """Authenticates requests. The mapping (token by hash) is read on each request, so revocation is immediate."""

    def __init__(self, tokens: Mapping[str, StoredToken]) -> None:
        self._tokens = tokens

    def knows(self, stored: StoredToken) -> bool:
        """Whether a token has not been revoked."""
        return self.knows_hash(stored.hash)

    def knows_hash(self, token_hash: str) -> bool:
        """Whether the token with this hash has not been revoked."""
        return token_hash in self._tokens

    def find_hash(self, token_hash: str) -> StoredToken:
        """Return the token with this hash, or raise `Unauthenticated`."""
        if (stored := self._tokens.get(token_hash)) is None:
            raise Unauthenticated(UNKNOWN_TOKEN)
        return stored

    def find(self, name: str) -> StoredToken:
        """Return the token with a public name, or raise `Unauthenticated`."""
        for stored in self._tokens.values():
            if _id_of(stored.hash) == name:
                return stored
        raise Unauthenticated(UNKNOWN_TOKEN)

    def identify(self, authorization: str | None, method: str, target: str) -> tuple[StoredToken, str]:
        """Return the token of a request and, if it is signed, the hash of its body (else '')."""
        if not authorization:
            raise Unauthenticated("no token, expected a header 'Authorization: Bearer rf_…'")
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == SCHEME.lower() and rest:
            signature = parse_signature(rest)
            token = recover_token(signature, self.find(signature.token_id).hash, method, target, time())
            return self.find_secret(token), signature.body_hash
        if scheme.lower() != "bearer" or not rest:
            raise Unauthenticated("the Authorization header is malformed, expected 'Authorization: Bearer rf_…'")
        return self.find_secret(rest.strip()), ""

    def find_secret(self, token: str) -> StoredToken:
        """Return the stored token with this text, or raise `Unauthenticated`."""
        token_hash = hash_token(token)
        stored = self._tokens.get(token_hash)
        # The lookup is by hash, so its timing says nothing about a stored token. The comparison in constant time covers
        # mappings whose lookup does not compare the whole key.
        if stored is None or not hmac.compare_digest(stored.hash, token_hash):
            raise Unauthenticated(UNKNOWN_TOKEN)
        return stored


@lru_cache(maxsize=4096)
def _id_of(token_hash: str) -> str:
    return token_id(token_hash)
