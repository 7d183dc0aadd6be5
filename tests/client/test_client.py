"""The Python client, against a real server on a loopback port."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import typing
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from fake_service import MEMBER, NOW, OWNER, READER, FakeServer, serve

import refold
from refold.client.address import write_address
from refold.client.api import access, wire
from refold.client.api.calls import CALLS
from refold.client.api.submissions import Submission
from refold.client.api.wire import Event
from refold.client.client import Client
from refold.client.jobspec.submission import make_submission
from refold.client.transports import error_from_reply
from refold.errors import (
    BadField,
    BadFile,
    BadInput,
    Conflict,
    Forbidden,
    NoDaemon,
    NotFound,
    RefoldError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WaitTimeout,
)
from refold.model import Plan


@pytest.fixture
def served() -> Iterator[FakeServer]:
    with serve() as one:
        yield one


@pytest.fixture
def client(served: FakeServer) -> Iterator[Client]:
    with Client(served.address, MEMBER) as one:
        yield one


def run_later(*actions: Callable[[], object]) -> threading.Timer:
    """Run actions in order after 0.1 s, in another thread."""
    timer = threading.Timer(0.1, lambda: [act() for act in actions])
    timer.start()
    return timer


def test_the_package_exports_the_client() -> None:
    assert refold.Client is Client
    with pytest.raises(AttributeError, match="No refold attribute Clint"):
        getattr(refold, "Clint")  # noqa: B009


def test_the_daemon_is_found_by_its_address_file(
    served: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REFOLD_ADDRESS", raising=False)
    monkeypatch.delenv("REFOLD_TOKEN", raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    write_address(tmp_path, served.address, READER)
    info = Client().info()
    assert (info.role, info.tenant, info.gpus) == ("reader", "vision", 4)


def test_every_call_is_a_client_method_with_its_response_type() -> None:
    exceptions = {"submit_all": list[wire.JobStatus], "logs": Iterator[str], "events": Iterator[Event]}
    exceptions |= {"snapshot": Path, "journal": Path}
    returned = {}
    for call in CALLS:
        method = getattr(Client, call.name)
        hints = typing.get_type_hints(method, vars(inspect.getmodule(method)) | {"Iterator": Iterator})
        returned[call.name] = hints["return"]
    assert returned == {call.name: exceptions.get(call.name, call.response_type) for call in CALLS}


# Submitting

SUBMIT_VARIANTS: list[Callable[[Client], wire.JobStatus]] = [
    lambda client: client.submit(Submission("train", ["python", "train.py"], gpus=2)),
    lambda client: client.submit({"name": "train", "command": ["python", "train.py"], "gpus": 2}),
    lambda client: client.submit(name="train", command=["python", "train.py"], gpus=2),
    lambda client: client.submit(Submission("train", ["python", "train.py"], gpus=8), gpus=2),
]


@pytest.mark.parametrize("submit", SUBMIT_VARIANTS)
def test_a_job_can_be_submitted_as_struct_mapping_or_keywords(
    client: Client, submit: Callable[[Client], wire.JobStatus]
) -> None:
    job = submit(client)
    assert (job.id, job.state, job.tenant, job.user, job.gpus) == (
        "train-1",
        "waiting",
        "vision",
        "member-user",
        2.0,
    )
    assert client.job("train-1") == client.job(1) == client.job("train") == job


def test_a_command_is_named_after_its_script_and_runs_in_the_current_folder() -> None:
    submission = make_submission(None, {"command": ["python", "-u", "my train.py"]})
    assert submission == Submission("my-train", ["python", "-u", "my train.py"], folder=str(Path.cwd()))


def test_keywords_override_a_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: train\nrun: python train.py\ngpus: 8\nworkdir: /data\n")
    assert make_submission(tmp_path / "job.yaml", {}).gpus == 8
    changed = make_submission(str(tmp_path / "job.yaml"), {"gpus": 2, "name": "small"})
    assert (changed.name, changed.gpus, changed.folder) == ("small", 2, "/data")


def test_a_job_inherits_the_environment_of_the_caller_unless_it_is_described_completely(
    served: FakeServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FOO": "1", "HF_TOKEN": "hf_1"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --export=HF_TOKEN\ntrue\n")
    (tmp_path / "plain.sh").write_text("#!/bin/sh\ntrue\n")
    job = Submission("train", ["true"])
    statuses = [
        client.submit(command=["true"]),
        client.submit(command=["true"], export="NONE"),
        client.submit(tmp_path / "plain.sh"),
        client.submit(job),
        client.submit({"name": "train", "command": ["true"]}),
        client.submit(job, export="ALL"),
        client.submit(tmp_path / "job.sh"),
        client.submit(tmp_path / "job.sh", export="NONE"),
        *client.submit_all([job], export="FOO"),
    ]
    service = served.service
    found = [service.environments.get(service.exported[status.id], {}) for status in statuses]
    assert [(one.get("FOO"), one.get("HF_TOKEN")) for one in found] == [
        ("1", None),
        (None, None),
        ("1", None),
        (None, None),
        (None, None),
        ("1", None),
        (None, "hf_1"),
        (None, None),
        ("1", None),
    ]


def test_a_file_of_several_jobs_is_rejected_as_one_submission(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("- run: a\n- run: b\n- run: c\n")
    with pytest.raises(BadInput, match=r"jobs\.yaml has 3 jobs, expected one; use submit_all for several"):
        make_submission(tmp_path / "jobs.yaml", {})


def test_a_pinned_plan_stays_pinned() -> None:
    pinned = Submission("train", ["x"], plan=Plan(data=2), gpus=2)
    assert make_submission(pinned, {}) == pinned


@pytest.mark.parametrize(
    ("fields", "problem", "field"),
    [
        ({}, "name is missing", "name"),
        ({"name": "a", "command": []}, "command: expected array of length >= 1", "command"),
        ({"command": ["x"], "gpu": 1}, "unknown field 'gpu'; did you mean 'gpus'?", "gpu"),
        ({"command": ["x"], "gpus": "2"}, "gpus: expected int, got str", "gpus"),
        ({"command": "x"}, "command: expected array, got str", "command"),
    ],
)
def test_invalid_fields_are_reported_before_anything_is_sent(fields: dict[str, Any], problem: str, field: str) -> None:
    with pytest.raises(BadField) as caught:
        make_submission(None, fields)
    assert (str(caught.value), caught.value.field) == (problem, field)


def test_several_jobs_are_submitted_at_once(client: Client) -> None:
    jobs = client.submit_all([Submission("a", ["x"]), Submission("b", ["x"])])
    assert [job.id for job in jobs] == ["a-1", "b-2"]


def test_a_retry_after_a_broken_connection_submits_once(served: FakeServer) -> None:
    with Client(served.address, MEMBER) as client:
        client.info()
        connection = client._connection._persistent
        assert connection is not None
        get_response = connection.getresponse

        def break_off() -> Any:
            get_response().read()
            raise ConnectionResetError

        connection.getresponse = break_off  # type: ignore[method-assign]
        job = client.submit(command=["x"])
    assert (job.id, list(served.service.jobs_by_id)) == ("x-1", ["x-1"])


def test_a_stale_connection_is_replaced(served: FakeServer, client: Client) -> None:
    client.info()
    connection = client._connection._persistent
    assert connection is not None and connection.sock is not None
    connection.sock.shutdown(2)
    assert client.info().gpus == 4
    assert client._connection._persistent is not connection


@pytest.mark.parametrize("path", ["/jobs/x-1/cancel", "/changes"])
def test_a_cancellation_is_sent_once_because_a_second_one_kills(
    path: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send, get_response = HTTPConnection.request, HTTPConnection.getresponse

    def record(connection: HTTPConnection, method: str, url: str, *more: Any) -> None:
        sent.append(url)
        send(connection, method, url, *more)

    def break_off(connection: HTTPConnection) -> Any:
        response = get_response(connection)
        if path in sent[-1]:
            raise ConnectionResetError
        return response

    client.submit(command=["x"])  # the connection stays open
    monkeypatch.setattr(HTTPConnection, "request", record)
    monkeypatch.setattr(HTTPConnection, "getresponse", break_off)
    with pytest.raises(NoDaemon):
        client.change_jobs("cancel", ["x-1"]) if path == "/changes" else client.cancel("x-1")
    assert sum(path in url for url in sent) == 1


def test_threads_may_share_a_client(served: FakeServer, client: Client) -> None:
    threads = [threading.Thread(target=client.submit, kwargs={"command": ["x"]}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(served.service.jobs_by_id) == [f"x-{number}" for number in range(1, 9)]


# Queries and changes


def test_the_queue_lists_running_jobs_first_and_the_history_ended_ones(served: FakeServer, client: Client) -> None:
    for name in "abcd":
        client.submit(name=name, command=["x"])
    served.call(served.service.start, "c-3")
    served.call(served.service.end, "a-1", "failed")
    assert [job.id for job in client.queue()] == ["c-3", "b-2", "d-4"]
    assert [job.id for job in client.history()] == ["a-1"]
    assert [job.id for job in client.jobs(state=["failed"]).jobs] == ["a-1"]
    assert [job.id for job in client.jobs(state=["running"]).jobs] == ["c-3"]


def test_pages_are_fetched_one_after_the_other(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.submit_all([Submission("a", ["x"])] * 5)
    page = client.jobs(limit=2, after=2)
    assert ([job.id for job in page.jobs], page.total, page.next) == (["a-3", "a-4"], 5, 4)
    monkeypatch.setattr("refold.client.client.MAX_PAGE_JOBS", 2)
    assert [job.id for job in client.queue()] == ["a-1", "a-2", "a-3", "a-4", "a-5"]


def test_jobs_are_held_released_and_cancelled(client: Client) -> None:
    job = client.submit(command=["x"])
    assert [client.hold(job.id).state, client.release(job.id).state] == ["held", "waiting"]
    assert client.cancel(job.id).state == "cancelled"
    assert [event.kind for event in client.why(job.id).events] == ["submitted", "held", "released", "cancelled"]


def test_a_preview_submits_nothing(served: FakeServer, client: Client) -> None:
    assert client.preview(command=["x"], gpus=8).fits is False
    assert served.service.jobs_by_id == {}


def test_an_owner_manages_nodes_and_tokens(served: FakeServer) -> None:
    owner = Client(served.address, OWNER)
    assert owner.drain("here", "its fan is loud") == wire.NodeStatus(
        "here", False, 4, "H100", 4.0, [], "its fan is loud", drained=True
    )
    assert owner.resume("here") == owner.nodes()[0] == wire.NodeStatus("here", True, 4, "H100", 4.0)
    assert [gpu.index for gpu in owner.gpus()] == [0, 1, 2, 3]
    assert [tenant.name for tenant in owner.tenants()] == ["speech", "vision"]
    created = owner.create_token("laptop", "reader", "vision", "ada")
    assert Client(served.address, created.token).info().role == "reader"
    assert owner.revoke_token("laptop") == access.TokenStatus("laptop", "reader", "vision", "ada", NOW)
    assert [token.name for token in owner.tokens()] == ["owner", "member", "reader", "other"]


def test_journal_files_are_written_completely_or_not_at_all(served: FakeServer, tmp_path: Path) -> None:
    owner = Client(served.address, OWNER)
    assert owner.journal(tmp_path / "journal").read_bytes() == b'{"entry":0}\n{"entry":1}\n{"entry":2}\n'
    assert owner.snapshot(tmp_path / "snapshot").read_bytes() == b'{"header":{}}\n'
    with pytest.raises(Forbidden):
        Client(served.address, MEMBER).journal(tmp_path / "refused")
    with pytest.raises(BadFile, match="cannot be written: No such file or directory"):
        owner.journal(tmp_path / "nowhere" / "journal")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "snapshot"]


# Waiting and following


def test_wait_returns_when_the_job_ends(served: FakeServer, client: Client) -> None:
    job = client.submit(command=["x"])
    run_later(
        lambda: served.call(served.service.start, job.id),
        lambda: served.call(served.service.end, job.id, "failed", "exit 3"),
    )
    ended = client.wait(job.id, timeout=20)
    assert (ended.state, ended.message) == ("failed", "exit 3")
    assert client.wait(job.id) == ended


def test_a_wait_timeout_reports_the_state_of_the_job(client: Client) -> None:
    job = client.submit(command=["x"])
    with pytest.raises(WaitTimeout, match=r"x-1 is waiting after 0.1 s"):
        client.wait(job.id, timeout=0.1)


def test_wait_does_not_miss_an_end_just_before_the_stream_opens(
    served: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(command=["x"])
    open_stream = client._connection.events

    def events(*arguments: Any, **query: Any) -> Any:
        served.call(served.service.end, job.id)
        return open_stream(*arguments, **query)

    monkeypatch.setattr(client._connection, "events", events)
    assert client.wait(job.id, timeout=20).state == "finished"


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_wait_works_without_an_event_stream(
    served: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    job = client.submit(command=["x"])

    def events(*arguments: Any, **query: Any) -> Any:
        raise NoDaemon("the stream broke off")

    monkeypatch.setattr(client._connection, "events", events)
    monkeypatch.setattr("refold.client.client.RETRY_SECONDS", 0.01)
    run_later(lambda: served.call(served.service.end, job.id))
    assert client.wait(job.id, timeout=timeout).state == "finished"


def test_output_is_followed_until_the_job_ends(
    served: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.client.client.RETRY_SECONDS", 0.01)
    job = client.submit(command=["x"])
    run_later(
        lambda: served.call(served.service.start, job.id),
        lambda: served.call(served.service.write_output, job.id, "step 1\n"),
        lambda: served.call(served.service.write_output, job.id, "step 2 é\n"),
        lambda: served.call(served.service.end, job.id),
    )
    assert "".join(client.logs(job.id, follow=True)) == "step 1\nstep 2 é\n"
    assert list(client.logs(job.id)) == ["step 1\nstep 2 é\n"]
    assert list(client.logs(job.id, offset=-10)) == ["step 2 é\n"]


def test_output_is_followed_across_a_restart_of_the_daemon(
    served: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.client.client.RETRY_SECONDS", 0.01)
    job = client.submit(command=["x"])
    for do in (served.service.start, served.service.end):
        served.call(do, job.id)
    served.call(served.service.write_output, job.id, "all of it\n")
    real_call, failures = client._connection.call, iter([NoDaemon("it is down"), Unavailable("it is starting")])

    def call(*arguments: Any, **query: Any) -> Any:
        for failure in failures:
            raise failure
        return real_call(*arguments, **query)

    monkeypatch.setattr(client._connection, "call", call)
    assert list(client.logs(job.id, follow=True)) == ["all of it\n"]


def test_following_pauses_only_when_there_is_nothing_new_to_read(
    served: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(command=["x"])
    served.call(served.service.start, job.id)
    served.call(served.service.write_output, job.id, "step 1\n")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        served.call(served.service.write_output, job.id, "step 2\n")
        served.call(served.service.end, job.id)

    monkeypatch.setattr("refold.client.client.time.sleep", pause)
    assert list(client.logs(job.id, follow=True)) == ["step 1\n", "step 2\n"]
    assert len(pauses) == 1


def test_a_job_that_never_ran_has_no_output_to_follow(client: Client) -> None:
    job = client.submit(command=["x"])
    assert list(client.logs(job.id)) == []
    client.cancel(job.id)
    assert list(client.logs(job.id, follow=True)) == []


def test_events_are_the_buffered_ones_or_also_later_ones(served: FakeServer, client: Client) -> None:
    job = client.submit(command=["x"])
    assert [event.kind for event in client.events(follow=False)] == ["submitted"]
    assert list(client.events(1, follow=False)) == []
    stream = client.events(0)
    assert next(stream).kind == "submitted"
    served.call(served.service.start, job.id)
    assert next(stream) == Event(2, NOW, "started", "x-1", 1, "x-1 started", "vision")


def test_a_broken_event_stream_resumes_at_its_position(
    served: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection breaks after one item; events in between are not lost."""
    open_stream = client._connection.events

    def events(**query: Any) -> Iterator[Event | int]:
        yield next(open_stream(**query)) if query["since"] is None else next(events_only(**query))
        raise NoDaemon("the stream broke off")

    def events_only(**query: Any) -> Iterator[Event | int]:
        return (item for item in open_stream(**query) if isinstance(item, Event))

    monkeypatch.setattr(client._connection, "events", events)
    stream = client.events()
    run_later(lambda: [client.submit(name="a", command=["x"]) for _ in range(3)])
    assert [next(stream).number for _ in range(3)] == [1, 2, 3]


