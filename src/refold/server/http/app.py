"""The ASGI application of the daemon: routing, authorisation, request parsing, and errors as `Problem` documents."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from refold.client.api import CALLS, EVENT_STREAM, IDENTITY_PATH, JSON_LINES, Call, EventsQuery, Role
from refold.errors import BadField, Forbidden, NotFound, RefoldError, TooManyRequests
from refold.server.http import asgi
from refold.server.http.asgi import HttpError, Receive, Reply, Scope, Send, header
from refold.server.http.authentication import Authenticator, Identity, UserLookup
from refold.server.http.event_stream import EventFilter
from refold.server.http.hosts import AllowedHosts
from refold.server.http.openapi import build_openapi, render_docs_page
from refold.server.http.requests import QueryReader, read_json
from refold.server.http.service import Service
from refold.server.http.session_calls import METHODS as SESSION_METHODS, SessionCalls, check_method
from refold.server.http.sessions import Sessions
from refold.server.http.tokens import TokenAuthenticator

MAX_PATH_PART_CHARS = 128
"""Maximum length of a path parameter, such as a job id, and of request text that error messages quote."""

_LOG = logging.getLogger("refold.server.http")


class Route:
    """A call with its compiled path pattern, query reader and body decoder."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.query = QueryReader(call.query)
        self.decoder = None if call.request_type is None else msgspec.json.Decoder(call.request_type)
        self.pattern = re.sub(r"\{\w+\}", rf"([^/]{{1,{MAX_PATH_PART_CHARS}}})", call.path)


