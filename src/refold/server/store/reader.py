"""What is in the file that a daemon keeps, for those who ask. Nothing is changed here."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from refold.api import Event, Jobs, JobStatus, StoredToken
from refold.core import Entry, Event as Fact, Header, PastJob
from refold.model import Job
from refold.server import JobRecord

_ENTRY = msgspec.json.Decoder(Entry)
_JOB = msgspec.json.Decoder(Job)
_STATUS = msgspec.json.Decoder(JobStatus)

PIECE = 1000
"""Entries of a journal that are read at once."""

EVENT = "number, at, kind, job, run, text, tenant"


class Checkpoint(msgspec.Struct, frozen=True):
    """How things stood after an entry: the present as facts, and what is known of each job besides."""

    entry: int
    snapshot: tuple[Fact, ...]
    records: tuple[JobRecord, ...]


class Epoch(msgspec.Struct, frozen=True):
    """A part of the journal that replays by itself, from its `first` entry on."""

    number: int
    header: Header
    first: int


class EndedRow(msgspec.Struct, frozen=True):
    """A job that is over, and where it stands among these: by when it ended, then by its number."""

    id: str
    ended: float
    number: int


class StoreReader:
    """Questions to the file, from any thread. Each answer is of one moment, whatever is being written meanwhile.

    What may take long (`ended`, `past`, `lines`) is for threads, and has a connection of its own: nobody else waits.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._reader, self._slow_reader = connect(), connect()
        self._turn_of_slow = threading.Lock()
        for reader in (self._reader, self._slow_reader):
            reader.execute("PRAGMA query_only=ON")

    def close(self) -> None:
        """No more questions."""
        self._reader.close()
        with self._turn_of_slow:
            self._slow_reader.close()

    def remembered(self, key: str, kind: Any) -> Any:
        """What was kept under a name, or None."""
        row = self._reader.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=kind)

    def last_epoch(self) -> Epoch | None:
        """The part of the journal that is being written."""
        row = self._reader.execute("SELECT number, header, first FROM epochs ORDER BY number DESC LIMIT 1").fetchone()
        return None if row is None else Epoch(row[0], msgspec.json.decode(row[1], type=Header), row[2])

    def header_at(self, entry: int) -> Header:
        """By whom and on what an entry was decided."""
        query = "SELECT header FROM epochs WHERE first <= ? ORDER BY first DESC LIMIT 1"
        return msgspec.json.decode(self._reader.execute(query, (entry,)).fetchone()[0], type=Header)

    def last_entry(self) -> int:
        """The number of the last entry; 0: there is none."""
        number: int = self._reader.execute("SELECT coalesce(max(number), 0) FROM journal").fetchone()[0]
        return number

    def entries(self, first: int) -> Iterator[Entry]:
        """Entries from one on."""
        for _, lines in self.lines(first):
            yield from map(_ENTRY.decode, lines)

    def lines(self, first: int) -> Iterator[tuple[int, list[bytes]]]:
        """The same as they are kept, some at a time, with the number of the first of them."""
        query = "SELECT number, entry FROM journal WHERE number >= ? ORDER BY number LIMIT ?"
        while rows := self._slowly((query, (first, PIECE)))[0]:
            yield rows[0][0], [entry for _, entry in rows]
            first = rows[-1][0] + 1

    def checkpoint(self, *, at_most: int | None = None) -> Checkpoint | None:
        """The last one, or the last up to an entry."""
        row = self._reader.execute(
            "SELECT entry, snapshot, records FROM checkpoints WHERE entry <= ? ORDER BY entry DESC LIMIT 1",
            (2**62 if at_most is None else at_most,),
        ).fetchone()
        if row is None:
            return None
        snapshot = msgspec.json.decode(row[1], type=tuple[Fact, ...])
        return Checkpoint(row[0], snapshot, msgspec.json.decode(row[2], type=tuple[JobRecord, ...]))

    def last_numbers(self) -> tuple[int, int]:
        """Those of the last job and of the last event."""
        query = "SELECT (SELECT coalesce(max(number), 0) FROM jobs), (SELECT coalesce(max(number), 0) FROM events)"
        job, event = self._reader.execute(query).fetchone()
        return job, event

    def job_of_request(self, request: str) -> str | None:
        """The job that was made of a request before."""
        row = self._reader.execute("SELECT id FROM jobs WHERE request=?", (request,)).fetchone()
        return None if row is None else row[0]

    def job_ids(self, asked: str) -> list[str]:
        """Jobs that somebody may mean: by id, by number, by name; the latest first."""
        number = int(asked) if asked.isdecimal() and len(asked) < 18 else -1
        rows = self._reader.execute("SELECT id FROM jobs WHERE id=? OR number=? LIMIT 1", (asked, number)).fetchall()
        if not rows:
            rows = self._reader.execute(
                "SELECT id FROM jobs WHERE name=? ORDER BY number DESC LIMIT 2", (asked,)
            ).fetchall()
        return [job_id for (job_id,) in rows]

    def latest_ids(self, count: int) -> list[str]:
        """The ids of the latest jobs."""
        rows = self._reader.execute("SELECT id FROM jobs ORDER BY number DESC LIMIT ?", (count,)).fetchall()
        return [job_id for (job_id,) in rows]

    def ended_job(self, job_id: str) -> JobStatus | None:
        """How a job that is over stands; None: it is not."""
        row = self._reader.execute("SELECT status FROM jobs WHERE id=?", (job_id,)).fetchone()
        return None if row is None or row[0] is None else _STATUS.decode(row[0])

    def job_noun(self, job_id: str) -> Job:
        """A job as it was asked for."""
        return _JOB.decode(self._reader.execute("SELECT job FROM jobs WHERE id=?", (job_id,)).fetchone()[0])

    def ended(self, *, states: Sequence[str], tenant: str, user: str, name: str, limit: int, after: int) -> Jobs:
        """A page of jobs that are over, the latest first, after the one of a number (0: from the latest on).

        A job that is over stays where it is in this order, so pages neither repeat nor leave out any, whatever ends
        meanwhile.
        """
        wanted = [("tenant=?", [tenant]), ("user=?", [user]), ("name=?", [name])]
        wanted.append((f"state IN ({','.join('?' * len(states))})", [*states]))
        asked = [(text, values) for text, values in wanted if any(values)]
        where, values = [text for text, _ in asked], [value for _, some in asked for value in some]
        count = f"SELECT coalesce(sum(jobs), 0) FROM ended_counts WHERE {' AND '.join([*where, 'jobs > 0'])}"
        if after:
            where.append("(ended, number) < (SELECT ended, number FROM jobs WHERE number=?)")
        page = (
            f"SELECT number, status FROM jobs WHERE {' AND '.join([*where, 'ended IS NOT NULL'])}"
            " ORDER BY ended DESC, number DESC LIMIT ?"
        )
        beginning = [after] if after else []
        [(total,)], rows = self._slowly((count, values), (page, [*values, *beginning, limit + 1]))
        shown = rows[:limit]
        return Jobs([_STATUS.decode(status) for _, status in shown], total, shown[-1][0] if len(rows) > limit else None)

    def ended_until(self, moment: float, after: EndedRow | None, most: int) -> list[EndedRow]:
        """Jobs that were over by then, in the order of their ends, after one of them."""
        reached = (after.ended, after.number) if after is not None else (float("-inf"), 0)
        query = (
            "SELECT id, ended, number FROM jobs WHERE ended IS NOT NULL AND ended <= ? AND (ended, number) > (?, ?)"
            " ORDER BY ended, number LIMIT ?"
        )
        return [EndedRow(*row) for row in self._slowly((query, (moment, *reached, most)))[0]]

    def _slowly(self, *questions: tuple[str, Sequence[Any]]) -> list[list[Any]]:
        """What is found for each of them, all at one moment."""
        with self._turn_of_slow:
            self._slow_reader.execute("BEGIN")
            try:
                return [self._slow_reader.execute(query, values).fetchall() for query, values in questions]
            finally:
                self._slow_reader.execute("COMMIT")

    def past(self, most: int) -> list[PastJob]:
        """The latest jobs that came to an end of their own, in the order in which they did."""
        query = (
            "SELECT job, lasted FROM (SELECT job, lasted, ended FROM jobs WHERE ended IS NOT NULL"
            " AND lasted IS NOT NULL ORDER BY ended DESC LIMIT ?) ORDER BY ended"
        )
        (rows,) = self._slowly((query, (most,)))
        return [PastJob(_JOB.decode(job), lasted) for job, lasted in rows]

    def story(self, job_id: str, most: int = 1000) -> list[Event]:
        """What happened to a job; of a very long story the latest part."""
        rows = self._reader.execute(
            f"SELECT {EVENT} FROM events WHERE job=? ORDER BY number DESC LIMIT ?",
            (job_id, most),
        ).fetchall()
        return [Event(*row) for row in reversed(rows)]

    def latest_events(self, most: int) -> list[Event]:
        """The last things that happened, the latest last."""
        rows = self._reader.execute(f"SELECT {EVENT} FROM events ORDER BY number DESC LIMIT ?", (most,)).fetchall()
        return [Event(*row) for row in reversed(rows)]

    def secrets(self, job_id: str) -> dict[str, str]:
        """Variables of a job that nobody is told of but its runs."""
        row = self._reader.execute("SELECT variables FROM secrets WHERE job=?", (job_id,)).fetchone()
        return {} if row is None else msgspec.json.decode(row[0], type=dict[str, str])

    def tokens(self) -> list[StoredToken]:
        """All tokens, as they are kept."""
        rows = self._reader.execute("SELECT name, role, tenant, user, created, hash FROM tokens ORDER BY created, name")
        return [StoredToken(*row) for row in rows.fetchall()]
