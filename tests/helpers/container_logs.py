"""The output of containers as a kubelet serves it to the API server: over HTTPS, with the time of each line."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
import threading
from collections import defaultdict
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Line = tuple[str, bytes]
"""The time of a line, and its text."""


class ContainerLogs:
    """Lines by container, which is NAMESPACE/POD/CONTAINER, and a server of them. `requests`: their queries."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self._lines: dict[str, list[Line]] = defaultdict(list)
        self._folder = Path(tempfile.mkdtemp(prefix="refold-kubelet-"))
        logs = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                logs._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.socket = self._certificate().wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        shutil.rmtree(self._folder)

    @property
    def node_status(self) -> dict[str, Any]:
        """By which the API server finds this server."""
        return {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._http.server_port}},
        }

    def add(self, container: str, line: bytes) -> None:
        """Add a line to the output of a container."""
        self._lines[container].append((datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z"), line))

    def _certificate(self) -> ssl.SSLContext:
        key, certificate = self._folder / "key.pem", self._folder / "certificate.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet", "-days", "2"]
        command += ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.requests.append(query)
        lines = [*self._lines[parts.path.removeprefix("/containerLogs/")]]
        if since := query.get("sinceTime"):
            lines = [line for line in lines if line[0][:19] >= since[:19]]
        timed = query.get("timestamps") == "true"
        text = b"".join(time.encode() + b" " + line if timed else line for time, line in lines)
        text = text[: int(query.get("limitBytes", len(text)))]
        request.send_response(200)
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)
