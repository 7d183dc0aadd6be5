"""Journal entries: one per scheduler step, written before its orders are carried out, and sufficient to replay it."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from refold.core.events import Event
from refold.core.orders import Order
from refold.model import Cluster, End, Flag, Seconds, StartEstimate, Wait

VERSION = 2


class Header(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The first line of a journal: the cluster, and the policy with its settings.

    In the journal of a `snapshot`, a single entry describes the state at one time, without decisions. `scheduler`: the
    scheduler whose reasons and start estimates the snapshot has, if that is not Refold, such as Slurm.
    """

    cluster: Cluster
    policy: str
    settings: dict[str, Any] = {}
    version: int = VERSION
    snapshot: bool = False
    scheduler: str = ""


class Entry(msgspec.Struct, gc=False, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One step: the events known at `now`, and the orders, reasons and estimates that followed.

    `rejection` is the error message if the decision of the policy was rejected. `deferred`: the policy was not called;
    it is at `wake_at`.
    """

    now: Seconds
    events: tuple[Event, ...] = ()
    orders: tuple[Order, ...] = ()
    waits: tuple[Wait, ...] = ()
    start_estimates: tuple[StartEstimate, ...] = ()
    wake_at: Seconds | None = None
    rejection: str = ""
    flags: tuple[Flag, ...] = ()
    ends: tuple[End, ...] = ()
    deferred: bool = False


class Journal(Protocol):
    """A sink for entries. Each kind of journal defines how durable an entry is when `write` returns."""

    def write(self, entry: Entry) -> None: ...


class NoJournal:
    """Discards all entries, for callers that need only the orders."""

    def write(self, entry: Entry) -> None:
        """Discard the entry."""


class ListJournal:
    """Stores entries in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        self.entries.append(entry)


class Journals:
    """Writes every entry to several journals."""

    def __init__(self, *journals: Journal) -> None:
        self._journals = journals

    def write(self, entry: Entry) -> None:
        for journal in self._journals:
            journal.write(entry)
