"""Costly questions, such as `/whatif` and `/plan`: how many a user, and all users, may ask at a time.

They are answered in copies of the daemon, so that they cannot delay it; but each waits for those before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from refold.client.api import Caller
from refold.errors import TooManyRequests

MAX_OF_USER = 4
MAX_OF_ALL = 32


class CostlyQuestions:
    """Counts the questions that are being answered or wait for that."""

    def __init__(self) -> None:
        self._asked: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def admit(self, caller: Caller) -> Iterator[None]:
        """Count a question while it is being answered. Raises TooManyRequests if there are too many."""
        user = (caller.tenant, caller.user)
        if self._asked[user] >= MAX_OF_USER:
            raise TooManyRequests(
                f"{MAX_OF_USER} costly questions of {caller.user!r} are being answered; ask again later"
            )
        if self._asked.total() >= MAX_OF_ALL:
            raise TooManyRequests(f"{MAX_OF_ALL} costly questions are being answered; ask again later")
        self._asked[user] += 1
        try:
            yield
        finally:
            self._asked[user] -= 1
            if not self._asked[user]:
                del self._asked[user]
