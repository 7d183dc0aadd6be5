"""Checksums of rows, so that damage to stored values is noticed: SQLite itself checks only the structure of a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from zlib import crc32

COLUMN = "checksum"
"""The last column of every table that is checked."""

SCHEMA_KEY = "schema_checksum"
"""Key in the table `meta`."""

_SIZES = [size.to_bytes(8, "little") for size in range(1024)]
"""Most sizes of values, encoded once: all rows are checked at every start."""


def row_checksum(*values: str | bytes | float | None) -> int:
    """Return the CRC-32 of the values of a row. Integers equal to floats have the same: columns convert them."""
    parts: list[bytes] = []
    for value in values:
        encoded = value if type(value) is bytes else _encode(value)
        size = len(encoded)
        parts += (_SIZES[size] if size < len(_SIZES) else size.to_bytes(8, "little"), encoded)
    return crc32(b"".join(parts))


def _encode(value: str | bytes | float | None) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else repr(float(value)).encode()


def register(connection: sqlite3.Connection) -> None:
    """Let a connection compute checksums in queries: checksum(a, b, …)."""
    connection.create_function(COLUMN, -1, row_checksum, deterministic=True)


def checked_tables(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield each table with checksums, and its other columns, comma-separated."""
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name").fetchall():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if columns[-1] == COLUMN:
            yield table, ", ".join(columns[:-1])


def schema_checksum(connection: sqlite3.Connection) -> int:
    """Return the checksum of the definitions of all tables, indexes and triggers."""
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return row_checksum(*(value for row in rows for value in row))


def seal_schema(connection: sqlite3.Connection) -> None:
    """Store the checksum of the definitions, after they were written."""
    row = (SCHEMA_KEY, str(schema_checksum(connection)).encode())
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (*row, row_checksum(*row)))


def _is_sealed_schema(connection: sqlite3.Connection) -> bool:
    """Return whether the definitions are those that were written; databases before version 5 have no seal."""
    row = connection.execute("SELECT value FROM meta WHERE key=?", (SCHEMA_KEY,)).fetchone()
    return row is None or row[0] == str(schema_checksum(connection)).encode()


def find_damage(connection: sqlite3.Connection) -> str:
    """Check the structure of a database, its indexes and the checksums of all rows; return the first problem, or ''."""
    try:
        (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if result != "ok":
            return str(result.splitlines()[-1])
        if not _is_sealed_schema(connection):
            return "the definitions of its tables have another checksum than when they were written"
        for table, columns in checked_tables(connection):
            damaged = f"SELECT {columns.split(',')[0]} FROM {table} WHERE {COLUMN} <> checksum({columns}) LIMIT 1"
            row = connection.execute(damaged).fetchone()
            if row is not None:
                return f"row {row[0]} of table {table} has another checksum than when it was written"
    except sqlite3.Error as error:  # damaged text, or pages that are not found by the check
        return str(error)
    return ""
