"""Many clients at once: processes that submit as fast as they are told to, over connections that are kept."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from refold.api.calls import V1
from refold.api.wire import Submission


class Load(msgspec.Struct, frozen=True):
    """What one process is to do: so many clients, together so many submissions per second, for so long."""

    address: str
    token: str
    clients: int
    per_second: float
    seconds: float
    name: str
    hold: bool = False


class Heard(msgspec.Struct, frozen=True):
    """What its clients heard: the ids that were acknowledged, how long each took, what went wrong, over how long."""

    ids: list[str]
    seconds: list[float]
    errors: list[str]
    lasted: float


def submit_much(loads: Sequence[Load]) -> list[Heard]:
    """Each load in a process of its own, all at once."""
    processes = [
        subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in loads
    ]
    for process, load in zip(processes, loads, strict=True):
        assert process.stdin
        process.stdin.write(msgspec.json.encode(load))
        process.stdin.close()
    heard = []
    for process in processes:
        assert process.stdout
        heard.append(msgspec.json.decode(process.stdout.read(), type=Heard))
        process.stdout.close()
        process.wait()
    return heard


class _Client:
    """One connection; it sends a submission whenever one is due."""

    def __init__(self, load: Load, number: int, began: float) -> None:
        self.ids: list[str] = []
        self.seconds: list[float] = []
        self.errors: list[str] = []
        self._load, self._number, self._began = load, number, began
        parts = urlsplit(load.address)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        self._headers = {"Authorization": f"Bearer {load.token}", "Content-Type": "application/json"}

    def run(self) -> None:
        apart = self._load.clients / self._load.per_second
        due = self._began + apart * self._number / self._load.clients
        count = 0
        while due < self._began + self._load.seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() > self._began + self._load.seconds:
                return
            self._submit(f"{self._load.name}-{self._number}-{count}")
            count += 1
            due += apart

    def _submit(self, request: str) -> None:
        submission = Submission(name="load", command=["true"], hold=self._load.hold, request=request)
        began = time.perf_counter()
        self._connection.request("POST", f"{V1}/jobs", msgspec.json.encode(submission), self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status == 201:
            self.seconds.append(time.perf_counter() - began)
            self.ids.append(msgspec.json.decode(body)["id"])
        else:
            self.errors.append(f"{response.status} {body[:200]!r}")


def _main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
    began = time.monotonic() + 0.2
    clients = [_Client(load, number, began) for number in range(load.clients)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lasted = time.monotonic() - began
    ids = [job for client in clients for job in client.ids]
    seconds = [second for client in clients for second in client.seconds]
    errors = [error for client in clients for error in client.errors]
    sys.stdout.buffer.write(msgspec.json.encode(Heard(ids, seconds, errors, lasted)))


if __name__ == "__main__":
    _main()
