"""Backups of the store: copies of the SQLite file that were found intact."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from refold.errors import BadFile
from refold.server.store.checksums import find_damage, register

BACKUPS_FOLDER = "backups"
_PAGES_AT_ONCE = 256
_PAUSE_SECONDS = 0.005
"""A backup is made in steps, with pauses in which the daemon can write."""


def backup_name(now: datetime) -> str:
    """Return a file name that sorts by time."""
    return f"refold-{now.astimezone(UTC):%Y%m%d-%H%M%S}.db"


def list_backups(folder: Path) -> list[Path]:
    """Return the backups of a state folder, the newest first."""
    return sorted((folder / BACKUPS_FOLDER).glob("refold-*.db"), reverse=True)


def copy_database(source: Path, target: Path) -> None:
    """Copy a database, which may be in use, and check the copy. Raises BadFile if it cannot be made or is damaged."""
    if target.exists():
        raise BadFile(target, "already exists")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(part, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600))
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as reader,
            closing(sqlite3.connect(part)) as copy,
        ):
            reader.backup(copy, pages=_PAGES_AT_ONCE, sleep=_PAUSE_SECONDS)
            copy.execute("PRAGMA journal_mode=DELETE")
            register(copy)
            problem = find_damage(copy)
        if problem:
            raise BadFile(source, f"is damaged: {problem}")
        _sync(part)
        part.rename(target)
    except sqlite3.Error as error:
        raise BadFile(source, f"cannot be copied: {error}") from None
    except OSError as error:
        raise BadFile(target, f"cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


def restore_database(backup: Path, database: Path, now: datetime) -> Path | None:
    """Replace a database that is not in use by a backup; return where it was moved to, None if there was none."""
    if not backup.is_file():
        raise BadFile(backup, "is not a file")
    part = database.with_name(database.name + ".restored")
    part.unlink(missing_ok=True)
    copy_database(backup, part)
    kept = None
    if database.exists() and database.stat().st_size:
        kept = database.with_name(f"{database.name}.before-{now.astimezone(UTC):%Y%m%d-%H%M%S}")
        database.rename(kept)
    for suffix in ("-wal", "-shm"):  # of the file before
        extra = database.with_name(database.name + suffix)
        if extra.exists():
            shutil.move(extra, f"{kept}{suffix}") if kept is not None else extra.unlink()
    part.rename(database)
    _sync(database.parent)
    return kept


def remove_old_backups(folder: Path, keep: int) -> None:
    for path in list_backups(folder)[keep:]:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
