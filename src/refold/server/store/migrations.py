"""Migrations of databases that earlier versions of Refold have written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from refold.server.store import schema
from refold.server.store.checksums import COLUMN, seal_schema


def _to_5(connection: sqlite3.Connection) -> None:
    """Add checksums; and environments, which the first databases of version 4 do not have."""
    connection.execute(schema.ENVIRONMENTS_OF_VERSION_4)
    for table in ("meta", "epochs", "journal", "checkpoints", "jobs", "events", "tokens", "secrets", "environments"):
        columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {COLUMN} INTEGER NOT NULL DEFAULT 0")
        connection.execute(f"UPDATE {table} SET {COLUMN}=checksum({columns})")
    for trigger in ("count_inserted", "count_ended", "count_deleted"):
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute("DROP TABLE ended_counts")
    for statement in schema.ENDED_COUNTS:
        connection.execute(statement)
    connection.execute(
        "INSERT INTO ended_counts SELECT name, tenant, user, state, jobs, checksum(name, tenant, user, state, jobs)"
        " FROM (SELECT name, tenant, user, state, count(*) AS jobs FROM jobs WHERE ended IS NOT NULL"
        " GROUP BY name, tenant, user, state)"
    )


MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {4: _to_5}
"""By version: the migration to the next one. Databases of versions 1 to 3 were never released."""


def can_migrate(version: int) -> bool:
    """Return whether a database of this version can be brought to the current one."""
    return version in MIGRATIONS


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring a database of an earlier version to the current one, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for before in range(version, schema.VERSION):
            MIGRATIONS[before](connection)
        seal_schema(connection)
        connection.execute(f"PRAGMA user_version={schema.VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
