"""Limits of the HTTP server: connections, and what a client may send in which time."""

from __future__ import annotations

import msgspec

from refold.model import Seconds
from refold.server.config import MIN_CONNECTIONS, HttpConfig

MAX_CONNECTIONS = 1_024
"""Unless the configuration says otherwise."""

MAX_BACKLOG = 512
MIN_BACKLOG = 16

RESERVED_DESCRIPTORS = 128
"""File descriptors that connections leave to the store, to runs, and to everything else."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What the HTTP server allows. A connection beyond `total` or `per_address` replaces the one that idles longest.

    `header_bytes`: of the request line and all headers. `framing_bytes`: of a body, beyond its content. `pipelined`:
    requests that wait for the answer to an earlier one. `backlog`: connections that may wait to be accepted; a burst
    can exceed the limits by this number for a moment. Times are for sending all headers, for sending the body (more
    than in the API, which then has answered), and for accepting some of the answer; `idle_seconds`: between requests.
    """

    total: int = MAX_CONNECTIONS
    per_address: int = MAX_CONNECTIONS // 2
    header_bytes: int = 32 * 1024
    headers: int = 100
    framing_bytes: int = 64 * 1024
    pipelined: int = 8
    backlog: int = MAX_BACKLOG
    header_seconds: Seconds = 10.0
    body_seconds: Seconds = 45.0
    write_seconds: Seconds = 60.0
    idle_seconds: Seconds = 5.0


def limits_for(descriptors: int, config: HttpConfig) -> ConnectionLimits:
    """Return limits for a process with this number of file descriptors, most of the rest being for runs."""
    backlog = max(MIN_BACKLOG, min(MAX_BACKLOG, descriptors // 4))
    possible = max(MIN_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS - backlog)
    total = min(config.connections or MAX_CONNECTIONS, possible)
    return ConnectionLimits(
        total,
        min(max(MIN_CONNECTIONS, total // 2), total),
        backlog=backlog,
    )


def describe_fewer_connections(limits: ConnectionLimits, config: HttpConfig) -> str:
    """Return a note for the operator if fewer connections are possible than are configured, or ''."""
    if limits.total >= (config.connections or 0):
        return ""
    return (
        f"http.connections is {config.connections:,}, but only {limits.total:,} are possible with the limit of file"
        " descriptors (ulimit -n)"
    )
