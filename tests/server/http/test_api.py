"""The API over ASGI: authorisation, request validation, and errors as Problem documents."""

from __future__ import annotations

import asyncio
import http.client
import logging
import re
from typing import Any

import msgspec
import pytest
from api_requests import Answer, Headers, request
from fake_service import MEMBER, OTHER, OWNER, READER, FakeService, make_app, serve
from hypothesis import given, settings, strategies as st

from refold.client.api.calls import CALLS, MAX_BODY_BYTES, Call
from refold.client.api.queries import Caller, JobsQuery
from refold.client.api.submissions import Submission
from refold.client.api.wire import DaemonInfo, Problem
from refold.errors import BadInput, BadValue, RefoldError, TooManyRequests, Unavailable
from refold.server.http.app import Api
from refold.server.http.asgi import BodyLimits

JOB = b'{"name": "train", "command": ["python", "train.py"]}'


def service_with_a_job() -> FakeService:
    service = FakeService()
    service.start(service.add(Submission("train", ["python", "train.py"])).id)
    service.event_stream.close()
    return service


# Authorisation

ROLES_OF_CALL = {
    "info": "reader member owner",
    "submit": "member owner",
    "submit_all": "member owner",
    "preview": "reader member owner",
    "whatif": "reader member owner",
    "compare_policies": "reader member owner",
    "preemption_outlook": "reader member owner",
    "catalogue": "reader member owner",
    "plan": "reader member owner",
    "create_environment": "member owner",
    "jobs": "reader member owner",
    "job": "reader member owner",
    "why": "reader member owner",
    "environment": "reader member owner",
    "logs": "reader member owner",
    "use": "reader member owner",
    "cancel": "member owner",
    "hold": "member owner",
    "release": "member owner",
    "change_jobs": "member owner",
    "nodes": "reader member owner",
    "drain": "owner",
    "resume": "owner",
    "gpus": "reader member owner",
    "alerts": "reader member owner",
    "timeline": "reader member owner",
    "tenants": "reader member owner",
    "users": "reader member owner",
    "tokens": "owner",
    "create_token": "owner",
    "revoke_token": "owner",
    "snapshot": "owner",
    "journal": "owner",
    "events": "reader member owner",
}
BODIES = {
    "change_jobs": b'{"action": "hold"}',
    "submit": JOB,
    "preview": JOB,
    "whatif": b'{"variants": [' + JOB + b"]}",
    "compare_policies": b'{"policies": ["easy"]}',
    "submit_all": b"[" + JOB + b"]",
    "plan": b'{"model": "bert-large", "gpu": "A100-80GB", "gpus": 2}',
    "create_token": b'{"name": "new"}',
    "create_environment": b'{"variables": {"A": "1"}}',
}
PATH_VALUES = {"{job}": "train-1", "{node}": "here", "{name}": "other"}


def request_call(app: Api, call: Call, token: str | None, query: str = "") -> Answer:
    path = re.sub(r"\{\w+\}", lambda match: PATH_VALUES[match[0]], call.path)
    return request(app, call.method, path + query, BODIES.get(call.name, b""), token=token)


def test_the_table_of_roles_covers_every_call() -> None:
    assert list(ROLES_OF_CALL) == [call.name for call in CALLS]


@pytest.mark.parametrize("token", [READER, MEMBER, OWNER])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_requires_one_of_its_roles(call: Call, token: str) -> None:
    answer = request_call(make_app(service_with_a_job()), call, token)
    if token.removeprefix("rf_") in ROLES_OF_CALL[call.name].split():
        assert answer.status in (200, 201, 409), answer
    else:
        assert (answer.status, answer.problem.field) == (403, "")
        assert answer.problem.error.startswith(f"{call.name} requires the role ")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_without_a_valid_token_in_the_header_is_unauthenticated(call: Call) -> None:
    app = make_app(service_with_a_job())
    for answer in (
        request_call(app, call, None),
        request_call(app, call, "rf_guessed"),
        request_call(app, call, None, f"?token={OWNER}"),
        request_call(app, call, None, f"?access_token={OWNER}"),
    ):
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="refold"')


def test_a_revoked_token_is_rejected_at_once() -> None:
    app = make_app()
    assert request(app, "GET", "/api/v1/info", token=OTHER).status == 200
    assert request(app, "DELETE", "/api/v1/tokens/other").status == 200
    assert request(app, "GET", "/api/v1/info", token=OTHER).status == 401


