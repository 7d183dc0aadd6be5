"""How the client reaches the daemon: open a connection, verify the server, and authenticate requests."""

from __future__ import annotations

import http.client
from pathlib import Path
from time import monotonic
from typing import Protocol
from urllib.parse import urlencode, urlsplit

import msgspec

from refold.client.address import Address, connect
from refold.client.api import (
    HTTP_STATUS,
    IDENTITY_PATH,
    Problem,
    ServerProof,
    hash_token,
    is_proven,
    new_nonce,
    sign,
    token_id,
)
from refold.errors import BadField, NoDaemon, RefoldError, Refused


class Transport(Protocol):
    """Opens connections. Nothing that is secret is sent before the server is verified."""

    def open(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection to the daemon."""

    def authorization(self, method: str, target: str, body: bytes, /) -> dict[str, str]:
        """Return the headers that authenticate a request."""


def make_transport(address: Address) -> Transport:
    if address.socket_path is not None:
        return UnixTransport(address.socket_path, address.uid, address.token)
    if address.address.startswith("https:"):
        return TlsTransport(address.address, address.token)
    return PlainTransport(address.address, address.token)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, uid: int | None, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._uid = uid
        self._seconds = timeout

    def connect(self) -> None:
        self.sock = connect(self._path, self._seconds, self._uid)


class UnixTransport:
    """A Unix socket: each side knows the other's uid. A token, if there is one, stands for another identity."""

    def __init__(self, path: Path, uid: int | None, token: str = "") -> None:
        self._path = path
        self._uid = uid
        self._token = token

    def open(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection that checks the server's uid when it is opened."""
        return _UnixConnection(self._path, self._uid, timeout)

    def authorization(self, *_: object) -> dict[str, str]:
        """Return the token, if there is one."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}


class TlsTransport:
    """HTTPS: the certificate proves the server."""

    def __init__(self, address: str, token: str) -> None:
        self._parts = urlsplit(address)
        self._token = token

    def open(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection that checks the certificate when it is opened."""
        return http.client.HTTPSConnection(self._parts.hostname or "", self._parts.port, timeout=timeout)

    def authorization(self, *_: object) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"}


class PlainTransport:
    """Plain HTTP: the server proves that it knows the token, and the token does not travel."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._parts = urlsplit(address)
        self._token = token
        self._clock_offset = 0.0

    def open(self, timeout: float) -> http.client.HTTPConnection:
        """Return a connection to a server that has proven to know the token."""
        connection = http.client.HTTPConnection(self._parts.hostname or "", self._parts.port, timeout=timeout)
        try:
            self._verify(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _verify(self, connection: http.client.HTTPConnection) -> None:
        nonce = new_nonce()
        query = urlencode({"token": token_id(hash_token(self._token)), "nonce": nonce})
        connection.request("GET", f"{IDENTITY_PATH}?{query}")
        response = connection.getresponse()
        answer = response.read()
        if response.status == 404:
            raise NoDaemon(f"{self._not_ours}, or it is an older version")
        if response.status != 200:
            raise error_from_reply(response.status, answer)
        proof = msgspec.json.decode(answer, type=ServerProof)
        if not is_proven(proof, self._token, nonce):
            raise NoDaemon(f"{self._not_ours}: it does not know the token")
        self._clock_offset = proof.now - monotonic()

    @property
    def _not_ours(self) -> str:
        return f"the server at {self._address} is not the daemon of this token"

    def authorization(self, method: str, target: str, body: bytes, /) -> dict[str, str]:
        now = monotonic() + self._clock_offset
        return {"Authorization": sign(self._token, method, target, body, now).header()}


# Error replies of the daemon as exceptions.

_ERRORS = {status: kind for kind, status in reversed(HTTP_STATUS.items())}


def error_from_reply(status: int, answer: bytes) -> RefoldError:
    try:
        problem = msgspec.json.decode(answer, type=Problem)
    except msgspec.DecodeError:
        problem = Problem(f"the daemon answered with status {status} and no message")
    if problem.field:
        return BadField(problem.error, problem.field)
    return _ERRORS.get(status, Refused)(problem.error)
