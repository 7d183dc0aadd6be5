"""HTTP over ASGI: read request bodies with a size and time limit, send replies and streams."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from refold.client.api import HTTP_STATUS, MAX_BODY_BYTES, MAX_REQUEST_BYTES, Problem
from refold.errors import BadField, RefoldError, TooLarge

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
LISTENER_TIMEOUT = 60.0
"""Seconds within which the client of a stream has to accept a chunk."""

MAX_DISCARDED_BYTES = MAX_REQUEST_BYTES
"""Bytes of an oversized body that are read and discarded."""


_LOG = logging.getLogger("refold.server.http")


class BodyLimits(NamedTuple):
    """Maximum size of a request body, and seconds within which all of it has to arrive."""

    size: int = MAX_BODY_BYTES
    seconds: float = 30.0


DEFAULT_BODY_LIMITS = BodyLimits()


MIN_COMPRESSED_BYTES = 2048
MAX_BYTES_IN_LOOP = 128 * 1024
"""Larger answers are compressed in a thread."""


class HttpError(RefoldError):
    """An error that exists only at the HTTP level, with its status and extra headers."""

    def __init__(self, status: int, problem: str, **headers: str) -> None:
        super().__init__(problem)
        self.status = status
        self.headers = headers


class Request(NamedTuple):
    """A request as an ASGI application gets it, with the values of its path parameters."""

    scope: Scope
    receive: Receive
    send: Send
    path_values: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True):
    """A complete HTTP response."""

    status: int
    body: bytes = b""
    media: str = JSON
    headers: dict[str, str] = {}


def header(scope: Scope, name: bytes) -> str | None:
    """Return a header's value, or None. Duplicates are rejected: a proxy might have used the other value."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise HttpError(400, f"the header {name.decode()} occurs {len(values)} times, expected once")
    return values[0].decode("latin-1") if values else None


def check_content_type(scope: Scope) -> None:
    """Reject a body that is not JSON. Web pages of other sites cannot send that type without asking first."""
    media = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if media != JSON:
        raise HttpError(415, f"Content-Type is {media[:128] or 'absent'!r}, expected {JSON}")


def accepts_gzip(scope: Scope) -> bool:
    """Whether a client asks for compressed answers, as browsers do."""
    values = b",".join(value for key, value in scope["headers"] if key == b"accept-encoding")
    codings = [coding.partition(b";") for coding in values.lower().split(b",")]
    return any(name.strip() == b"gzip" and quality.strip() not in (b"q=0", b"q=0.0") for name, _, quality in codings)


async def compress(scope: Scope, reply: Reply) -> Reply:
    """Return a long JSON answer compressed, if the client accepts that."""
    if reply.media != JSON or len(reply.body) < MIN_COMPRESSED_BYTES or not accepts_gzip(scope):
        return reply
    level, body = 1, reply.body
    small = (
        gzip.compress(body, level)
        if len(body) <= MAX_BYTES_IN_LOOP
        else await asyncio.to_thread(gzip.compress, body, level)
    )
    headers = {**reply.headers, "content-encoding": "gzip", "vary": "accept-encoding"}
    return Reply(reply.status, small, reply.media, headers)


class UnreadBody(TooLarge):
    """A body is too large, and has not arrived completely."""


async def read_body(request: Request, limits: BodyLimits = DEFAULT_BODY_LIMITS) -> bytes:
    """Read the whole request body, unless it is declared to be too large."""
    if int(header(request.scope, b"content-length") or 0) > limits.size:
        raise UnreadBody(_too_large(limits))
    first = await request.receive()
    if not first.get("more_body"):  # as nearly always: without the cost of a timer
        return await _read_chunks(first, request.receive, limits)
    try:
        async with asyncio.timeout(limits.seconds):
            return await _read_chunks(first, request.receive, limits)
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {limits.seconds:g} s", connection="close") from None


async def _read_chunks(message: MutableMapping[str, Any], receive: Receive, limits: BodyLimits) -> bytes:
    body = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limits.size:
            raise (UnreadBody if more else TooLarge)(_too_large(limits))
        if not more:
            return bytes(body)
        message = await receive()


def _too_large(limits: BodyLimits) -> str:
    return f"the body has more than {limits.size:,} bytes"


def reply_to_error(error: Exception) -> Reply:
    """Return the reply for an error. Internal errors are logged, and not disclosed."""
    headers: dict[str, str] = {}
    if isinstance(error, HttpError):
        status, headers = error.status, error.headers
    else:
        status = next((status for kind, status in HTTP_STATUS.items() if isinstance(error, kind)), 500)
    if status == 500:
        _LOG.error("an API call failed with an internal error", exc_info=error)
        return Reply(500, msgspec.json.encode(Problem("internal error; see the daemon's log")))
    if status == 401:
        headers = {"www-authenticate": 'Bearer realm="refold"'}
    if status == 413:
        headers = {"connection": "close"}
    problem = Problem(str(error), error.field if isinstance(error, BadField) else "")
    return Reply(status, msgspec.json.encode(problem), headers=headers)


def response_start(status: int, media: str, length: int | None, headers: dict[str, str]) -> dict[str, Any]:
    lines = [(b"x-content-type-options", b"nosniff")]
    if "cache-control" not in headers:
        lines.append((b"cache-control", b"no-store"))
    if status not in (204, 304):  # these responses must not have a body
        lines.append((b"content-type", media.encode()))
        if length is not None:
            lines.append((b"content-length", b"%d" % length))
    lines += [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": lines}


async def send_reply(send: Send, reply: Reply, *, without_body: bool = False, is_complete: bool = True) -> None:
    """Send a complete response; if it is not to be complete, `discard_body` completes it."""
    await send(response_start(reply.status, reply.media, len(reply.body), reply.headers))
    body = b"" if without_body else reply.body
    await send({"type": "http.response.body", "body": body, "more_body": not is_complete})


async def discard_body(receive: Receive, send: Send, limits: BodyLimits) -> None:
    """Read the rest of a body, then complete the response: clients read a reply after they have sent their request.

    The reply to a client whose connection is closed while it is still sending would be lost.
    """
    length, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.seconds):
            while more and length <= MAX_DISCARDED_BYTES:
                message = await receive()
                length += len(message.get("body", b""))
                more = message.get("more_body", False)
    await send({"type": "http.response.body", "body": b""})


async def send_stream(request: Request, media: str, chunks: AsyncGenerator[bytes, None]) -> Reply | None:
    """Send a streamed response until it ends or the client disconnects. Return the answer to a HEAD request instead."""
    if request.scope["method"] == "HEAD":
        await chunks.aclose()
        return Reply(200, media=media)
    sending = asyncio.create_task(_send_chunks(request.send, media, chunks))
    disconnect = asyncio.create_task(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((sending, disconnect), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, disconnect):
            task.cancel()
        results = await asyncio.gather(sending, disconnect, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, OSError):
            raise result
    return None


async def _send_chunks(send: Send, media: str, chunks: AsyncGenerator[bytes, None]) -> None:
    async with aclosing(chunks):
        await send(response_start(200, media, None, {}))
        async for chunk in chunks:
            async with asyncio.timeout(LISTENER_TIMEOUT):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def unless_disconnected(receive: Receive, answer: Awaitable[T]) -> T:
    """Return an answer. If the client disconnects before, cancel what makes it, and raise ConnectionResetError."""
    work, disconnect = asyncio.ensure_future(answer), asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ConnectionResetError
        return work.result()
    finally:
        for task in (work, disconnect):
            task.cancel()
        await asyncio.gather(work, disconnect, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def handle_non_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Acknowledge the server's lifespan events and reject WebSocket connections."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
