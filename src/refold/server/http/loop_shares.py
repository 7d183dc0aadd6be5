"""Fairness between users: all calls are answered in one event loop, of which each user may take a part of the time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from time import monotonic
from typing import Any, Generic, TypeVar

from refold.client.api import Caller
from refold.errors import TooManyRequests
from refold.model import Seconds

T = TypeVar("T")
_User = tuple[str, str]

SHARE = 0.5
"""Part of the time that the calls of a user may take. Owners are not limited."""

BURST: Seconds = 1.0
"""How far ahead of its share a user may be before its calls wait."""

MAX_WAIT: Seconds = 20.0
MAX_WAITING = 64
"""Calls of a user that wait; further ones are refused."""

REFUSAL_SECONDS: Seconds = 1.0
"""How long a refusal takes, so that clients that repeat their calls at once do not take the time themselves."""

MAX_USERS = 4096


class LoopShares:
    """The time that the calls of each user have taken."""

    def __init__(self, clock: Callable[[], Seconds] = monotonic) -> None:
        self._clock = clock
        self._used_until: dict[_User, Seconds] = {}
        """When each user will have as much of its share again as before its last calls."""
        self._waiting: Counter[_User] = Counter()

    async def wait_for_turn(self, caller: Caller) -> None:
        """Return when a call of this user may begin. Raises TooManyRequests if that would take long."""
        user, refused_at = (caller.tenant, caller.user), self._clock() + MAX_WAIT
        while (pause := self._used_until.get(user, 0.0) - BURST - self._clock()) > 0 and caller.role != "owner":
            if self._waiting[user] >= MAX_WAITING or self._clock() + pause > refused_at:
                await asyncio.sleep(REFUSAL_SECONDS)
                raise TooManyRequests(
                    f"calls of user {caller.user!r} take more than {SHARE:.0%} of the daemon's time; ask again later"
                )
            self._waiting[user] += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._waiting[user] -= 1

    def charge(self, caller: Caller, seconds: Seconds) -> None:
        """Note the time that a call has taken."""
        now, user = self._clock(), (caller.tenant, caller.user)
        if len(self._used_until) >= MAX_USERS:
            self._used_until = {user: until for user, until in self._used_until.items() if until > now}
            self._waiting = +self._waiting
        self._used_until[user] = max(self._used_until.get(user, now), now) + seconds / SHARE


class Metered(Generic[T]):
    """An awaitable that measures for how long it holds the event loop. `seconds`: until now."""

    def __init__(self, work: Awaitable[T]) -> None:
        self._work = work
        self.seconds: Seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the work, and pass on what it waits for."""
        steps = self._work.__await__()
        error: BaseException | None = None
        while True:
            began = monotonic()
            try:
                awaited = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.seconds += monotonic() - began
            error = None
            try:
                yield awaited
            except BaseException as thrown:  # such as a cancellation
                error = thrown
