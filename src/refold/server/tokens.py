"""Tokens: made, revoked, and kept, so that there is always an owner."""

from __future__ import annotations

from time import time

from refold.api import MadeToken, NewToken, StoredToken, TokenStatus, make_token
from refold.errors import BadInput, Conflict, NotFound
from refold.server import drained_gpus
from refold.server.loop import Loop
from refold.server.store import Store

OWNER = "owner"
"""How the first token is called, and whom it is for."""


def make_owner(store: Store) -> str:
    """A token for whoever owns the daemon, to be told once; the one that was called so before opens nothing more."""
    for before in store.reading.tokens():
        if before.name == OWNER:
            store.remove_token(before.hash)
    token, known = make_token(NewToken(OWNER, "owner", "default", OWNER), time())
    store.add_token(known)
    return token


class TokenStore:
    """Who is known, by the hash of the token: the mapping that the API looks callers up in."""

    def __init__(self, loop: Loop, store: Store, known: dict[str, StoredToken]) -> None:
        self._loop = loop
        self._store = store
        self._known = known

    def listed(self) -> list[TokenStatus]:
        """All of them, without secrets."""
        return [known.status() for known in self._known.values()]

    async def make(self, token: NewToken) -> MadeToken:
        """One more; its secret is told once."""
        if any(known.name == token.name for known in self._known.values()):
            raise Conflict(f"there is a token {token.name!r} already: revoke it, or take another name")
        if token.tenant == drained_gpus.TENANT:
            raise BadInput(f"the tenant {token.tenant!r} is the daemon's own")
        secret, known = make_token(token, time())
        self._known[known.hash] = known  # at once, so that nobody else takes the name meanwhile
        try:
            await self._loop.written(lambda: self._store.add_token(known))
        except BaseException:
            del self._known[known.hash]
            raise
        return MadeToken(secret, known.name)

    async def revoke(self, name: str) -> TokenStatus:
        """It opens nothing more."""
        known = next((one for one in self._known.values() if one.name == name), None)
        if known is None:
            raise NotFound.near("token", name, [one.name for one in self._known.values()])
        if known.role == "owner" and sum(one.role == "owner" for one in self._known.values()) == 1:
            raise Conflict(f"{name!r} is the only owner's token: make another one first")
        del self._known[known.hash]  # at once, so that of two owners' tokens not both can be revoked by each other
        try:
            await self._loop.written(lambda: self._store.remove_token(known.hash))
        except BaseException:
            self._known[known.hash] = known
            raise
        return known.status()
