"""CPU time of one API call, compared with the same call handled by Starlette."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.table import Row, at_most, skipped
from refold.client.api import JobStatus, NewToken, Submission
from refold.server.http import Api, EventStream, TokenAuthenticator, make_token

CALLS = 2_000
REPEATS = 7
BODY = msgspec.json.encode({"name": "train", "command": ["python", "train.py"], "gpus": 2})
RESPONSE = JobStatus("train-1", "train", "waiting", "default", "ann", "guaranteed", 0, "2 GPU", 2.0, 0.0)

App = Callable[[Any, Any, Any], Any]


def rows(quick: bool) -> list[Row]:
    """Measure the CPU microseconds of a POST without a socket: medians of alternating measurements."""
    token, known = make_token(NewToken("bench", "owner"), 0.0)
    try:
        starlette = _starlette_app(TokenAuthenticator({known.hash: known}))
    except ImportError:
        return [skipped("a call through Starlette", "starlette is not installed: pip install '.[bench]'")]
    refold: App = Api(_StubService(), TokenAuthenticator({known.hash: known}))  # type: ignore[arg-type]
    scope = _scope(token)
    pairs = [(_micros(refold, scope), _micros(starlette, scope)) for _ in range(2 if quick else REPEATS)]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return [
        Row("POST /jobs through Starlette, without host, origin and size checks", f"{theirs:.0f} µs", theirs),
        at_most("POST /jobs, own routing, all checks", ours / theirs, 1.0, f"{ours:.0f} µs: {ours / theirs:.2f} ×"),
    ]


class _StubService:
    """A service that returns a fixed response."""

    event_stream = EventStream()

    async def submit(self, _caller: object, _submission: Submission) -> JobStatus:
        return RESPONSE


def _starlette_app(tokens: TokenAuthenticator) -> App:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    decoder = msgspec.json.Decoder(Submission)
    service = _StubService()

    async def submit(request: Request) -> Response:
        caller = tokens.identify(request.headers.get("authorization"), "POST", request.url.path)[0].caller()
        status = await service.submit(caller, decoder.decode(await request.body()))
        return Response(msgspec.json.encode(status), 201, media_type="application/json")

    app: App = Starlette(routes=[Route("/api/v1/jobs", submit, methods=["POST"])])
    return app


def _scope(token: str) -> dict[str, Any]:
    headers = [
        (b"host", b"127.0.0.1:7170"),
        (b"authorization", f"Bearer {token}".encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(BODY)).encode()),
    ]
    return {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/jobs",
        "raw_path": b"/api/v1/jobs",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 7170),
    }


def _micros(app: App, scope: dict[str, Any]) -> float:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        assert message.get("status", 201) == 201, message

    async def calls() -> float:
        began = time.process_time()
        for _ in range(CALLS):
            await app(dict(scope), receive, send)
        return (time.process_time() - began) / CALLS * 1e6

    return asyncio.run(calls())
