"""The description of the API is true: what is generated from it is answered as it says."""

from __future__ import annotations

from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import schemathesis
from fake_service import OWNER, FakeService, make_app
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from refold.api.app import Api
from refold.api.calls import CALLS
from refold.api.openapi import PROBLEMS, described, page_of_calls
from refold.api.wire import Submission

STRICTER_THAN_A_SCHEMA = {"submit", "submit_all", "preview"}
"""A submission has rules that no schema tells: its patterns have to compile, a part of a GPU is a part of one."""


def make_api() -> Api:
    """The app under test, over a service with some jobs. Subclass to test another daemon."""
    service = FakeService()
    for _ in range(3):
        service.add(Submission("train", ["python", "train.py"]))
    service.start("train-2")
    service.say("train-2", "step 1\n")
    service.end("train-3", "failed", "exit status 1")
    service.feed.end()  # streams that would go on for ever end with what there is
    return make_app(service)


schema = schemathesis.openapi.from_asgi("/openapi.json", make_api())


AS_SUBMIT = ["submit_all", "preview"]
"""These take what `submit` takes: of their parts, not every one is gone through again."""

bounded = partial(
    settings, max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@schema.exclude(operation_id=AS_SUBMIT).parametrize()
@bounded(phases=[Phase.explicit, Phase.generate])
def test_every_call_answers_as_its_description_says(case: schemathesis.Case[Any]) -> None:
    ask(case)


@schema.include(operation_id=AS_SUBMIT).parametrize()
@bounded(phases=[Phase.generate])
def test_so_does_what_takes_the_same(case: schemathesis.Case[Any]) -> None:
    ask(case)


def ask(case: schemathesis.Case[Any]) -> None:
    stricter = case.operation.definition.raw["operationId"] in STRICTER_THAN_A_SCHEMA
    case.call_and_validate(
        headers={"Authorization": f"Bearer {OWNER}"}, excluded_checks=[positive_data_acceptance] if stricter else []
    )


def test_every_call_is_described_once_with_its_role() -> None:
    operations = [
        (operation["operationId"], method.upper(), path, operation["description"])
        for path, methods in described()["paths"].items()
        for method, operation in methods.items()
    ]
    expected = [(call.name, call.method, call.path, f"Role: {call.role}.") for call in CALLS]
    assert sorted(operations) == sorted(expected)


def test_every_reference_leads_somewhere() -> None:
    document = described()

    def follow(part: object) -> None:
        match part:
            case {"$ref": str(place)}:
                found = document
                for step in place.removeprefix("#/").split("/"):
                    found = found[step]
            case dict():
                for inner in part.values():
                    follow(inner)
            case list():
                for inner in part:
                    follow(inner)

    follow(document)


def test_a_parameter_that_may_be_left_out_is_not_null() -> None:
    operation = described()["paths"]["/api/v1/nodes/{node}/drain"]["post"]
    assert operation["parameters"] == [
        {
            "name": "node",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 128},
        },
        {"name": "gpu", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 65536}},
        {"name": "why", "in": "query", "schema": {"type": "string", "maxLength": 4096, "default": ""}},
        {"name": "move", "in": "query", "schema": {"type": "boolean", "default": False}},
    ]


def test_the_page_lists_every_call_and_loads_nothing() -> None:
    page = unescape(page_of_calls())
    assert [
        call for call in CALLS if f"<code>{call.path}</code></td><td>{call.role}</td><td>{call.summary}" not in page
    ] == []
    assert "src=" not in page and "://" not in page


def test_the_documentation_names_every_call_and_every_status() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    table = page.partition("## Calls")[2].partition("## Errors")[0]
    assert [call.path for call in CALLS if call.path.rpartition("/")[2] not in table] == []
    assert [status for status in PROBLEMS if status != 500 and f"| {status} |" not in page] == []
