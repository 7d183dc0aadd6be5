"""The store: journal, jobs, events and tokens in one SQLite file. One writer; a commit that returns is on disk.

Queries are in `reader`.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import msgspec

from refold.client.api import Event, JobStatus
from refold.core import Entry, Header
from refold.errors import BadFile, Unavailable
from refold.model import Job, Seconds
from refold.server.http import StoredToken
from refold.server.store import schema
from refold.server.store.backups import BACKUPS_FOLDER, copy_database, list_backups
from refold.server.store.checksums import find_damage, register, row_checksum, seal_schema
from refold.server.store.folder_lock import FILE_NAME, FolderLock
from refold.server.store.journal_reader import Checkpoint, ReadConnections
from refold.server.store.reader import ACTIVE, StoreReader, without_launch
from refold.server.store.schema import can_migrate, migrate

_ENCODER = msgspec.json.Encoder()

BUSY_TIMEOUT_MS = 10_000
PRUNED_AT_ONCE = 200
PRUNED_ENTRIES_AT_ONCE = 2_000

_PRUNABLE = """
SELECT number, id FROM jobs WHERE ended IS NOT NULL AND number < (SELECT max(number) FROM jobs)
    AND (
        ended < ?1
        OR ended < (SELECT ended FROM jobs WHERE ended IS NOT NULL ORDER BY ended DESC LIMIT 1 OFFSET ?2 - 1)
    )
    AND NOT EXISTS (SELECT 1 FROM jobs AS other WHERE other.name = jobs.name AND other.ended IS NULL)
ORDER BY ended LIMIT ?3
"""

_PRUNE_JOURNAL = """
DELETE FROM journal WHERE number IN (
    SELECT number FROM journal WHERE number < (SELECT min(first_entry) FROM epochs) ORDER BY number LIMIT ?
)
"""

MIN_FREE_BYTES = 2**20
"""With less free space on its file system, a database cannot be opened."""

_END_JOB = """
UPDATE jobs SET state=?1, ended=?2, run_time=?3, status=?4,
    checksum=checksum(number, id, name, tenant, user, ?1, ?2, ?3, ?4, job, request)
