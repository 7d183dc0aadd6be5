"""Requests to an API server: one persistent connection per thread, JSON, and watches as iterators."""

from __future__ import annotations

import asyncio
import http.client
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from refold.engines.kubernetes.access import Access
from refold.errors import RefoldError
from refold.model import Seconds

REQUEST_TIMEOUT: Seconds = 30.0
WATCH_SECONDS = 240
"""How long the API server keeps a watch open. It sends a bookmark about once a minute."""

WATCH_SILENCE: Seconds = 150.0
"""A watch without any message for this long is considered dead: bookmarks come more often."""

FIRST_PAUSE: Seconds = 0.1
MAX_PAUSE: Seconds = 5.0
RETRY_FOR: Seconds = 20.0
"""How long a request is repeated while the API server cannot be reached or is overloaded."""

REPEAT_PAUSE: Seconds = 1.0
"""Pause between attempts of `Calls.repeat`."""

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 401, 403, 404, 409

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

T = TypeVar("T")

log = logging.getLogger("refold")


class ApiError(RefoldError):
    """The API server rejected a request, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after: Seconds = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 408, 429, 500, 502, 503, 504)


class _Status(msgspec.Struct, rename="camel"):
    reason: str = ""
    message: str = ""
    code: int = 0


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class ObjectList(msgspec.Struct, Generic[T]):
    """A list of objects, and the version from which a watch continues it."""

    items: list[T] = []
    metadata: _ListMetadata = _ListMetadata()


class WatchEvent(msgspec.Struct):
    """A change: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, with the object as it is now."""

    type: str
    object: msgspec.Raw


class RequestKind(NamedTuple):
    """Requests that are counted together. `resource`: such as `pods/binding`. `code`: 0 if there was no answer."""

    method: str
    resource: str
    code: int


class RequestCounts:
    """Number and duration of requests, counted by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[RequestKind, tuple[int, Seconds]] = {}

    def add(self, kind: RequestKind, seconds: Seconds) -> None:
        """Count a request."""
        with self._lock:
            number, total = self._totals.get(kind, (0, 0.0))
            self._totals[kind] = number + 1, total + seconds

    def read(self) -> dict[RequestKind, tuple[int, Seconds]]:
        """Return number and total duration by kind."""
        with self._lock:
            return dict(self._totals)


