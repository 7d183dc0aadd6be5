"""Limits of the HTTP server (`http` in `refold.yaml`)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from refold.client.api import MAX_BODY_BYTES, MAX_REQUEST_BYTES
from refold.errors import BadValue
from refold.model import HOUR
from refold.model.documents import PositiveDuration
from refold.server.config.values import Size

MIN_CONNECTIONS = 16
"""Fewer are never enforced: a web UI and some commands need them."""

MAX_HEADER_BYTES = 2**20

Connections = Annotated[int, Meta(ge=MIN_CONNECTIONS, le=65_536, description="a number from 16 to 65536")]
Timeout = Annotated[PositiveDuration, Meta(le=HOUR, description="a duration of at most an hour, such as 10s")]


class HttpConfig(msgspec.Struct, frozen=True):
    """What clients may do. `connections`: None: 1024, or fewer if the process has few file descriptors.

    `connections_per_address`: None: half of them. `header_size`: of the request line and all headers. Times are for
    sending all headers, for sending the body, and for accepting some of the answer; `idle_timeout`: between requests.
    """

    connections: Connections | None = None
    connections_per_address: Connections | None = None
    header_size: Size = 32 * 1024
    headers: Annotated[int, Meta(ge=20, le=10_000, description="a number of headers from 20 to 10000")] = 100
    body_size: Size = MAX_BODY_BYTES
    header_timeout: Timeout = 10.0
    body_timeout: Timeout = 30.0
    write_timeout: Timeout = 60.0
    idle_timeout: Timeout = 5.0

    def __post_init__(self) -> None:
        if (self.connections_per_address or 0) > (self.connections or 65_536):
            raise BadValue(
                f"connections_per_address is {self.connections_per_address}, expected at most connections,"
                f" {self.connections}"
            )
        if self.header_size > MAX_HEADER_BYTES:
            raise BadValue("header_size is too large, expected 4KiB to 1MiB")
        if self.body_size > MAX_REQUEST_BYTES:
            raise BadValue("body_size is too large, expected 4KiB to 8MiB")
