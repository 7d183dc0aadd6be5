"""HTTP connections with limits on size and time, on top of uvicorn's parser."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from functools import partial
from typing import Any, Literal, cast

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from refold.client import peer_uid
from refold.client.api import Problem
from refold.server.http import UNIX_CLIENT
from refold.server.network.connections import ConnectionTable
from refold.server.network.limits import ConnectionLimits
from refold.server.network.turnstile import Turnstile

SLICE_BYTES = 16 * 1024
"""Received bytes are parsed in slices of this size, so that limits are checked in between."""

HEADER_FRAMING_BYTES = len(": \r\n")

REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}

Phase = Literal["headers", "body", "complete"]


class LimitExceeded(Exception):
    """Ends the parsing of a request that exceeds a limit."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Its deadline is that of what it waits for: headers, the rest of a body, or room for an answer."""

    def __init__(self, table: ConnectionTable, limits: ConnectionLimits, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._table = table
        self._limits = limits
        self._phase: Phase = "headers"
        self._requests = 0
        self._header_count = self._header_bytes = 0
        self._unparsed = 0
        """Bytes of this request so far, without the content of its body."""
        self._problem: tuple[int, str] | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._deadline_of: tuple[int, Phase] | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """The client's address, without its port; its user, for a Unix socket."""
        if self.client is None:
            return ""
        return f"{UNIX_CLIENT} {self.client[1]}" if self.client[0] == UNIX_CLIENT else self.client[0]

    def drop(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        uid = read_peer_uid(transport.get_extra_info("socket"))
        if uid is not None:
            self.client = (UNIX_CLIENT, uid)
        if self._table.admit(self):
            self._watch_reading()
        else:
            self._reject(503, "too many connections; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.remove(self)
        self._cancel_reading()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            part = data[start : start + SLICE_BYTES]
            self._unparsed += len(part)
            super().data_received(part)
            self._check_size()
        self._watch_reading()

    def pause_writing(self) -> None:
        """Wait until the client has accepted some of the answer."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self._limits.write_seconds, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its client has not read all answers."""
        self.drop()

    # Called by the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = "headers"
        self._header_count = self._header_bytes = 0
        self._requests += 1

    def on_url(self, url: bytes) -> None:
        """Count a part of the request line."""
        self._count_header_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        self._count_header_bytes(len(name) + len(value) + HEADER_FRAMING_BYTES)
        if self._header_count > self._limits.headers:
            self._fail(431, f"more than {self._limits.headers} headers")
        super().on_header(name, value)

    def _count_header_bytes(self, size: int) -> None:
        self._header_bytes += size
        if self._phase == "headers" and self._header_bytes > self._limits.header_bytes:
            self._fail(431, f"the headers have more than {self._limits.header_bytes:,} bytes")

    def on_headers_complete(self) -> None:
        """Begin to answer, if no earlier request is being answered."""
        if len(self.pipeline) >= self._limits.pipelined:
            self._fail(400, f"more than {self._limits.pipelined} requests without waiting for an answer")
        self._phase, self._unparsed = "body", 0
        self._table.mark_busy(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase, self._unparsed = "complete", 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # of the latest request
            self._table.mark_idle(self)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, or exceeds a limit."""
        status, text = self._problem or (400, msg)
        self._reject(status, text)

    # Limits.

    def _check_size(self) -> None:
        limits = self._limits
        if self._phase == "body":
            if self._unparsed > limits.framing_bytes:
                self._reject(400, "the body has too many small chunks, or trailers")
        elif self._unparsed > limits.header_bytes:
            self._reject(431, f"the headers have more than {limits.header_bytes:,} bytes")

    def _fail(self, status: int, text: str) -> None:
        """End parsing; `send_400_response` answers."""
        self._problem = (status, text)
        raise LimitExceeded(text)

    def _reject(self, status: int, text: str) -> None:
        """Close the connection, with an answer if none is being sent."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if self.pipeline or self._phase != "body" or self.cycle.response_started:
                self.drop()
                return
            self.cycle.disconnected = True  # its answer is this one
            self.cycle.message_event.set()
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        body = msgspec.json.encode(Problem(text))
        self.transport.write(head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        self.transport.close()

    def _watch_reading(self) -> None:
        """Set the deadline of what is to be received next, unless it is set."""
        if self.transport.is_closing():
            return
        if self._phase == "complete" and not self._has_lost_idle_timer():
            self._cancel_reading()
        elif self._read_deadline is None or self._deadline_of != (self._requests, self._phase):
            self._cancel_reading()
            limits = self._limits
            seconds = limits.body_seconds if self._phase == "body" else limits.header_seconds
            self._read_deadline = self.loop.call_later(seconds, self._time_out)
            self._deadline_of = (self._requests, self._phase)

    def _has_lost_idle_timer(self) -> bool:
        """Whether bytes that are no request have ended uvicorn's timer of an idle connection."""
        return self.cycle.response_complete and self.timeout_keep_alive_task is None

    def _cancel_reading(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None

    def _time_out(self) -> None:
        self._read_deadline = None
        self._reject(408, f"the {'body' if self._phase == 'body' else 'headers'} did not arrive in time")


def read_peer_uid(connection: Any) -> int | None:
    """Return the uid of the process that has connected a Unix socket, as the kernel tells; None for other sockets."""
    if connection.family != socket.AF_UNIX:
        return None
    with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        return peer_uid(duplicate)


GRACEFUL_SHUTDOWN_SECONDS = 3


def make_http_server(app: Any, limits: ConnectionLimits, table: ConnectionTable) -> uvicorn.Server:
    logging.getLogger("uvicorn.error").setLevel(
        logging.ERROR
    )  # its warnings are about requests: anybody can cause them
    protocol = cast(Any, partial(LimitedProtocol, table, limits))
    config = uvicorn.Config(
        Turnstile(app),
        http=protocol,
        lifespan="off",
        access_log=False,
        log_config=None,
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=cast(int, limits.idle_seconds),  # of a timer, which may be a fraction
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_SECONDS,
        backlog=limits.backlog,
    )
    return uvicorn.Server(config)
