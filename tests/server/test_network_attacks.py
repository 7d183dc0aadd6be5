"""Attacks on the daemon's port by clients without a token: they neither fill its memory nor keep jobs from running."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from real_daemon import RealDaemon, wait_until

from refold.errors import TooLarge

MEBIBYTE = 2**20
MAX_GROWTH = 48 * MEBIBYTE
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
MANY_HEADERS = b"".join(b"x%07d: 1\r\n" % number for number in range(80_000))

FLOODS = {
    "one endless header": HEAD + b"X: ",
    "endless headers": HEAD,
    "an endless request line": b"GET /",
    "an endless name of a header": HEAD + b"X",
    "endless trailers": POST + b"0\r\n",
    "one endless trailer": POST + b"0\r\nX: ",
    "pipelined requests": b"",
}
FILLER = {"endless headers": MANY_HEADERS, "endless trailers": MANY_HEADERS, "pipelined requests": HEAD + b"\r\n"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    with RealDaemon(tmp_path_factory.mktemp("attacked") / "state") as daemon:
        yield daemon
        assert daemon.is_alive()
        assert daemon.log() == ""


@contextmanager
def connections(daemon: RealDaemon, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    address = urlsplit(daemon.startup.address)
    assert address.hostname and address.port
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=30)))
            with suppress(ConnectionError):
                found[-1].sendall(sent)
        yield found


def flood(connection: socket.socket, start: bytes, filler: bytes, size: int) -> None:
    """Send until the daemon closes the connection, or so many bytes have been sent. Answers are not read."""
    chunk = filler * max(1, MEBIBYTE // len(filler))
    connection.settimeout(5)
    try:
        connection.sendall(start)
        for _ in range(size // len(chunk)):
            connection.sendall(chunk)
    except (ConnectionError, TimeoutError):
        return


def resident_bytes(daemon: RealDaemon) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * 4096


def is_closed(connection: socket.socket) -> bool:
    """Whether the daemon has closed the connection; reads what it has answered."""
    with suppress(ConnectionError):
        while select.select([connection], [], [], 0)[0]:
            if not connection.recv(65536):
                return True
        return False
    return True


def authorised_post(daemon: RealDaemon, header: bytes) -> bytes:
    """Return the headers of a submission with the owner's token."""
    lines = [b"Authorization: Bearer " + daemon.startup.token.encode(), b"Content-Type: application/json", header]
    return b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"


def answer_to(daemon: RealDaemon, request: bytes) -> bytes:
    """Send a request; return the first line of the answer."""
    with connections(daemon, 1) as (connection,):
        with suppress(ConnectionError):
            connection.sendall(request)
        answer = b""
        with suppress(ConnectionError):
            while b"\r\n" not in answer and (part := connection.recv(65536)):
                answer += part
        return answer.partition(b"\r\n")[0]


@pytest.mark.parametrize("kind", FLOODS)
def test_four_connections_do_not_fill_the_memory(daemon: RealDaemon, kind: str) -> None:
    before = resident_bytes(daemon)
    with connections(daemon, 4) as attackers:
        for attacker in attackers:
            flood(attacker, FLOODS[kind], FILLER.get(kind, b"x"), 150 * MEBIBYTE)
        assert daemon.client().info().waiting == 0
        assert resident_bytes(daemon) - before < MAX_GROWTH


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (HEAD + b"\r\n", b"200 OK"),
        (HEAD + b"X: " + b"x" * 8_000 + b"\r\n\r\n", b"200 OK"),
        (HEAD + b"X: " + b"x" * 100_000, b"431 Request Header Fields Too Large"),
        (HEAD + b"x: 1\r\n" * 98 + b"\r\n", b"200 OK"),
        (HEAD + b"x: 1\r\n" * 100 + b"\r\n", b"431 Request Header Fields Too Large"),
        (b"GET /" + b"x" * 100_000, b"431 Request Header Fields Too Large"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"\r\n" * 50_000, b"431 Request Header Fields Too Large"),
    ],
)
def test_sizes_of_headers_are_limited(daemon: RealDaemon, request_bytes: bytes, status: bytes) -> None:
    assert answer_to(daemon, request_bytes) == b"HTTP/1.1 " + status


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"5\r\nab\r\n\r\n", b"5;" + b"x" * 100_000, b"-1\r\n"])
def test_bad_chunks_are_answered_at_once(daemon: RealDaemon, chunk: bytes) -> None:
    """The time limit of the body is 45 s, that of the test's socket is shorter."""
    assert answer_to(daemon, POST + chunk) == b"HTTP/1.1 400 Bad Request"
    with connections(daemon, 1, authorised_post(daemon, b"Transfer-Encoding: chunked")) as (connection,):
        connection.sendall(b"5\r\n12345\r\n")
        assert daemon.client().info().waiting == 0
        connection.sendall(chunk)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 Bad Request\r\n")


