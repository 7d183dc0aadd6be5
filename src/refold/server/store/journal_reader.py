"""Read the journal from the store: its epochs, entries and checkpoints."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from refold.core import Entry, Event, Header
from refold.journal import JobRecord
from refold.model import Seconds

_ENTRY = msgspec.json.Decoder(Entry)

ENTRIES_PER_READ = 1000
"""Journal entries per query."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The state after an entry: a snapshot (the state as events) and the job records."""

    entry: int
    snapshot: tuple[Event, ...]
    records: tuple[JobRecord, ...]


class StoredEpoch(msgspec.Struct, frozen=True):
    """A part of the journal that replays on its own, starting at `first_entry`."""

    number: int
    header: Header
    first_entry: int


class JournalReader:
    """Queries on the journal, from any thread. Those of entries may take long: call them in a thread."""

    def __init__(self, connections: ReadConnections) -> None:
        self._fast = connections.fast
        self._query_slow = connections.query_slow

    def last_epoch(self) -> StoredEpoch | None:
        """Return the current epoch, or None if the store is empty."""
        row = self._fast.execute(
            "SELECT number, header, first_entry FROM epochs ORDER BY number DESC LIMIT 1"
        ).fetchone()
        return None if row is None else StoredEpoch(row[0], msgspec.json.decode(row[1], type=Header), row[2])

    def epochs(self) -> list[StoredEpoch]:
        """Return all epochs, in order. Call this in a thread."""
        (rows,) = self._query_slow(("SELECT number, header, first_entry FROM epochs ORDER BY number", ()))
        return [StoredEpoch(number, msgspec.json.decode(header, type=Header), first) for number, header, first in rows]

    def header_at(self, entry: int) -> Header:
        """Return the header (cluster and policy) of the epoch that an entry belongs to."""
        query = "SELECT header FROM epochs WHERE first_entry <= ? ORDER BY first_entry DESC LIMIT 1"
        return msgspec.json.decode(self._fast.execute(query, (entry,)).fetchone()[0], type=Header)

    def last_entry(self) -> int:
        """Return the number of the last entry, 0 if there is none."""
        number: int = self._fast.execute("SELECT coalesce(max(number), 0) FROM journal").fetchone()[0]
        return number

    def time_of(self, entry: int) -> Seconds:
        (line,) = next(self.encoded_entries(entry, entry + 1))
        return _ENTRY.decode(line).now

    def entries(self, first: int) -> Iterator[Entry]:
        """Yield the entries from number `first` on."""
        for lines in self.encoded_entries(first, 2**62):
            yield from map(_ENTRY.decode, lines)

    def encoded_entries(self, first: int, end: int) -> Iterator[list[bytes]]:
        """Yield the entries from `first` to before `end` undecoded, in chunks."""
        query = "SELECT number, entry FROM journal WHERE number >= ? AND number < ? ORDER BY number LIMIT ?"
        while rows := self._query_slow((query, (first, end, ENTRIES_PER_READ)))[0]:
            yield [entry for _, entry in rows]
            first = rows[-1][0] + 1

    def checkpoint(self, *, at_most: int | None = None) -> Checkpoint | None:
        """Return the last checkpoint, or the last one up to an entry."""
        row = self._fast.execute(
            "SELECT entry, snapshot, records FROM checkpoints WHERE entry <= ? ORDER BY entry DESC LIMIT 1",
            (2**62 if at_most is None else at_most,),
        ).fetchone()
        if row is None:
            return None
        snapshot = msgspec.json.decode(row[1], type=tuple[Event, ...])
        return Checkpoint(row[0], snapshot, msgspec.json.decode(row[2], type=tuple[JobRecord, ...]))


# Connections to the SQLite file for queries.


class ReadConnections:
    """Two connections: queries that may take long use the second, so that they do not delay the others."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self.fast, self._slow = connect(), connect()
        self._slow_lock = threading.Lock()
        for connection in (self.fast, self._slow):
            connection.execute("PRAGMA query_only=ON")

    def query_slow(self, *queries: tuple[str, Sequence[Any]]) -> list[list[Any]]:
        """Run queries on the slow connection in one read transaction. Call this in a thread."""
        with self._slow_lock:
            self._slow.execute("BEGIN")
            try:
                return [self._slow.execute(query, values).fetchall() for query, values in queries]
            finally:
                self._slow.execute("COMMIT")

    def close(self) -> None:
        """Close the connections, the slow one after its current query."""
        self.fast.close()
        with self._slow_lock:
            self._slow.close()
