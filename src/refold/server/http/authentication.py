"""Who makes a request: the user at the other end of a Unix socket, or the holder of a token; and to which host."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from time import time
from typing import Protocol

import msgspec

from refold.client import LOOPBACK_OF_WILDCARD
from refold.client.api import NONCE_CHARS, Caller, IdentityQuery, hash_body, prove_server
from refold.errors import BadField, Unauthenticated
from refold.server.http.asgi import Reply, Request, Scope, header
from refold.server.http.requests import QueryReader
from refold.server.http.sessions import Sessions, read_cookie
from refold.server.http.tokens import TokenAuthenticator

UNIX_CLIENT = "unix"
"""In place of the host in `scope["client"]`, if the connection is one to the Unix socket. The uid follows."""

TOKEN_SUBJECT, USER_SUBJECT = "token ", "uid "
"""Prefixes of subjects: the hash of a token, or the uid of a user of this machine."""

_IDENTITY_QUERY = QueryReader(IdentityQuery)


def user_subject(uid: int) -> str:
    return f"{USER_SUBJECT}{uid}"


class Identity(msgspec.Struct, frozen=True):
    """The caller of a request. `is_valid`: whether that is still so. `body_hash`: the signed one; '' if none is.

    `subject`: the token or user, for a session. `is_session`: the caller is identified by the cookie of one.
    """

    caller: Caller
    is_valid: Callable[[], bool]
    body_hash: str = ""
    subject: str = ""
    is_session: bool = False

    def check_body(self, body: bytes) -> None:
        """Reject a body that is not the signed one."""
        if self.body_hash and hash_body(body) != self.body_hash:
            raise Unauthenticated("the body of the request is not the one that was signed")


class UserLookup(Protocol):
    """Knows the users of this machine."""

    async def caller_of(self, uid: int) -> Caller:
        """Return the caller with a uid, or raise `Forbidden`."""


class Authenticator:
    """Identifies callers. Without `users`, the Unix socket needs a token too; without `sessions`, there are none."""

    def __init__(
        self, tokens: TokenAuthenticator, users: UserLookup | None = None, sessions: Sessions | None = None
    ) -> None:
        self._tokens = tokens
        self._users = users
        self._sessions = sessions

    async def identify(self, scope: Scope) -> Identity:
        """Return the caller of a request, or raise `Unauthenticated` or `Forbidden`."""
        authorization, uid = header(scope, b"authorization"), peer_uid(scope)
        if authorization is None and uid is not None and self._users is not None:
            return Identity(await self._users.caller_of(uid), lambda: True, subject=user_subject(uid))
        if authorization is None and self._sessions is not None and (cookie := read_cookie(scope)) is not None:
            subject, sessions = self._sessions.subject_of(cookie), self._sessions
            caller = await self.caller_of(subject)
            cookie.check_request(scope)
            return Identity(
                caller,
                lambda: sessions.is_open(cookie) and self._is_known(subject),
                subject=subject,
                is_session=True,
            )
        stored, body_hash = self._tokens.identify(authorization, scope["method"], _target(scope))
        subject = TOKEN_SUBJECT + stored.hash
        return Identity(stored.caller(), lambda: self._tokens.knows(stored), body_hash, subject)

    async def caller_of(self, subject: str) -> Caller:
        """Return whom a session stands for, or raise `Unauthenticated` or `Forbidden` if that is no longer allowed."""
        if subject.startswith(TOKEN_SUBJECT):
            return self._tokens.find_hash(subject.removeprefix(TOKEN_SUBJECT)).caller()
        if self._users is None:
            raise Unauthenticated("users of this machine need a token")
        return await self._users.caller_of(int(subject.removeprefix(USER_SUBJECT)))

    def subject_of_token(self, token: str) -> str:
        """Return the subject of a token, or raise `Unauthenticated`."""
        return TOKEN_SUBJECT + self._tokens.find_secret(token).hash

    def _is_known(self, subject: str) -> bool:
        """Whether the token of a session has not been revoked. Users are looked up at each request."""
        return not subject.startswith(TOKEN_SUBJECT) or self._tokens.knows_hash(subject.removeprefix(TOKEN_SUBJECT))

    async def prove(self, request: Request) -> Reply:
        """Prove to a client that this daemon knows its token."""
        query = _IDENTITY_QUERY.read(request.scope["query_string"])
        if len(query.nonce) != NONCE_CHARS or not query.nonce.isalnum():
            raise BadField(f"nonce is invalid, expected {NONCE_CHARS} hexadecimal digits", "nonce")
        proof = prove_server(self._tokens.find(query.token).hash, query.nonce, time())
        return Reply(200, msgspec.json.encode(proof))


def peer_uid(scope: Scope) -> int | None:
    """Return the uid at the other end of a Unix socket; None for other connections."""
    client = scope.get("client")
    return client[1] if client is not None and client[0] == UNIX_CLIENT else None


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


LOOPBACK = ("127.0.0.1", "localhost", "::1")


class AllowedHosts:
    """The values that a request's `Host` header may have: the names and addresses of this daemon.

    `host` is the configured listen address, `bound` the address it resolved to, `extra_names` further names. If the
    daemon is bound to a wildcard address, every numeric address is allowed: DNS rebinding needs a name.
    """

    def __init__(self, host: str = "127.0.0.1", bound: str = "", extra_names: Iterable[str] = ()) -> None:
        bound = bound or host
        known = [*LOOPBACK, host, bound, *extra_names]
        if not _is_loopback(bound):
            known += [socket.gethostname(), socket.getfqdn()]
        self._known = {name.lower().strip("[]").rstrip(".") for name in known if name}
        self._any_address = bound in LOOPBACK_OF_WILDCARD

    def __contains__(self, name: str) -> bool:
        return name.lower().rstrip(".") in self._known or (self._any_address and _is_address(name))


def _is_loopback(address: str) -> bool:
    return address in LOOPBACK or (_is_address(address) and ip_address(address).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
