"""Many clients at the same time: acknowledged jobs are kept, and slow listeners block nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from load_generator import Load, submit_load
from msgspec.structs import replace
from real_daemon import RealDaemon

from refold.client.api.calls import V1
from refold.client.api.submissions import Submission


def stream(daemon: RealDaemon) -> socket.socket:
    """Open an event stream that is never read."""
    parts = urlsplit(daemon.startup.address)
    listener = socket.create_connection((parts.hostname, parts.port), timeout=10)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = (
        f"GET {V1}/events?since=0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {daemon.startup.token}\r\n\r\n"
    )
    listener.sendall(request.encode())
    assert listener.recv(12) == b"HTTP/1.1 200"
    return listener


def test_acknowledged_jobs_of_many_clients_survive_a_crash(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = RealDaemon(state, slots=1)
    blocker = first.client().submit(name="long", command=["sleep", "600"])
    load = Load(
        first.startup.address, first.startup.token, clients=10, per_second=200.0, seconds=1.5, name="one", at_least=6
    )
    results = submit_load([load, replace(load, name="two")])
    first.kill()
    ids = [job for one in results for job in one.ids]
    assert [one.errors for one in results] == [[], []]
    assert len(ids) == len(set(ids)) > 100
    with RealDaemon(state, slots=1) as second:
        assert {job.id for job in second.client().queue()} == {*ids, blocker.id}


def test_the_pages_of_a_long_queue_are_complete(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state", slots=1) as daemon:
        client = daemon.client(timeout=60)
        client.submit(name="long", command=["sleep", "600"])
        ids = [
            job.id
            for _ in range(3)
            for job in client.submit_all([Submission(name="waits", command=["true"]) for _ in range(1000)])
        ]
        assert [job.id for job in client.queue(state=["waiting"])] == ids
        assert [job.position for job in client.jobs(state=["waiting"], limit=3, after=2997).jobs] == [2998, 2999, 3000]
        assert client.job(ids[1500]).position == 1501


def test_slow_or_vanished_listeners_block_nothing(tmp_path: Path) -> None:
    with RealDaemon(tmp_path / "state", slots=1) as daemon, stream(daemon):
        client = daemon.client()
        client.submit(name="long", command=["sleep", "600"])
        for _ in range(20):
            stream(daemon).close()
        for _ in range(5):
            client.submit_all([Submission(name="waits", command=["true"]) for _ in range(1000)])
        last = next(event for event in client.events(since=0) if event.job == "waits-5001")
        assert last.kind == "submitted"
        assert client.jobs(limit=1).total == 5001
        assert daemon.end() == 0
        assert "Traceback" not in daemon.log()
