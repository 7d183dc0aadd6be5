"""Requests to the ASGI application, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from fake_service import OWNER

from refold.client.api.wire import Problem
from refold.server.http.app import Api

Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> Problem:
        return msgspec.json.decode(self.body, type=Problem)


async def send_request(
    app: Api,
    method: str,
    path: str,
    body: bytes | Sequence[bytes] = b"",
    *,
    token: str | None,
    headers: Headers = (),
    host: str = "127.0.0.1:7170",
    stalls: bool = False,
) -> Answer:
    """Make one ASGI request. A list of bytes arrives in chunks; `stalls`: the body never ends."""
    path, _, query = path.partition("?")
    given = {"host": host, "content-type": "application/json"} | (
        {} if token is None else {"authorization": f"Bearer {token}"}
    )
    lines = [(name, text) for name, text in given.items() if name not in dict(headers)] + list(headers)
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), text.encode("latin-1")) for name, text in lines if text is not None],
    }
    chunks = [body] if isinstance(body, bytes) else list(body)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not chunks:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": chunks.pop(0), "more_body": stalls or bool(chunks)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    received = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
    return Answer(sent[0]["status"], received, b"".join(message["body"] for message in sent[1:]))


def request(app: Api, method: str, path: str, body: bytes | Sequence[bytes] = b"", **more: Any) -> Answer:
    """Make one request in an event loop of its own, by default with the owner's token."""
    return asyncio.run(send_request(app, method, path, body, **{"token": OWNER, **more}))