def test_a_created_token_has_the_permissions_of_its_role() -> None:
    app = make_app()
    made = msgspec.json.decode(request(app, "POST", "/api/v1/tokens", b'{"name": "new", "role": "reader"}').body)
    assert request(app, "GET", "/api/v1/info", token=made["token"]).status == 200
    assert request(app, "POST", "/api/v1/jobs", JOB, token=made["token"]).status == 403


def test_a_job_of_another_tenant_is_forbidden() -> None:
    app = make_app(service_with_a_job())
    answer = request(app, "POST", "/api/v1/jobs/train-1/cancel", token=OTHER)
    assert (answer.status, answer.problem) == (
        403,
        Problem("train-1 belongs to tenant 'vision'; your token is for 'speech'"),
    )


# Host and origin


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:7170", "localhost:7170", "LOCALHOST", "[::1]:7170", "testserver:80"]
)
def test_names_of_the_daemon_are_accepted_as_host(host: str) -> None:
    assert request(make_app(), "GET", "/api/v1/info", host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil@localhost.evil", "", "[::1", "0.0.0.0"]
)
@pytest.mark.parametrize("path", ["/api/v1/info", "/healthz", "/docs", "/nothing"])
def test_a_foreign_host_name_is_rejected(host: str, path: str) -> None:
    answer = request(make_app(), "GET", path, host=host)
    assert (answer.status, answer.problem.error) == (
        403,
        f"the host name {host!r} is not allowed; the daemon's operator can add it to serve.allowed_hosts",
    )


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
def test_only_requests_of_the_same_origin_are_accepted(origin: str, status: int) -> None:
    assert request(make_app(), "POST", "/api/v1/jobs", JOB, headers=[("origin", origin)]).status == status


def test_a_duplicate_header_is_rejected() -> None:
    headers = [("authorization", "Bearer rf_guessed"), ("authorization", f"Bearer {OWNER}")]
    answer = request(make_app(), "GET", "/api/v1/info", headers=headers)
    assert (answer.status, answer.problem.error) == (400, "the header authorization occurs 2 times, expected once")


# Bodies and query parameters

WRONG_BODIES = {
    b"": ("the body is not JSON: Input data was truncated", ""),
    b"{": ("the body is not JSON: Input data was truncated", ""),
    b'{"name": NaN}': ("the body is not JSON: JSON is malformed: invalid character (byte 9)", ""),
    b"[" * 100_000: ("Expected object, got array", ""),
    b'{"name": "\xff", "command": ["x"]}': (
        "the body is not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        "",
    ),
    b'{"name": "a"}': ("command is missing", "command"),
    b'{"name": "a", "command": ["x"], "gpu": 1}': ("unknown field 'gpu'; did you mean 'gpus'?", "gpu"),
    b'{"a`b": 1}': ("unknown field 'a`b'", "a`b"),
    b'{"' + b"x" * 1_000_000 + b'": 1}': (f"unknown field '{'x' * 64}'", "x" * 64),
    b'{"name": "a", "command": ["x"], "gpus": "two"}': ("gpus: expected int, got str", "gpus"),
    b'{"name": "a", "command": ["x"], "gpus": -1}': ("gpus: expected int >= 0", "gpus"),
    b'{"name": "a", "command": ["x"], "cpus": 1e999}': ("cpus: number out of range", "cpus"),
    b'{"name": "a", "command": ["x", 1]}': ("command[1]: expected str, got int", "command[1]"),
    b'{"name": "a", "command": ["x"], "name": "b"}': ("the key 'name' occurs twice in one object, expected once", ""),
    b'{"name": "a", "command": ["x"], "environment": {"A": "1", "A": "2"}}': (
        "the key 'A' occurs twice in one object, expected once",
        "",
    ),
    b'{"name": "a", "command": []}': ("command: expected array of length >= 1", "command"),
    b'{"name": "a", "command": [""]}': ("command is empty, expected a program and its arguments", ""),
    b'{"name": "a", "command": [" ", "x"]}': ("command is empty, expected a program and its arguments", ""),
    b'{"name": "a", "command": ["x"], "plan": ' + b'{"a": ' * 100_000: (
        "unknown field 'plan.a'; did you mean 'plan'?",
        "plan.a",
    ),
    b'{"name": "a", "command": ["x"], "priority": ' + b"9" * 100_000 + b"}": (
        "priority: integer value out of range",
        "priority",
    ),
    b'{"name": "a b", "command": ["x"]}': ("name is 'a b', expected letters, digits, '.', '_' and '-'", ""),
}


@pytest.mark.parametrize("body", WRONG_BODIES, ids=lambda body: body[:40].decode("latin-1"))
def test_an_invalid_body_is_rejected_with_its_field(body: bytes) -> None:
    answer = request(make_app(), "POST", "/api/v1/jobs", body)
    assert (answer.status, answer.problem) == (422, Problem(*WRONG_BODIES[body]))


@pytest.mark.parametrize("inner", [b"[", b'{"a": '])
def test_a_body_that_is_decoded_a_second_time_cannot_exhaust_the_stack(inner: bytes) -> None:
    """For integers that are written as 2.0, Python's own decoder is used, whatever follows."""
    body = b'{"instances": 2.0, "name": "a", "command": ["x"], "environment": ' + inner * 100_000
    answer = request(make_app(), "POST", "/api/v1/jobs", body)
    assert answer.status == 422
    assert answer.problem.error.startswith("the body is not JSON: maximum recursion depth exceeded")


def test_an_invalid_field_of_one_of_several_submissions_is_located() -> None:
    answer = request(make_app(), "POST", "/api/v1/submissions", b"[" + JOB + b', {"name": "b"}]')
    assert answer.problem == Problem("[1].command is missing", "[1].command")


def test_if_one_of_several_submissions_is_rejected_none_is_submitted() -> None:
    service = FakeService()
    body = b"[" + JOB + b', {"name": "b", "command": ["x"], "tenant": "speech"}]'
    assert request(make_app(service), "POST", "/api/v1/submissions", body, token=MEMBER).status == 403
    assert service.jobs_by_id == {}


KNOWN = "(known: after, ended, limit, match, name, state, tenant, user)"
WRONG_QUERIES = {
    "limit=0": ("limit: expected int >= 1", "limit"),
    "limit=1001": ("limit: expected int <= 1000", "limit"),
    "limit=ten": ("limit: expected int, got str", "limit"),
    "limit=": ("limit: expected int, got str", "limit"),
    "limit=1&limit=2": ("limit is given twice, expected once", "limit"),
    "ended=1": ("ended: expected bool, got int", "ended"),
    "after=null": ("after: expected int, got str", "after"),
    "state=lost": ("state[0]: invalid enum value 'lost'", "state[0]"),
    "limits=5": (f"unknown parameter 'limits'; did you mean 'limit'? {KNOWN}", "limits"),
    "LIMIT=5": (f"unknown parameter 'LIMIT'; did you mean 'limit'? {KNOWN}", "LIMIT"),
    "state[]=held": (f"unknown parameter 'state[]'; did you mean 'state'? {KNOWN}", "state[]"),
    "limit=5&x=1&x=2": (f"unknown parameter 'x' {KNOWN}", "x"),
    "=": (f"unknown parameter '' {KNOWN}", ""),
    "a`b - at `$.limit`=1": (f"unknown parameter 'a`b - at `$.limit`' {KNOWN}", "a`b - at `$.limit`"),
    "x" * 1000: (f"unknown parameter '{'x' * 64}' {KNOWN}", "x" * 64),
    "tenant=%ff": ("the query string has more than 64 parameters or is not UTF-8", ""),
    "&".join(f"a{number}=" for number in range(65)): (
        "the query string has more than 64 parameters or is not UTF-8",
        "",
    ),
}


@pytest.mark.parametrize("query", WRONG_QUERIES, ids=lambda query: query[:20])
def test_an_invalid_query_parameter_is_rejected_by_name(query: str) -> None:
    answer = request(make_app(), "GET", f"/api/v1/jobs?{query}")
    assert (answer.status, answer.problem) == (422, Problem(*WRONG_QUERIES[query]))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_every_call_rejects_an_unknown_parameter(call: Call) -> None:
    known = ", ".join(sorted(call.query.__struct_fields__)) if call.query else "none"
    answer = request_call(make_app(service_with_a_job()), call, OWNER, "?pretty=1")
    expected = Problem(f"unknown parameter 'pretty' (known: {known})", "pretty")
    assert (answer.status, answer.problem) == (422, expected)


@pytest.mark.parametrize("path", ["/api/v1/info", "/api/v1/events", "/session"])
def test_an_unknown_parameter_is_rejected_in_a_head_request_too(path: str) -> None:
    assert request(make_app(), "HEAD", f"{path}?pretty=1").status == 422


@pytest.mark.parametrize("query", ["?", "?&", "?&&limit=5&"])
def test_empty_parts_of_a_query_string_are_no_parameters(query: str) -> None:
    assert request(make_app(), "GET", f"/api/v1/jobs{query}").status == 200


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/openapi.json"])
def test_pages_ignore_the_query_string(path: str) -> None:
    """Probes of load balancers may add parameters of their own, such as `/healthz?verbose`."""
    assert request(make_app(), "GET", f"{path}?verbose", token=None).status == 200


def test_parameters_arrive_with_their_types() -> None:
    seen: list[JobsQuery] = []

    class RecordingService(FakeService):
        async def jobs(self, caller: Caller, query: JobsQuery) -> Any:
            seen.append(query)
            return []

    request(make_app(RecordingService()), "GET", "/api/v1/jobs?state=running&state=held&limit=5&ended=true&user=%C3%A9")
    assert seen == [JobsQuery(["running", "held"], tenant="", user="é", name="", limit=5, after=0, ended=True)]


@pytest.mark.parametrize("media", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_only_json_bodies_are_accepted(media: str) -> None:
    answer = request(make_app(), "POST", "/api/v1/jobs", JOB, headers=[("content-type", media)])
    assert (answer.status, answer.problem.error) == (
        415,
        f"Content-Type is {media or 'absent'!r}, expected application/json",
    )


def test_the_content_type_may_name_a_character_set() -> None:
    headers = [("content-type", "Application/JSON; charset=utf-8")]
    assert request(make_app(), "POST", "/api/v1/jobs", JOB, headers=headers).status == 201


def padded(length: int) -> bytes:
    return JOB + b" " * (length - len(JOB))


def test_a_body_of_exactly_the_maximum_size_is_accepted() -> None:
    assert request(make_app(), "POST", "/api/v1/jobs", padded(MAX_BODY_BYTES)).status == 201


@pytest.mark.parametrize("chunks", [1, 2, 17])
@pytest.mark.parametrize("length", [MAX_BODY_BYTES + 1, 40 * MAX_BODY_BYTES])
def test_a_larger_body_is_rejected_whether_chunked_or_not(length: int, chunks: int) -> None:
    body = padded(length)
    step = -(-length // chunks)
    service = FakeService()
    answer = request(make_app(service), "POST", "/api/v1/jobs", [body[at : at + step] for at in range(0, length, step)])
    assert (answer.status, answer.problem.error) == (413, "the body has more than 1,048,576 bytes")
    assert service.jobs_by_id == {}


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_sends_too_much_receives_the_error(is_chunked: bool) -> None:
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


@pytest.mark.parametrize("size", [5_000, 2 * MAX_BODY_BYTES])
def test_the_maximum_size_of_a_body_can_be_configured(size: int) -> None:
    app = make_app(body_limits=BodyLimits(size))
    assert request(app, "POST", "/api/v1/jobs", padded(size)).status == 201
    answer = request(app, "POST", "/api/v1/jobs", padded(size + 1))
    assert (answer.status, answer.problem.error) == (413, f"the body has more than {size:,} bytes")


def test_a_body_may_arrive_in_chunks() -> None:
    assert request(make_app(), "POST", "/api/v1/jobs", [JOB[:5], JOB[5:6], JOB[6:]]).status == 201


def test_a_body_that_stalls_times_out() -> None:
    app = make_app(body_limits=BodyLimits(seconds=0.01))
    answer = request(app, "POST", "/api/v1/jobs", JOB[:5], stalls=True)
    assert (answer.status, answer.problem.error) == (408, "the body did not arrive within 0.01 s")


# Paths and methods


def test_an_unknown_path_is_not_found() -> None:
    answer = request(make_app(), "GET", "/api/v2/jobs")
    assert (answer.status, answer.problem.error) == (
        404,
        "no such path: '/api/v2/jobs'; /docs lists all calls",
    )


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs/", "/api/v1/jobs//why", "/api/v1/jobs/a/b/why", "/api/v1/jobs/" + "a" * 129]
)
def test_path_parameters_are_single_segments_of_bounded_length(path: str) -> None:
    assert request(make_app(), "GET", path).status == 404


def test_an_unknown_job_is_not_found_and_the_nearest_name_is_suggested() -> None:
    answer = request(make_app(service_with_a_job()), "GET", "/api/v1/jobs/tran-1")
    assert (answer.status, answer.problem) == (
        404,
        Problem("unknown job 'tran-1'; did you mean 'train-1'? (known: train-1)"),
    )


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/jobs", "POST, GET, HEAD, OPTIONS"),
        ("DELETE", "/api/v1/jobs/train-1", "GET, HEAD, OPTIONS"),
        ("GET", "/api/v1/jobs/train-1/cancel", "POST, OPTIONS"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
    ],
)
def test_an_unsupported_method_is_rejected_with_the_allowed_ones(method: str, path: str, allowed: str) -> None:
    answer = request(make_app(), method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert answer.problem.error == f"method {method} is not allowed here, expected {allowed}"


def test_options_returns_the_methods_and_no_cors_headers() -> None:
    answer = request(make_app(), "OPTIONS", "/api/v1/jobs", token=None)
    assert (answer.status, answer.headers["allow"], answer.body) == (204, "POST, GET, HEAD, OPTIONS", b"")
    assert answer.headers.keys() == {"allow", "cache-control", "x-content-type-options"}


@pytest.mark.parametrize("path", ["/api/v1/info", "/api/v1/journal", "/api/v1/events", "/healthz"])
def test_head_returns_the_headers_of_get_without_a_body(path: str) -> None:
    app = make_app(service_with_a_job())
    head, whole = request(app, "HEAD", path), request(app, "GET", path)
    assert (head.status, head.headers["content-type"], head.body) == (200, whole.headers["content-type"], b"")
    assert request(app, "HEAD", "/api/v1/info", token=None).status == 401


@pytest.mark.parametrize(
    ("path", "media"),
    [("/healthz", "application/json"), ("/openapi.json", "application/json"), ("/docs", "text/html; charset=utf-8")],
)
def test_health_check_and_documentation_need_no_token(path: str, media: str) -> None:
    answer = request(make_app(), "GET", path, token=None)
    assert (answer.status, answer.headers["content-type"], bool(answer.body)) == (200, media, True)


def test_lifespan_events_are_acknowledged_and_websockets_rejected() -> None:
    sent: list[Any] = []
    incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> dict[str, Any]:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(make_app()({"type": "lifespan"}, receive, send))
    asyncio.run(make_app()({"type": "websocket"}, receive, send))
    assert sent == [
        {"type": "lifespan.startup.complete"},
        {"type": "lifespan.shutdown.complete"},
        {"type": "websocket.close", "code": 1000},
    ]


# Errors


class FailingService(FakeService):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def info(self, caller: Caller) -> DaemonInfo:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadInput("this is invalid"), 422),
        (BadValue("this is invalid"), 422),
        (TooManyRequests("this is invalid"), 429),
        (Unavailable("this is invalid"), 503),
    ],
)
def test_an_error_of_the_service_is_returned_with_its_status(error: RefoldError, status: int) -> None:
    answer = request(make_app(FailingService(error)), "GET", "/api/v1/info")
    assert (answer.status, answer.problem) == (status, Problem("this is invalid"))


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), RefoldError("secret"), KeyError("secret")])
def test_an_unexpected_exception_is_logged_and_not_disclosed(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = request(make_app(FailingService(error)), "GET", "/api/v1/info")
    assert (answer.status, answer.problem) == (500, Problem("internal error; see the daemon's log"))
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
def test_random_requests_never_cause_an_internal_error(
    method: str, path: str, query: str, body: bytes, headers: Headers
) -> None:
    answer = request(
        make_app(service_with_a_job()), method, f"{path}?{query}".replace("{job}", "1"), body, headers=headers
    )
    assert answer.status < 500
    assert b"Traceback" not in answer.body
    if answer.status >= 400 and method != "HEAD":
        assert answer.problem.error


@pytest.mark.parametrize(
    ("fields", "reshapable"),
    [
        ({"plan": "auto", "workload": "gpt2"}, True),
        ({"plan": "auto"}, False),
        ({"plan": "auto", "reshapable": True}, True),
        ({"workload": "gpt2"}, False),
        ({"gpus": 2, "gpu_range": (1, 4)}, True),
    ],
)
def test_a_plan_can_be_chosen_only_for_a_known_model(fields: dict[str, Any], reshapable: bool) -> None:
    """`plan: auto` has no effect without a workload: such a job keeps its shape."""
    submission = Submission("train", ["python", "train.py"], **fields)
    assert submission.to_job("job-1", "default", "", 0.0).reshapable is reshapable