@pytest.mark.parametrize("more", [b"", b"\r\nExpect: 100-continue"])
def test_a_body_that_is_declared_to_be_too_large_is_rejected_at_once(daemon: RealDaemon, more: bytes) -> None:
    sent = authorised_post(daemon, b"Content-Length: 100000000" + more)
    with connections(daemon, 1, sent) as (connection,):
        answer = b""
        while not answer.endswith(b"}") and (part := connection.recv(65536)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the body has more than 1,048,576 bytes" in answer


def test_a_request_hidden_behind_a_body_that_is_too_large_is_not_answered(daemon: RealDaemon) -> None:
    sent = authorised_post(daemon, b"Content-Length: 3000000") + b" " * 3_000_000 + HEAD + b"\r\n"
    with connections(daemon, 1, sent) as (connection,):
        answer = b""
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    assert answer.count(b"HTTP/1.1 ") == 1


def test_sizes_can_be_configured(tmp_path: Path) -> None:
    sizes = {"header_bytes": 4096, "headers": 20}
    with (
        RealDaemon(
            tmp_path / "state", http="{body_size: 8KiB}", prepare="fault_injection:limit_http", arguments=sizes
        ) as daemon,
        daemon.client() as client,
    ):
        assert answer_to(daemon, HEAD + b"X: 1\r\n" * 10 + b"\r\n") == b"HTTP/1.1 200 OK"
        for headers in (b"X: 1\r\n" * 21, b"X: " + b"x" * 5000 + b"\r\n"):
            assert answer_to(daemon, HEAD + headers + b"\r\n") == b"HTTP/1.1 431 Request Header Fields Too Large"
        with pytest.raises(TooLarge, match="the body has more than 8,192 bytes"):
            client.submit(command=["true", "x" * 9000], export="NONE")


QUICK = {"header_seconds": 0.5, "body_seconds": 0.5, "write_seconds": 0.5}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    folder = tmp_path_factory.mktemp("impatient") / "state"
    with RealDaemon(folder, prepare="fault_injection:limit_http", arguments=QUICK) as daemon:
        yield daemon
        assert daemon.log() == ""


@pytest.mark.parametrize("sent", [b"", b"GET /", HEAD, HEAD + b"X: 1", b"\r\n"], ids=repr)
def test_600_half_open_requests_are_closed(impatient: RealDaemon, sent: bytes) -> None:
    with connections(impatient, 600, sent) as attackers:
        assert impatient.client().info().waiting == 0
        wait_until(lambda: all(map(is_closed, attackers)), what="half-open requests are closed")


@pytest.mark.parametrize(
    "sent",
    [
        POST,
        POST + b"5\r\nab",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n",
        HEAD + b"\r\n" + HEAD,
        HEAD + b"\r\n\r\n",
        b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 8,
    ],
    ids=lambda sent: repr(sent[-40:]),
)
def test_requests_that_are_not_completed_are_closed(impatient: RealDaemon, sent: bytes) -> None:
    with connections(impatient, 4, sent) as attackers:
        wait_until(lambda: all(map(is_closed, attackers)), what="requests are closed")


def test_bytes_that_are_no_request_do_not_keep_a_connection_open(impatient: RealDaemon) -> None:
    with connections(impatient, 1, HEAD + b"\r\n") as (attacker,):

        def has_ended() -> bool:
            with suppress(ConnectionError):
                attacker.sendall(b"\r\n")
            return is_closed(attacker)

        wait_until(has_ended, what="the connection is closed although it sends bytes")


def test_an_answer_that_is_not_read_is_given_up(impatient: RealDaemon) -> None:
    before = open_sockets(impatient)
    with connections(impatient, 8, b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 8):
        wait_until(lambda: open_sockets(impatient) <= before, what="connections that read nothing are closed")


def open_sockets(daemon: RealDaemon) -> int:
    found = 0
    for path in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with suppress(OSError):
            found += str(path.readlink()).startswith("socket:")
    return found


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n"], ids=["idle", "half-open", "kept alive"])
def test_300_idle_connections_with_256_descriptors_do_not_keep_jobs_from_running(tmp_path: Path, sent: bytes) -> None:
    with (
        RealDaemon(tmp_path / "state", prepare="fault_injection:limit_descriptors", arguments={"count": 256}) as daemon,
        connections(daemon, 300, sent),
        daemon.client() as client,
    ):
        jobs = [client.submit(name="job", command=["true"]).id for _ in range(20)]
        assert [client.wait(job, timeout=60).state for job in jobs] == ["finished"] * 20
        assert "Too many open files" not in daemon.log()


def test_jobs_have_the_descriptor_limit_with_which_the_daemon_was_started(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state", prepare="fault_injection:lower_descriptors", arguments={"soft": 300}) as daemon:
        with daemon.client() as client:
            job = client.submit(name="job", command=["sh", "-c", "ulimit -S -n"]).id
            client.wait(job, timeout=30)
            assert "".join(client.logs(job)) == "300\n"
        limits = Path(f"/proc/{daemon.pid}/limits").read_text()
        assert "Max open files            300 " not in limits
