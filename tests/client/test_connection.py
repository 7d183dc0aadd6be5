"""The client's connection, against a server that answers by a script: retries, timeouts, broken and foreign servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from refold.client import Client
from refold.client.address import Address
from refold.client.api import CALLS, HTTP_STATUS, Event
from refold.client.api.signatures import IDENTITY_PATH, hash_token, prove_server, token_id
from refold.client.api.wire import DaemonInfo, Problem
from refold.client.connection import Connection, request_target
from refold.client.transports import error_from_reply
from refold.errors import (
    BadField,
    BadInput,
    BadValue,
    Conflict,
    NoDaemon,
    NotFound,
    RefoldError,
    Refused,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from refold.server.http.event_stream import format_event, format_heartbeat

INFO = msgspec.json.encode(DaemonInfo("1", "here", "fifo", 1, 4, 4.0, 0, 0, 5.0, 1.0))
TOKEN = b'{"token": "rf_new", "name": "new"}'


def reply(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    """Return an HTTP reply; `length`: the length that it announces."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


HANG = b"hang"
"""In a script: leave the request without an answer."""


class ScriptedServer:
    """Answers the requests of the n-th connection with the n-th list of replies, then closes the connection.

    First it proves, in each connection, that it knows the token of the client.
    """

    def __init__(self, *connections: list[bytes]) -> None:
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._script = connections
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._ending = threading.Event()
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for replies in self._script:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                if self._ending.is_set():  # closed before the script ended
                    return
                raise
            with connection, connection.makefile("rb") as incoming:
                for answer in replies:
                    if not self._read_request(connection, incoming):
                        break
                    if answer == HANG:
                        self._ending.wait(20)
                    else:
                        connection.sendall(answer)

    def _prove(self, target: str) -> bytes:
        nonce = parse_qs(urlsplit(target).query)["nonce"][0]
        return reply(msgspec.json.encode(prove_server(hash_token("rf_x"), nonce, time())))

    def _read_request(self, connection: socket.socket, incoming: Any) -> bool:
        line = incoming.readline().decode().strip()
        headers: dict[str, str] = {}
        while header := incoming.readline().strip():
            name, _, value = header.decode().partition(": ")
            headers[name.lower()] = value
        body = incoming.read(int(headers.get("content-length", 0))).decode()
        if line.startswith(f"GET {IDENTITY_PATH}?"):
            connection.sendall(self._prove(line.split()[1]))
            return self._read_request(connection, incoming)
        if line:
            self.headers.append(headers)
            self.requests.append(f"{line.removesuffix(' HTTP/1.1')} {body}".strip())
        return bool(line)

    def close(self) -> None:
        self._ending.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        self._listening.close()


@contextmanager
def scripted(*connections: list[bytes], timeout: float = 5.0) -> Iterator[tuple[Client, ScriptedServer]]:
    server = ScriptedServer(*connections)
    try:
        with Client(server.address, "rf_x", timeout) as client:
            yield client, server
    finally:
        server.close()


def test_calls_share_one_connection() -> None:
    with scripted([reply(INFO), reply(b"[]")]) as (client, server):
        assert (client.info().gpus, client.nodes()) == (4, [])
    assert server.requests == ["GET /api/v1/info", "GET /api/v1/nodes"]


def test_every_request_has_the_token_and_a_body_its_type() -> None:
    with scripted([reply(INFO)], [reply(TOKEN, "201 Created")], [reply(b"{}\n")]) as (client, server):
        client.info()
        client.create_token("new")
        list(client._connection.chunks("journal"))
    schemes = [headers["authorization"].split()[:2] for headers in server.headers]
    assert schemes == [["Refold", token_id(hash_token("rf_x"))]] * 3
    assert not any("rf_x" in header for headers in server.headers for header in headers.values())
    assert [headers.get("content-type") for headers in server.headers] == [None, "application/json", None]


def test_a_call_over_a_connection_that_was_closed_meanwhile_is_repeated_once() -> None:
    with scripted([reply(INFO)], [reply(b"[]")]) as (client, server):
        client.info()
        assert client.nodes() == []
    assert server.requests == ["GET /api/v1/info", "GET /api/v1/nodes"]


def test_a_new_connection_that_breaks_is_not_tried_again() -> None:
    with scripted([], [reply(INFO)]) as (client, _):
        with pytest.raises(NoDaemon, match="no daemon answers at http://127"):
            client.info()
        assert client.info().gpus == 4


