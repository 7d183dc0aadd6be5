"""The ASGI application of the daemon: routing, authorisation, request parsing, and errors as `Problem` documents."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from refold.client.api import CALLS, EVENT_STREAM, IDENTITY_PATH, JSON_LINES, Call, EventsQuery, Role, Service
from refold.errors import BadField, Forbidden, NotFound, TooManyRequests, Unauthenticated
from refold.server.http import asgi
from refold.server.http.asgi import HttpError, Receive, Reply, Request, Scope, Send, UnreadBody, header
from refold.server.http.authentication import AllowedHosts, Authenticator, Identity, UserLookup
from refold.server.http.event_stream import EventFilter, EventStream
from refold.server.http.loop_shares import LoopShares, Metered
from refold.server.http.openapi import build_openapi, render_docs_page
from refold.server.http.requests import QueryReader, read_json
from refold.server.http.session_calls import SessionCalls
from refold.server.http.sessions import Sessions
from refold.server.http.tokens import TokenAuthenticator

MAX_PATH_PART_CHARS = 128
"""Maximum length of a path parameter, such as a job id, and of request text that error messages quote."""

Endpoint = Callable[[Request], Awaitable[Reply | None]]
"""Answers a request; None if it has sent the answer."""


class Routes:
    """The routing table: path, whose parts may be parameters, to the endpoint of each method."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Endpoint]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, Endpoint]] = {}

    def add(self, path: str, endpoints: Mapping[str, Endpoint]) -> None:
        if "{" not in path:
            self._exact.setdefault(path, {}).update(endpoints)
            return
        pattern = re.compile(re.sub(r"\{\w+\}", rf"([^/]{{1,{MAX_PATH_PART_CHARS}}})", path))
        self._patterns.setdefault(pattern, {}).update(endpoints)

    def find(self, path: str) -> tuple[dict[str, Endpoint], tuple[str, ...]]:
        """Return the endpoints of a path by method, and the values of its path parameters."""
        if exact := self._exact.get(path):
            return exact, ()
        for pattern, endpoints in self._patterns.items():
            if match := pattern.fullmatch(path):
                return endpoints, match.groups()
        raise NotFound(f"no such path: {path[:MAX_PATH_PART_CHARS]!r}; /docs lists all calls")


class Page(NamedTuple):
    """A page beside the calls. `role`: which role may read it; None: anybody."""

    role: Role | None
    render: Callable[[], Awaitable[Reply]]


class ApiService(Service, Protocol):
    """The calls, and the events that subscribers read."""

    @property
    def event_stream(self) -> EventStream:
        """The stream of events."""


class StaticFiles(Protocol):
    """The files of the web UI."""

    def find(self, scope: Scope) -> Reply | None:
        """Return the answer to a GET request; None if there is no such file."""


class Api:
    """An ASGI application over a service. `hosts`: accepted `Host` names (default: loopback names only)."""

    def __init__(
        self,
        service: ApiService | None,
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
        self._files = files
        self._body_limits = body_limits
        self._shares = LoopShares()
        self._hosts = AllowedHosts() if hosts is None else hosts
        self._routes = Routes()
        self._routes.add(IDENTITY_PATH, {"GET": self._authenticator.prove})
        for path, endpoints in SessionCalls(sessions, self._authenticator, address).endpoints().items():
            self._routes.add(path, endpoints)
        for path, reply in public_pages().items():
            self._routes.add(path, {"GET": partial(_send_page, reply)})
        for path, page in (pages or {}).items():
            self._routes.add(path, {"GET": partial(self._render, page)})
        for call in CALLS if service is not None else ():
            self._routes.add(call.path, {call.method: self._endpoint(call)})

    @property
    def _service(self) -> ApiService:
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
        except UnreadBody as error:
            await asgi.send_reply(send, asgi.reply_to_error(error), is_complete=False)
            await asgi.discard_body(receive, send, self._body_limits)
            return
        except Exception as error:
            reply = asgi.reply_to_error(error)
        if reply is not None:
            reply = await asgi.compress(scope, reply)
            await asgi.send_reply(send, reply, without_body=scope["method"] == "HEAD")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Reply | None:
        """Return the reply, or None if it has been sent as a stream."""
        self._check_host_and_origin(scope)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method == "GET" and self._files is not None and (file := self._files.find(scope)) is not None:
            return file
        endpoints, path_values = self._routes.find(scope["path"])
        if method in endpoints:
            return await endpoints[method](Request(scope, receive, send, path_values))
        allowed = ", ".join([*endpoints, *(["HEAD"] if "GET" in endpoints else []), "OPTIONS"])
        if method == "OPTIONS":
            return Reply(204, headers={"allow": allowed})
        raise HttpError(405, f"method {method[:16]} is not allowed here, expected {allowed}", allow=allowed)

    async def _render(self, page: Page, request: Request) -> Reply:
        if page.role is not None:
            await self._authorise(page.role, request.scope["path"], request.scope)
        return await page.render()

    async def _authorise(self, role: Role, what: str, scope: Scope) -> Identity:
        identity = await self._authenticator.identify(scope)
        caller = identity.caller
        if not caller.has_role(role):
            raise Forbidden(f"{what} requires the role {role}; {caller.label} has {caller.role}")
        return identity

    def _endpoint(self, call: Call) -> Endpoint:
        """Return the endpoint that authorises and parses a request, calls the service, and encodes its answer."""
        reader = QueryReader(call.query)
        decoder = None if call.request_type is None else msgspec.json.Decoder(call.request_type)

        async def make_answer(request: Request, identity: Identity) -> Reply | AsyncGenerator[bytes, None]:
            query = reader.read(request.scope["query_string"])
            arguments: list[Any] = [*request.path_values] if query is None else [*request.path_values, query]
            if decoder is not None:
                asgi.check_content_type(request.scope)
                body = await asgi.read_body(request, self._body_limits)
                identity.check_body(body)
                arguments.append(read_json(decoder, body))
            if call.media == EVENT_STREAM:
                return await self._subscribe(identity, query, request.scope)
            answer = getattr(self._service, call.name)(identity.caller, *arguments)
            if isinstance(answer, Awaitable):
                answer = await (asgi.unless_disconnected(request.receive, answer) if call.is_costly else answer)
            if isinstance(answer, AsyncGenerator):
                return answer
            return Reply(call.status, answer if call.media == JSON_LINES else msgspec.json.encode(answer), call.media)

        async def answer_call(request: Request) -> Reply | None:
            identity = await self._authorise(call.role, call.name, request.scope)
            await self._shares.wait_for_turn(identity.caller)
            if not identity.is_valid():
                raise Unauthenticated("the token was revoked, or the session ended, while the call waited")
            work = Metered(make_answer(request, identity))
            try:
                answer = await work
            finally:
                self._shares.charge(identity.caller, work.seconds)
            return answer if isinstance(answer, Reply) else await asgi.send_stream(request, call.media, answer)

        return answer_call

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


async def _send_page(reply: Reply, _request: Request) -> Reply:
    return reply


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
