"""HTTP as an ASGI server hands it over: bodies with an end, answers, and streams whose listeners may vanish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

import msgspec

from refold.api.calls import LARGEST_BODY, STATUSES
from refold.api.wire import Problem
from refold.errors import BadField, RefoldError, TooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
SLOWEST_BODY = 30.0
SLOWEST_LISTENER = 60.0
"""Seconds in which a listener has to take something that it was sent."""

MOST_THROWN_AWAY = 8 * LARGEST_BODY
"""Bytes of a body that is too large which are read all the same: who is still sending would not hear the answer."""


class HttpError(RefoldError):
    """An error that is one of HTTP only: it has a status of its own, and perhaps headers."""

    def __init__(self, status: int, problem: str, **headers: str) -> None:
        super().__init__(problem)
        self.status = status
        self.headers = headers


class Reply(msgspec.Struct, frozen=True):
    """What is answered."""

    status: int
    body: bytes = b""
    media: str = JSON
    headers: dict[str, str] = {}


def header(scope: Scope, name: bytes) -> str | None:
    """The header of a name. Two are refused: who else reads them may take the other one."""
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise HttpError(400, f"the header {name.decode()} is there {len(found)} times, expected it once")
    return found[0].decode("latin-1") if found else None


async def read_body(receive: Receive) -> bytes:
    """The whole body, however it comes, unless it is too large."""
    message = await receive()
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise _too_large()
        return body
    try:
        async with asyncio.timeout(SLOWEST_BODY):
            return await _joined(message, receive)
    except TimeoutError:
        raise HttpError(408, f"the body has not come in {SLOWEST_BODY:g} s", connection="close") from None


async def _joined(message: MutableMapping[str, Any], receive: Receive) -> bytes:
    pieces, length = [message.get("body", b"")], len(message.get("body", b""))
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        piece = message.get("body", b"")
        length += len(piece)
        if length > MOST_THROWN_AWAY:
            break
        if length <= LARGEST_BODY:
            pieces.append(piece)
    if length > LARGEST_BODY:
        raise _too_large()
    return b"".join(pieces)


def _too_large() -> TooLarge:
    return TooLarge(f"the body has more than {LARGEST_BODY:,} bytes")


def reply_to_error(error: RefoldError) -> Reply | None:
    """How an error is answered; None if it is none that callers are told of."""
    headers: dict[str, str] = {}
    if isinstance(error, HttpError):
        status, headers = error.status, error.headers
    else:
        status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 0)
    if not status:
        return None
    if status == 401:
        headers = {"www-authenticate": 'Bearer realm="refold"'}
    if status == 413:
        headers = {"connection": "close"}
    problem = Problem(str(error), error.field if isinstance(error, BadField) else "")
    return Reply(status, msgspec.json.encode(problem), headers=headers)


def head_of(status: int, media: str, length: int | None, headers: dict[str, str]) -> dict[str, Any]:
    """The message that begins an answer."""
    lines = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    if status != 204:  # which says that there is no body, not even an empty one
        lines.append((b"content-type", media.encode()))
        if length is not None:
            lines.append((b"content-length", b"%d" % length))
    lines += [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": lines}


async def send_reply(send: Send, reply: Reply, *, without_body: bool = False) -> None:
    """An answer that is there as a whole."""
    await send(head_of(reply.status, reply.media, len(reply.body), reply.headers))
    await send({"type": "http.response.body", "body": b"" if without_body else reply.body})


async def send_stream(receive: Receive, send: Send, media: str, pieces: AsyncGenerator[bytes, None]) -> None:
    """An answer that comes by and by, until it ends or nobody listens any more."""
    telling = asyncio.create_task(_tell(send, media, pieces))
    leaving = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((telling, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (telling, leaving):
            task.cancel()
        results = await asyncio.gather(telling, leaving, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, OSError):
            raise result


async def _tell(send: Send, media: str, pieces: AsyncGenerator[bytes, None]) -> None:
    async with aclosing(pieces):
        await send(head_of(200, media, None, {}))
        async for piece in pieces:
            async with asyncio.timeout(SLOWEST_LISTENER):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def decline(scope: Scope, receive: Receive, send: Send) -> None:
    """What is no request: the beginning and end of the server, and web sockets, which there are none of."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
