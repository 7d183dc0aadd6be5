"""A proxy before a real API server that spoils bindings and drops watches."""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from http_answers import send_answer, write_kubeconfig

FAILURES = ("temporary", "final", "answer lost")
"""How a binding fails: with status 500, with status 422, or it takes effect and its answer is lost."""


class FaultyProxy:
    """Forwards requests over HTTP to the API server on a port.

    `failing`: the part of bindings that fail. `delay`: the most seconds that a binding is delayed; one whose sender has
    ended meanwhile is not forwarded, as if it had never been sent.
    """

    def __init__(self, port: int, seed: int = 0) -> None:
        self.failing = 0.0
        self.delay = 0.0
        self.failed = 0
        self.dropped = 0
        self._port = port
        self._random = random.Random(seed)
        self._watches: set[socket.socket] = set()
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            upstream: http.client.HTTPSConnection | None = None

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def answer(self) -> None:
                with suppress(OSError, http.client.HTTPException):
                    proxy._forward(self)
                    return
                self.close_connection = True

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815

            def finish(self) -> None:
                if self.upstream is not None:
                    self.upstream.close()
                with suppress(OSError):
                    super().finish()

            def log_message(self, *_: object) -> None:
                pass

        self._handler = Handler
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop forwarding."""
        self.drop_watches()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def drop_watches(self) -> None:
        """Break the connections of all watches."""
        for connection in list(self._watches):
            self.dropped += 1
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def write_kubeconfig(self, path: Path, user: str, token: str) -> Path:
        """Write a kubeconfig file that leads here."""
        return write_kubeconfig(path, f"http://127.0.0.1:{self._http.server_port}", user, token)

    def _forward(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        is_binding = request.path.endswith("/binding")
        if is_binding:
            time.sleep(self._random.uniform(0.0, self.delay))
            _check_sender(request.connection)
        failure = self._failure() if is_binding else ""
        if failure in ("temporary", "final"):
            status = 500 if failure == "temporary" else 422
            send_answer(request, status, json.dumps({"kind": "Status", "code": status, "message": failure}).encode())
            return
        answer = self._ask(request, body)
        if "watch=true" in request.path:
            self._stream(request, answer)
            return
        text = answer.read()
        if failure:
            raise ConnectionError("the answer is lost")
        send_answer(request, answer.status, text, answer.headers.get("Retry-After", ""))

    def _failure(self) -> str:
        if self._random.random() >= self.failing:
            return ""
        self.failed += 1
        return self._random.choice(FAILURES)

    def _ask(self, request: BaseHTTPRequestHandler, body: bytes) -> http.client.HTTPResponse:
        upstream = getattr(request, "upstream", None)
        if upstream is None:
            upstream = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=300, context=self._tls)
            request.upstream = upstream  # type: ignore[attr-defined]
        names = ("Accept", "Authorization", "Content-Type")
        headers = {name: request.headers[name] for name in names if request.headers[name]}
        try:
            upstream.request(request.command, request.path, body or None, headers)
            found: http.client.HTTPResponse = upstream.getresponse()
        except BaseException:
            request.upstream = None  # type: ignore[attr-defined]
            raise
        return found

    def _stream(self, request: BaseHTTPRequestHandler, answer: http.client.HTTPResponse) -> None:
        request.send_response(answer.status)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        self._watches.add(request.connection)
        try:
            while line := answer.readline():
                request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                request.wfile.flush()
            request.wfile.write(b"0\r\n\r\n")
        finally:
            self._watches.discard(request.connection)
            request.close_connection = True


def _check_sender(connection: socket.socket) -> None:
    """Raise ConnectionError if the sender of a request has closed its connection."""
    with suppress(BlockingIOError):
        if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            raise ConnectionError("the sender is gone")
