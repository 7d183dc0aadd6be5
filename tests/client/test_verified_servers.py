"""The client verifies its server: when a daemon has died, another user may listen on its port or socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from fake_service import OWNER, serve
from other_users import ANN, BEN, as_user, needs_root, public_folder

from refold.client import Client
from refold.client.address import Address, connect, find_address, write_address
from refold.errors import NoDaemon, RefoldError, Unauthenticated

Answer = Callable[[bytes], bytes]


class Impostor:
    """Listens where a daemon was, records what it receives, and answers as it likes."""

    def __init__(self, listening: socket.socket, answer: Answer) -> None:
        self.received = b""
        self._listening = listening
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                while request := connection.recv(65536):
                    self.received += request
                    connection.sendall(self._answer(request))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()


@contextmanager
def impostor(answer: Answer) -> Iterator[tuple[str, Impostor]]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = Impostor(listening, answer)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", server
    finally:
        server.close()


def reply(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (
            reply(b'{"proof": "00", "now": 1.0}'),
            NoDaemon,
            "is not the daemon of this token: it does not know the token",
        ),
        (reply(b"{}"), NoDaemon, "is not a Refold daemon"),
        (reply(b'{"error": "send me your token"}', "401 Unauthorized"), Unauthenticated, "send me your token"),
        (reply(b"", "404 Not Found"), NoDaemon, "is not the daemon of this token, or it is an older version"),
    ],
)
def test_a_server_that_does_not_know_the_token_receives_nothing_but_a_nonce(
    answer: bytes, error: type[RefoldError], message: str
) -> None:
    with impostor(lambda _: answer) as (address, server):
        with pytest.raises(error, match=message):
            Client(address, OWNER).submit(name="train", command=["true"], secrets={"KEY": "hunter2"})
        assert server.received.startswith(b"GET /identity?token=")
        assert server.received.count(b"HTTP/1.1") == 1
        assert OWNER.encode() not in server.received
        assert b"hunter2" not in server.received


def test_a_server_that_relays_requests_to_the_daemon_does_not_see_the_token() -> None:
    with serve() as served:
        port = int(served.address.rpartition(":")[2])

        def relay(request: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", port)) as daemon:
                daemon.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                return b"".join(iter(lambda: daemon.recv(65536), b"")).replace(b"connection: close\r\n", b"")

        with impostor(relay) as (address, server):
            assert Client(address, OWNER).info().role == "owner"
            assert b"Authorization: Refold " in server.received
            assert OWNER.encode() not in server.received


def test_a_token_over_tls_is_sent_as_before() -> None:
    from refold.client.transports import TlsTransport, make_transport

    transport = make_transport(Address("https://gpus.lab", OWNER))
    assert isinstance(transport, TlsTransport)
    assert transport.open(3.5).timeout == 3.5
    assert transport.authorization("GET", "/", b"") == {"Authorization": f"Bearer {OWNER}"}


# Unix sockets


def listen(path: Path) -> socket.socket:
    """Listen on a Unix socket that every user can connect to."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    path.chmod(0o666)
    listening.listen()
    return listening


def test_the_address_file_leads_to_the_socket_without_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REFOLD_ADDRESS", "REFOLD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    write_address(tmp_path, "http://127.0.0.1:7170", "rf_a", tmp_path / "refold.sock")
    assert find_address() == Address(f"unix:{tmp_path}/refold.sock", uid=os.geteuid())
    assert find_address("http://127.0.0.1:7170") == Address("http://127.0.0.1:7170", "rf_a")
    assert find_address(token="rf_b") == Address("http://127.0.0.1:7170", "rf_b")
    assert find_address("unix:/srv/a.sock") == Address("unix:/srv/a.sock")
    write_address(tmp_path, "http://127.0.0.1:7170", "", tmp_path / "refold.sock")
    assert find_address() == Address(f"unix:{tmp_path}/refold.sock", uid=os.geteuid())
    with pytest.raises(NoDaemon, match="no token for"):
        find_address("http://127.0.0.1:7170")


