"""`refold show`: the web UI on a recording, for the user of this machine who has the link."""

from __future__ import annotations

import os

from refold.client.api import Caller
from refold.errors import Forbidden
from refold.server.http import Api, Page, Reply, Sessions, TokenAuthenticator, user_subject
from refold.server.listeners import format_address, open_tcp_listener
from refold.server.network import ConnectionLimits, ConnectionTable, make_http_server
from refold.server.web import WebFiles

RECORDING_NAME = "recording.json"
LOOPBACK_ADDRESS = "127.0.0.1"


class RecordingServer:
    """Serves a recording on a TCP socket of this machine. There is nothing that a request could change."""

    def __init__(self, recording: bytes, port: int = 0) -> None:
        """`port`: 0 for any that is free."""
        self._recording = recording
        self._listener = open_tcp_listener(LOOPBACK_ADDRESS, port)
        self._listener.listen()  # before the link is printed: a browser may be fast
        self._sessions = Sessions()

    @property
    def address(self) -> str:
        """The URL, without the right to open it."""
        return format_address(self._listener)

    def make_link(self) -> str:
        """Return a link that opens the page once, within five minutes; the browser can open it again."""
        code, _ = self._sessions.make_link(user_subject(os.getuid()))
        return f"{self.address}/#open={code}"

    def run(self) -> None:
        """Serve until interrupted."""
        limits = ConnectionLimits()
        make_http_server(self.make_app(), limits, ConnectionTable(limits)).run([self._listener])

    def close(self) -> None:
        self._listener.close()

    def make_app(self) -> Api:
        """Return the ASGI application: files, sessions and the recording."""
        pages = {f"/{RECORDING_NAME}": Page("reader", self._render)}
        files = WebFiles(recording=RECORDING_NAME)
        return Api(None, TokenAuthenticator({}), users=_OneUser(), pages=pages, sessions=self._sessions, files=files)

    async def _render(self) -> Reply:
        return Reply(200, self._recording, headers={"cache-control": "no-store"})


class _OneUser:
    """Sessions belong to the user who started the command; nobody else can sign in."""

    async def caller_of(self, uid: int) -> Caller:
        if uid != os.getuid():
            raise Forbidden(f"uid {uid} has not started this command")
        return Caller("show", "reader", "default", "")
