"""Send notifications through Apprise. Nothing here blocks or fails the daemon."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Any

import msgspec

from refold.model import MINUTE, Seconds
from refold.server.config import NotificationKind, NotifyConfig
from refold.server.notify.addresses import filter_safe, redact

logger = logging.getLogger("refold.notify")

MAX_QUEUED = 1024
RETRY_DELAYS: tuple[Seconds, ...] = (2.0, 10.0)
"""Seconds before the first and the second retry."""

PAUSE_SECONDS: Seconds = 5 * MINUTE
"""How long an address is paused after all retries have failed."""

SEND_TIMEOUT_SECONDS: Seconds = 20.0
"""Maximum time to send one message."""

MAX_TITLE_CHARS, MAX_BODY_CHARS = 250, 4000

_TYPE_OF_KIND: dict[NotificationKind, str] = {
    "failed": "failure",
    "gpu_bad": "failure",
    "finished": "success",
    "waiting_long": "warning",
    "stopped": "warning",
    "ended": "warning",
    "hang_suspected": "warning",
    "time_limit": "warning",
    "gpu_idle": "warning",
}


class Counts(msgspec.Struct, frozen=True):
    """Messages sent, failed, and dropped because the queue was full."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0


class Notifier:
    """Queues messages and sends them from its own thread."""

    def __init__(self, config: NotifyConfig, send: Send | None = None) -> None:
        self._config = config
        self._outbox = _Outbox(send or send_with_apprise, RateLimiter())
        self._queue: queue.Queue[tuple[str, Message] | None] = queue.Queue(MAX_QUEUED)
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._closed = False

    def notify(self, message: Message, job_addresses: Iterable[str] = ()) -> None:
        """Queue a message for all recipients; `job_addresses`: those of its submission. Does not block."""
        for address in self.addresses(message, job_addresses):
            try:
                self._queue.put_nowait((address, message))
            except queue.Full:
                self._dropped += 1
                if self._dropped == 1:
                    logger.warning("dropping notifications: more than %d are queued", MAX_QUEUED)
        if self._thread is None and not self._queue.empty() and not self._closed:
            self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
            self._thread.start()

    def addresses(self, message: Message, job_addresses: Iterable[str] = ()) -> list[str]:
        """Return the recipients of a message, each once."""
        addresses = list(self._config.urls.get(message.kind, ()))
        if message.kind in self._config.kinds:
            addresses += self._config.users.get(message.user, ())
            addresses += filter_safe(job_addresses, self._config.allow)
        return list(dict.fromkeys(addresses))

    @property
    def counts(self) -> Counts:
        return Counts(self._outbox.sent, self._outbox.failed, self._dropped)

    def close(self, within: Seconds = 5.0) -> None:
        """Send queued messages for at most `within` seconds; messages held back are discarded."""
        self._closed = True
        if self._thread is None:
            return
        end = monotonic() + within
        try:
            self._queue.put(None, timeout=within)
        except queue.Full:
            return
        self._thread.join(max(0.0, end - monotonic()))

    def _work(self) -> None:
        while True:
            due = self._outbox.next_due()
            try:
                item = self._queue.get(timeout=None if due is None else max(0.0, due - monotonic()))
            except queue.Empty:
                self._outbox.send_due(monotonic())
                continue
            if item is None:
                return
            self._outbox.add(*item, monotonic())
            self._outbox.send_due(monotonic())


class _Outbox:
    """Sends messages, repeats failed attempts, and respects the rate limit per address."""

    def __init__(self, send: Send, limiter: RateLimiter) -> None:
        self._send, self._limiter = send, limiter
        self._retries: list[tuple[Seconds, int, int, str, Message]] = []
        self._sequence = count()
        self._unreachable: set[str] = set()
        self.sent = 0
        self.failed = 0

    def add(self, address: str, message: Message, now: Seconds) -> None:
        """Send a message, or hold it back if the rate limit is reached."""
        if self._limiter.admit(address, message, now):
            self._attempt(address, message, 0, now)

    def send_due(self, now: Seconds) -> None:
        """Send due retries and summaries of messages held back."""
        while self._retries and self._retries[0][0] <= now:
            _, _, attempt, address, message = heappop(self._retries)
            self._attempt(address, message, attempt, now)
        for address, message in self._limiter.due(now):
            self._attempt(address, message, 0, now)

    def next_due(self) -> Seconds | None:
        """Return when something is due, or None."""
        moments = [moment for moment, *_ in self._retries[:1]]
        held = self._limiter.next_due()
        return min(moments if held is None else [*moments, held], default=None)

    def _attempt(self, address: str, message: Message, attempt: int, now: Seconds) -> None:
        if self._send_safely(address, message):
            self.sent += 1
            self._unreachable.discard(address)
        elif attempt < len(RETRY_DELAYS):
            retry_at = now + RETRY_DELAYS[attempt]
            heappush(self._retries, (retry_at, next(self._sequence), attempt + 1, address, message))
            self._limiter.pause(address, retry_at)
        else:
            self.failed += 1
            self._limiter.pause(address, now + PAUSE_SECONDS)
            if address not in self._unreachable:
                self._unreachable.add(address)
                logger.warning("cannot send notifications to %s; pausing for %g s", redact(address), PAUSE_SECONDS)

    def _send_safely(self, address: str, message: Message) -> bool:
        try:
            return self._send(address, message)
        except Exception:  # an Apprise plug-in may raise anything
            logger.debug("cannot send a notification", exc_info=True)
            return False


def send_with_apprise(address: str, message: Message) -> bool:
    """Send a message; return whether it was sent."""
    try:
        import apprise
    except ImportError:
        logger.warning("notifications need an extra: pip install '.[serve]' in the source folder")
        return False
    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it logs failures with the full address
    asset: Any = apprise.AppriseAsset(
        storage_mode="memory",
        service_timeout=SEND_TIMEOUT_SECONDS,
        app_id="refold",
        http_redirects=False,  # an allowed host must not choose another one, which only the daemon may reach
    )
    service: Any = apprise.Apprise.instantiate(address, asset=asset)  # add() would split at commas
    if service is None:
        return False
    sender = apprise.Apprise(service, asset=asset)
    sent = sender.notify(
        title=message.title[:MAX_TITLE_CHARS],
        body=message.body[:MAX_BODY_CHARS] or message.title[:MAX_TITLE_CHARS],
        notify_type=_TYPE_OF_KIND.get(message.kind, "info"),
    )
    return bool(sent)


# Rate limit per address: a maximum number of messages per minute; further ones are summarised in one message.

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


Send = Callable[[str, Message], bool]


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