def test_a_call_that_must_not_be_repeated_gets_a_connection_of_its_own() -> None:
    with scripted([reply(INFO), b""], [reply(TOKEN, "201 Created")]) as (client, server):
        client.info()
        assert client.create_token("new").token == "rf_new"
    assert server.requests[1:] == ['POST /api/v1/tokens {"name":"new","role":"member","tenant":"default","user":""}']


def test_a_call_that_must_not_be_repeated_is_sent_once_even_if_its_connection_breaks() -> None:
    with scripted([b""], [reply(TOKEN, "201 Created")]) as (client, server):
        with pytest.raises(NoDaemon):
            client.create_token("new")
        assert len(server.requests) == 1


def test_a_daemon_that_does_not_answer_in_time_is_reported() -> None:
    with (
        scripted([HANG], timeout=0.05) as (client, server),
        pytest.raises(NoDaemon, match=rf"^the daemon at {server.address} did not answer within 0\.05 s$"),
    ):
        client.info()


def test_a_late_answer_is_not_taken_for_that_of_the_next_call() -> None:
    with scripted([HANG], [reply(b"[]")], timeout=0.2) as (client, server):
        with pytest.raises(NoDaemon):
            client.info()
        server._ending.set()
        assert client.nodes() == []


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9\r\n", reply(b"<html>"), reply(b"{}"), reply(INFO[:-4]), b"HTTP/1.1 abc\r\n\r\n"]
)
def test_a_server_that_is_not_a_daemon_is_reported(answer: bytes) -> None:
    with (
        scripted([answer]) as (client, server),
        pytest.raises(NoDaemon, match=f"the server at {server.address} is not a Refold daemon"),
    ):
        client.info()


def test_an_answer_that_breaks_off_is_reported() -> None:
    with scripted([reply(INFO, length=9999)]) as (client, _), pytest.raises(NoDaemon, match="broke off"):
        client.info()


def test_an_unexpected_success_status_is_not_an_answer() -> None:
    with (
        scripted([reply(b"", "204 No Content")]) as (client, _),
        pytest.raises(Refused, match="the daemon answered with status 204 and no message"),
    ):
        client.info()


def test_a_reply_of_every_error_status_raises_its_error() -> None:
    raised = {
        status: type(error_from_reply(status, msgspec.json.encode(Problem("no")))) for status in HTTP_STATUS.values()
    }
    assert raised == {
        401: Unauthenticated,
        403: raised[403],
        404: NotFound,
        409: Conflict,
        413: raised[413],
        422: BadInput,
        429: TooManyRequests,
        503: Unavailable,
    }
    assert {raised[403].__name__, raised[413].__name__} == {"Forbidden", "TooLarge"}
    assert type(error_from_reply(500, msgspec.json.encode(Problem("no")))) is Refused


def test_a_problem_with_a_field_is_a_bad_field() -> None:
    error = error_from_reply(422, b'{"error": "gpus: expected int", "field": "gpus"}')
    assert isinstance(error, BadField)
    assert (str(error), error.field) == ("gpus: expected int", "gpus")


def call_named(name: str) -> Any:
    return next(call for call in CALLS if call.name == name)


@pytest.mark.parametrize(
    ("name", "path_values", "query", "target"),
    [
        ("job", ("a/b?c#d",), {}, "/api/v1/jobs/a%2Fb%3Fc%23d"),
        ("job", (17,), {}, "/api/v1/jobs/17"),
        ("logs", ("é",), {"run": None, "offset": -9}, "/api/v1/jobs/%C3%A9/logs?offset=-9"),
        (
            "jobs",
            (),
            {"state": ["held", "failed"], "user": "", "ended": True},
            "/api/v1/jobs?state=held&state=failed&ended=true",
        ),
        ("jobs", (), {"after": 0, "ended": False}, "/api/v1/jobs?after=0&ended=false"),
        ("drain", ("n1",), {"reason": "a & b=c", "gpu": 0}, "/api/v1/nodes/n1/drain?reason=a+%26+b%3Dc&gpu=0"),
    ],
)
def test_names_and_parameters_are_quoted(
    name: str, path_values: tuple[str | int, ...], query: dict[str, Any], target: str
) -> None:
    assert request_target(call_named(name), path_values, query) == target


# Streams


