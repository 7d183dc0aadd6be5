"""What is written down before anything is done: one entry per step, enough to replay it."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from refold.core.events import Event
from refold.core.orders import Order
from refold.model import Cluster, End, Flag, Seconds, StartEstimate, Wait

VERSION = 1


class Header(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The first line of a journal: on what, and by which policy. `settings` are the policy's own.

    A `snapshot` tells in one entry how things stood at a moment, and not what was decided then.
    """

    cluster: Cluster
    policy: str
    settings: dict[str, Any] = {}
    version: int = VERSION
    snapshot: bool = False


class Entry(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One step: what was known to have happened by `now`, and what was ordered because of it."""

    now: Seconds
    events: tuple[Event, ...] = ()
    orders: tuple[Order, ...] = ()
    waits: tuple[Wait, ...] = ()
    start_estimates: tuple[StartEstimate, ...] = ()
    wake_at: Seconds | None = None
    refused: str = ""
    flags: tuple[Flag, ...] = ()
    ends: tuple[End, ...] = ()


class Journal(Protocol):
    """Somewhere to write entries; `write` returns when the entry is as safe as this journal makes it."""

    def write(self, entry: Entry) -> None: ...


class NoJournal:
    """For those who want the orders only."""

    def write(self, entry: Entry) -> None:
        """Forget it."""


class ListJournal:
    """Entries in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        """Keep it."""
        self.entries.append(entry)


class Journals:
    """Several journals as one."""

    def __init__(self, *journals: Journal) -> None:
        self._journals = journals

    def write(self, entry: Entry) -> None:
        """Write to each."""
        for journal in self._journals:
            journal.write(entry)
