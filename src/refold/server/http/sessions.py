"""Sessions of the web UI: a cookie in place of a token, one-time links, and protection against forged requests."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from time import time
from typing import NamedTuple

import msgspec

from refold.errors import Forbidden, Unauthenticated
from refold.server.http.asgi import Scope, header

SESSION_SECONDS = 7 * 86400.0
"""How long a session lasts."""

LINK_SECONDS = 300.0
"""How long a one-time link is valid."""

MAX_SESSIONS = 4096
MAX_SESSIONS_PER_SUBJECT = 32
MAX_LINKS = 256
"""Maximum numbers; the oldest give way."""

SECRET_BYTES = 32
COOKIE_NAME = "refold_session"
CSRF_HEADER = b"x-csrf-token"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class WebSession(msgspec.Struct, frozen=True):
    """A session. `subject`: the token (by its hash) or the user of this machine (by uid) that it stands for."""

    subject: str
    created: float
    expires: float


class SessionCookie(NamedTuple):
    """The secret of a session, as the browser sends it."""

    secret: str

    @property
    def csrf_token(self) -> str:
        """What a page has to send with requests that change something. Other sites cannot read it."""
        return sha256(f"refold csrf {self.secret}".encode()).hexdigest()

    def check_request(self, scope: Scope) -> None:
        """Reject a request that changes something unless it was made by a page of this daemon."""
        if scope["method"] in SAFE_METHODS:
            return
        given = header(scope, CSRF_HEADER) or ""
        if not hmac.compare_digest(given.encode("latin-1", "replace"), self.csrf_token.encode()):
            raise Forbidden("the request has no valid CSRF token; reload the page")


Save = Callable[[dict[str, WebSession]], Awaitable[None]]


class Sessions:
    """Sessions and one-time links, both by the hash of their secret. Sessions survive a restart; links do not."""

    def __init__(
        self, saved: Mapping[str, WebSession] | None = None, save: Save | None = None, clock: Callable[[], float] = time
    ) -> None:
        """`saved`: sessions of an earlier daemon; `save`: stores them."""
        self._sessions = dict(saved or {})
        self._save = save
        self._clock = clock
        self._links: dict[str, WebSession] = {}

    async def open(self, subject: str) -> SessionCookie:
        """Begin a session; return its cookie."""
        secret, now = secrets.token_urlsafe(SECRET_BYTES), self._clock()
        self._remove_expired(now)
        own = [key for key, session in self._sessions.items() if session.subject == subject]
        for key in own[: max(0, len(own) - MAX_SESSIONS_PER_SUBJECT + 1)]:
            del self._sessions[key]
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[_hash(secret)] = WebSession(subject, now, now + SESSION_SECONDS)
        await self._store()
        return SessionCookie(secret)

    async def close(self, cookie: SessionCookie) -> None:
        """End a session; no effect if it has ended."""
        if self._sessions.pop(_hash(cookie.secret), None) is not None:
            await self._store()

    def is_open(self, cookie: SessionCookie) -> bool:
        """Whether a session has neither ended nor expired."""
        session = self._sessions.get(_hash(cookie.secret))
        return session is not None and session.expires > self._clock()

    def subject_of(self, cookie: SessionCookie) -> str:
        """Return whom a session stands for, or raise `Unauthenticated`."""
        if not self.is_open(cookie):
            raise Unauthenticated("the session has ended; sign in again")
        return self._sessions[_hash(cookie.secret)].subject

    def make_link(self, subject: str) -> tuple[str, float]:
        """Return the code of a new one-time link, and when it expires."""
        code, now = secrets.token_urlsafe(SECRET_BYTES), self._clock()
        while len(self._links) >= MAX_LINKS:
            del self._links[next(iter(self._links))]
        self._links[_hash(code)] = link = WebSession(subject, now, now + LINK_SECONDS)
        return code, link.expires

    def redeem(self, code: str) -> str:
        """Return whom a one-time link stands for; the link cannot be used again."""
        link = self._links.pop(_hash(code), None)
        if link is None or link.expires <= self._clock():
            raise Unauthenticated("the link has been used, or is older than 5 minutes; run `refold open` again")
        return link.subject

    def _remove_expired(self, now: float) -> None:
        self._sessions = {key: session for key, session in self._sessions.items() if session.expires > now}

    async def _store(self) -> None:
        if self._save is not None:
            await self._save(dict(self._sessions))


def _hash(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def cookie_name(scope: Scope) -> str:
    """Return the name of the cookie. Browsers share cookies between the ports of a host, so it has the port."""
    _, _, port = (header(scope, b"host") or "").rpartition(":")
    return f"{COOKIE_NAME}_{port}" if port.isdecimal() and port.isascii() else COOKIE_NAME


def read_cookie(scope: Scope) -> SessionCookie | None:
    """Return the session cookie of a request; None if it has none."""
    name = cookie_name(scope)
    # Not by http.cookies: its time is quadratic in the length of a quoted value (CVE-2024-7592); ours is not quoted.
    found = ""
    for key, header_value in scope["headers"]:
        for pair in header_value.decode("latin-1").split(";") if key == b"cookie" else ():
            own, _, value = pair.strip().partition("=")
            found = value if own == name else found
    return SessionCookie(found) if found else None


def format_cookie(scope: Scope, cookie: SessionCookie | None) -> str:
    """Return the `Set-Cookie` header that stores a cookie, or removes it."""
    origin = header(scope, b"origin") or ""
    secure = "; Secure" if origin.lower().startswith("https://") else ""  # behind a proxy with TLS
    value, age = ("", 0) if cookie is None else (cookie.secret, round(SESSION_SECONDS))
    return f"{cookie_name(scope)}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"