WHERE id=?5
"""


class NewJob(msgspec.Struct, frozen=True):
    """A row for an accepted job."""

    number: int
    name: str
    job: Job
    request: str
    secrets: dict[str, str]


class EndedJob(msgspec.Struct, frozen=True):
    """The final status of a job. `run_time`: seconds of all its runs, None if it was cancelled."""

    status: JobStatus
    run_time: float | None


class Commit(msgspec.Struct):
    """Everything that one step writes, in one transaction. `number`: number of the journal entry."""

    number: int
    entry: Entry
    jobs: list[NewJob] = []
    ended: list[EndedJob] = []
    events: list[Event] = []
    epoch: Header | None = None
    checkpoint: Checkpoint | None = None


class Store:
    """The SQLite file. Opened by one daemon at a time; written by one thread, read by any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE_NAME
        self._lock = FolderLock(folder)
        self._identity = _identity(self.path)
        self._has_deleted_secrets = True  # perhaps by a daemon that was killed
        try:
            self._connection = self._connect()
            self._prepare()
            self.purge_log()
            self._read_connections = ReadConnections(self._connect)
            self.reader = StoreReader(self._read_connections)
        except sqlite3.Error as error:
            self._lock.close()
            raise BadFile(self.path, self._describe(error)) from None
        except BaseException:
            self._lock.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=256)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA secure_delete=ON")  # overwrite deleted secrets
        register(connection)
        return connection

    def _prepare(self) -> None:
        """Create the schema in a new file; check version and integrity of an existing one."""
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            if self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise BadFile(self.path, "is not a Refold database; choose another folder with --state")
            self._connection.executescript(f"BEGIN; {schema.TABLES} PRAGMA user_version={schema.VERSION};")
            seal_schema(self._connection)
            self._connection.execute("COMMIT")
        elif version != schema.VERSION and not can_migrate(version):
            raise BadFile(self.path, f"has schema version {version}, expected {schema.VERSION}")
        problem = find_damage(self._connection)
        if problem:
            raise BadFile(self.path, f"is damaged: {problem}; {self._way_out()}")
        if can_migrate(version):
            copy = self.folder / BACKUPS_FOLDER / f"version-{version}.db"
            if not copy.exists():
                copy_database(self.path, copy)
            migrate(self._connection, version)

    def _describe(self, error: sqlite3.Error) -> str:
        """Return why the file cannot be opened."""
        if shutil.disk_usage(self.folder).free < MIN_FREE_BYTES:
            return f"cannot be opened: no space left on the file system of {self.folder}; free some and start again"
        if type(error) is sqlite3.DatabaseError:
            return f"is damaged: {error}; {self._way_out()}"
        return f"cannot be opened: {error}"

    def _way_out(self) -> str:
        backups = list_backups(self.folder)
        if not backups:
            return "there is no backup; move the file away to start empty"
        return f"run `refold restore {backups[0]} --state {self.folder}`"

    def close(self) -> None:
        """Close the file and release the lock."""
        self._read_connections.close()
        self._connection.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def commit(self, commit: Commit) -> None:
        """Write a step; it is on disk when this returns. Raises Unavailable if nothing was written."""
        write = self._connection.execute
        self._in_transaction(lambda: self._write(commit, write))
        self.purge_log()

    def _write(self, commit: Commit, write: Any) -> None:
        if commit.epoch is not None:
            header = _ENCODER.encode(commit.epoch)
            (number,) = write("SELECT coalesce(max(number), 0) + 1 FROM epochs").fetchone()
            self._insert("epochs", [(number, header, commit.number)])
        self._insert("journal", [(commit.number, _ENCODER.encode(commit.entry))])
        if commit.jobs:
            self._insert("jobs", map(_row_of, commit.jobs))
            self._insert("secrets", [(new.job.id, _ENCODER.encode(new.secrets)) for new in commit.jobs if new.secrets])
        for ended in commit.ended:
            status = ended.status
            encoded = _ENCODER.encode(without_launch(status))
            write(_END_JOB, (status.state, status.ended, ended.run_time, encoded, status.id))
            removed = write("DELETE FROM secrets WHERE job=?", (status.id,)).rowcount
            self._has_deleted_secrets |= removed > 0
        if commit.events:
            rows = [
                (event.number, event.at, event.kind, event.job, event.run, event.text, event.tenant)
                for event in commit.events
            ]
            self._insert("events", rows)
        if commit.checkpoint is not None:
            self._write_checkpoint(commit.checkpoint)

    def _insert(self, table: str, rows: Iterable[tuple[Any, ...]], *, replace: bool = False) -> None:
        """Insert rows, each with its checksum."""
        checked = [(*row, row_checksum(*row)) for row in rows]
        if checked:
            verb = "INSERT OR REPLACE" if replace else "INSERT"
            self._connection.executemany(f"{verb} INTO {table} VALUES ({','.join('?' * len(checked[0]))})", checked)

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        snapshot, records = _ENCODER.encode(checkpoint.snapshot), _ENCODER.encode(checkpoint.records)
        self._insert("checkpoints", [(checkpoint.entry, snapshot, records)], replace=True)
        # Keep the first checkpoint of each epoch, where its replay begins, and the last one.
        self._connection.execute(
            "DELETE FROM checkpoints WHERE entry < ? AND entry NOT IN (SELECT first_entry FROM epochs)",
            (checkpoint.entry,),
        )

    def add_token(self, token: StoredToken) -> None:
        row = (token.hash, token.name, token.role, token.tenant, token.user, token.created)
        self._in_transaction(lambda: self._insert("tokens", [row]))

    def remove_token(self, token_hash: str) -> None:
        self._in_transaction(lambda: self._connection.execute("DELETE FROM tokens WHERE hash=?", (token_hash,)))

    def write_environment(self, environment_id: str, user: str, variables: Mapping[str, str], stored: float) -> None:
        row = (environment_id, user, stored, _ENCODER.encode(variables))
        self._in_transaction(lambda: self._insert("environments", [row], replace=True))

    def remove_environments(self, used: Collection[str], before: float) -> None:
        """Delete environments that were stored before a time, except those in use."""
        rows = self._connection.execute("SELECT id FROM environments WHERE stored < ?", (before,)).fetchall()
        unused = [row for row in rows if row[0] not in used]
        if unused:
            self._has_deleted_secrets = True
            self._in_transaction(lambda: self._connection.executemany("DELETE FROM environments WHERE id=?", unused))
            self.purge_log()

    def purge_log(self) -> None:
        """Empty the write-ahead log if it has secrets that were deleted, unless a query reads from it now."""
        if not self._has_deleted_secrets:
            return
        try:
            self._connection.execute("PRAGMA busy_timeout=0")
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._has_deleted_secrets = bool(busy)
        except sqlite3.Error:  # such as a full disk: tried again later
            pass
        finally:
            self._connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")

    def prune(self, ended_before: float, keep: int) -> int:
        """Delete ended jobs and their events: those that ended before a time, and all but the latest `keep`.

        Returns how many were deleted: at most PRUNED_AT_ONCE, so that commits do not have to wait for long. The last
        job stays, because it has the highest number; so do those with the name of an active one: it may be of their
        array.
        """
        rows = self._connection.execute(_PRUNABLE, (ended_before, keep, PRUNED_AT_ONCE)).fetchall()
        if rows:
            self._in_transaction(lambda: self._delete_jobs(rows))
        return len(rows)

    def _delete_jobs(self, rows: Sequence[tuple[int, str]]) -> None:
        last = "(SELECT max(number) FROM events)"
        self._connection.executemany(
            f"DELETE FROM events WHERE job=? AND number < {last}", [(job_id,) for _, job_id in rows]
        )
        self._connection.executemany("DELETE FROM jobs WHERE number=?", [(number,) for number, _ in rows])

    def prune_epochs(self, before: Seconds, keep_entries: int, events_before: float) -> None:
        """Delete the epochs that ended before a time of the journal, or more than `keep_entries` entries ago.

        Their entries are deleted by `prune_journal`. Older events that belong to no job are deleted as well.
        """
        journal = self.reader.journal
        last = journal.last_entry()
        ended = [
            (epoch, following.first_entry)
            for epoch, following in pairwise(journal.epochs())
            if last - following.first_entry >= keep_entries or journal.time_of(following.first_entry) < before
        ]

        def delete() -> None:
            execute = self._connection.execute
            for epoch, end in ended:
                execute("DELETE FROM checkpoints WHERE entry >= ? AND entry < ?", (epoch.first_entry, end))
                execute("DELETE FROM epochs WHERE number=?", (epoch.number,))
            last_event = "(SELECT max(number) FROM events)"
            execute(f"DELETE FROM events WHERE job='' AND at < ? AND number < {last_event}", (events_before,))

        self._in_transaction(delete)

    def prune_journal(self) -> int:
        """Delete entries of deleted epochs; return how many: at most PRUNED_ENTRIES_AT_ONCE, see `prune`."""
        deleted = 0

        def delete() -> None:
            nonlocal deleted
            deleted = self._connection.execute(_PRUNE_JOURNAL, (PRUNED_ENTRIES_AT_ONCE,)).rowcount

        self._in_transaction(delete)
        return deleted

    def back_up(self, target: Path) -> None:
        """Copy the file while it is in use, and check the copy. Slow: call it in a thread."""
        copy_database(self.path, target)

    def write_meta(self, key: str, value: object) -> None:
        row = (key, _ENCODER.encode(value))
        self._in_transaction(lambda: self._insert("meta", [row], replace=True))

    def _in_transaction(self, work: Callable[[], object]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            work()
            if _identity(self.path) != self._identity:
                raise sqlite3.OperationalError("it was removed or replaced; what would be written now would be lost")
            self._connection.execute("COMMIT")
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK")
            raise  # a retry cannot succeed; a restarted daemon continues from the state on disk
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise Unavailable(f"{self.path} cannot be written: {error}") from error


def _row_of(new: NewJob) -> tuple[Any, ...]:
    job = new.job
    row = (new.number, job.id, new.name, job.tenant, job.user, ACTIVE, None, None, None, _ENCODER.encode(job))
    return (*row, new.request or None)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from another one in its place; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
