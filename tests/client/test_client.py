"""The Python client, against the real API on a port of the loopback."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_service import MEMBER, NOW, OWNER, READER, Served, serve

import refold
from refold.api import wire
from refold.api.calls import CALLS
from refold.api.wire import Event, Submission
from refold.client.address import write_address
from refold.client.client import Client
from refold.client.connection import error_of
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
from refold.jobspec.submission import one_submission
from refold.model import Plan


@pytest.fixture
def served() -> Iterator[Served]:
    with serve() as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.address, MEMBER) as one:
        yield one


def later(*what: Callable[[], object]) -> threading.Timer:
    """Do things one after the other, a little later, elsewhere."""
    timer = threading.Timer(0.1, lambda: [do() for do in what])
    timer.start()
    return timer


def test_the_package_has_the_client_and_nothing_that_is_not_there() -> None:
    assert refold.Client is Client
    with pytest.raises(AttributeError, match="No refold attribute Clint"):
        getattr(refold, "Clint")  # noqa: B009


def test_a_daemon_is_found_by_what_it_left(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFOLD_ADDRESS", raising=False)
    monkeypatch.delenv("REFOLD_TOKEN", raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    write_address(tmp_path, served.address, READER)
    about = Client().about()
    assert (about.role, about.tenant, about.gpus) == ("reader", "vision", 4)


def test_every_call_of_the_table_is_a_method_that_hands_out_what_it_gives() -> None:
    elsewhere = {"submit_all": list[wire.JobStatus], "logs": Iterator[str], "events": Iterator[Event]}
    elsewhere |= {"snapshot": Path, "journal": Path}
    told = {}
    for call in CALLS:
        method = getattr(Client, call.name)
        hints = typing.get_type_hints(method, vars(inspect.getmodule(method)) | {"Iterator": Iterator})
        told[call.name] = hints["return"]
    assert told == {call.name: elsewhere.get(call.name, call.gives) for call in CALLS}


# Submitting

WAYS: list[Callable[[Client], wire.JobStatus]] = [
    lambda client: client.submit(Submission("train", ["python", "train.py"], gpus=2)),
    lambda client: client.submit({"name": "train", "command": ["python", "train.py"], "gpus": 2}),
    lambda client: client.submit(name="train", command=["python", "train.py"], gpus=2),
    lambda client: client.submit(Submission("train", ["python", "train.py"], gpus=8), gpus=2),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_job_is_submitted_in_any_of_these_ways(client: Client, way: Callable[[Client], wire.JobStatus]) -> None:
    job = way(client)
    assert (job.id, job.state, job.tenant, job.user, job.gpus) == (
        "train-1",
        "waiting",
        "vision",
        "member-user",
        2.0,
    )
    assert client.job("train-1") == client.job(1) == client.job("train") == job


def test_a_command_is_called_what_it_is_and_runs_where_it_was_submitted() -> None:
    submission = one_submission(None, {"command": ["python", "-u", "my train.py"]})
    assert submission == Submission("my-train", ["python", "-u", "my train.py"], folder=str(Path.cwd()))


def test_a_file_may_have_the_job_and_fields_come_before_it(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: train\nrun: python train.py\ngpus: 8\nworkdir: /data\n")
    assert one_submission(tmp_path / "job.yaml", {}).gpus == 8
    changed = one_submission(str(tmp_path / "job.yaml"), {"gpus": 2, "name": "small"})
    assert (changed.name, changed.gpus, changed.folder) == ("small", 2, "/data")


def test_a_file_of_many_jobs_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --array=0-2\ntrue\n")
    with pytest.raises(BadInput, match=r"job\.sh has 3 jobs, expected one: submit_all takes many"):
        one_submission(tmp_path / "job.sh", {})


def test_a_pinned_plan_stays_pinned() -> None:
    pinned = Submission("train", ["x"], plan=Plan(data=2), gpus=2)
    assert one_submission(pinned, {}) == pinned


@pytest.mark.parametrize(
    ("fields", "problem", "field"),
    [
        ({}, "name is absent", "name"),
        ({"name": "a", "command": []}, "command: expected array of length >= 1", "command"),
        ({"command": ["x"], "gpu": 1}, "gpu is no field that there is", "gpu"),
        ({"command": ["x"], "gpus": "2"}, "gpus: expected int, got str", "gpus"),
        ({"command": "x"}, "command: expected array, got str", "command"),
    ],
)
def test_fields_that_cannot_be_are_told_before_anything_is_sent(
    fields: dict[str, Any], problem: str, field: str
) -> None:
    with pytest.raises(BadField) as caught:
        one_submission(None, fields)
    assert (str(caught.value), caught.value.field) == (problem, field)


def test_many_jobs_are_submitted_at_once(client: Client) -> None:
    jobs = client.submit_all([Submission("a", ["x"]), Submission("b", ["x"])])
    assert [job.id for job in jobs] == ["a-1", "b-2"]


def test_asking_again_over_a_broken_connection_submits_once(served: Served) -> None:
    with Client(served.address, MEMBER) as client:
        client.about()
        kept = client._connection._kept
        assert kept is not None
        ask = kept.getresponse

        def break_off() -> Any:
            ask().read()
            raise ConnectionResetError

        kept.getresponse = break_off  # type: ignore[method-assign]
        job = client.submit(command=["x"])
    assert (job.id, list(served.service.all)) == ("x-1", ["x-1"])


def test_a_connection_that_has_gone_stale_is_made_anew(served: Served, client: Client) -> None:
    client.about()
    kept = client._connection._kept
    assert kept is not None and kept.sock is not None
    kept.sock.shutdown(2)
    assert client.about().gpus == 4
    assert client._connection._kept is not kept


def test_threads_may_share_a_client(served: Served, client: Client) -> None:
    threads = [threading.Thread(target=client.submit, kwargs={"command": ["x"]}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(served.service.all) == [f"x-{number}" for number in range(1, 9)]


# Asking


def test_the_queue_has_those_that_run_first_and_history_those_that_are_over(served: Served, client: Client) -> None:
    for name in "abcd":
        client.submit(name=name, command=["x"])
    served.do(served.service.start, "c-3")
    served.do(served.service.end, "a-1", "failed")
    assert [job.id for job in client.queue()] == ["c-3", "b-2", "d-4"]
    assert [job.id for job in client.history()] == ["a-1"]
    assert [job.id for job in client.jobs(state=["failed"]).jobs] == ["a-1"]
    assert [job.id for job in client.jobs(state=["running"]).jobs] == ["c-3"]


def test_pages_follow_each_other(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.submit_all([Submission("a", ["x"])] * 5)
    page = client.jobs(limit=2, after=2)
    assert ([job.id for job in page.jobs], page.total, page.next) == (["a-3", "a-4"], 5, 4)
    monkeypatch.setattr("refold.client.client.MOST_JOBS", 2)
    assert [job.id for job in client.queue()] == ["a-1", "a-2", "a-3", "a-4", "a-5"]


def test_jobs_are_held_released_and_cancelled(client: Client) -> None:
    job = client.submit(command=["x"])
    assert [client.hold(job.id).state, client.release(job.id).state] == ["held", "waiting"]
    assert client.cancel(job.id).state == "cancelled"
    assert [event.kind for event in client.why(job.id).story] == ["submitted", "held", "released", "cancelled"]


def test_what_would_be_is_told_and_not_done(served: Served, client: Client) -> None:
    assert client.preview(command=["x"], gpus=8).fits is False
    assert served.service.all == {}


def test_an_owner_sees_and_changes_machines_and_tokens(served: Served) -> None:
    owner = Client(served.address, OWNER)
    assert owner.drain("here", "its fan is loud") == wire.NodeStatus(
        "here", False, 4, "H100", 4.0, [], "its fan is loud"
    )
    assert owner.resume("here") == owner.nodes()[0] == wire.NodeStatus("here", True, 4, "H100", 4.0)
    assert [gpu.index for gpu in owner.gpus()] == [0, 1, 2, 3]
    assert [tenant.name for tenant in owner.tenants()] == ["speech", "vision"]
    made = owner.new_token("laptop", "reader", "vision", "ada")
    assert Client(served.address, made.token).about().role == "reader"
    assert owner.revoke_token("laptop") == wire.TokenStatus("laptop", "reader", "vision", "ada", NOW)
    assert [token.name for token in owner.tokens()] == ["owner", "member", "reader", "other"]


def test_journals_come_into_files_whole_or_not_at_all(served: Served, tmp_path: Path) -> None:
    owner = Client(served.address, OWNER)
    assert owner.journal(tmp_path / "journal").read_bytes() == b'{"entry":0}\n{"entry":1}\n{"entry":2}\n'
    assert owner.snapshot(tmp_path / "snapshot").read_bytes() == b'{"header":{}}\n'
    with pytest.raises(Forbidden):
        Client(served.address, MEMBER).journal(tmp_path / "refused")
    with pytest.raises(BadFile, match="cannot be written: No such file or directory"):
        owner.journal(tmp_path / "nowhere" / "journal")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "snapshot"]


# Waiting and following


def test_waiting_ends_with_the_job(served: Served, client: Client) -> None:
    job = client.submit(command=["x"])
    later(
        lambda: served.do(served.service.start, job.id),
        lambda: served.do(served.service.end, job.id, "failed", "exit 3"),
    )
    ended = client.wait(job.id, timeout=20)
    assert (ended.state, ended.why) == ("failed", "exit 3")
    assert client.wait(job.id) == ended


def test_waiting_too_long_says_where_the_job_stands(client: Client) -> None:
    job = client.submit(command=["x"])
    with pytest.raises(WaitTimeout, match=r"x-1 is waiting after 0.1 s"):
        client.wait(job.id, timeout=0.1)


def test_what_ends_just_before_the_stream_is_open_is_not_missed(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(command=["x"])
    open_stream = client._connection.events

    def events(*arguments: Any, **query: Any) -> Any:
        served.do(served.service.end, job.id)
        return open_stream(*arguments, **query)

    monkeypatch.setattr(client._connection, "events", events)
    assert client.wait(job.id, timeout=20).state == "finished"


def test_waiting_goes_on_without_a_stream_of_events(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = client.submit(command=["x"])

    def events(*arguments: Any, **query: Any) -> Any:
        raise NoDaemon("the stream broke off")

    monkeypatch.setattr(client._connection, "events", events)
    monkeypatch.setattr("refold.client.client.PAUSE", 0.01)
    later(lambda: served.do(served.service.end, job.id))
    assert client.wait(job.id, timeout=20).state == "finished"


def test_output_is_followed_until_the_job_is_over(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.client.client.PAUSE", 0.01)
    job = client.submit(command=["x"])
    later(
        lambda: served.do(served.service.start, job.id),
        lambda: served.do(served.service.say, job.id, "step 1\n"),
        lambda: served.do(served.service.say, job.id, "step 2 é\n"),
        lambda: served.do(served.service.end, job.id),
    )
    assert "".join(client.logs(job.id, follow=True)) == "step 1\nstep 2 é\n"
    assert list(client.logs(job.id)) == ["step 1\nstep 2 é\n"]
    assert list(client.logs(job.id, offset=-10)) == ["step 2 é\n"]


def test_output_is_followed_over_a_restart_of_the_daemon(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.client.client.PAUSE", 0.01)
    job = client.submit(command=["x"])
    for do in (served.service.start, served.service.end):
        served.do(do, job.id)
    served.do(served.service.say, job.id, "all of it\n")
    ask, answers = client._connection.ask, iter([NoDaemon("it ends"), Unavailable("it begins")])

    def ask_at_a_bad_time(*arguments: Any, **query: Any) -> Any:
        for refusal in answers:
            raise refusal
        return ask(*arguments, **query)

    monkeypatch.setattr(client._connection, "ask", ask_at_a_bad_time)
    assert list(client.logs(job.id, follow=True)) == ["all of it\n"]


def test_a_job_that_never_ran_has_no_output_to_follow(client: Client) -> None:
    job = client.submit(command=["x"])
    assert list(client.logs(job.id)) == []
    client.cancel(job.id)
    assert list(client.logs(job.id, follow=True)) == []


def test_events_are_those_that_there_are_or_those_to_come(served: Served, client: Client) -> None:
    job = client.submit(command=["x"])
    assert [event.kind for event in client.events(follow=False)] == ["submitted"]
    assert list(client.events(1, follow=False)) == []
    coming = client.events(0)
    assert next(coming).kind == "submitted"
    served.do(served.service.start, job.id)
    assert next(coming) == Event(2, NOW, "started", "x-1", 1, "x-1 started", "vision")


def test_a_stream_that_broke_off_is_taken_up_where_it_was(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection dies after one sign of life; what happened in between is there all the same."""
    open_stream = client._connection.events

    def events(**query: Any) -> Iterator[Event | int]:
        yield next(open_stream(**query)) if query["since"] is None else next(later_signs(**query))
        raise NoDaemon("the stream broke off")

    def later_signs(**query: Any) -> Iterator[Event | int]:
        return (sign for sign in open_stream(**query) if isinstance(sign, Event))

    monkeypatch.setattr(client._connection, "events", events)
    coming = client.events()
    later(lambda: [client.submit(name="a", command=["x"]) for _ in range(3)])
    assert [next(coming).number for _ in range(3)] == [1, 2, 3]


