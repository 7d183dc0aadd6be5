"""SIGTERM ends a daemon on Kubernetes whose API server does not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_api_server import FakeApiServer, Refusal
from kubernetes_daemon import WAIT_SECONDS
from kubernetes_objects import node_json

COMMAND = (sys.executable, "-m", "refold", "serve", "--on", "kubernetes", "--policy", "fifo", "--port", "0")


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    """An API server with one node."""
    server = FakeApiServer()
    server.api.create("/api/v1/nodes", node_json("n0"))
    yield server
    server.stop()


class Daemon:
    """A daemon of the server."""

    def __init__(self, server: FakeApiServer, folder: Path) -> None:
        state, kubeconfig = folder / "state", server.write_kubeconfig(folder)
        self._process = subprocess.Popen(
            [*COMMAND, "--state", str(state), "--kubeconfig", str(kubeconfig)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for_line(self, part: str) -> None:
        """Read output until a line contains this."""
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if part in line:
                return
        raise AssertionError(f"no {part!r} in {lines}")

    def end(self) -> int:
        """Send SIGTERM; return the exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.communicate(timeout=WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        return self._process.returncode


def test_while_it_waits_for_the_list_of_pods(server: FakeApiServer, tmp_path: Path) -> None:
    server.refuse = lambda _, path: Refusal(503) if path.startswith("/api/v1/pods") else None
    daemon = Daemon(server, tmp_path)
    daemon.wait_for_line("cannot watch /api/v1/pods")
    assert daemon.end() == 0


def test_after_the_api_server_has_gone(server: FakeApiServer, tmp_path: Path) -> None:
    daemon = Daemon(server, tmp_path)
    daemon.wait_for_line("http://127.0.0.1:")
    server.refuse = lambda *_: Refusal(0)
    server.forget_changes()
    daemon.wait_for_line("cannot watch")
    assert daemon.end() == 0
