"""What the HTTP application needs of the daemon."""

from __future__ import annotations

from typing import Protocol

from refold.client.api import Service
from refold.server.http.event_stream import EventStream


class ApiService(Service, Protocol):
    """The calls, and the events that subscribers read."""

    @property
    def event_stream(self) -> EventStream:
        """The stream of events."""
