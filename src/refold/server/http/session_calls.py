"""`/session`: sign in to the web UI with a token or a one-time link, see who is signed in, sign out."""

from __future__ import annotations

import msgspec

from refold.client.api import LINK_PATH, SessionStatus, SignIn, SignInLink
from refold.errors import BadInput, Forbidden, Unauthenticated
from refold.server.http import asgi
from refold.server.http.asgi import HttpError, Receive, Reply, Scope, check_content_type
from refold.server.http.authentication import Authenticator
from refold.server.http.requests import NO_PARAMETERS, read_json
from refold.server.http.sessions import SessionCookie, Sessions, format_cookie, read_cookie

SESSION_PATH = "/session"
METHODS = {SESSION_PATH: ("GET", "POST", "DELETE"), LINK_PATH: ("POST",)}

_SIGN_IN = msgspec.json.Decoder(SignIn)


class SessionCalls:
    """The calls below `/session`. They are not in `CALLS`: a program needs no session."""

    def __init__(self, sessions: Sessions, authenticator: Authenticator, address: str = "") -> None:
        """`address`: URL of the daemon, for links."""
        self._sessions = sessions
        self._authenticator = authenticator
        self._address = address

    async def answer(self, scope: Scope, receive: Receive) -> Reply:
        """Answer a request to one of the paths in `METHODS`."""
        NO_PARAMETERS.read(scope["query_string"])
        if scope["path"] == LINK_PATH:
            return await self._make_link(scope)
        match scope["method"]:
            case "POST":
                return await self._sign_in(scope, receive)
            case "DELETE":
                return await self._sign_out(scope)
            case _:
                return await self._show(scope)

    async def _make_link(self, scope: Scope) -> Reply:
        """Make a link for a caller at the Unix socket or with a token. A session cannot make another one."""
        identity = await self._authenticator.identify(scope)
        if identity.is_session:
            raise Forbidden("a session cannot make a link; use `refold open` or a token")
        code, expires = self._sessions.make_link(identity.subject)
        return _json(201, SignInLink(f"{self._address}/#open={code}", expires))

    async def _sign_in(self, scope: Scope, receive: Receive) -> Reply:
        check_content_type(scope)
        request = read_json(_SIGN_IN, await asgi.read_body(receive))
        if bool(request.token) == bool(request.code):
            raise BadInput("expected either a token or the code of a one-time link")
        authenticator, token = self._authenticator, request.token.strip()
        subject = self._sessions.redeem(request.code) if request.code else authenticator.subject_of_token(token)
        await authenticator.caller_of(subject)  # a token or user that is no longer allowed cannot sign in
        before = read_cookie(scope)
        if before is not None:
            await self._sessions.close(before)
        cookie = await self._sessions.open(subject)
        return _json(201, await self._status(cookie), {"set-cookie": format_cookie(scope, cookie)})

    async def _sign_out(self, scope: Scope) -> Reply:
        cookie = read_cookie(scope)
        if cookie is not None:
            cookie.check_request(scope)
            await self._sessions.close(cookie)
        return _json(200, SessionStatus(), {"set-cookie": format_cookie(scope, None)})

    async def _show(self, scope: Scope) -> Reply:
        """Return who is signed in. It is not an error if nobody is."""
        cookie = read_cookie(scope)
        try:
            status = SessionStatus() if cookie is None else await self._status(cookie)
        except (Unauthenticated, Forbidden):
            status = SessionStatus()
        return _json(200, status)

    async def _status(self, cookie: SessionCookie) -> SessionStatus:
        caller = await self._authenticator.caller_of(self._sessions.subject_of(cookie))
        return SessionStatus(True, caller.role, caller.tenant, caller.user, caller.own_jobs_only, cookie.csrf_token)


def check_method(scope: Scope) -> Reply | None:
    """Return the answer to OPTIONS; reject methods that the path does not have."""
    methods = METHODS[scope["path"]]
    allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])
    if scope["method"] == "OPTIONS":
        return Reply(204, headers={"allow": allowed})
    if scope["method"] not in (*methods, *(("HEAD",) if "GET" in methods else ())):
        raise HttpError(405, f"method {scope['method'][:16]} is not allowed here, expected {allowed}", allow=allowed)
    return None


def _json(status: int, answer: object, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, msgspec.json.encode(answer), headers=headers or {})
