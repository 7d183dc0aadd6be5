"""`refold show` as a server: only who has the link reads the recording, and nothing can be changed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from api_requests import Answer, request

from refold.server import RecordingServer
from refold.server.http import Api

SECRET = b'{"name":"secret"}'


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    opened = RecordingServer(SECRET)
    yield opened
    opened.close()


def sign_in(server: RecordingServer, app: Api) -> str:
    """Redeem a link; return the cookie."""
    code = server.make_link().partition("#open=")[2]
    answer = request(app, "POST", "/session", token=None, body=msgspec.json.encode({"code": code}))
    again = request(app, "POST", "/session", token=None, body=msgspec.json.encode({"code": code}))
    assert again.status == 401
    return answer.headers["set-cookie"].partition(";")[0]


def get(app: Api, path: str, cookie: str = "") -> Answer:
    return request(app, "GET", path, token=None, headers=[("cookie", cookie)] if cookie else [])


def test_the_recording_needs_the_link_which_works_once(server: RecordingServer) -> None:
    app = server.make_app()
    assert get(app, "/recording.json").status == 401
    cookie = sign_in(server, app)
    answer = get(app, "/recording.json", cookie)
    assert (answer.status, answer.body, answer.headers["cache-control"]) == (200, SECRET, "no-store")
    assert get(app, "/recording.json", "refold_session_7170=guessed").status == 401


def test_the_page_names_the_recording(server: RecordingServer) -> None:
    assert b'<meta name="refold-recording" content="recording.json">' in get(server.make_app(), "/").body


def test_there_are_no_calls_of_a_daemon(server: RecordingServer) -> None:
    app = server.make_app()
    cookie = sign_in(server, app)
    assert get(app, "/api/v1/info", cookie).status == 404
    assert request(app, "POST", "/api/v1/jobs", token=None, headers=[("cookie", cookie)]).status == 404


def test_other_host_names_are_refused(server: RecordingServer) -> None:
    assert request(server.make_app(), "GET", "/", token=None, host="evil.example").status == 403
