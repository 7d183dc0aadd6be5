"""The client's wire: one connection that is kept, and one of its own for each stream."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from refold.api import CALLS, LARGEST_BODY, STATUSES, Call, Event, Problem
from refold.client.address import Address
from refold.errors import BadField, NoDaemon, RefoldError, Refused, TooLarge

_CALLS = {call.name: call for call in CALLS}
_ERRORS = {status: kind for kind, status in reversed(STATUSES.items())}
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
"""What a connection says that the other side has closed while nobody spoke."""

PIECE = 1024 * 1024
LONGEST_SILENCE = 40.0
"""Seconds after which a stream is taken for dead: its daemon gives a sign of life more than twice in that time."""

Answer = TypeVar("Answer")


class Connection:
    """Questions of the table, and their answers. Threads may share it: they take turns."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._kept: http.client.HTTPConnection | None = None
        self.address = address.address
        self._parts = urlsplit(address.address)
        self._headers = {"Authorization": f"Bearer {address.token}"}
        self._timeout = timeout
        self._turn = threading.Lock()

    def __del__(self) -> None:
        self._let_go()

    def close(self) -> None:
        """Let the kept connection go."""
        with self._turn:
            self._let_go()

    def ask(self, gives: type[Answer], name: str, /, *parts: str | int, body: Any = None, **query: Any) -> Answer:
        """The answer, or the error that the daemon told."""
        call = _CALLS[name]
        sent = None if body is None else msgspec.json.encode(body)
        if sent is not None and len(sent) > LARGEST_BODY:
            raise TooLarge(f"{name} would send {len(sent):,} bytes, and a daemon takes {LARGEST_BODY:,} at once")
        headers = self._headers if sent is None else self._headers | {"Content-Type": "application/json"}
        with self._turn, self._told_plainly():
            status, answer = self._exchange(call, target_of(call, parts, query), sent, headers)
            if status != call.status:
                raise error_of(status, answer)
            return msgspec.json.decode(answer, type=gives)

    def pieces(self, name: str, /, **query: Any) -> Iterator[bytes]:
        """An answer of any length, piece by piece."""
        with self._told_plainly(), self._stream(name, query) as response:
            while piece := response.read(PIECE):
                yield piece

    def events(self, pause: float | None = None, /, **query: Any) -> Iterator[Event | int]:
        """Events as they come; at other signs of life, the first being that the stream is open, the number reached.

        It is an error if none comes for `pause` seconds.
        """
        reached = 0
        with self._told_plainly(), self._stream("events", query, pause) as response:
            for line in response:
                if line.startswith(b"data:"):
                    yield msgspec.json.decode(line[5:], type=Event)
                elif line.startswith(b"id:"):
                    reached = int(line[3:])
                elif line.startswith(b":"):
                    yield reached

    @contextmanager
    def _stream(
        self, name: str, query: dict[str, Any], pause: float | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        call = _CALLS[name]
        connection = self._open(pause or max(self._timeout, LONGEST_SILENCE))
        try:
            connection.request(call.method, target_of(call, (), query), headers=self._headers)
            response = connection.getresponse()
            if response.status != call.status:
                raise error_of(response.status, response.read())
            yield response
        finally:
            connection.close()

    def _exchange(self, call: Call, target: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """Over the kept connection; if that has gone stale, once more over a new one."""
        if self._kept is not None and not call.repeatable:
            self._let_go()  # a new connection is not stale, so that nothing has to be asked twice
        for kept in (True, False):
            try:
                if kept and self._kept is None:
                    continue
                if self._kept is None:
                    self._kept = self._open(self._timeout)
                self._kept.request(call.method, target, body, headers)
                response = self._kept.getresponse()
                return response.status, response.read()
            except BaseException as error:
                self._let_go()
                if not kept or not isinstance(error, _STALE):
                    raise
        raise AssertionError("the second turn returns or raises")

    def _open(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=timeout)

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @contextmanager
    def _told_plainly(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise NoDaemon(f"the daemon at {self.address} has not answered in {self._timeout:g} s") from None
        except OSError as error:
            problem = error.strerror or type(error).__name__
            raise NoDaemon(f"no daemon answers at {self.address}: {problem.lower()}") from None
        except (http.client.HTTPException, ValueError) as error:
            raise NoDaemon(f"what answers at {self.address} is no Refold daemon: {error!r}") from None


def target_of(call: Call, parts: tuple[str | int, ...], query: dict[str, Any]) -> str:
    """The path of a call with its places filled, and what is asked beside it."""
    path = call.path
    for part in parts:
        place = path[path.index("{") : path.index("}") + 1]
        path = path.replace(place, quote(str(part), safe=""), 1)
    asked = {key: _worded(value) for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(asked, doseq=True)}" if asked else path


def _worded(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def error_of(status: int, answer: bytes) -> RefoldError:
    """The error that a status and a problem stand for."""
    try:
        problem = msgspec.json.decode(answer, type=Problem)
    except msgspec.DecodeError:
        problem = Problem(f"the daemon answered with status {status} and no reason")
    if problem.field:
        return BadField(problem.error, problem.field)
    return _ERRORS.get(status, Refused)(problem.error)
