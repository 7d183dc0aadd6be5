"""A daemon gets generated requests for minutes: no call fails, and every answer is as the OpenAPI document says.

`REFOLD_FUZZ_SECONDS=300 pytest tests/server/http/test_fuzzing.py -m long`: five minutes with each token.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from real_daemon import RealDaemon
from requests import ReadTimeout
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from refold.client import Client
from refold.client.api.calls import CALLS

SECONDS = float(os.environ.get("REFOLD_FUZZ_SECONDS", "20"))
ANSWER_SECONDS = 60.0
LOG_CHARS = 10_000
EXAMPLES = 15
"""Requests to each call before the next one gets its turn."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
"""What holds whatever happened before: that a valid request is accepted depends on the jobs, tokens and nodes."""


@pytest.mark.long
@pytest.mark.parametrize("role", ["owner", "reader"])
def test_no_generated_request_makes_a_call_fail(tmp_path: Path, role: str) -> None:
    with RealDaemon(tmp_path / "state") as daemon:
        client = daemon.client()
        client.submit(name="waits", command=["sleep", "1000"], gpus=4)
        client.submit(name="fails", command=["false"])
        token = _token(daemon, client, role)
        schema = schemathesis.openapi.from_url(f"{daemon.startup.address}/openapi.json")
        operations = [schema.find_operation_by_id(call.name) for call in CALLS]
        requests, end = 0, time.monotonic() + SECONDS
        try:
            while time.monotonic() < end:
                for operation in operations:
                    requests += _send(operation, token, requests)
        finally:
            print(daemon.log()[-LOG_CHARS:])
        assert client.info().storage == ""
    print(f"{role}: {requests} requests to {len(operations)} calls")
    assert requests >= EXAMPLES


def _token(daemon: RealDaemon, client: Client, role: str) -> str:
    return daemon.startup.token if role == "owner" else client.create_token("reading", "reader").token


def _send(operation: Any, token: str, number: int) -> int:
    """Send requests to a call, and check the answers; return how many."""
    sent = 0

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def check(case: schemathesis.Case[Any]) -> None:
        nonlocal sent
        sent += 1
        if case.operation.definition.raw["operationId"] == "events" and isinstance(case.query, dict):
            case.query["follow"] = "false"
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=CHECKS, timeout=ANSWER_SECONDS)

    try:
        check()
    except ReadTimeout:
        pytest.fail(f"{operation.label} was not answered within {ANSWER_SECONDS:g} s")
    return sent