def events_reply(*parts: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"".join(parts)


FIRST, SECOND = Event(8, 1.0, "started", "a-1"), Event(9, 2.0, "finished", "a-1")


def test_events_and_positions_come_in_the_order_of_the_stream() -> None:
    parts = (format_heartbeat(7), format_event(FIRST), format_heartbeat(8), format_event(SECOND))
    server = ScriptedServer([events_reply(*parts)])
    connection = Connection(Address(server.address, "rf_x"), 5.0)
    assert list(connection.events(since=7)) == [7, FIRST, 8, SECOND]
    assert server.requests == ["GET /api/v1/events?since=7"]
    server.close()


def test_an_event_stream_that_ends_is_resumed_after_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.client.RETRY_SECONDS", 0.0)
    first = events_reply(format_heartbeat(7), format_event(FIRST))
    second = events_reply(format_heartbeat(8), format_event(SECOND))
    with scripted([first], [second]) as (client, server):
        stream = client.events()
        assert [next(stream), next(stream)] == [FIRST, SECOND]
    assert server.requests == ["GET /api/v1/events?follow=true", "GET /api/v1/events?since=8&follow=true"]


def test_a_position_without_events_is_resumed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.client.RETRY_SECONDS", 0.0)
    with scripted([events_reply(format_heartbeat(8))], [events_reply(format_event(SECOND))]) as (client, server):
        assert next(client.events(tenant="lab")) == SECOND
    assert server.requests[1] == "GET /api/v1/events?since=8&tenant=lab&follow=true"


def test_a_daemon_that_is_starting_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.client.RETRY_SECONDS", 0.0)
    busy = reply(b'{"error": "starting"}', "503 Service Unavailable", "Connection: close")
    with scripted(
        [busy], [busy], [reply(INFO, "200 OK", "Connection: close")], [events_reply(format_event(FIRST))]
    ) as (
        client,
        server,
    ):
        assert next(client.events(3)) == FIRST
    assert [request.split("?")[0] for request in server.requests] == [
        "GET /api/v1/events",
        "GET /api/v1/info",
        "GET /api/v1/info",
        "GET /api/v1/events",
    ]


def test_a_stream_of_buffered_events_is_not_resumed() -> None:
    with scripted([events_reply(format_heartbeat(0), format_event(FIRST))]) as (client, server):
        assert list(client.events(follow=False)) == [FIRST]
    assert server.requests == ["GET /api/v1/events?since=0&follow=false"]


@pytest.mark.parametrize(("status", "error"), [("404 Not Found", NotFound), ("429 Too Many Requests", TooManyRequests)])
def test_a_stream_that_is_refused_is_not_tried_again(status: str, error: type[RefoldError]) -> None:
    with (
        scripted([reply(b'{"error": "no such job"}', status)]) as (client, _),
        pytest.raises(error, match="no such job"),
    ):
        next(client.events(job="a"))


def test_retries_end_at_the_timeout_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.client.client.RETRY_SECONDS", 0.001)
    client = Client("http://127.0.0.1:1", "rf_x", timeout=0.01)
    with pytest.raises(NoDaemon, match="connection refused"):
        next(client.events())
    with pytest.raises(NoDaemon, match="connection refused"):
        next(client.logs("a", follow=True))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [reply(b'{"entry":0}\n', length=50), CHUNKED + b"c\r\n{'entry':0}\n\r\n", CHUNKED + b"50\r\n{'entry':0}\n"],
    ids=["shorter than announced", "without a last chunk", "within a chunk"],
)
def test_a_download_that_breaks_off_leaves_no_file(answer: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("of yesterday\n")
    with (
        scripted([answer]) as (client, server),
        pytest.raises(NoDaemon, match=f"^the answer of the daemon at {server.address} broke off$"),
    ):
        client.journal(tmp_path / "journal")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("journal", "of yesterday\n")]


def test_a_whole_snapshot_is_asked_for(tmp_path: Path) -> None:
    with scripted([reply(b"{}\n", "200 OK", "Connection: close")], [reply(b"{}\n")]) as (client, server):
        client.snapshot(tmp_path / "a")
        client.snapshot(tmp_path / "b", whole=True)
    assert server.requests == ["GET /api/v1/snapshot?whole=false", "GET /api/v1/snapshot?whole=true"]


# Addresses


@pytest.mark.parametrize("address", ["127.0.0.1:7170", "ftp://host", "http://", "http://host:port", "http://[::1", ""])
def test_an_address_that_is_no_url_is_rejected(address: str) -> None:
    with pytest.raises(BadValue, match="expected one such as http://127"):
        Address(address, "rf_x")


@pytest.mark.parametrize("token", ["rf_a\nX-Evil: 1", "rf_a\r", "rf_é"])
def test_a_token_that_could_change_the_request_is_rejected(token: str) -> None:
    with pytest.raises(BadValue, match="expected ASCII without line breaks"):
        Address("http://127.0.0.1:1", token)
