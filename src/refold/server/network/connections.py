"""The open connections, and which of them may stay."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from refold.server.network.limits import ConnectionLimits


class OpenConnection(Protocol):
    @property
    def address(self) -> str:
        """The client's address, without its port."""

    def drop(self) -> None:
        """Close it at once, and remove it from the table."""


class ConnectionTable:
    """Counts connections, in total and by address. A connection idles while it has no request in progress."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.refused = 0
        self.dropped = 0
        self._limits = limits
        self._open: dict[OpenConnection, str] = {}
        self._idle: dict[OpenConnection, None] = {}
        """In the order in which they became idle."""
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: OpenConnection) -> bool:
        """Add a connection. If there are too many, drop the one that idles longest; False if none idles."""
        address = connection.address
        if address and self._by_address[address] >= self._limits.per_address and not self._drop_idle(address):
            self.refused += 1
            return False
        if len(self._open) >= self._limits.total and not self._drop_idle():
            self.refused += 1
            return False
        self._open[connection] = address
        self._by_address[address] += 1
        self._idle[connection] = None
        return True

    def mark_busy(self, connection: OpenConnection) -> None:
        """Record that a request is in progress."""
        self._idle.pop(connection, None)

    def mark_idle(self, connection: OpenConnection) -> None:
        """Record that no request is in progress."""
        if connection in self._open:
            self._idle.setdefault(connection)

    def remove(self, connection: OpenConnection) -> None:
        """Remove a connection that was closed; no effect if it was not admitted."""
        address = self._open.pop(connection, None)
        self._idle.pop(connection, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def _drop_idle(self, address: str | None = None) -> bool:
        found = next((each for each in self._idle if address is None or self._open[each] == address), None)
        if found is None:
            return False
        self.dropped += 1
        self.remove(found)
        found.drop()
        return True
