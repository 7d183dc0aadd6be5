"""How many messages an address gets: so many in a minute, and of what is beyond that one message in the end."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from refold.model import MINUTE, Seconds
from refold.server.config import Kind

LIMIT = 30
WINDOW: Seconds = MINUTE


class Message(msgspec.Struct, frozen=True):
    """What people are told: of which kind it is, about whose job, in a line and in a few."""

    kind: Kind
    title: str
    body: str = ""
    job: str = ""
    user: str = ""
    tenant: str = ""


class _Address:
    """What an address has got within the window, and what is held back from it until when."""

    __slots__ = ("held", "held_until", "last", "sent")

    def __init__(self) -> None:
        self.sent: deque[Seconds] = deque()
        self.held: Counter[Kind] = Counter()
        self.held_until: Seconds = 0.0
        self.last: Message | None = None


class RateLimiter:
    """What may be sent to whom, and when."""

    def __init__(self, limit: int = LIMIT, window: Seconds = WINDOW) -> None:
        self._limit, self._window = limit, window
        self._addresses: dict[str, _Address] = {}

    def admit(self, address: str, message: Message, now: Seconds) -> bool:
        """Whether it may be sent now; if not, it is counted, and told of later."""
        state = self._addresses.setdefault(address, _Address())
        while state.sent and state.sent[0] <= now - self._window:
            state.sent.popleft()
        if len(state.sent) >= self._limit and not state.held:
            state.held_until = max(state.held_until, now + self._window)
        if state.held or now < state.held_until:
            state.held[message.kind] += 1
            state.last = message
            return False
        state.sent.append(now)
        return True

    def pause(self, address: str, until: Seconds) -> None:
        """Send nothing to an address until then: it does not answer."""
        state = self._addresses.setdefault(address, _Address())
        state.held_until = max(state.held_until, until)

    def due(self, now: Seconds) -> list[tuple[str, Message]]:
        """What was held back, one message for each address whose time has come. Who got none lately is forgotten."""
        messages: list[tuple[str, Message]] = []
        for address, state in list(self._addresses.items()):
            if state.held_until > now:
                continue
            if state.held and state.last is not None:
                messages.append((address, _summary(state.held, state.last)))
                state.held, state.last = Counter(), None
                state.sent.append(now)
            elif not state.sent or state.sent[-1] <= now - self._window:
                del self._addresses[address]
        return messages

    def next_due(self) -> Seconds | None:
        """When something that is held back may be sent."""
        return min((state.held_until for state in self._addresses.values() if state.held), default=None)

    def __len__(self) -> int:
        return len(self._addresses)


def _summary(held: Counter[Kind], last: Message) -> Message:
    total = held.total()
    if total == 1:
        return last
    kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(held.items()))
    return Message(last.kind, f"and {total:,} more", f"{kinds}; the last: {last.title}", user=last.user)
