"""Answers of HTTP servers for tests, and the kubeconfig files that lead to them."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


def send_answer(request: BaseHTTPRequestHandler, status: int, text: bytes, retry_after: str = "") -> None:
    """Answer a request."""
    request.send_response(status)
    request.send_header("Content-Length", str(len(text)))
    if retry_after:
        request.send_header("Retry-After", retry_after)
    request.end_headers()
    request.wfile.write(text)


def write_kubeconfig(path: Path, server: str, user: str, token: str, **cluster: Any) -> Path:
    """Write a kubeconfig file for a user of a server. `cluster`: more fields of it, with _ for -."""
    fields = {name.replace("_", "-"): value for name, value in cluster.items()}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "clusters": [{"name": "test", "cluster": {"server": server, **fields}}],
        "users": [{"name": user, "user": {"token": token}}],
    }
    path.write_text(json.dumps(config))
    return path
