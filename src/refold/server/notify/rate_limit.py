"""Rate limit per address: a maximum number of messages per minute; further ones are summarised in one message."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from refold.model import MINUTE, Seconds
from refold.server.config import NotificationKind

MAX_MESSAGES = 30
WINDOW_SECONDS: Seconds = MINUTE


class Message(msgspec.Struct, frozen=True):
    """A notification about a job: title and body."""

    kind: NotificationKind
    title: str
    body: str = ""
    job: str = ""
    user: str = ""
    tenant: str = ""


class _AddressState:
    """Messages sent within the window, and those held back until a time."""

    __slots__ = ("held", "held_until", "last", "sent")

    def __init__(self) -> None:
        self.sent: deque[Seconds] = deque()
        self.held: Counter[NotificationKind] = Counter()
        self.held_until: Seconds = 0.0
        self.last: Message | None = None


class RateLimiter:
    """Decides when messages may be sent to an address."""

    def __init__(self, limit: int = MAX_MESSAGES, window: Seconds = WINDOW_SECONDS) -> None:
        self._limit, self._window = limit, window
        self._addresses: dict[str, _AddressState] = {}

    def admit(self, address: str, message: Message, now: Seconds) -> bool:
        """Whether a message may be sent now; if not, it is counted for the summary."""
        state = self._addresses.setdefault(address, _AddressState())
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
        """Send nothing to an address until a time: it does not respond."""
        state = self._addresses.setdefault(address, _AddressState())
        state.held_until = max(state.held_until, until)

    def due(self, now: Seconds) -> list[tuple[str, Message]]:
        """Return one summary per address that may receive messages again; forget inactive addresses."""
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
        """Return when messages held back may be sent, or None."""
        return min((state.held_until for state in self._addresses.values() if state.held), default=None)

    def __len__(self) -> int:
        return len(self._addresses)


def _summary(held: Counter[NotificationKind], last: Message) -> Message:
    total = held.total()
    if total == 1:
        return last
    kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(held.items()))
    return Message(last.kind, f"and {total:,} more", f"{kinds}; most recent: {last.title}", user=last.user)
