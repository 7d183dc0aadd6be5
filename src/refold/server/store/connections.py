"""Connections to the SQLite file for queries."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any


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
