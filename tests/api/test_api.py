"""The API: who may ask what, what is refused and how, and that nothing but a Problem comes of it."""

from __future__ import annotations

import asyncio
import http.client
import logging
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from fake_service import MEMBER, OTHER, OWNER, READER, FakeService, make_app, serve
from hypothesis import given, settings, strategies as st

from refold.api.app import Api
from refold.api.calls import CALLS, LARGEST_BODY, Call
from refold.api.roles import Caller
from refold.api.wire import DaemonInfo, Problem, Submission
from refold.errors import BadInput, BadValue, RefoldError, TooManyRequests, Unavailable

JOB = b'{"name": "train", "command": ["python", "train.py"]}'
Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> Problem:
        return msgspec.json.decode(self.body, type=Problem)


def ask(
    app: Api,
    method: str,
    path: str,
    body: bytes | Sequence[bytes] = b"",
    *,
    token: str | None = OWNER,
    headers: Headers = (),
    host: str = "127.0.0.1:7170",
    stalls: bool = False,
) -> Answer:
    """One request, as a server would hand it over; a body of several pieces comes piece by piece, and may stall."""
    path, _, query = path.partition("?")
    given = {"host": host, "content-type": "application/json"} | (
        {} if token is None else {"authorization": f"Bearer {token}"}
    )
    lines = [(name, text) for name, text in given.items() if name not in dict(headers)] + list(headers)
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), text.encode("latin-1")) for name, text in lines if text is not None],
    }
    pieces = [body] if isinstance(body, bytes) else list(body)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": stalls or bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    told = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
    return Answer(sent[0]["status"], told, b"".join(message["body"] for message in sent[1:]))


def desk_with_a_job() -> FakeService:
    service = FakeService()
    service.start(service.add(Submission("train", ["python", "train.py"])).id)
    service.feed.end()
    return service


# Who may ask

MAY_ASK = {
    "about": "reader member owner",
    "submit": "member owner",
    "submit_all": "member owner",
    "preview": "reader member owner",
    "jobs": "reader member owner",
    "job": "reader member owner",
    "why": "reader member owner",
    "logs": "reader member owner",
    "cancel": "member owner",
    "hold": "member owner",
    "release": "member owner",
    "nodes": "reader member owner",
    "drain": "owner",
    "resume": "owner",
    "gpus": "reader member owner",
    "tenants": "reader member owner",
    "tokens": "owner",
    "new_token": "owner",
    "revoke_token": "owner",
    "snapshot": "owner",
    "journal": "owner",
    "events": "reader member owner",
}
BODIES = {"submit": JOB, "preview": JOB, "submit_all": b"[" + JOB + b"]", "new_token": b'{"name": "new"}'}
NAMES = {"{job}": "train-1", "{node}": "here", "{name}": "other"}


def ask_for(app: Api, call: Call, token: str | None, query: str = "") -> Answer:
    path = re.sub(r"\{\w+\}", lambda place: NAMES[place[0]], call.path)
    return ask(app, call.method, path + query, BODIES.get(call.name, b""), token=token)


def test_the_table_of_rights_is_about_all_calls() -> None:
    assert list(MAY_ASK) == [call.name for call in CALLS]


@pytest.mark.parametrize("token", [READER, MEMBER, OWNER])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_is_for_those_roles_only(call: Call, token: str) -> None:
    answer = ask_for(make_app(desk_with_a_job()), call, token)
    if token.removeprefix("rf_") in MAY_ASK[call.name].split():
        assert answer.status in (200, 201, 409), answer
    else:
        assert (answer.status, answer.problem.field) == (403, "")
        assert answer.problem.error.startswith(f"{call.name} takes the role ")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_nobody_asks_without_a_token_in_the_header(call: Call) -> None:
    app = make_app(desk_with_a_job())
    for answer in (
        ask_for(app, call, None),
        ask_for(app, call, "rf_guessed"),
        ask_for(app, call, None, f"?token={OWNER}"),
        ask_for(app, call, None, f"?access_token={OWNER}"),
    ):
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="refold"')


def test_a_token_that_is_revoked_opens_nothing_from_then_on() -> None:
    app = make_app()
    assert ask(app, "GET", "/api/v1/about", token=OTHER).status == 200
    assert ask(app, "DELETE", "/api/v1/tokens/other").status == 200
    assert ask(app, "GET", "/api/v1/about", token=OTHER).status == 401


