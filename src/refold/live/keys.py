"""Tokens: made, revoked, and kept, so that there is always an owner."""

from __future__ import annotations

from time import time

from refold.errors import BadInput, Conflict, NotFound
from refold.live import drains
from refold.live.api.tokens import Known, make_token
from refold.live.api.wire import MadeToken, NewToken, TokenStatus
from refold.live.kept.store import Store
from refold.live.loop import Loop


class Keys:
    """Who is known, by the hash of the token: the mapping that the API looks callers up in."""

    def __init__(self, loop: Loop, store: Store, known: dict[str, Known]) -> None:
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
        if token.tenant == drains.TENANT:
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
