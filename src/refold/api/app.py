"""The daemon over HTTP: who may ask is checked first, then what is asked, and every error is a Problem."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from refold.api import asgi
from refold.api.asgi import HttpError, Receive, Reply, Scope, Send, header
from refold.api.calls import CALLS, LINES, STREAM, Call, Service
from refold.api.event_stream import EventFilter
from refold.api.hosts import AllowedHosts
from refold.api.openapi import described, page_of_calls
from refold.api.requests import Parameters, read_json
from refold.api.roles import Caller
from refold.api.tokens import TokenAuthenticator
from refold.errors import BadField, Forbidden, NotFound, RefoldError, TooManyRequests

LONGEST_PART = 128
"""Characters of a part of a path that names something."""

_LOG = logging.getLogger("refold.api")


class Route:
    """A call, and what reads it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.parameters = Parameters(call.query)
        self.decoder = None if call.takes is None else msgspec.json.Decoder(call.takes)
        self.pattern = re.sub(r"\{\w+\}", rf"([^/]{{1,{LONGEST_PART}}})", call.path)


class Routes:
    """Which call a path and a method stand for."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, Route]] = {}
        for route in map(Route, calls):
            if "{" not in route.call.path:
                self._exact.setdefault(route.call.path, {})[route.call.method] = route
            else:
                self._patterns.setdefault(re.compile(route.pattern), {})[route.call.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], tuple[str, ...]]:
        """What a path can be asked, by method, and the parts of it that name something."""
        if exact := self._exact.get(path):
            return exact, ()
        for pattern, routes in self._patterns.items():
            if match := pattern.fullmatch(path):
                return routes, match.groups()
        raise NotFound(f"there is nothing at {path[:LONGEST_PART]!r}: /docs lists what there is")


class Api:
    """An ASGI application over a service. `names` are those that it goes by; else those of the loopback."""

    def __init__(self, service: Service, tokens: TokenAuthenticator, *, names: AllowedHosts | None = None) -> None:
        self._service = service
        self._tokens = tokens
        self._names = AllowedHosts() if names is None else names
        self._routes = Routes(CALLS)
        self._pages = pages()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, whatever comes of it."""
        if scope["type"] != "http":
            await asgi.decline(scope, receive, send)
            return
        try:
            reply = await self._answer(scope, receive, send)
        except ConnectionResetError:
            return  # nobody is there who could be answered
        except RefoldError as error:
            reply = asgi.reply_to_error(error) or _failure(error)
        except Exception as error:
            reply = _failure(error)
        if reply is not None:
            await asgi.send_reply(send, reply, without_body=scope["method"] == "HEAD")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Reply | None:
        """The answer; None when it has gone out as a stream."""
        self._check_host_and_origin(scope)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        page = self._pages.get(scope["path"])
        routes, parts = ({"GET": None}, ()) if page else self._routes.find(scope["path"])
        allowed = ", ".join([*routes, *(["HEAD"] if "GET" in routes else []), "OPTIONS"])
        if method == "OPTIONS":
            return Reply(204, headers={"allow": allowed})
        if method not in routes:
            raise HttpError(405, f"this cannot be asked with {method[:16]}, expected {allowed}", allow=allowed)
        route = routes[method]
        return page if route is None else await self._reply(route, parts, scope, receive, send)

    async def _reply(
        self, route: Route, parts: tuple[Any, ...], scope: Scope, receive: Receive, send: Send
    ) -> Reply | None:
        call = route.call
        caller = self._tokens.caller(header(scope, b"authorization"))
        if not caller.may(call.role):
            raise Forbidden(f"{call.name} takes the role {call.role}, and the token {caller.name!r} has {caller.role}")
        asked = route.parameters.read(scope["query_string"])
        if route.decoder is not None:
            _check_that_it_is_json(scope)
            parts = (*parts, read_json(route.decoder, await asgi.read_body(receive)))
        if call.media == STREAM:
            pieces = await self._listen(caller, asked, scope)
            return await _streamed(scope, receive, send, call.media, pieces)
        answer = getattr(self._service, call.name)(caller, *parts, **asked)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, AsyncGenerator):
            return await _streamed(scope, receive, send, call.media, answer)
        return Reply(call.status, answer if call.media == LINES else msgspec.json.encode(answer), call.media)

    async def _listen(self, caller: Caller, asked: dict[str, Any], scope: Scope) -> AsyncGenerator[bytes, None]:
        """A stream of events, of one job if one is named, from where the listener broke off, while it is known."""
        since, last_seen = asked["since"], header(scope, b"last-event-id")
        token = header(scope, b"authorization")
        if last_seen is not None:
            if not (last_seen.isascii() and last_seen.isdecimal() and len(last_seen) < 17):
                raise BadField("Last-Event-ID is not the number of an event", "Last-Event-ID")
            since = int(last_seen)
        job = (await self._service.job(caller, asked["job"])).id if asked["job"] else ""
        if self._service.feed.is_full:
            raise TooManyRequests(f"{self._service.feed.listeners} listen to events already: try again later")
        interest = EventFilter(caller, job, asked["tenant"])
        return self._service.feed.subscribe(since, interest, asked["follow"], lambda: self._tokens.knows(token))

    def _check_host_and_origin(self, scope: Scope) -> None:
        """A page of somebody else's, in the browser of somebody who may ask, is not to ask in their name.

        The host that it thinks it talks to would be its own (DNS rebinding), and the origin of what it asks as well.
        """
        host = header(scope, b"host") or ""
        if _host_name(host) not in self._names:
            raise Forbidden(f"this daemon does not go by the name {host[:LONGEST_PART]!r}")
        origin = header(scope, b"origin")
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            raise Forbidden(f"pages of {origin[:LONGEST_PART]!r} may not ask this daemon")


def pages() -> dict[str, Reply]:
    """What anybody may see: that it is there, and what it can be asked."""
    locked = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
    return {
        "/healthz": Reply(200, b'{"status":"ok"}'),
        "/openapi.json": Reply(200, msgspec.json.encode(described())),
        "/docs": Reply(200, page_of_calls().encode(), "text/html; charset=utf-8", locked),
    }


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _check_that_it_is_json(scope: Scope) -> None:
    media = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if media != asgi.JSON:
        raise HttpError(415, f"the body is {media[:LONGEST_PART] or 'of no type'!r}, expected {asgi.JSON}")


async def _streamed(
    scope: Scope, receive: Receive, send: Send, media: str, pieces: AsyncGenerator[bytes, None]
) -> Reply | None:
    if scope["method"] == "HEAD":
        await pieces.aclose()
        return Reply(200, media=media)
    await asgi.send_stream(receive, send, media, pieces)
    return None


def _failure(error: Exception) -> Reply:
    """For the caller that it is our fault; for whoever reads the log, what it was."""
    _LOG.error("a call failed", exc_info=error)
    reply = asgi.reply_to_error(HttpError(500, "the daemon failed at this; its log tells more"))
    assert reply is not None
    return reply