def test_a_token_that_was_made_opens_what_its_role_may() -> None:
    app = make_app()
    made = msgspec.json.decode(ask(app, "POST", "/api/v1/tokens", b'{"name": "new", "role": "reader"}').body)
    assert ask(app, "GET", "/api/v1/about", token=made["token"]).status == 200
    assert ask(app, "POST", "/api/v1/jobs", JOB, token=made["token"]).status == 403


def test_what_the_desk_refuses_to_another_tenant_is_forbidden() -> None:
    app = make_app(desk_with_a_job())
    answer = ask(app, "POST", "/api/v1/jobs/train-1/cancel", token=OTHER)
    assert (answer.status, answer.problem) == (
        403,
        Problem("train-1 is of the tenant 'vision', and you are of 'speech'"),
    )


# From where


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:7170", "localhost:7170", "LOCALHOST", "[::1]:7170", "testserver:80"]
)
def test_the_daemon_goes_by_these_names(host: str) -> None:
    assert ask(make_app(), "GET", "/api/v1/about", host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil@localhost.evil", "", "[::1", "0.0.0.0"]
)
@pytest.mark.parametrize("path", ["/api/v1/about", "/healthz", "/docs", "/nothing"])
def test_a_name_that_somebody_else_gave_it_is_refused(host: str, path: str) -> None:
    answer = ask(make_app(), "GET", path, host=host)
    assert (answer.status, answer.problem.error) == (403, f"this daemon does not go by the name {host!r}")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7170", 201),
        ("https://127.0.0.1:7170", 201),
        ("http://127.0.0.1:8000", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_only_pages_of_its_own_may_ask(origin: str, status: int) -> None:
    assert ask(make_app(), "POST", "/api/v1/jobs", JOB, headers=[("origin", origin)]).status == status


def test_two_headers_that_contradict_each_other_are_refused() -> None:
    headers = [("authorization", "Bearer rf_guessed"), ("authorization", f"Bearer {OWNER}")]
    answer = ask(make_app(), "GET", "/api/v1/about", headers=headers)
    assert (answer.status, answer.problem.error) == (400, "the header authorization is there 2 times, expected it once")


# What is asked

WRONG_BODIES = {
    b"": ("the body is not JSON: Input data was truncated", ""),
    b"{": ("the body is not JSON: Input data was truncated", ""),
    b'{"name": NaN}': ("the body is not JSON: JSON is malformed: invalid character (byte 9)", ""),
    b"[" * 100_000: ("Expected object, got array", ""),
    b'{"name": "\xff", "command": ["x"]}': (
        "the body is not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        "",
    ),
    b'{"name": "a"}': ("command is absent", "command"),
    b'{"name": "a", "command": ["x"], "gpu": 1}': ("gpu is no field that there is", "gpu"),
    b'{"name": "a", "command": ["x"], "gpus": "two"}': ("gpus: expected int, got str", "gpus"),
    b'{"name": "a", "command": ["x"], "gpus": -1}': ("gpus: expected int >= 0", "gpus"),
    b'{"name": "a", "command": ["x"], "cpus": 1e999}': ("cpus: number out of range", "cpus"),
    b'{"name": "a", "command": ["x", 1]}': ("command[1]: expected str, got int", "command[1]"),
    b'{"name": "a b", "command": ["x"]}': ("name is 'a b', expected letters, digits, '.', '_' and '-'", ""),
}


@pytest.mark.parametrize("body", WRONG_BODIES, ids=lambda body: body[:40].decode("latin-1"))
def test_a_body_that_is_wrong_is_told_with_its_field(body: bytes) -> None:
    answer = ask(make_app(), "POST", "/api/v1/jobs", body)
    assert (answer.status, answer.problem) == (422, Problem(*WRONG_BODIES[body]))


def test_a_field_of_one_of_many_is_told_with_its_place() -> None:
    answer = ask(make_app(), "POST", "/api/v1/submissions", b"[" + JOB + b', {"name": "b"}]')
    assert answer.problem == Problem("[1].command is absent", "[1].command")


def test_of_many_submissions_that_are_refused_none_is_made() -> None:
    service = FakeService()
    body = b"[" + JOB + b', {"name": "b", "command": ["x"], "tenant": "speech"}]'
    assert ask(make_app(service), "POST", "/api/v1/submissions", body, token=MEMBER).status == 403
    assert service.all == {}


WRONG_QUERIES = {
    "limit=0": ("limit: expected int >= 1", "limit"),
    "limit=1001": ("limit: expected int <= 1000", "limit"),
    "limit=ten": ("limit: expected int, got str", "limit"),
    "limit=": ("limit: expected int, got str", "limit"),
    "limit=1&limit=2": ("limit is there twice, expected it once", "limit"),
    "ended=1": ("ended: expected bool, got int", "ended"),
    "after=null": ("after: expected int, got str", "after"),
    "state=lost": ("state[0]: invalid enum value 'lost'", "state[0]"),
    "limits=5": ("limits is no field that there is", "limits"),
    "tenant=%ff": ("the parameters cannot be read: they are too many, or not in UTF-8", ""),
    "&".join(f"a{number}=" for number in range(65)): (
        "the parameters cannot be read: they are too many, or not in UTF-8",
        "",
    ),
}


@pytest.mark.parametrize("query", WRONG_QUERIES, ids=lambda query: query[:20])
def test_a_parameter_that_is_wrong_is_told_by_name(query: str) -> None:
    answer = ask(make_app(), "GET", f"/api/v1/jobs?{query}")
    assert (answer.status, answer.problem) == (422, Problem(*WRONG_QUERIES[query]))


def test_a_call_without_parameters_takes_none() -> None:
    answer = ask(make_app(), "GET", "/api/v1/about?pretty=1")
    assert (answer.status, answer.problem.field) == (422, "pretty")


def test_parameters_arrive_with_their_types() -> None:
    seen: list[dict[str, Any]] = []

    class Noting(FakeService):
        async def jobs(self, caller: Caller, **asked: Any) -> Any:
            seen.append(asked)
            return []

    ask(make_app(Noting()), "GET", "/api/v1/jobs?state=running&state=held&limit=5&ended=true&user=%C3%A9")
    assert seen == [
        {
            "state": ["running", "held"],
            "tenant": "",
            "user": "é",
            "name": "",
            "limit": 5,
            "after": 0,
            "ended": True,
        }
    ]


@pytest.mark.parametrize("media", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_only_json_is_taken(media: str) -> None:
    answer = ask(make_app(), "POST", "/api/v1/jobs", JOB, headers=[("content-type", media)])
    assert (answer.status, answer.problem.error) == (
        415,
        f"the body is {media or 'of no type'!r}, expected application/json",
    )


def test_json_may_name_its_character_set() -> None:
    headers = [("content-type", "Application/JSON; charset=utf-8")]
    assert ask(make_app(), "POST", "/api/v1/jobs", JOB, headers=headers).status == 201


def padded(length: int) -> bytes:
    return JOB + b" " * (length - len(JOB))


def test_a_body_of_exactly_the_largest_size_is_taken() -> None:
    assert ask(make_app(), "POST", "/api/v1/jobs", padded(LARGEST_BODY)).status == 201


@pytest.mark.parametrize("pieces", [1, 2, 17])
@pytest.mark.parametrize("length", [LARGEST_BODY + 1, 40 * LARGEST_BODY])
def test_a_body_that_is_larger_is_refused_however_it_comes(length: int, pieces: int) -> None:
    body = padded(length)
    step = -(-length // pieces)
    service = FakeService()
    answer = ask(make_app(service), "POST", "/api/v1/jobs", [body[at : at + step] for at in range(0, length, step)])
    assert (answer.status, answer.problem.error) == (413, "the body has more than 1,048,576 bytes")
    assert service.all == {}


@pytest.mark.parametrize("is_chunked", [False, True])
def test_who_sends_too_much_over_a_socket_hears_why(is_chunked: bool) -> None:
    with serve() as served:
        connection = http.client.HTTPConnection(served.address.removeprefix("http://"))
        headers = {"Authorization": f"Bearer {MEMBER}", "Content-Type": "application/json"}
        body = iter([b" " * 65536] * 32) if is_chunked else b" " * 65536 * 32
        connection.request("POST", "/api/v1/jobs", body, headers, encode_chunked=is_chunked)
        response = connection.getresponse()
        assert (response.status, response.read()) == (
            413,
            b'{"error":"the body has more than 1,048,576 bytes","field":""}',
        )
        connection.close()


def test_a_body_comes_in_pieces_as_well() -> None:
    assert ask(make_app(), "POST", "/api/v1/jobs", [JOB[:5], JOB[5:6], JOB[6:]]).status == 201


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.api.asgi.SLOWEST_BODY", 0.01)
    answer = ask(make_app(), "POST", "/api/v1/jobs", JOB[:5], stalls=True)
    assert (answer.status, answer.problem.error) == (408, "the body has not come in 0.01 s")


# Where


def test_an_unknown_path_is_not_found() -> None:
    answer = ask(make_app(), "GET", "/api/v2/jobs")
    assert (answer.status, answer.problem.error) == (
        404,
        "there is nothing at '/api/v2/jobs': /docs lists what there is",
    )


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs/", "/api/v1/jobs//why", "/api/v1/jobs/a/b/why", "/api/v1/jobs/" + "a" * 129]
)
def test_a_path_names_one_thing_of_bounded_length(path: str) -> None:
    assert ask(make_app(), "GET", path).status == 404


def test_a_job_that_is_not_there_is_told_with_the_nearest() -> None:
    answer = ask(make_app(desk_with_a_job()), "GET", "/api/v1/jobs/tran-1")
    assert (answer.status, answer.problem) == (404, Problem("no job 'tran-1'; did you mean 'train-1'? (train-1)"))


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/jobs", "POST, GET, HEAD, OPTIONS"),
        ("DELETE", "/api/v1/jobs/train-1", "GET, HEAD, OPTIONS"),
        ("GET", "/api/v1/jobs/train-1/cancel", "POST, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_refused_with_those_that_there_are(method: str, path: str, allowed: str) -> None:
    answer = ask(make_app(), method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert answer.problem.error == f"this cannot be asked with {method}, expected {allowed}"


def test_options_tell_the_methods_and_open_nothing_to_other_origins() -> None:
    answer = ask(make_app(), "OPTIONS", "/api/v1/jobs", token=None)
    assert (answer.status, answer.headers["allow"], answer.body) == (204, "POST, GET, HEAD, OPTIONS", b"")
    assert answer.headers.keys() == {"allow", "cache-control", "x-content-type-options"}


@pytest.mark.parametrize("path", ["/api/v1/about", "/api/v1/journal", "/api/v1/events", "/healthz"])
def test_head_is_get_without_the_body(path: str) -> None:
    app = make_app(desk_with_a_job())
    head, whole = ask(app, "HEAD", path), ask(app, "GET", path)
    assert (head.status, head.headers["content-type"], head.body) == (200, whole.headers["content-type"], b"")
    assert ask(app, "HEAD", "/api/v1/about", token=None).status == 401


@pytest.mark.parametrize(
    ("path", "media"),
    [("/healthz", "application/json"), ("/openapi.json", "application/json"), ("/docs", "text/html; charset=utf-8")],
)
def test_anybody_may_see_that_it_is_there_and_what_it_can_be_asked(path: str, media: str) -> None:
    answer = ask(make_app(), "GET", path, token=None)
    assert (answer.status, answer.headers["content-type"], bool(answer.body)) == (200, media, True)


def test_the_server_may_begin_and_end_and_there_are_no_web_sockets() -> None:
    sent: list[Any] = []
    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(make_app()({"type": "lifespan"}, receive, send))
    asyncio.run(make_app()({"type": "websocket"}, receive, send))
    assert sent == [
        {"type": "lifespan.startup.complete"},
        {"type": "lifespan.shutdown.complete"},
        {"type": "websocket.close", "code": 1000},
    ]


# What becomes of errors


class Failing(FakeService):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def about(self, caller: Caller) -> DaemonInfo:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadInput("this does not do"), 422),
        (BadValue("this does not do"), 422),
        (TooManyRequests("this does not do"), 429),
        (Unavailable("this does not do"), 503),
    ],
)
def test_what_a_desk_raises_is_told_with_its_status(error: RefoldError, status: int) -> None:
    answer = ask(make_app(Failing(error)), "GET", "/api/v1/about")
    assert (answer.status, answer.problem) == (status, Problem("this does not do"))


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), RefoldError("secret"), KeyError("secret")])
def test_what_it_should_not_have_raised_is_in_the_log_and_not_in_the_answer(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = ask(make_app(Failing(error)), "GET", "/api/v1/about")
    assert (answer.status, answer.problem) == (500, Problem("the daemon failed at this; its log tells more"))
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH", "é"]),
    path=st.sampled_from([call.path for call in CALLS]) | st.text(max_size=40),
    query=st.text(max_size=40),
    body=st.binary(max_size=80) | st.sampled_from([JOB, b"[" + JOB + b"]"]),
    headers=st.lists(
        st.tuples(
            st.sampled_from(["authorization", "content-type", "origin", "last-event-id", "host"]),
            st.text(st.characters(max_codepoint=255), max_size=20),
        ),
        max_size=3,
    ),
)
def test_garbage_is_answered_by_a_problem_or_not_at_fault(
    method: str, path: str, query: str, body: bytes, headers: Headers
) -> None:
    answer = ask(make_app(desk_with_a_job()), method, f"{path}?{query}".replace("{job}", "1"), body, headers=headers)
    assert answer.status < 500
    assert b"Traceback" not in answer.body
    if answer.status >= 400 and method != "HEAD":
        assert answer.problem.error
