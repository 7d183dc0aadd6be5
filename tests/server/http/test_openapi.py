"""The OpenAPI description matches the implementation: generated requests are answered as described."""

from __future__ import annotations

import re
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import schemathesis
from fake_service import OWNER, FakeService, make_app
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from refold.client.api.calls import CALLS
from refold.client.api.submissions import Submission
from refold.server.http.app import Api
from refold.server.http.asgi import Receive, Scope, Send
from refold.server.http.openapi import ERROR_DESCRIPTIONS, build_openapi, render_docs_page

BEYOND_SCHEMA = re.compile(
    r"unknown (model|GPU|policy|engine)|gpu_range is|gpu_share is|plan has|array is|has the unknown field"
    r"|cannot be divided into segments|no segment is given|cannot be reshapable"
    r"|for a job with (segments|a required level)"
)
"""Errors about what a schema cannot say: names that the catalogue has to have, and rules between fields."""


def make_api() -> Api:
    """Return an application over a service with some jobs."""
    service = FakeService()
    for _ in range(3):
        service.add(Submission("train", ["python", "train.py"]))
    service.start("train-2")
    service.write_output("train-2", "step 1\n")
    service.end("train-3", "failed", "exit status 1")
    service.event_stream.close()  # event streams end after the buffered events
    return make_app(service)


async def fresh_api(scope: Scope, receive: Receive, send: Send) -> None:
    """The application under test. Each request has a service of its own, so that its answer depends on no other."""
    await make_api()(scope, receive, send)


# Every request has the owner's token. If schemathesis generated the Authorization header too, it would expect errors
# where its own header is missing or malformed.
SETTINGS = {"seed": 1, "generation": {"with-security-parameters": False}}


def make_schema(phases: dict[str, Any]) -> schemathesis.schemas.BaseSchema:
    config = schemathesis.Config.from_dict({**SETTINGS, "phases": phases})
    return schemathesis.openapi.from_asgi("/openapi.json", fresh_api, config=config)


# From fixtures: otherwise, the examples would be computed in every process that collects tests.


@pytest.fixture
def with_coverage(request: pytest.FixtureRequest) -> schemathesis.schemas.BaseSchema:
    request.node._nodeid = request.node.nodeid  # schemathesis 4.32 expects it, pytest 9.2 no longer has it
    return make_schema({})


@pytest.fixture
def without_coverage(request: pytest.FixtureRequest) -> schemathesis.schemas.BaseSchema:
    request.node._nodeid = request.node.nodeid
    return make_schema({"coverage": {"enabled": False}})


LIKE_SUBMIT = ["submit_all", "preview", "whatif"]
"""Calls with the request body of `submit`, which are tested with fewer examples."""

bounded = partial(
    settings, max_examples=4, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@schemathesis.pytest.from_fixture("without_coverage").exclude(operation_id=LIKE_SUBMIT).parametrize()
@bounded(phases=[Phase.generate])
def test_every_call_answers_as_described(case: schemathesis.Case[Any]) -> None:
    call_and_check(case)


@pytest.mark.long
@schemathesis.pytest.from_fixture("with_coverage").exclude(operation_id=LIKE_SUBMIT).parametrize()
@bounded(phases=[Phase.explicit])
def test_every_call_answers_as_described_at_the_bounds_of_its_schema(case: schemathesis.Case[Any]) -> None:
    call_and_check(case)


@schemathesis.pytest.from_fixture("without_coverage").include(operation_id=LIKE_SUBMIT).parametrize()
@bounded(phases=[Phase.generate])
def test_calls_like_submit_answer_as_described(case: schemathesis.Case[Any]) -> None:
    call_and_check(case)


rejects_bad_tokens: set[str] = set()
"""Calls that rejected a successful request when it was repeated without a valid token; once is enough for each."""


def call_and_check(case: schemathesis.Case[Any]) -> None:
    response = case.call(headers={"Authorization": f"Bearer {OWNER}"})
    is_beyond_schema = response.status_code == 422 and BEYOND_SCHEMA.search(response.json()["error"])
    is_confirmed = case.operation.label in rejects_bad_tokens
    case.validate_response(
        response,
        excluded_checks=[
            *([positive_data_acceptance] if is_beyond_schema else []),
            *([ignored_auth] if is_confirmed else []),
        ],
    )
    if response.status_code < 300:
        rejects_bad_tokens.add(case.operation.label)
    described = {parameter["name"] for parameter in case.operation.definition.raw["parameters"]}
    sent = parse_qsl(urlsplit(str(response.request.url)).query, keep_blank_values=True)
    if any(name not in described for name, _ in sent):
        assert response.status_code in (404, 422), response.request.url


def test_every_call_is_described_once_with_its_role() -> None:
    operations = [
        (operation["operationId"], method.upper(), path, operation["description"])
        for path, methods in build_openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    expected = [(call.name, call.method, call.path, f"Role: {call.role}.") for call in CALLS]
    assert sorted(operations) == sorted(expected)


def test_every_schema_reference_resolves() -> None:
    document = build_openapi()

    def follow(part: object) -> None:
        match part:
            case {"$ref": str(reference)}:
                found = document
                for step in reference.removeprefix("#/").split("/"):
                    found = found[step]
            case dict():
                for inner in part.values():
                    follow(inner)
            case list():
                for inner in part:
                    follow(inner)

    follow(document)


def test_the_schema_of_a_submission_has_the_rules_of_names_and_texts() -> None:
    fields = build_openapi()["components"]["schemas"]["Submission"]["properties"]
    assert fields["name"]["pattern"] == r"^[\w.-]+$"
    assert fields["folder"]["pattern"] == r"^[^\u0000]*$"
    assert fields["environment"]["propertyNames"] == {"pattern": r"^[A-Za-z_][A-Za-z0-9_]*$"}
    assert list(fields["command"]["prefixItems"][0]) == ["type", "pattern"]


def test_every_call_can_be_answered_by_the_limits_of_the_server() -> None:
    """The server rejects requests before the application sees them: too many headers, and slow ones."""
    for methods in build_openapi()["paths"].values():
        for operation in methods.values():
            assert {"400", "408", "431", "503"} <= operation["responses"].keys()


def test_optional_query_parameters_are_not_nullable() -> None:
    operation = build_openapi()["paths"]["/api/v1/nodes/{node}/drain"]["post"]
    assert operation["parameters"] == [
        {
            "name": "node",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 128},
        },
        {"name": "gpu", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 65536}},
        {"name": "reason", "in": "query", "schema": {"type": "string", "maxLength": 4096, "default": ""}},
        {"name": "move", "in": "query", "schema": {"type": "boolean", "default": False}},
        {"name": "now", "in": "query", "schema": {"type": "boolean", "default": False}},
    ]


def test_the_docs_page_lists_every_call_and_loads_no_external_resources() -> None:
    page = unescape(render_docs_page())
    assert [
        call for call in CALLS if f"<code>{call.path}</code></td><td>{call.role}</td><td>{call.summary}" not in page
    ] == []
    assert "src=" not in page and "://" not in page


def test_the_api_documentation_lists_every_call_and_status() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    table = page.partition("## Calls")[2].partition("## Errors")[0]
    assert [call.path for call in CALLS if call.path.rpartition("/")[2] not in table] == []
    assert [status for status in ERROR_DESCRIPTIONS if status != 500 and f"| {status} |" not in page] == []


def test_an_answer_that_may_not_exist_yet_is_described() -> None:
    assert "404" in build_openapi()["paths"]["/api/v1/whatif/preemption"]["get"]["responses"]
