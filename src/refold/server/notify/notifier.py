"""Telling people: by mail, chat or whatever else apprise knows. Nothing here blocks or fails the daemon."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Any

import msgspec

from refold.model import MINUTE, Seconds
from refold.server.config import Kind, NotifyChoice
from refold.server.notify.addresses import redacted, safe_ones
from refold.server.notify.rate_limit import Message, RateLimiter

__all__ = ["Counts", "Message", "Notifier"]

logger = logging.getLogger("refold.notify")

Send = Callable[[str, Message], bool]

MOST_QUEUED = 1024
BACK_OFF: tuple[Seconds, ...] = (2.0, 10.0)
"""How long after a failure it is tried again, and again after the next."""

PAUSE: Seconds = 5 * MINUTE
"""How long an address is left alone that did not answer at all."""

SENDING: Seconds = 20.0
"""The longest that one message may take."""

LONGEST_TITLE, LONGEST_BODY = 250, 4000

_TYPE_OF_KIND: dict[Kind, str] = {
    "failed": "failure",
    "gpu_bad": "failure",
    "finished": "success",
    "waiting_long": "warning",
    "stopped": "warning",
    "ended": "warning",
    "hang_suspected": "warning",
    "gpu_idle": "warning",
}


class Counts(msgspec.Struct, frozen=True):
    """How many messages went out, how many did not, and how many were never tried since there were too many."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0


class Notifier:
    """Takes messages at any time and sends them from a thread of its own."""

    def __init__(self, choice: NotifyChoice, send: Send | None = None, pace: RateLimiter | None = None) -> None:
        self._choice = choice
        self._post = _Post(send or send_by_apprise, pace or RateLimiter())
        self._queue: queue.Queue[tuple[str, Message] | None] = queue.Queue(MOST_QUEUED)
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._closed = False

    def tell(self, message: Message, also: Iterable[str] = ()) -> None:
        """Tell whom it concerns; `also`: the addresses that the job came with. Returns at once."""
        for address in self.addresses(message, also):
            try:
                self._queue.put_nowait((address, message))
            except queue.Full:
                self._dropped += 1
                if self._dropped == 1:
                    logger.warning("notifications are dropped: more than %d wait to be sent", MOST_QUEUED)
        if self._thread is None and not self._queue.empty() and not self._closed:
            self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
            self._thread.start()

    def addresses(self, message: Message, also: Iterable[str] = ()) -> list[str]:
        """Whom it concerns, each once."""
        concerned = list(self._choice.urls.get(message.kind, ()))
        if message.kind in self._choice.tell:
            concerned += self._choice.users.get(message.user, ())
            concerned += safe_ones(also)
        return list(dict.fromkeys(concerned))

    @property
    def counts(self) -> Counts:
        """What has become of the messages so far."""
        return Counts(self._post.sent, self._post.failed, self._dropped)

    def close(self, within: Seconds = 5.0) -> None:
        """Send what waits, but do not take longer than this; what was held back goes unsaid."""
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
            due = self._post.next_due()
            try:
                item = self._queue.get(timeout=None if due is None else max(0.0, due - monotonic()))
            except queue.Empty:
                self._post.send_due(monotonic())
                continue
            if item is None:
                return
            self._post.take(*item, monotonic())
            self._post.send_due(monotonic())


class _Post:
    """What is under way: messages that are tried again, and those that are held back."""

    def __init__(self, send: Send, pace: RateLimiter) -> None:
        self._send, self._pace = send, pace
        self._again: list[tuple[Seconds, int, int, str, Message]] = []
        self._numbers = count()
        self._silent: set[str] = set()
        self.sent = 0
        self.failed = 0

    def take(self, address: str, message: Message, now: Seconds) -> None:
        """Send it, or remember that there is more to tell."""
        if self._pace.admit(address, message, now):
            self._try(address, message, 0, now)

    def send_due(self, now: Seconds) -> None:
        """Try again what failed, and tell of what was held back."""
        while self._again and self._again[0][0] <= now:
            _, _, attempt, address, message = heappop(self._again)
            self._try(address, message, attempt, now)
        for address, message in self._pace.due(now):
            self._try(address, message, 0, now)

    def next_due(self) -> Seconds | None:
        """When there is something to do."""
        moments = [moment for moment, *_ in self._again[:1]]
        held = self._pace.next_due()
        return min(moments if held is None else [*moments, held], default=None)

    def _try(self, address: str, message: Message, attempt: int, now: Seconds) -> None:
        if self._sent(address, message):
            self.sent += 1
            self._silent.discard(address)
        elif attempt < len(BACK_OFF):
            again = now + BACK_OFF[attempt]
            heappush(self._again, (again, next(self._numbers), attempt + 1, address, message))
            self._pace.pause(address, again)
        else:
            self.failed += 1
            self._pace.pause(address, now + PAUSE)
            if address not in self._silent:
                self._silent.add(address)
                logger.warning("%s does not take notifications; it is left alone for a while", redacted(address))

    def _sent(self, address: str, message: Message) -> bool:
        try:
            return self._send(address, message)
        except Exception:  # a plug-in of apprise may raise whatever it likes: it is one address that gets no message
            logger.debug("cannot send", exc_info=True)
            return False


def send_by_apprise(address: str, message: Message) -> bool:
    """Whether a message went out."""
    try:
        import apprise
    except ImportError:
        logger.warning("notifications need an extra: pip install 'refold[serve]'")
        return False
    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it says what it cannot send, with the address
    asset: Any = apprise.AppriseAsset(storage_mode="memory", service_timeout=SENDING, app_id="refold")
    service: Any = apprise.Apprise.instantiate(address, asset=asset)  # add() would take several, with commas between
    if service is None:
        return False
    sender = apprise.Apprise(service, asset=asset)
    said = sender.notify(
        title=message.title[:LONGEST_TITLE],
        body=message.body[:LONGEST_BODY] or message.title[:LONGEST_TITLE],
        notify_type=_TYPE_OF_KIND.get(message.kind, "info"),
    )
    return bool(said)
