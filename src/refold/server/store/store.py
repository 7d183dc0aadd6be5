"""The one file that a daemon keeps: journal, jobs, events, tokens. One writer; a commit that returns is on disk.

What is in it is read by `reading`.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from refold.api import Event, JobStatus, StoredToken
from refold.core import Entry, Header
from refold.errors import BadFile, Unavailable
from refold.model import Job
from refold.server.store import schema
from refold.server.store.reader import Checkpoint, StoreReader

_ENCODER = msgspec.json.Encoder()

NAME = "refold.db"


class NewJob(msgspec.Struct, frozen=True):
    """A row for a job that was accepted."""

    number: int
    name: str
    job: Job
    request: str
    secrets: dict[str, str]


class EndedJob(msgspec.Struct, frozen=True):
    """What is kept of a job for ever; `lasted`: None, if it did not come to an end of its own."""

    status: JobStatus
    lasted: float | None


class Commit(msgspec.Struct):
    """Everything that one step leaves behind; all of it or nothing is on disk."""

    entry: int
    written: Entry
    jobs: list[NewJob] = []
    ended: list[EndedJob] = []
    events: list[Event] = []
    epoch: Header | None = None
    checkpoint: Checkpoint | None = None


class Store:
    """The file. Opened by one daemon at a time; writes come from one thread, reads from any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / NAME
        self._lock = _lock(folder)
        try:
            self._writer = self._connect()
            self._prepare()
            self.reading = StoreReader(self._connect)
        except sqlite3.Error as error:
            self._lock.close()
            raise BadFile(self._path, f"cannot be used: {error}") from None
        except BaseException:
            self._lock.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, cached_statements=256)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA busy_timeout=10000")
        connection.execute("PRAGMA secure_delete=ON")  # of secrets that are over nothing is left in the file
        return connection

    def _prepare(self) -> None:
        """Make the tables of a new file; know an old one."""
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        if version == 0:
            if self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise BadFile(self._path, "is a database of something else; name another folder with --state")
            self._writer.executescript(f"BEGIN; {schema.TABLES} PRAGMA user_version={schema.VERSION}; COMMIT;")
        elif version != schema.VERSION:
            raise BadFile(self._path, f"has tables of version {version}, expected {schema.VERSION}")
        (sound,) = self._writer.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            what = sound.splitlines()[-1]
            raise BadFile(self._path, f"is damaged: {what}; put a copy of it back, or move it away to begin anew")

    def close(self) -> None:
        """Let another daemon have it."""
        self.reading.close()
        self._writer.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Writing.

    def commit(self, commit: Commit) -> None:
        """Write a step down; when this returns it is on disk. Unavailable: nothing of it is."""
        write = self._writer.execute
        self._all_or_nothing(lambda: self._write(commit, write))

    def _write(self, commit: Commit, write: Any) -> None:
        if commit.epoch is not None:
            header = _ENCODER.encode(commit.epoch)
            write("INSERT INTO epochs (header, first) VALUES (?, ?)", (header, commit.entry))
        write("INSERT INTO journal VALUES (?, ?)", (commit.entry, _ENCODER.encode(commit.written)))
        if commit.jobs:
            self._writer.executemany(
                "INSERT INTO jobs (number, id, name, tenant, user, state, job, request) VALUES (?,?,?,?,?,'',?,?)",
                [_row_of(new) for new in commit.jobs],
            )
            hidden = [(new.job.id, _ENCODER.encode(new.secrets)) for new in commit.jobs if new.secrets]
            self._writer.executemany("INSERT INTO secrets VALUES (?, ?)", hidden)
        for ended in commit.ended:
            status = ended.status
            write(
                "UPDATE jobs SET state=?, ended=?, lasted=?, status=? WHERE id=?",
                (status.state, status.ended, ended.lasted, _ENCODER.encode(status), status.id),
            )
            write("DELETE FROM secrets WHERE job=?", (status.id,))
        if commit.events:
            rows = [(one.number, one.at, one.kind, one.job, one.run, one.text, one.tenant) for one in commit.events]
            self._writer.executemany("INSERT INTO events VALUES (?,?,?,?,?,?,?)", rows)
        if commit.checkpoint is not None:
            self._write_checkpoint(commit.checkpoint)

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        snapshot, records = _ENCODER.encode(checkpoint.snapshot), _ENCODER.encode(checkpoint.records)
        self._writer.execute("INSERT OR REPLACE INTO checkpoints VALUES (?,?,?)", (checkpoint.entry, snapshot, records))
        # The first of a epoch is where its replay begins; of the others only the last is of use.
        self._writer.execute(
            "DELETE FROM checkpoints WHERE entry < ? AND entry NOT IN (SELECT first FROM epochs)", (checkpoint.entry,)
        )

    def add_token(self, known: StoredToken) -> None:
        """Keep a token's hash."""
        row = (known.hash, known.name, known.role, known.tenant, known.user, known.created)
        self._all_or_nothing(lambda: self._writer.execute("INSERT INTO tokens VALUES (?,?,?,?,?,?)", row))

    def remove_token(self, hashed: str) -> None:
        """Forget it."""
        self._all_or_nothing(lambda: self._writer.execute("DELETE FROM tokens WHERE hash=?", (hashed,)))

    def remember(self, key: str, value: object) -> None:
        """Keep something by its name."""
        row = (key, _ENCODER.encode(value))
        self._all_or_nothing(lambda: self._writer.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", row))

    def _all_or_nothing(self, work: Any) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            work()
            self._writer.execute("COMMIT")
        except sqlite3.IntegrityError:
            self._writer.execute("ROLLBACK")
            raise  # it could never be written, so trying again is of no use: a restart stands where the disk does
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            raise Unavailable(f"{self._path} cannot be written: {error}") from error


def _row_of(new: NewJob) -> tuple[Any, ...]:
    job = new.job
    return (new.number, job.id, new.name, job.tenant, job.user, _ENCODER.encode(job), new.request or None)


def _refuse_if_open_to_others(folder: Path) -> None:
    """Output, the owner's token and everybody's secrets are in it. It may be somebody's, so its mode is not changed."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        raise BadFile(
            folder,
            f"is open to others (mode {mode:03o}), and tokens and output are kept in it: `chmod 700` it, or name"
            " another folder with --state",
        )


def _lock(folder: Path) -> IO[bytes]:
    """One daemon at a time. The lock goes with the process that has it, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_if_open_to_others(folder)
        for name in (NAME, "lock"):
            os.close(os.open(folder / name, os.O_CREAT | os.O_RDWR, 0o600))
        lock = (folder / "lock").open("wb")
    except OSError as error:
        raise BadFile(folder, f"cannot be used for the daemon's state: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise BadFile(
            folder, "another daemon uses it already; stop that one, or name another folder with --state"
        ) from None
    return lock
