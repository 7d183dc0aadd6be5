"""Connections to the Unix socket: the kernel tells who is at the other end."""

from __future__ import annotations

import os
import socket
from typing import Any

from refold.client import peer_uid


def read_peer_uid(connection: Any) -> int | None:
    """Return the uid of the process that has connected a Unix socket; None for other sockets."""
    if connection.family != socket.AF_UNIX:
        return None
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        return peer_uid(duplicate)
