"""Load tests: processes whose clients submit jobs at a given rate over persistent connections."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from refold.client.api.calls import V1
from refold.client.api.submissions import Submission


class Load(msgspec.Struct, frozen=True):
    """The load of one process: number of clients, total submissions per second, and duration.

    `at_least`: submissions of each client, however long they take.
    """

    address: str
    token: str
    clients: int
    per_second: float
    seconds: float
    name: str
    hold: bool = False
    at_least: int = 0


class LoadResult(msgspec.Struct, frozen=True):
    """Acknowledged job ids, latency of each submission, errors, and elapsed seconds."""

    ids: list[str]
    seconds: list[float]
    errors: list[str]
    elapsed: float


def submit_load(loads: Sequence[Load]) -> list[LoadResult]:
    """Run each load in its own process, all at the same time."""
    processes = [
        subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in loads
    ]
    for process, load in zip(processes, loads, strict=True):
        assert process.stdin
        process.stdin.write(msgspec.json.encode(load))
        process.stdin.close()
    results = []
    for process in processes:
        assert process.stdout
        results.append(msgspec.json.decode(process.stdout.read(), type=LoadResult))
        process.stdout.close()
        process.wait()
    return results


class _Client:
    """One connection that sends a submission whenever one is due."""

    def __init__(self, load: Load, number: int, start: float) -> None:
        self.ids: list[str] = []
        self.seconds: list[float] = []
        self.errors: list[str] = []
        self._load, self._number, self._start = load, number, start
        parts = urlsplit(load.address)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        self._headers = {"Authorization": f"Bearer {load.token}", "Content-Type": "application/json"}

    def run(self) -> None:
        interval = self._load.clients / self._load.per_second
        due = self._start + interval * self._number / self._load.clients
        count = 0
        end = self._start + self._load.seconds
        while due < end or count < self._load.at_least:
            time.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() > end and count >= self._load.at_least:
                return
            self._submit(f"{self._load.name}-{self._number}-{count}")
            count += 1
            due += interval

    def _submit(self, request: str) -> None:
        submission = Submission(name="load", command=["true"], hold=self._load.hold, request=request)
        start = time.perf_counter()
        self._connection.request("POST", f"{V1}/jobs", msgspec.json.encode(submission), self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status == 201:
            self.seconds.append(time.perf_counter() - start)
            self.ids.append(msgspec.json.decode(body)["id"])
        else:
            self.errors.append(f"{response.status} {body[:200]!r}")


def _main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    start = time.monotonic() + 0.2
    clients = [_Client(load, number, start) for number in range(load.clients)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - start
    ids = [job for client in clients for job in client.ids]
    seconds = [second for client in clients for second in client.seconds]
    errors = [error for client in clients for error in client.errors]
    sys.stdout.buffer.write(msgspec.json.encode(LoadResult(ids, seconds, errors, elapsed)))


if __name__ == "__main__":
    _main()
