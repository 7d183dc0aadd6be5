"""HTTP connections of the client: one persistent connection for calls, and one per stream."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from refold.client.address import Address
from refold.client.api import CALLS, LINK_CALL, MAX_REQUEST_BYTES, Call, Event
from refold.client.transports import error_from_reply, make_transport
from refold.errors import NoDaemon, TooLarge

_CALLS = {call.name: call for call in (*CALLS, LINK_CALL)}
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
"""Errors of a persistent connection that the daemon has closed while it was idle."""

CHUNK_BYTES = 1024 * 1024
STREAM_TIMEOUT = 40.0
"""Seconds without data after which a stream counts as dead: more than two heartbeats of the daemon."""

Answer = TypeVar("Answer")


class Connection:
    """Makes the calls listed in `refold.client.api.CALLS`. Thread-safe: calls are serialised."""

    def __init__(self, address: Address, timeout: float) -> None:
        self._persistent: http.client.HTTPConnection | None = None
        self.address = address.address
        self._transport = make_transport(address)
        self._timeout = timeout
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self._disconnect()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def call(
        self, response_type: type[Answer], name: str, /, *path_values: str | int, body: Any = None, **query: Any
    ) -> Answer:
        """Make a call and return the decoded answer, or raise the error that the daemon reports."""
        call = _CALLS[name]
        encoded = None if body is None else msgspec.json.encode(body)
        if encoded is not None and len(encoded) > MAX_REQUEST_BYTES:
            raise TooLarge(
                f"the request body of {name} has {len(encoded):,} bytes, expected at most {MAX_REQUEST_BYTES:,}"
            )
        with self._lock, self._readable_errors():
            status, answer = self._exchange(call, request_target(call, path_values, query), encoded)
            if status != call.status:
                raise error_from_reply(status, answer)
            return msgspec.json.decode(answer, type=response_type)

    def chunks(self, name: str, /, **query: Any) -> Iterator[bytes]:
        """Make a call and yield its answer, of any length, in chunks."""
        with self._readable_errors(), self._stream(name, query) as response:
            while chunk := response.read(CHUNK_BYTES):
                yield chunk
            if response.length:  # `read` with a size reports an answer that broke off as its end
                raise http.client.IncompleteRead(b"", response.length)

    def events(self, timeout: float | None = None, /, **query: Any) -> Iterator[Event | int]:
        """Yield events as they arrive, and the current event number at each heartbeat.

        The first heartbeat signals that the stream is open. Raises NoDaemon after `timeout` seconds without data.
        """
        position = 0
        with self._readable_errors(), self._stream("events", query, timeout) as response:
            for line in response:
                if line.startswith(b"data:"):
                    yield msgspec.json.decode(line[5:], type=Event)
                elif line.startswith(b"id:"):
                    position = int(line[3:])
                elif line.startswith(b":"):
                    yield position

    @contextmanager
    def _stream(
        self, name: str, query: dict[str, Any], timeout: float | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        call = _CALLS[name]
        connection = self._transport.open(timeout or max(self._timeout, STREAM_TIMEOUT))
        target = request_target(call, (), query)
        try:
            connection.request(call.method, target, headers=self._headers(call, target, None))
            response = connection.getresponse()
            if response.status != call.status:
                raise error_from_reply(response.status, response.read())
            yield response
        finally:
            connection.close()

    def _exchange(self, call: Call, target: str, body: bytes | None) -> tuple[int, bytes]:
        """Send a request over the persistent connection; if that is stale, retry once over a new one."""
        if self._persistent is not None and not call.repeatable:
            self._disconnect()  # a new connection cannot be stale, so the request is sent only once
        for reuse in (True, False):
            try:
                if reuse and self._persistent is None:
                    continue
                if self._persistent is None:
                    self._persistent = self._transport.open(self._timeout)
                self._persistent.request(call.method, target, body, self._headers(call, target, body))
                response = self._persistent.getresponse()
                return response.status, response.read()
            except BaseException as error:
                self._disconnect()
                if not reuse or not isinstance(error, _STALE):
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _headers(self, call: Call, target: str, body: bytes | None) -> dict[str, str]:
        content = {} if body is None else {"Content-Type": "application/json"}
        return content | self._transport.authorization(call.method, target, body or b"")

    def _disconnect(self) -> None:
        if self._persistent is not None:
            self._persistent.close()
            self._persistent = None

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise NoDaemon(f"the daemon at {self.address} did not answer within {self._timeout:g} s") from None
        except OSError as error:
            problem = error.strerror or type(error).__name__
            raise NoDaemon(f"no daemon answers at {self.address}: {problem.lower()}") from None
        except http.client.IncompleteRead:
            raise NoDaemon(f"the answer of the daemon at {self.address} broke off") from None
        except (http.client.HTTPException, ValueError) as error:
            raise NoDaemon(f"the server at {self.address} is not a Refold daemon: {error!r}") from None


def request_target(call: Call, path_values: tuple[str | int, ...], query: dict[str, Any]) -> str:
    """Return the path of a call with its parameters filled in, and its query string. None and '' are left out."""
    path = call.path
    for value in path_values:
        parameter = path[path.index("{") : path.index("}") + 1]
        path = path.replace(parameter, quote(str(value), safe=""), 1)
    parameters = {key: _format_value(value) for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path


def _format_value(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
