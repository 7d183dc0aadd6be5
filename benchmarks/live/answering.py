"""What one call costs the API itself, beside the same call behind Starlette's routing and requests."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.table import Row, at_most, skipped
from refold.api import Api, EventStream, JobStatus, NewToken, Submission, TokenAuthenticator, make_token

CALLS = 2_000
TURNS = 7
BODY = msgspec.json.encode({"name": "train", "command": ["python", "train.py"], "gpus": 2})
ANSWER = JobStatus("train-1", "train", "waiting", "default", "ann", "guaranteed", 0, "2 GPU", 2.0, 0.0)

App = Callable[[Any, Any, Any], Any]


def rows(quick: bool) -> list[Row]:
    """Microseconds of CPU per POST, without a socket: the median of turns that both take by turns."""
    token, known = make_token(NewToken("bench", "owner"), 0.0)
    try:
        starlette = _behind_starlette(TokenAuthenticator({known.hash: known}))
    except ImportError:
        return [skipped("a call behind Starlette", "starlette is not installed: pip install 'refold[bench]'")]
    ours: App = Api(_Desk(), TokenAuthenticator({known.hash: known}))  # type: ignore[arg-type]
    scope = _scope(token)
    turns = [(_micros(ours, scope), _micros(starlette, scope)) for _ in range(2 if quick else TURNS)]
    one, other = (statistics.median(side) for side in zip(*turns, strict=True))
    return [
        Row("POST /jobs behind Starlette's routing, without checks of host, origin and size", f"{other:.0f} µs", other),
        at_most("POST /jobs, all checks, our own routing", one / other, 1.0, f"{one:.0f} µs: {one / other:.2f} ×"),
    ]


class _Desk:
    """One that has answers and no questions."""

    feed = EventStream()

    async def submit(self, _caller: object, _submission: Submission) -> JobStatus:
        return ANSWER


def _behind_starlette(tokens: TokenAuthenticator) -> App:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    decoder = msgspec.json.Decoder(Submission)
    service = _Desk()

    async def submit(request: Request) -> Response:
        caller = tokens.caller(request.headers.get("authorization"))
        answer = await service.submit(caller, decoder.decode(await request.body()))
        return Response(msgspec.json.encode(answer), 201, media_type="application/json")

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
