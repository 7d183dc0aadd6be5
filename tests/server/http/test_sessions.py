"""Sessions of the web UI: sign in by token and by link, cookies, forged requests, sign out."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest
from api_requests import Answer, request
from fake_service import MEMBER, OWNER, READER, FakeService, make_app

from refold.client.api.access import SessionStatus, SignInLink
from refold.errors import Unauthenticated
from refold.server.http.app import Api
from refold.server.http.sessions import (
    LINK_SECONDS,
    MAX_SESSIONS_PER_SUBJECT,
    SESSION_SECONDS,
    SessionCookie,
    Sessions,
    WebSession,
)
from refold.server.http.tokens import TokenAuthenticator

HOLD = "/api/v1/jobs/train-1/hold"


def post(app: Api, path: str, body: object = None, **more: object) -> Answer:
    return request(app, "POST", path, b"" if body is None else msgspec.json.encode(body), **{"token": None, **more})


def sign_in(app: Api, token: str = OWNER) -> tuple[str, SessionStatus]:
    """Sign in with a token; return the cookie and the status."""
    answer = post(app, "/session", {"token": token})
    assert answer.status == 201, answer
    return answer.headers["set-cookie"].partition(";")[0], msgspec.json.decode(answer.body, type=SessionStatus)


def get(app: Api, path: str, cookie: str) -> Answer:
    return request(app, "GET", path, token=None, headers=[("cookie", cookie)])


def make_link(app: Api, token: str = MEMBER) -> str:
    answer = post(app, "/session/link", token=token)
    assert answer.status == 201
    return msgspec.json.decode(answer.body, type=SignInLink).url.partition("#open=")[2]


def app_with_a_job() -> Api:
    from refold.client.api.submissions import Submission

    service = FakeService()
    service.add(Submission("train", ["true"]))
    return make_app(service)


def test_a_token_opens_a_session_with_its_rights() -> None:
    app = make_app()
    cookie, status = sign_in(app, READER)
    assert (status.signed_in, status.role, status.tenant) == (True, "reader", "vision")
    assert get(app, "/api/v1/info", cookie).status == 200
    assert get(app, "/api/v1/tokens", cookie).problem.error.startswith("tokens requires the role owner")


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    header = post(make_app(), "/session", {"token": OWNER}).headers["set-cookie"]
    assert re.fullmatch(r"refold_session_7170=[\w-]{43}; Path=/; Max-Age=604800; HttpOnly; SameSite=Strict", header)


def test_behind_a_proxy_with_tls_the_cookie_is_secure_and_has_no_port() -> None:
    more = {"host": "testserver", "headers": [("origin", "https://testserver")]}
    header = post(make_app(), "/session", {"token": OWNER}, **more).headers["set-cookie"]
    assert header.startswith("refold_session=")
    assert header.endswith("; Secure")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"token": "rf_guessed"}, 401),
        ({"code": "guessed"}, 401),
        ({}, 422),
        ({"token": OWNER, "code": "x"}, 422),
        ({"user": "ann"}, 422),
    ],
)
def test_other_credentials_open_none(body: object, status: int) -> None:
    answer = post(make_app(), "/session", body)
    assert answer.status == status
    assert "set-cookie" not in answer.headers


def test_a_link_opens_one_session_of_who_made_it() -> None:
    app = make_app()
    code = make_link(app)
    first, second = post(app, "/session", {"code": code}), post(app, "/session", {"code": code})
    assert msgspec.json.decode(first.body, type=SessionStatus).user == "member-user"
    assert (second.status, second.problem.error[:22]) == (401, "the link has been used")


def test_a_session_cannot_make_a_link_and_nobody_else_without_a_token() -> None:
    app = make_app()
    cookie, status = sign_in(app)
    csrf = [("cookie", cookie), ("x-csrf-token", status.csrf_token)]
    assert post(app, "/session/link", headers=csrf).status == 403
    assert post(app, "/session/link").status == 401


@pytest.mark.parametrize("token", ["", "0" * 64, "\u00e9"])
def test_a_change_without_the_csrf_token_is_rejected(token: str) -> None:
    app = app_with_a_job()
    cookie, status = sign_in(app)
    forged = post(app, HOLD, headers=[("cookie", cookie), ("x-csrf-token", token)])
    assert (forged.status, forged.problem.error) == (403, "the request has no valid CSRF token; reload the page")
    assert post(app, HOLD, headers=[("cookie", cookie), ("x-csrf-token", status.csrf_token)]).status == 200


def test_the_csrf_token_of_another_session_does_not_help() -> None:
    app = app_with_a_job()
    cookie, _ = sign_in(app)
    _, other = sign_in(app)
    assert post(app, HOLD, headers=[("cookie", cookie), ("x-csrf-token", other.csrf_token)]).status == 403


def test_a_cookie_is_found_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is unquoted: the standard library does that in quadratic time, before anybody is authenticated."""

    def unquote(text: str) -> str:
        raise AssertionError(text)

    monkeypatch.setattr("http.cookies._unquote", unquote)
    app = make_app()
    cookie, _ = sign_in(app)
    name, _, _ = cookie.partition("=")
    quoted = 'a="' + "\\1" * 1000 + '"'
    for others in (f"{quoted}; {cookie}", f"{cookie};b", f"b; {name}=; {cookie}", f"=;;{cookie};{name}x=1"):
        assert get(app, "/api/v1/info", others).status == 200
    for wrong in (f'{name}="' + "\\1" * 1000 + '"', f"{name}=", f"{name}", quoted, ";"):
        assert get(app, "/api/v1/info", wrong).status == 401