def resource_of(path: str) -> str:
    """Return the resource of a path, such as `pods/binding`, without names of objects."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return "/".join(rest[::2]) or parts[0]


class ApiServer:
    """A client. It may be used from several threads; each has its own connection."""

    def __init__(self, access: Access, retry_for: Seconds = RETRY_FOR, guard: Callable[[], None] | None = None) -> None:
        """`guard`: called before each attempt to change something; raises ApiError if that is not permitted."""
        self._access = access
        self._guard = guard
        self._retry_for = retry_for
        self._local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._closed = threading.Event()
        self.requests = RequestCounts()

    def close(self) -> None:
        """Close the connections of all threads, and repeat no request any more. Watches have their own connections."""
        self._closed.set()
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    @property
    def address(self) -> str:
        return self._access.address

    def get(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> T:
        return msgspec.json.decode(self.call("GET", path, query=query), type=kind)

    def create(self, path: str, body: object, *, retry: bool = True) -> bytes:
        return self.call("POST", path, body, retry=retry)

    def patch(self, path: str, body: object, content_type: str = MERGE_PATCH) -> bytes:
        return self.call("PATCH", path, body, content_type=content_type)

    def delete(self, path: str, body: object = None) -> bytes:
        return self.call("DELETE", path, body)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        retry: bool = True,
    ) -> bytes:
        """Send a request, and repeat it for a while if the API server is not available; return the answer.

        A request that was repeated may have taken effect the first time: a second creation is then a conflict.
        """
        content = None if body is None else msgspec.json.encode(body)
        target = self._target(path, query)
        give_up_at, pause = time.monotonic() + self._retry_for, FIRST_PAUSE
        while True:
            try:
                return self._count(method, path, partial(self._send, method, target, content, content_type))
            except ApiError as error:
                if error.status == UNAUTHORIZED and self._access.renew():
                    continue
                wait = max(error.retry_after, pause * random.uniform(0.5, 1.0))
                if not (retry and error.is_transient) or time.monotonic() + wait > give_up_at:
                    raise
                if self._closed.wait(wait):
                    raise
            pause = min(2 * pause, MAX_PAUSE)

    def _count(self, method: str, path: str, send: Callable[[], bytes]) -> bytes:
        began, code = time.monotonic(), 200
        try:
            return send()
        except ApiError as error:
            code = error.status
            raise
        finally:
            self.requests.add(RequestKind(method, resource_of(path), code), time.monotonic() - began)

    def _send(self, method: str, target: str, content: bytes | None, content_type: str) -> bytes:
        if self._guard is not None and method != "GET":
            self._guard()
        headers = {"Accept": JSON, **self._access.headers()}
        if content is not None:
            headers["Content-Type"] = content_type
        connection = self._connection()
        try:
            connection.request(method, target, content, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop(connection)
            raise ApiError(0, "Unreachable", f"the API server {self.address} does not answer: {error}") from None
        if answer.status >= 400:
            raise _error_of(answer, text)
        return text

    def watch(self, path: str, resource_version: str, query: Mapping[str, str] | None = None) -> Watch:
        """Open a watch of the changes after a version."""
        asked = {
            **(query or {}),
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        connection = self._connect(WATCH_SILENCE)
        try:
            connection.request("GET", self._target(path, asked), headers={"Accept": JSON, **self._access.headers()})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _error_of(answer, answer.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ApiError(0, "Unreachable", f"the API server {self.address} does not answer: {error}") from None
        except ApiError as error:
            connection.close()
            if error.status == UNAUTHORIZED:
                self._access.renew()
            raise
        return Watch(connection, answer)

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        return self._access.prefix + path + (f"?{urlencode(query)}" if query else "")

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect(REQUEST_TIMEOUT)
            self._connections.append(connection)
        return connection

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        connection.close()
        self._local.connection = None
        with suppress(ValueError):
            self._connections.remove(connection)

    def _connect(self, timeout: Seconds) -> http.client.HTTPConnection:
        access = self._access
        connection: http.client.HTTPConnection
        if access.tls is None:
            connection = http.client.HTTPConnection(access.host, access.port, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(access.host, access.port, timeout=timeout, context=access.tls)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            raise ApiError(0, "Unreachable", f"the API server {self.address} does not answer: {error}") from None
        return connection


class Calls:
    """Requests to the API server from threads, for use with `await`."""

    def __init__(self, api: ApiServer, threads: ThreadPoolExecutor) -> None:
        self.api = api
        self._threads = threads

    async def run(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        call = partial(function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def repeat(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread, again and again while the API server is not available."""
        while True:
            try:
                return await self.run(function, *arguments)
            except ApiError as error:
                if not error.is_transient:
                    raise
                log.warning("%s; retrying", error)
            await asyncio.sleep(REPEAT_PAUSE)


class Watch:
    """An open watch: an iterator of changes. `close` ends it, from any thread."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._socket = connection.sock
        self._answer = answer
        self._decoder = msgspec.json.Decoder(WatchEvent)

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield changes until the API server ends the watch or the connection breaks."""
        try:
            while line := self._answer.readline():
                yield self._decoder.decode(line)
        except (OSError, http.client.HTTPException, ValueError, AttributeError, msgspec.DecodeError):
            return  # the connection broke, or was closed meanwhile: the next watch continues
        finally:
            self._connection.close()

    def close(self) -> None:
        with suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _error_of(answer: http.client.HTTPResponse, text: bytes) -> ApiError:
    return _api_error(answer.status, text, answer.headers.get("Retry-After", ""))


def _api_error(status: int, text: bytes, retry_after: str = "") -> ApiError:
    try:
        found = msgspec.json.decode(text, type=_Status)
    except (msgspec.DecodeError, msgspec.ValidationError):
        found = _Status(message=text[:200].decode(errors="replace"))
    seconds = float(retry_after) if retry_after.isdecimal() else 0.0
    return ApiError(status, found.reason, found.message or f"HTTP status {status}", seconds)


def watch_error(event: WatchEvent) -> ApiError:
    """Return the error that a watch reports instead of a change, such as 410 Gone."""
    found = msgspec.json.decode(event.object, type=_Status)
    return ApiError(found.code, found.reason, found.message)


def as_dict(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(text)
    return found
