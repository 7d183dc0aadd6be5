"""The store: journal, jobs, events and tokens in one SQLite file. One writer; a commit that returns is on disk.

Queries are in `reader`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from refold.api import Event, JobStatus, StoredToken
from refold.core import Entry, Header
from refold.errors import BadFile, Unavailable
from refold.model import Job
from refold.server.store import schema
from refold.server.store.connections import ReadConnections
from refold.server.store.journal_reader import Checkpoint
from refold.server.store.reader import StoreReader

_ENCODER = msgspec.json.Encoder()

FILE_NAME = "refold.db"


class FolderInUse(BadFile):
    """Another process uses the state folder."""


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
        self._path = folder / FILE_NAME
        self._lock = _lock(folder)
        try:
            self._connection = self._connect()
            self._prepare()
            self._read_connections = ReadConnections(self._connect)
            self.reader = StoreReader(self._read_connections)
        except sqlite3.Error as error:
            self._lock.close()
            raise BadFile(self._path, f"cannot be opened: {error}") from None
        except BaseException:
            self._lock.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, cached_statements=256)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA busy_timeout=10000")
        connection.execute("PRAGMA secure_delete=ON")  # overwrite deleted secrets
        return connection

    def _prepare(self) -> None:
        """Create the schema in a new file; check version and integrity of an existing one."""
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            if self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise BadFile(self._path, "is not a Refold database; choose another folder with --state")
            self._connection.executescript(f"BEGIN; {schema.TABLES} PRAGMA user_version={schema.VERSION}; COMMIT;")
        elif version != schema.VERSION:
            raise BadFile(self._path, f"has schema version {version}, expected {schema.VERSION}")
        (result,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            problem = result.splitlines()[-1]
            raise BadFile(self._path, f"is corrupt: {problem}; restore a backup, or move the file away to start empty")

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

    def _write(self, commit: Commit, write: Any) -> None:
        if commit.epoch is not None:
            header = _ENCODER.encode(commit.epoch)
            write("INSERT INTO epochs (header, first_entry) VALUES (?, ?)", (header, commit.number))
        write("INSERT INTO journal VALUES (?, ?)", (commit.number, _ENCODER.encode(commit.entry)))
        if commit.jobs:
            self._connection.executemany(
                "INSERT INTO jobs (number, id, name, tenant, user, state, job, request) VALUES (?,?,?,?,?,'',?,?)",
                [_row_of(new) for new in commit.jobs],
            )
            secrets = [(new.job.id, _ENCODER.encode(new.secrets)) for new in commit.jobs if new.secrets]
            self._connection.executemany("INSERT INTO secrets VALUES (?, ?)", secrets)
        for ended in commit.ended:
            status = ended.status
            write(
                "UPDATE jobs SET state=?, ended=?, run_time=?, status=? WHERE id=?",
                (status.state, status.ended, ended.run_time, _ENCODER.encode(status), status.id),
            )
            write("DELETE FROM secrets WHERE job=?", (status.id,))
        if commit.events:
            rows = [
                (event.number, event.at, event.kind, event.job, event.run, event.text, event.tenant)
                for event in commit.events
            ]
            self._connection.executemany("INSERT INTO events VALUES (?,?,?,?,?,?,?)", rows)
        if commit.checkpoint is not None:
            self._write_checkpoint(commit.checkpoint)

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        snapshot, records = _ENCODER.encode(checkpoint.snapshot), _ENCODER.encode(checkpoint.records)
        self._connection.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?,?,?)", (checkpoint.entry, snapshot, records)
        )
        # Keep the first checkpoint of each epoch, where its replay begins, and the last one.
        self._connection.execute(
            "DELETE FROM checkpoints WHERE entry < ? AND entry NOT IN (SELECT first_entry FROM epochs)",
            (checkpoint.entry,),
        )

    def add_token(self, token: StoredToken) -> None:
        """Store a token."""
        row = (token.hash, token.name, token.role, token.tenant, token.user, token.created)
        self._in_transaction(lambda: self._connection.execute("INSERT INTO tokens VALUES (?,?,?,?,?,?)", row))

    def remove_token(self, token_hash: str) -> None:
        """Delete a token."""
        self._in_transaction(lambda: self._connection.execute("DELETE FROM tokens WHERE hash=?", (token_hash,)))

    def write_environment(self, environment_id: str, user: str, variables: Mapping[str, str], stored: float) -> None:
        """Store the environment of a user."""
        row = (environment_id, user, stored, _ENCODER.encode(variables))
        self._in_transaction(
            lambda: self._connection.execute("INSERT OR REPLACE INTO environments VALUES (?,?,?,?)", row)
        )

    def remove_environments(self, used: Collection[str], before: float) -> None:
        """Delete environments that were stored before a time, except those in use."""
        rows = self._connection.execute("SELECT id FROM environments WHERE stored < ?", (before,)).fetchall()
        unused = [row for row in rows if row[0] not in used]
        if unused:
            self._in_transaction(lambda: self._connection.executemany("DELETE FROM environments WHERE id=?", unused))

    def write_meta(self, key: str, value: object) -> None:
        """Store a value under a key."""
        row = (key, _ENCODER.encode(value))
        self._in_transaction(lambda: self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", row))

    def _in_transaction(self, work: Any) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            work()
            self._connection.execute("COMMIT")
        except sqlite3.IntegrityError:
            self._connection.execute("ROLLBACK")
            raise  # a retry cannot succeed; a restarted daemon continues from the state on disk
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise Unavailable(f"{self._path} cannot be written: {error}") from error


def _row_of(new: NewJob) -> tuple[Any, ...]:
    job = new.job
    return (new.number, job.id, new.name, job.tenant, job.user, _ENCODER.encode(job), new.request or None)


def _check_permissions(folder: Path) -> None:
    """Reject a folder that other users can access: it holds secrets.

    Its mode is not changed, since the folder may have other uses.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        raise BadFile(
            folder,
            f"is accessible to other users (mode {mode:03o}) but holds tokens and job output; run `chmod 700` on it, or"
            " choose another folder with --state",
        )


def _lock(folder: Path) -> IO[bytes]:
    """Lock the folder for this process. The lock ends with the process, even if it crashes."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_permissions(folder)
        for name in (FILE_NAME, "lock"):
            os.close(os.open(folder / name, os.O_CREAT | os.O_RDWR, 0o600))
        lock = (folder / "lock").open("wb")
    except OSError as error:
        raise BadFile(folder, f"cannot be used as the state folder: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise FolderInUse(
            folder, "is in use by another daemon; stop it, or choose another folder with --state"
        ) from None
    return lock