def test_a_request_of_another_origin_is_rejected_even_with_the_cookie() -> None:
    app = app_with_a_job()
    cookie, status = sign_in(app)
    headers = [("cookie", cookie), ("x-csrf-token", status.csrf_token), ("origin", "http://evil.example")]
    assert post(app, HOLD, headers=headers).problem.error.startswith("cross-origin requests are not allowed")
    assert post(app, "/session", {"token": OWNER}, headers=[("origin", "http://evil.example")]).status == 403


def test_signing_out_ends_the_session_and_needs_the_csrf_token() -> None:
    app = make_app()
    cookie, status = sign_in(app)
    assert request(app, "DELETE", "/session", token=None, headers=[("cookie", cookie)]).status == 403
    answer = request(
        app, "DELETE", "/session", token=None, headers=[("cookie", cookie), ("x-csrf-token", status.csrf_token)]
    )
    assert answer.status == 200
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert get(app, "/api/v1/info", cookie).status == 401


def test_who_is_signed_in_can_be_asked_without_being_so() -> None:
    app = make_app()
    cookie, status = sign_in(app)
    assert msgspec.json.decode(get(app, "/session", cookie).body, type=SessionStatus) == status
    for other in ("refold_session_7170=x", "refold_session_7171=" + cookie.partition("=")[2], "\x00=;;=", "a"):
        assert msgspec.json.decode(get(app, "/session", other).body, type=SessionStatus) == SessionStatus()


def test_revoking_the_token_ends_its_sessions() -> None:
    service = FakeService()
    app = make_app(service)
    cookie, _ = sign_in(app, MEMBER)
    service.stored_tokens.pop(next(key for key, stored in service.stored_tokens.items() if stored.name == "member"))
    assert get(app, "/api/v1/info", cookie).status == 401


def test_a_token_in_the_header_needs_neither_cookie_nor_csrf_token() -> None:
    app = app_with_a_job()
    assert post(app, HOLD, token=OWNER, headers=[("cookie", "refold_session_7170=expired")]).status == 200


def test_methods_that_a_path_does_not_have_are_named() -> None:
    app = make_app()
    assert request(app, "PUT", "/session").headers["allow"] == "GET, POST, DELETE, HEAD, OPTIONS"
    assert request(app, "GET", "/session/link").status == 405
    assert request(app, "OPTIONS", "/session").status == 204


@pytest.mark.parametrize(("method", "path"), [("GET", "/session"), ("DELETE", "/session"), ("POST", "/session/link")])
def test_calls_of_a_session_have_no_parameters(method: str, path: str) -> None:
    answer = request(make_app(), method, f"{path}?token={OWNER}")
    assert (answer.status, answer.problem.error) == (422, "unknown parameter 'token' (known: none)")


def test_a_token_in_the_query_string_does_not_sign_in() -> None:
    answer = post(make_app(), f"/session?token={OWNER}", {"token": OWNER})
    assert (answer.status, answer.problem.field) == (422, "token")
    assert "set-cookie" not in answer.headers


# The store of sessions


def test_sessions_and_links_expire() -> None:
    now = 0.0
    sessions = Sessions(clock=lambda: now)
    cookie = asyncio.run(sessions.open("uid 1"))
    code, expires = sessions.make_link("uid 1")
    assert expires == LINK_SECONDS
    now = LINK_SECONDS
    with pytest.raises(Unauthenticated, match="older than 5 minutes"):
        sessions.redeem(code)
    now = SESSION_SECONDS
    with pytest.raises(Unauthenticated, match="the session has ended"):
        sessions.subject_of(cookie)


def test_sessions_are_stored_without_their_secrets_and_restored() -> None:
    stored: dict[str, WebSession] = {}

    async def save(sessions: dict[str, WebSession]) -> None:
        stored.clear()
        stored.update(sessions)

    sessions = Sessions(save=save)
    cookie = asyncio.run(sessions.open("uid 1"))
    assert cookie.secret not in msgspec.json.encode(stored).decode()
    assert Sessions(stored).subject_of(cookie) == "uid 1"
    asyncio.run(sessions.close(cookie))
    assert stored == {}


def test_the_oldest_session_of_a_caller_gives_way() -> None:
    sessions = Sessions()

    async def open_many() -> list[SessionCookie]:
        return [await sessions.open("uid 1") for _ in range(MAX_SESSIONS_PER_SUBJECT + 1)]

    first, *others = asyncio.run(open_many())
    assert [sessions.is_open(cookie) for cookie in (first, others[0], others[-1])] == [False, True, True]


def test_long_answers_are_compressed_only_for_clients_that_ask() -> None:
    app = make_app()
    plain = request(app, "GET", "/openapi.json", headers=[("accept-encoding", "identity")])
    for accepted in ("gzip, deflate, br", "GZIP"):
        small = request(app, "GET", "/openapi.json", headers=[("accept-encoding", accepted)])
        assert small.headers["content-encoding"] == "gzip"
        assert len(small.body) < len(plain.body) / 3
    assert (
        "content-encoding"
        not in request(app, "GET", "/openapi.json", headers=[("accept-encoding", "gzip;q=0")]).headers
    )
    assert "content-encoding" not in plain.headers


def test_a_cookie_without_a_session_means_nothing() -> None:
    service = FakeService()
    app = Api(service, TokenAuthenticator(service.stored_tokens))
    assert get(app, "/api/v1/info", "refold_session_7170=x").status == 401


@pytest.mark.parametrize("cookie", ["theme=dark", "refold_session_7170=", "refold_session_7170=x; theme=dark"])
def test_cookies_of_other_applications_and_empty_ones_are_no_session(cookie: str) -> None:
    assert get(make_app(), "/api/v1/info", cookie).status == 401
