"""The JSON types: what they accept at their limits and just beyond, and that encoding keeps every field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from refold.client.api.access import NewToken
from refold.client.api.queries import DrainQuery, EventsQuery, JobsQuery, LogsQuery
from refold.client.api.signatures import field_error
from refold.client.api.submissions import (
    MAX_ARGUMENT_BYTES,
    MAX_COMMAND_CHARS,
    MAX_COUNT,
    MAX_JOB_GPUS,
    MAX_TIME_SECONDS,
    Submission,
)
from refold.errors import BadField, BadValue
from refold.model import Demand, Job, Launch, Plan
from refold.server.http.requests import QueryReader, read_json

DECODER = msgspec.json.Decoder(Submission)


def submit(**fields: Any) -> Submission:
    """Decode a submission with these fields, as the API does."""
    body = msgspec.json.encode({"name": "a", "command": ["x"], **fields})
    decoded = read_json(DECODER, body)
    assert isinstance(decoded, Submission)
    return decoded


LIMITS: dict[str, tuple[Any, Any, str]] = {
    "name": ("n" * 64, "n" * 65, "name: expected str of length <= 64"),
    "command": (["x"] * 1024, ["x"] * 1025, "command: expected array of length <= 1024"),
    "instances": (MAX_JOB_GPUS, 0, "instances: expected int >= 1"),
    "gpus": (MAX_JOB_GPUS, MAX_JOB_GPUS + 1, "gpus: expected int <= 63488"),
    "gpu_share": (1.0, 1.001, "gpu_share: expected float <= 1.0"),
    "gpu_types": (["t"] * 62, ["t"] * 63, "gpu_types: expected array of length <= 62"),
    "cpus": (2**20, 2**20 + 1, "cpus: expected float <= 1048576.0"),
    "memory_gib": (2**20, -0.5, "memory_gib: expected float >= 0.0"),
    "tenant": ("t" * 64, "t" * 65, "tenant: expected str of length <= 64"),
    "priority": (-(2**31), -(2**31) - 1, "priority: expected int >= -2147483648"),
    "time_limit": (MAX_TIME_SECONDS, MAX_TIME_SECONDS + 1, "time_limit: expected float <= 315360000.0"),
    "steps": (MAX_COUNT, MAX_COUNT + 1, "steps: expected int <= 1099511627776"),
    "environment": (
        {f"V{number}": "" for number in range(512)},
        {f"V{number}": "" for number in range(513)},
        "environment: expected object of length <= 512",
    ),
    "folder": ("/" * 4096, "/" * 4097, "folder: expected str of length <= 4096"),
    "grace": (0, -1, "grace: expected float >= 0.0"),
    "retries": (1000, 1001, "retries: expected int <= 1000"),
    "progress": ("p" * 512, "p" * 513, "progress: expected str of length <= 512"),
    "never_retry": (["p"] * 16, ["p"] * 17, "never_retry: expected array of length <= 16"),
    "after": (["a"] * 256, ["a"] * 257, "after: expected array of length <= 256"),
    "notify": (["json://x"] * 16, ["json://x"] * 17, "notify: expected array of length <= 16"),
    "request": ("r" * 128, "r" * 129, "request: expected str of length <= 128"),
}
"""By field: the largest or smallest value that is accepted, the next one, and how it is rejected."""


@pytest.mark.parametrize("field", LIMITS)
def test_a_field_is_accepted_at_its_limit_and_rejected_beyond(field: str) -> None:
    accepted, rejected, problem = LIMITS[field]
    assert getattr(submit(**{field: accepted}), field) == accepted
    with pytest.raises(BadField) as caught:
        submit(**{field: rejected})
    assert (str(caught.value), caught.value.field) == (problem, field)


NUL_PROBLEM = "command, folder, output, error, environment and secrets must not contain a NUL character"
UNKNOWN_FIELD = (
    "error: '%q' has the unknown field '%q', expected %j (number of the job), %A (number of the array), "
    "%a (task number in the array), %x (job name), %u (user), %t (index of the instance) or %%"
)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"command": ["x" * MAX_COMMAND_CHARS, "y"]}, "command has more than 131,072 characters"),
        ({"command": ["é" * (MAX_ARGUMENT_BYTES // 2 + 1)]}, "an argument of command has more than 131,071 bytes"),
        ({"command": ["a\0b"]}, NUL_PROBLEM),
        ({"output": "a\0b"}, NUL_PROBLEM),
        ({"error": "%q"}, UNKNOWN_FIELD),
        ({"secrets": {"KEY": "\0"}}, NUL_PROBLEM),
        ({"environment": {"2X": ""}}, "environment: '2X' is not a valid variable name"),
        ({"secrets": {"A B": ""}}, "environment: 'A B' is not a valid variable name"),
        ({"tenant": "a/b"}, "tenant is 'a/b', expected letters, digits, '.', '_' and '-'"),
        ({"gpu_share": 0.5, "gpus": 2}, "gpu_share is 0.5 of 2 GPUs, expected gpus: 1 with a fractional share"),
    ],
)
def test_rules_between_characters_and_fields_are_checked(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadField) as caught:
        submit(**fields)
    assert str(caught.value) == problem


def test_the_longest_command_is_accepted() -> None:
    assert len(submit(command=["x" * MAX_ARGUMENT_BYTES, "y"]).command[0]) == MAX_ARGUMENT_BYTES


@pytest.mark.parametrize("field", ["cpus", "memory_gib", "time_limit", "estimate", "grace", "no_progress"])
def test_numbers_that_are_not_finite_are_rejected_in_python_too(field: str) -> None:
    for number in (math.inf, math.nan):
        fields: dict[str, Any] = {field: number}
        with pytest.raises(BadValue, match=f"{number} is not a finite number"):
            Submission("a", ["x"], **fields)


def test_a_submission_without_options_is_one_gpu_and_not_preemptible() -> None:
    assert submit().to_job("a-1", "lab", "ann", 5.0) == Job(
        "a-1", 5.0, Demand(1, 1), None, "lab", "ann", group="a", command=("x",), preemptible=False, launch=Launch()
    )


@pytest.mark.parametrize(
    ("fields", "preemptible"),
    [
        ({"preemptible": True}, True),
        ({"job_class": "best-effort"}, True),
        ({"gpu_range": [1, 4]}, True),
        ({"plan": "auto", "workload": "bert"}, True),
        ({"plan": "auto"}, False),
        ({"gpu_range": [1, 4], "preemptible": False}, False),
    ],
)
def test_a_job_is_preemptible_with_its_consent(fields: dict[str, Any], preemptible: bool) -> None:
    assert submit(**fields).to_job("a-1", "lab", "", 0.0).preemptible is preemptible


def test_the_owner_decides_about_jobs_that_say_nothing() -> None:
    assert submit().to_job("a-1", "lab", "", 0.0, "always").preemptible
    assert not submit(preemptible=False).to_job("a-1", "lab", "", 0.0, "always").preemptible


def test_every_option_reaches_the_job() -> None:
    submission = submit(
        instances=2, gpus=4, gpu_types=["T4", "A100", "T4"], cpus=1.5, memory_gib=2, gpu_range=[4, 8], priority=3,
        job_class="best-effort", preemptible=False, time_limit=60, estimate=30, steps=9, workload="bert", batch=8,
        sequence=512, plan={"data": 8}, environment={"B": "2", "A": "1"}, folder="/data", grace=5, stop_signal="INT",
        retries=2, progress="step", no_progress=90, never_retry=["x"], after=["b"], notify=["json://h"],
    )  # fmt: skip
    job = submission.to_job("a-1", "lab", "ann", 5.0)
    assert job == Job(
        "a-1", 5.0, Demand(2, 4, 1000, 1500, 2048, ("A100", "T4")), 30.0, "lab", "ann", group="a", command=("x",),
        job_class="best-effort", priority=3, preemptible=False, reshapable=True, time_limit=60.0, steps=9,
        workload="bert", batch=8, sequence=512, plan=Plan(data=8), gpu_range=(4, 8),
        launch=Launch(
            environment=(("A", "1"), ("B", "2")), folder="/data", grace=5.0, stop_signal="INT", retries=2,
            progress="step", no_progress=90.0, never_retry=("x",), after=("b",), notify=("json://h",),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "reshapable"),
    [
        ({}, False),
        ({"reshapable": True}, True),
        ({"gpu_range": [1, 4]}, True),
        ({"plan": "auto", "workload": "bert"}, True),
        ({"plan": "auto"}, False),
    ],
)
def test_a_job_is_reshapable_if_it_says_so_or_leaves_its_size_or_the_plan_of_its_model_open(
    fields: dict[str, Any], reshapable: bool
) -> None:
    assert submit(**fields).to_job("a-1", "lab", "", 0.0).reshapable is reshapable


def test_the_smallest_share_of_a_gpu_is_a_thousandth() -> None:
    assert submit(gpu_share=1e-9).to_job("a-1", "lab", "", 0.0).demand.gpu_milli == 1
    assert submit(gpus=0).to_job("a-1", "lab", "", 0.0).demand == Demand(1, 0)


def test_a_time_limit_of_zero_means_none() -> None:
    job = submit(time_limit=0, estimate=0, no_progress=0).to_job("a-1", "lab", "", 0.0)
    assert (job.time_limit, job.work, job.launch.no_progress) == (None, None, None)


def test_patterns_are_listed_with_their_fields() -> None:
    assert submit().patterns == []
    submission = submit(progress="step", never_retry=["a", "b"])
    assert submission.patterns == [("progress", "step"), ("never_retry", "a"), ("never_retry", "b")]


names = st.text("abcXYZ019._-", min_size=1, max_size=20)
submissions = st.builds(
    Submission,
    names,
    st.lists(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20), min_size=1, max_size=4
    ).filter(lambda command: command[0].strip()),
    instances=st.integers(1, 100),
    gpus=st.just(1),
    gpu_share=st.floats(0.001, 1.0),
    gpu_types=st.lists(names, max_size=3),
    cpus=st.floats(0, 1000),
    tenant=names | st.just(""),
    job_class=st.sampled_from(["guaranteed", "best-effort"]),
    priority=st.integers(-5, 5),
    time_limit=st.none() | st.floats(0, 1e6),
    plan=st.sampled_from(["auto", "off", Plan(data=2, zero=2)]),
    environment=st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True), st.just("é\n"), max_size=3),
    retries=st.integers(0, 1000),
    hold=st.booleans(),
)


@given(submissions)
def test_a_submission_survives_the_way_to_the_daemon(submission: Submission) -> None:
    assert read_json(DECODER, msgspec.json.encode(submission)) == submission


# Tokens


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "name: expected str of length >= 1"),
        ({"name": "n" * 65}, "name: expected str of length <= 64"),
        ({"name": "my token"}, "name: expected str matching regex '^[A-Za-z0-9._-]+$'"),
        ({"name": "a", "role": "admin"}, "role: invalid enum value 'admin'"),
        ({"name": "a", "tenant": ""}, "tenant: expected str of length >= 1"),
        ({"name": "a", "user": "u" * 65}, "user: expected str of length <= 64"),
        ({"name": "a", "colour": "red"}, "unknown field 'colour'"),
        ({"role": "owner"}, "name is missing"),
    ],
)
def test_an_invalid_token_request_is_rejected_with_its_field(fields: dict[str, str], problem: str) -> None:
    with pytest.raises(BadField) as caught:
        read_json(msgspec.json.Decoder(NewToken), msgspec.json.encode(fields))
    assert str(caught.value) == problem


def test_a_name_that_ends_in_a_line_break_is_rejected() -> None:
    for made in (lambda: NewToken("a\n"), lambda: NewToken("a", tenant="b\n"), lambda: Submission("a\n", ["x"])):
        with pytest.raises(BadValue, match="expected letters, digits"):
            made()


# Query strings


@pytest.mark.parametrize(
    ("text", "query"),
    [
        (b"", LogsQuery(run=None, instance=0, offset=0, limit=65536)),
        (b"offset=-9&run=2&limit=1048576", LogsQuery(run=2, instance=0, offset=-9, limit=1048576)),
        (b"gpu=0&reason=5%25+worn&move=true", DrainQuery(gpu=0, reason="5% worn", move=True)),
        (b"reason=7", DrainQuery(gpu=None, reason="7", move=False)),
        (b"since=0&follow=false&job=12", EventsQuery(since=0, job="12", tenant="", follow=False)),
        (b"", None),
    ],
)
def test_parameters_are_read_with_their_types_and_defaults(text: bytes, query: msgspec.Struct | None) -> None:
    assert QueryReader(None if query is None else type(query)).read(text) == query


@pytest.mark.parametrize(
    ("kind", "query", "problem"),
    [
        (LogsQuery, b"run=0", "run: expected int >= 1"),
        (LogsQuery, b"limit=1048577", "limit: expected int <= 1048576"),
        (LogsQuery, b"offset=1.5", "offset: expected int, got float"),
        (LogsQuery, b"instance=-1", "instance: expected int >= 0"),
        (DrainQuery, b"gpu=65537", "gpu: expected int <= 65536"),
        (DrainQuery, b"move=yes", "move: expected bool, got str"),
        (DrainQuery, b"reason=" + b"x" * 4097, "reason: expected str of length <= 4096"),
        (EventsQuery, b"since=-1", "since: expected int >= 0"),
        (EventsQuery, b"since=9007199254740993", "since: expected int <= 9007199254740992"),
        (JobsQuery, b"state=held&" * 8 + b"state=held", "state: expected array of length <= 8"),
        (JobsQuery, b"user=" + b"u" * 65, "user: expected str of length <= 64"),
        (JobsQuery, b"tenant=\xff", "the query string has more than 64 parameters or is not UTF-8"),
    ],
)
def test_parameters_beyond_their_limits_are_rejected(kind: type[msgspec.Struct], query: bytes, problem: str) -> None:
    with pytest.raises(BadField) as caught:
        QueryReader(kind).read(query)
    assert str(caught.value) == problem


def test_an_error_without_a_place_is_about_the_whole_request() -> None:
    error = field_error(msgspec.ValidationError("Expected `object`, got `array`"), Submission)
    assert (str(error), error.field) == ("Expected object, got array", "")


@pytest.mark.parametrize("number", ["2.0", "2e0", "0.2e1"])
def test_a_whole_number_may_be_written_with_a_fraction_or_an_exponent(number: str) -> None:
    """In JSON, and so for the schema of the API, all of them are the integer 2."""
    body = f'{{"name": "a", "command": ["2.0"], "gpus": {number}, "cpus": 0.5}}'
    assert read_json(DECODER, body.encode()) == Submission("a", ["2.0"], gpus=2, cpus=0.5)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ('"gpus": 2.5', "gpus: expected int, got float"),
        ('"gpus": 2.0, "gpus": 1', "the key 'gpus' occurs twice in one object, expected once"),
        ('"gpus": 1e300', "gpus: expected int <= 63488"),
        ('"gpus": 2.0, "time_limit": 1e999', "gpus: expected int, got float"),
        ('"gpus": 2.0, "retries": ' + "1" * 5000, "gpus: expected int, got float"),
        ('"gpus": 2.0, "retries": ', "gpus: expected int, got float"),
    ],
)
def test_other_numbers_are_no_integers(fields: str, error: str) -> None:
    with pytest.raises(BadField) as raised:
        read_json(DECODER, f'{{"name": "a", "command": ["x"], {fields}}}'.encode())
    assert str(raised.value) == error


@pytest.mark.parametrize("query", [b"gpu=%203", b"gpu=3+", b"gpu=3%0A", b"move=+true"])
def test_a_parameter_with_spaces_around_it_is_no_number(query: bytes) -> None:
    with pytest.raises(BadField, match="got str"):
        QueryReader(DrainQuery).read(query)
