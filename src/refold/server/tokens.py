"""Access tokens: create, list and revoke. At least one owner token always exists."""

from __future__ import annotations

from time import time

from refold.client.api import CreatedToken, NewToken, TokenStatus
from refold.errors import Conflict, NotFound
from refold.server.http import StoredToken, make_token
from refold.server.store import Store
from refold.server.writer import Writer

OWNER_NAME = "owner"
"""Name and user of the first owner token."""


def create_owner_token(store: Store) -> str:
    """Create the owner token and return its secret; revoke an earlier one of the same name."""
    for stored in store.reader.tokens():
        if stored.name == OWNER_NAME:
            store.remove_token(stored.hash)
    token, record = make_token(NewToken(OWNER_NAME, "owner", "default", OWNER_NAME), time())
    store.add_token(record)
    return token


class TokenStore:
    """The tokens by hash. The API authenticates callers with the same mapping."""

    def __init__(self, writer: Writer, store: Store, tokens: dict[str, StoredToken]) -> None:
        self._writer = writer
        self._store = store
        self._tokens = tokens

    def list(self) -> list[TokenStatus]:
        return [stored.status() for stored in self._tokens.values()]

    async def create(self, token: NewToken) -> CreatedToken:
        """Create a token and return its secret, which is shown only once."""
        if any(stored.name == token.name for stored in self._tokens.values()):
            raise Conflict(f"token {token.name!r} already exists; revoke it or choose another name")
        secret, stored = make_token(token, time())
        self._tokens[stored.hash] = stored  # before the write, so that no other call takes the name meanwhile
        try:
            await self._writer.write(lambda: self._store.add_token(stored))
        except BaseException:
            del self._tokens[stored.hash]
            raise
        return CreatedToken(secret, stored.name)

    async def revoke(self, name: str) -> TokenStatus:
        stored = next((token for token in self._tokens.values() if token.name == name), None)
        if stored is None:
            raise NotFound.near("token", name, [token.name for token in self._tokens.values()])
        if stored.role == "owner" and sum(token.role == "owner" for token in self._tokens.values()) == 1:
            raise Conflict(f"{name!r} is the only owner token; create another owner token first")
        del self._tokens[stored.hash]  # before the write, so that two concurrent calls cannot revoke both owner tokens
        try:
            await self._writer.write(lambda: self._store.remove_token(stored.hash))
        except BaseException:
            self._tokens[stored.hash] = stored
            raise
        return stored.status()