class Routes:
    """The routing table: path and method to route."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, Route]] = {}
        for route in map(Route, calls):
            if "{" not in route.call.path:
                self._exact.setdefault(route.call.path, {})[route.call.method] = route
            else:
                self._patterns.setdefault(re.compile(route.pattern), {})[route.call.method] = route

    def find(self, path: str) -> tuple[dict[str, Route], tuple[str, ...]]:
        """Return the routes of a path by method, and the values of its path parameters."""
        if exact := self._exact.get(path):
            return exact, ()
        for pattern, routes in self._patterns.items():
            if match := pattern.fullmatch(path):
                return routes, match.groups()
        raise NotFound(f"no such path: {path[:MAX_PATH_PART_CHARS]!r}; /docs lists all calls")


class Page(NamedTuple):
    """A page beside the calls. `role`: which role may read it; None: anybody."""

    role: Role | None
    render: Callable[[], Awaitable[Reply]]


class StaticFiles(Protocol):
    """The files of the web UI."""

    def find(self, scope: Scope) -> Reply | None:
        """Return the answer to a GET request; None if there is no such file."""


class Api:
    """An ASGI application over a service. `hosts`: accepted `Host` names (default: loopback names only)."""

    def __init__(
        self,
        service: Service | None,
        tokens: TokenAuthenticator,
        *,
        hosts: AllowedHosts | None = None,
        users: UserLookup | None = None,
        pages: Mapping[str, Page] | None = None,
        sessions: Sessions | None = None,
        files: StaticFiles | None = None,
        address: str = "",
        body_limits: asgi.BodyLimits = asgi.DEFAULT_BODY_LIMITS,
    ) -> None:
        """Without a `service`, there are no calls but those of a session.

        `users`: those of this machine, who need no token at the Unix socket. `pages`: more pages, by path.
        `sessions`, `files`: of the web UI, for which `address` is the URL of the daemon.
        """
        self._calls = service
        sessions = Sessions() if sessions is None else sessions
        self._authenticator = Authenticator(tokens, users, sessions)
        self._session_calls = SessionCalls(sessions, self._authenticator, address)
        self._files = files
        self._body_limits = body_limits
        self._hosts = AllowedHosts() if hosts is None else hosts
        self._routes = Routes(CALLS if service is not None else ())
        self._pages = {path: _static_page(reply) for path, reply in public_pages().items()} | dict(pages or {})

    @property
    def _service(self) -> Service:
        assert self._calls is not None, "no call is routed without a service"
        return self._calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; every exception becomes an error reply."""
        if scope["type"] != "http":
            await asgi.handle_non_http(scope, receive, send)
            return
        try:
            reply = await self._answer(scope, receive, send)
        except ConnectionResetError:
            return  # the client has disconnected
        except RefoldError as error:
            reply = asgi.reply_to_error(error) or _internal_error(error)
        except Exception as error:
            reply = _internal_error(error)
        if reply is not None:
            reply = await asgi.compress(scope, reply)
            await asgi.send_reply(send, reply, without_body=scope["method"] == "HEAD")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Reply | None:
        """Return the reply, or None if it has been sent as a stream."""
        self._check_host_and_origin(scope)
        if scope["path"] in SESSION_METHODS:
            return check_method(scope) or await self._session_calls.answer(scope, receive)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method == "GET" and self._files is not None and (file := self._files.find(scope)) is not None:
            return file
        page = self._pages.get(scope["path"])
        if scope["path"] == IDENTITY_PATH:
            page = Page(None, partial(self._authenticator.prove, scope))
        routes, path_values = ({"GET": None}, ()) if page else self._routes.find(scope["path"])
        allowed = ", ".join([*routes, *(["HEAD"] if "GET" in routes else []), "OPTIONS"])
        if method == "OPTIONS":
            return Reply(204, headers={"allow": allowed})
        if method not in routes:
            raise HttpError(405, f"method {method[:16]} is not allowed here, expected {allowed}", allow=allowed)
        route = routes[method]
        if page is not None:
            return await self._render(page, scope)
        return None if route is None else await self._call(route, path_values, scope, receive, send)

    async def _render(self, page: Page, scope: Scope) -> Reply:
        if page.role is not None:
            await self._authorise(page.role, scope["path"], scope)
        return await page.render()

    async def _authorise(self, role: Role, what: str, scope: Scope) -> Identity:
        identity = await self._authenticator.identify(scope)
        caller = identity.caller
        if not caller.has_role(role):
            raise Forbidden(f"{what} requires the role {role}; {caller.label} has {caller.role}")
        return identity

    async def _call(
        self, route: Route, path_values: tuple[Any, ...], scope: Scope, receive: Receive, send: Send
    ) -> Reply | None:
        """Authorise and parse a request, call the service, and encode its answer."""
        call = route.call
        identity = await self._authorise(call.role, call.name, scope)
        caller = identity.caller
        query = route.query.read(scope["query_string"])
        arguments = [*path_values] if query is None else [*path_values, query]
        if route.decoder is not None:
            asgi.check_content_type(scope)
            body = await asgi.read_body(receive, self._body_limits)
            identity.check_body(body)
            arguments.append(read_json(route.decoder, body))
        if call.media == EVENT_STREAM:
            chunks = await self._subscribe(identity, query, scope)
            return await _send_stream(scope, receive, send, call.media, chunks)
        answer = getattr(self._service, call.name)(caller, *arguments)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, AsyncGenerator):
            return await _send_stream(scope, receive, send, call.media, answer)
        return Reply(call.status, answer if call.media == JSON_LINES else msgspec.json.encode(answer), call.media)

    async def _subscribe(self, identity: Identity, query: EventsQuery, scope: Scope) -> AsyncGenerator[bytes, None]:
        """Open an event stream. `Last-Event-ID`, which browsers send on reconnecting, overrides `since`.

        The stream ends when the caller's token is revoked.
        """
        caller, since, last_seen = identity.caller, query.since, header(scope, b"last-event-id")
        if last_seen is not None:
            if not (last_seen.isascii() and last_seen.isdecimal() and len(last_seen) < 17):
                raise BadField("Last-Event-ID is not an event number", "Last-Event-ID")
            since = int(last_seen)
        job = (await self._service.job(caller, query.job)).id if query.job else ""
        stream = self._service.event_stream
        if stream.is_full(caller):
            raise TooManyRequests(f"too many event streams: {stream.listeners} are open; try again later")
        event_filter = EventFilter(caller, job, query.tenant)
        return stream.subscribe(since, event_filter, query.follow, identity.is_valid)

    def _check_host_and_origin(self, scope: Scope) -> None:
        """Reject requests that a foreign web page makes through the browser of an authorised user.

        Such a page sends its own host name (DNS rebinding) or its own origin (cross-site request).
        """
        host = header(scope, b"host") or ""
        if _host_name(host) not in self._hosts:
            raise Forbidden(
                f"the host name {host[:MAX_PATH_PART_CHARS]!r} is not allowed; the daemon's operator can add it to"
                " serve.allowed_hosts"
            )
        origin = header(scope, b"origin")
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            raise Forbidden(f"cross-origin requests are not allowed (origin {origin[:MAX_PATH_PART_CHARS]!r})")


@cache
def public_pages() -> dict[str, Reply]:
    """Return the pages that need no token: health check, OpenAPI description, and the list of calls."""
    locked_down = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
    return {
        "/healthz": Reply(200, b'{"status":"ok"}'),
        "/openapi.json": Reply(200, msgspec.json.encode(build_openapi())),
        "/docs": Reply(200, render_docs_page().encode(), "text/html; charset=utf-8", locked_down),
    }


def _static_page(reply: Reply) -> Page:
    async def render() -> Reply:
        return reply

    return Page(None, render)


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def _send_stream(
    scope: Scope, receive: Receive, send: Send, media: str, chunks: AsyncGenerator[bytes, None]
) -> Reply | None:
    if scope["method"] == "HEAD":
        await chunks.aclose()
        return Reply(200, media=media)
    await asgi.send_stream(receive, send, media, chunks)
    return None


def _internal_error(error: Exception) -> Reply:
    """Log the exception and return a 500 reply without details."""
    _LOG.error("an API call failed with an internal error", exc_info=error)
    reply = asgi.reply_to_error(HttpError(500, "internal error; see the daemon's log"))
    assert reply is not None
    return reply