# Errors


@pytest.mark.parametrize(
    ("call", "kind", "problem"),
    [
        (lambda client: client.job("zzz"), NotFound, "unknown job 'zzz' (known: x-1)"),
        (lambda client: client.cancel("x-1"), Conflict, "x-1 cannot be cancelled: it is finished"),
        (lambda client: client.tokens(), Forbidden, "tokens requires the role owner; the token 'member' has member"),
        (lambda client: client.jobs(limit=5000), BadField, "limit: expected int <= 1000"),
        (lambda client: client.submit_all([]), BadInput, "Expected array of length >= 1"),
        (
            lambda client: client.submit_all([Submission("a", ["x" * 60_000])] * 20),
            TooLarge,
            "the body has more than 1,048,576 bytes",
        ),
        (
            lambda client: client.submit_all([Submission("a", ["x" * 60_000])] * 200),
            TooLarge,
            "the request body of submit_all has 12,014,601 bytes, expected at most 8,388,608",
        ),
    ],
)
def test_errors_of_the_daemon_are_raised_with_their_type(
    served: FakeServer, client: Client, call: Callable[[Client], object], kind: type[RefoldError], problem: str
) -> None:
    client.submit(command=["x"])
    served.call(served.service.end, "x-1")
    with pytest.raises(kind) as caught:
        call(client)
    assert (type(caught.value), str(caught.value)) == (kind, problem)


def test_an_unknown_token_is_reported(served: FakeServer) -> None:
    with pytest.raises(Unauthenticated, match="unknown token"):
        Client(served.address, "rf_guessed").info()


def test_an_unreachable_daemon_is_reported_with_its_address() -> None:
    with pytest.raises(NoDaemon, match=r"no daemon answers at http://127\.0\.0\.1:1: connection refused"):
        Client("http://127.0.0.1:1", "rf_a").info()


@pytest.mark.parametrize("answer", [b"<html>", b"", b"[]", b"\xff"])
def test_an_answer_that_is_not_a_problem_is_reported_with_its_status(answer: bytes) -> None:
    assert str(error_from_reply(502, answer)) == "the daemon answered with status 502 and no message"


def test_importing_the_client_imports_no_heavy_modules() -> None:
    heavy = ("numpy", "scipy", "asyncio", "uvicorn", "starlette", "yaml", "rich", "typer")
    program = f"import sys, refold; refold.Client; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