# Refusals


@pytest.mark.parametrize(
    ("ask", "kind", "problem"),
    [
        (lambda client: client.job("zzz"), NotFound, "no job 'zzz'. (x-1)"),
        (lambda client: client.cancel("x-1"), Conflict, "x-1 has finished already, and cannot be cancelled"),
        (lambda client: client.tokens(), Forbidden, "tokens takes the role owner, and the token 'member' has member"),
        (lambda client: client.jobs(limit=5000), BadField, "limit: expected int <= 1000"),
        (lambda client: client.submit_all([]), BadInput, "Expected array of length >= 1"),
        (
            lambda client: client.submit_all([Submission("a", ["x" * 60_000])] * 20),
            TooLarge,
            "submit_all would send 1,201,461 bytes, and a daemon takes 1,048,576 at once",
        ),
    ],
)
def test_what_the_daemon_refuses_is_raised_as_what_it_is(
    served: Served, client: Client, ask: Callable[[Client], object], kind: type[RefoldError], problem: str
) -> None:
    client.submit(command=["x"])
    served.do(served.service.end, "x-1")
    with pytest.raises(kind) as caught:
        ask(client)
    assert (type(caught.value), str(caught.value)) == (kind, problem)


def test_a_token_that_is_not_known_is_told(served: Served) -> None:
    with pytest.raises(Unauthenticated, match="the token is not known"):
        Client(served.address, "rf_guessed").about()


def test_nobody_there_is_told_with_the_address() -> None:
    with pytest.raises(NoDaemon, match=r"no daemon answers at http://127\.0\.0\.1:1: connection refused"):
        Client("http://127.0.0.1:1", "rf_a").about()


@pytest.mark.parametrize("answer", [b"<html>", b"", b"[]", b"\xff"])
def test_an_answer_that_no_daemon_gives_has_its_status(answer: bytes) -> None:
    assert str(error_of(502, answer)) == "the daemon answered with status 502 and no reason"


def test_the_client_brings_nothing_heavy_along() -> None:
    heavy = ("numpy", "numba", "scipy", "asyncio", "uvicorn", "starlette", "yaml", "rich", "typer")
    program = f"import sys, refold; refold.Client; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
