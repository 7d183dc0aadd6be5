"""`/session`: sign in to the web UI with a token or a one-time link, see who is signed in, sign out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from refold.client.api import LINK_PATH, SessionStatus, SignIn, SignInLink
from refold.errors import BadInput, Forbidden, Unauthenticated
from refold.server.http import asgi
from refold.server.http.asgi import Reply, Request, check_content_type
from refold.server.http.authentication import Authenticator
from refold.server.http.requests import NO_PARAMETERS, read_json
from refold.server.http.sessions import SessionCookie, Sessions, format_cookie, read_cookie

SESSION_PATH = "/session"
Handler = Callable[[Request], Awaitable[Reply]]

_SIGN_IN = msgspec.json.Decoder(SignIn)


class SessionCalls:
    """The calls below `/session`. They are not in `CALLS`: a program needs no session."""

    def __init__(self, sessions: Sessions, authenticator: Authenticator, address: str = "") -> None:
        """`address`: URL of the daemon, for links."""
        self._sessions = sessions
        self._authenticator = authenticator
        self._address = address

    def endpoints(self) -> dict[str, dict[str, Handler]]:
        """Return what answers the methods of each path."""
        own = {"GET": self._show, "POST": self._sign_in, "DELETE": self._sign_out}
        return {
            SESSION_PATH: {method: _without_parameters(handler) for method, handler in own.items()},
            LINK_PATH: {"POST": _without_parameters(self._make_link)},
        }

    async def _make_link(self, request: Request) -> Reply:
        """Make a link for a caller at the Unix socket or with a token. A session cannot make another one."""
        identity = await self._authenticator.identify(request.scope)
        if identity.is_session:
            raise Forbidden("a session cannot make a link; use `refold open` or a token")
        code, expires = self._sessions.make_link(identity.subject)
        return _json(201, SignInLink(f"{self._address}/#open={code}", expires))

    async def _sign_in(self, request: Request) -> Reply:
        check_content_type(request.scope)
        wanted = read_json(_SIGN_IN, await asgi.read_body(request))
        if bool(wanted.token) == bool(wanted.code):
            raise BadInput("expected either a token or the code of a one-time link")
        authenticator, token = self._authenticator, wanted.token.strip()
        subject = self._sessions.redeem(wanted.code) if wanted.code else authenticator.subject_of_token(token)
        await authenticator.caller_of(subject)  # a token or user that is no longer allowed cannot sign in
        before = read_cookie(request.scope)
        if before is not None:
            await self._sessions.close(before)
        cookie = await self._sessions.open(subject)
        return _json(201, await self._status(cookie), {"set-cookie": format_cookie(request.scope, cookie)})

    async def _sign_out(self, request: Request) -> Reply:
        cookie = read_cookie(request.scope)
        if cookie is not None:
            cookie.check_request(request.scope)
            await self._sessions.close(cookie)
        return _json(200, SessionStatus(), {"set-cookie": format_cookie(request.scope, None)})

    async def _show(self, request: Request) -> Reply:
        """Return who is signed in. It is not an error if nobody is."""
        cookie = read_cookie(request.scope)
        try:
            status = SessionStatus() if cookie is None else await self._status(cookie)
        except (Unauthenticated, Forbidden):
            status = SessionStatus()
        return _json(200, status)

    async def _status(self, cookie: SessionCookie) -> SessionStatus:
        caller = await self._authenticator.caller_of(self._sessions.subject_of(cookie))
        return SessionStatus(True, caller.role, caller.tenant, caller.user, caller.own_jobs_only, cookie.csrf_token)


def _without_parameters(handler: Handler) -> Handler:
    async def answer(request: Request) -> Reply:
        NO_PARAMETERS.read(request.scope["query_string"])
        return await handler(request)

    return answer


def _json(status: int, answer: object, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, msgspec.json.encode(answer), headers=headers or {})
