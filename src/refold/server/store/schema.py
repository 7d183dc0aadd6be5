"""The schema of the store. `checksum`, the last column: of the others, see `checksums`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from refold.server.store.checksums import COLUMN, seal_schema

VERSION = 5

ENVIRONMENTS_OF_VERSION_4 = """
CREATE TABLE IF NOT EXISTS environments (
    id TEXT PRIMARY KEY, user TEXT NOT NULL, stored REAL NOT NULL, variables BLOB NOT NULL
)
"""

ENDED_COUNTS = (
    """
-- Number of ended jobs by the columns that queries filter by, so that totals need no scan.
CREATE TABLE ended_counts (
    name TEXT NOT NULL, tenant TEXT NOT NULL, user TEXT NOT NULL, state TEXT NOT NULL, jobs INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (name, tenant, user, state)
) WITHOUT ROWID
""",
    """
CREATE TRIGGER count_inserted AFTER INSERT ON jobs WHEN NEW.ended IS NOT NULL BEGIN
    INSERT INTO ended_counts
    VALUES (NEW.name, NEW.tenant, NEW.user, NEW.state, 1, checksum(NEW.name, NEW.tenant, NEW.user, NEW.state, 1))
    ON CONFLICT DO UPDATE SET jobs = jobs + 1, checksum = checksum(name, tenant, user, state, jobs + 1);
END
""",
    """
CREATE TRIGGER count_ended AFTER UPDATE OF ended ON jobs WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL BEGIN
    INSERT INTO ended_counts
    VALUES (NEW.name, NEW.tenant, NEW.user, NEW.state, 1, checksum(NEW.name, NEW.tenant, NEW.user, NEW.state, 1))
    ON CONFLICT DO UPDATE SET jobs = jobs + 1, checksum = checksum(name, tenant, user, state, jobs + 1);
END
""",
    """
CREATE TRIGGER count_deleted AFTER DELETE ON jobs WHEN OLD.ended IS NOT NULL BEGIN
    UPDATE ended_counts SET jobs = jobs - 1, checksum = checksum(name, tenant, user, state, jobs - 1)
    WHERE name = OLD.name AND tenant = OLD.tenant AND user = OLD.user AND state = OLD.state;
END
""",
)
"""Number of ended jobs by the columns that queries filter by, so that totals need no scan."""

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;

-- A part of the journal that replays on its own. A new one begins when the policy, its settings or the cluster change,
-- or when the last one is too long to replay.
CREATE TABLE epochs (
    number INTEGER PRIMARY KEY, header BLOB NOT NULL, first_entry INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE journal (number INTEGER PRIMARY KEY, entry BLOB NOT NULL, checksum INTEGER NOT NULL);
-- The state after an entry: recovery reads only the entries after the last checkpoint.
CREATE TABLE checkpoints (
    entry INTEGER PRIMARY KEY, snapshot BLOB NOT NULL, records BLOB NOT NULL, checksum INTEGER NOT NULL
);

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    state TEXT NOT NULL,  -- '' while the job is active
    ended REAL,
    run_time REAL,  -- seconds of all its runs; NULL if it was cancelled
    status BLOB,  -- final status, once it has ended
    job BLOB NOT NULL,
    request TEXT UNIQUE,
    checksum INTEGER NOT NULL
);
CREATE INDEX jobs_by_name ON jobs (name);
CREATE INDEX jobs_by_name_and_end ON jobs (name, ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_tenant ON jobs (tenant, ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_user ON jobs (user, ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_state ON jobs (state, ended) WHERE ended IS NOT NULL;

{";".join(ENDED_COUNTS)};
CREATE TABLE events (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, job TEXT NOT NULL, run INTEGER NOT NULL,
    text TEXT NOT NULL, tenant TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX events_by_job ON events (job, number);

CREATE TABLE tokens (
    hash TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, role TEXT NOT NULL, tenant TEXT NOT NULL, user TEXT NOT NULL,
    created REAL NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE secrets (job TEXT PRIMARY KEY, variables BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
-- Environments of submitters. The jobs that inherit one name its id.
CREATE TABLE environments (
    id TEXT PRIMARY KEY, user TEXT NOT NULL, stored REAL NOT NULL, variables BLOB NOT NULL, checksum INTEGER NOT NULL
);
"""


def _to_5(connection: sqlite3.Connection) -> None:
    """Add checksums; and environments, which the first databases of version 4 do not have."""
    connection.execute(ENVIRONMENTS_OF_VERSION_4)
    for table in ("meta", "epochs", "journal", "checkpoints", "jobs", "events", "tokens", "secrets", "environments"):
        columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {COLUMN} INTEGER NOT NULL DEFAULT 0")
        connection.execute(f"UPDATE {table} SET {COLUMN}=checksum({columns})")
    for trigger in ("count_inserted", "count_ended", "count_deleted"):
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute("DROP TABLE ended_counts")
    for statement in ENDED_COUNTS:
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
        for before in range(version, VERSION):
            MIGRATIONS[before](connection)
        seal_schema(connection)
        connection.execute(f"PRAGMA user_version={VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
