"""The web UI of a real daemon: links over the Unix socket, and sessions that survive a restart."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from real_daemon import RealDaemon

from refold.client.address import read_address
from refold.client.api.access import SessionStatus
from refold.client.client import Client


def send(address: str, method: str, path: str, body: object = None, cookie: str = "") -> tuple[int, bytes, str]:
    """Return status, body and cookie of an answer. The host has no port, so that the cookie outlives a change of it."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    headers = {"Content-Type": "application/json", "Host": "localhost"} | ({"Cookie": cookie} if cookie else {})
    try:
        connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), (answer.getheader("Set-Cookie") or "").partition(";")[0]
    finally:
        connection.close()


def test_a_user_of_the_machine_signs_in_by_a_link_and_stays_so_when_the_daemon_is_restarted(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with RealDaemon(folder) as daemon:
        stored = read_address(folder)
        assert stored is not None
        with Client(f"unix:{stored.socket}") as client:
            url = client.sign_in_link().url
        assert url.startswith(f"{daemon.startup.address}/#open=")
        code = {"code": url.partition("#open=")[2]}
        status, body, cookie = send(daemon.startup.address, "POST", "/session", code)
        assert (status, msgspec.json.decode(body, type=SessionStatus).role) == (201, "owner")
        daemon.end()
    with RealDaemon(folder) as again:
        assert send(again.startup.address, "GET", "/api/v1/info", cookie=cookie)[0] == 200
        assert send(again.startup.address, "POST", "/session", code)[0] == 401


def test_the_page_is_served_without_a_session(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state") as daemon:
        status, body, _ = send(daemon.startup.address, "GET", "/")
        assert status == 200
        assert b'type="module"' in body
        assert send(daemon.startup.address, "GET", "/api/v1/info")[0] == 401