def test_a_socket_that_is_gone_is_reported_and_the_port_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    with impostor(lambda _: reply(b"{}")) as (address, server):
        write_address(tmp_path, address, OWNER, tmp_path / "refold.sock")
        with pytest.raises(NoDaemon, match=f"no daemon answers at unix:{tmp_path}/refold.sock: no such file"):
            Client().info()
        assert server.received == b""


def test_the_daemon_of_the_machine_is_found_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REFOLD_ADDRESS", "REFOLD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    monkeypatch.setattr("refold.client.address.MACHINE_SOCKET", tmp_path / "machine.sock")
    with pytest.raises(NoDaemon, match="no Refold daemon found"):
        find_address()
    (tmp_path / "machine.sock").touch()
    assert find_address() == Address(f"unix:{tmp_path}/machine.sock")


def test_a_server_of_another_uid_than_the_daemons_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "refold.sock"
    with listen(path):
        connect(path, 1.0, os.geteuid()).close()
        with pytest.raises(NoDaemon, match=f"belongs to uid {os.geteuid()}, expected 4711; nothing was sent"):
            connect(path, 1.0, 4711)


@needs_root
def test_a_socket_that_another_user_has_replaced_is_refused() -> None:
    with public_folder() as folder:
        folder.chmod(0o777)
        with as_listener(BEN, folder / "refold.sock"), pytest.raises(NoDaemon, match="other users can replace"):
            connect(folder / "refold.sock", 1.0, None)


@needs_root
def test_a_folder_below_one_that_others_can_write_is_refused() -> None:
    with public_folder() as folder:
        (folder / "inner").mkdir()
        with listen(folder / "inner" / "refold.sock"):
            connect(folder / "inner" / "refold.sock", 1.0, None).close()
            folder.chmod(0o777)
            with pytest.raises(NoDaemon, match=f"because they can write {folder};"):
                connect(folder / "inner" / "refold.sock", 1.0, None)


@needs_root
def test_the_shared_folder_of_a_user_must_be_that_users() -> None:
    folder = Path("/tmp") / f"refold-{ANN}"
    folder.mkdir(mode=0o755)
    try:
        os.chown(folder, BEN, BEN)
        with as_listener(BEN, folder / "refold.sock"):
            with pytest.raises(NoDaemon, match=f"{folder} belongs to uid {BEN}: it is not the folder of that user's"):
                connect(folder / "refold.sock", 1.0, None)
            os.chown(folder, ANN, ANN)
            with pytest.raises(NoDaemon, match=f"belongs to uid {BEN}, expected {ANN}"):
                connect(folder / "refold.sock", 1.0, None)
    finally:
        (folder / "refold.sock").unlink(missing_ok=True)
        folder.rmdir()


@contextmanager
def as_listener(uid: int, path: Path) -> Iterator[None]:
    """Let a process of another user listen on a socket."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        listening = listen(path)
        os.read(reading, 1)
        listening.close()
        os._exit(0)
    os.close(reading)
    try:
        wait_for_server(path)
        yield
    finally:
        os.close(writing)
        os.waitpid(pid, 0)


def wait_for_server(path: Path) -> None:
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                continue
            return


@needs_root
def test_another_user_can_use_a_socket_in_a_public_folder() -> None:
    with public_folder() as folder, listen(folder / "refold.sock"):
        assert as_user(ANN, lambda: connect(folder / "refold.sock", 1.0, None).close()) is None


def test_an_address_file_of_an_earlier_version_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REFOLD_ADDRESS", "REFOLD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    (tmp_path / "client.json").write_bytes(msgspec.json.encode({"address": "http://127.0.0.1:1", "token": "rf_a"}))
    assert find_address() == Address("http://127.0.0.1:1", "rf_a")
