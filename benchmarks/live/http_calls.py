"""Requests per second, latency and CPU time of calls over HTTP, and of events to many listeners.

`python -m benchmarks.live.http_calls [--source DIR …]` measures the daemons of several source trees (a copy of `src`
with another implementation of the server) in alternating rounds, and prints medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np

from benchmarks.live.daemon import Daemon, run_daemon
from benchmarks.measure import REPOSITORY
from benchmarks.table import markdown
from refold.client.api import V1, Submission

CLIENTS = 8
REQUESTS = 150
"""Of each client in a round."""

LISTENERS = 200
EVENTS = 25
QUEUED = 100
"""Jobs of the queue that `GET /jobs` returns."""

ROUNDS = 7
HELD = msgspec.json.encode(Submission(name="load", command=["true"], hold=True))

_JOB_NUMBERS = count()


class Load(NamedTuple):
    """The result of one round: latencies in seconds, duration, and the CPU time of the daemon."""

    latencies: list[float]
    seconds: float
    cpu: float


class Connection:
    """One persistent connection to a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        parts = urlsplit(daemon.address.address)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._head = f"Host: {self._host}:{self._port}\r\nAuthorization: Bearer {daemon.address.token}\r\n"

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=2**22)

    def send(self, method: str, path: str, body: bytes = b"") -> None:
        """Send a request."""
        head = f"{method} {V1}{path} HTTP/1.1\r\n{self._head}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(f"{head}\r\n".encode() + body)

    async def receive_head(self) -> bytes:
        """Read status and headers of a successful answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 20"), head
        return head

    async def receive(self) -> None:
        """Read an answer."""
        head = await self.receive_head()
        await self._reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))

    async def receive_until(self, text: bytes) -> None:
        """Read a part of a stream that ends with this text."""
        await self._reader.readuntil(text)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


async def measure_calls(method: str, path: str, body: bytes, daemon: Daemon) -> Load:
    """Let all clients make requests, each the next one as soon as it has an answer."""
    connections = [Connection(daemon) for _ in range(CLIENTS)]
    latencies: list[float] = []

    async def client(connection: Connection) -> None:
        for _ in range(REQUESTS):
            started = time.perf_counter()
            connection.send(method, path, body)
            await connection.receive()
            latencies.append(time.perf_counter() - started)

    await asyncio.gather(*(connection.open() for connection in connections))
    cpu, started = daemon.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*map(client, connections))
    load = Load(latencies, time.perf_counter() - started, daemon.cpu_seconds() - cpu)
    for connection in connections:
        connection.close()
    return load


async def measure_events(daemon: Daemon) -> Load:
    """Measure the times from the submission of a job until each listener has received its event."""
    listeners, submitter = [Connection(daemon) for _ in range(LISTENERS)], Connection(daemon)
    latencies: list[float] = []
    await asyncio.gather(*(connection.open() for connection in [*listeners, submitter]))
    for listener in listeners:
        listener.send("GET", "/events")
        await listener.receive_head()
        await listener.receive_until(b": here\n\n")
    cpu, began = daemon.cpu_seconds(), time.perf_counter()
    for _ in range(EVENTS):
        name, started = f"load-{next(_JOB_NUMBERS)}x", time.perf_counter()

        async def listen(listener: Connection, text: bytes, started: float) -> None:
            await listener.receive_until(text)
            latencies.append(time.perf_counter() - started)

        submitter.send("POST", "/jobs", msgspec.json.encode(Submission(name=name, command=["true"], hold=True)))
        await asyncio.gather(submitter.receive(), *(listen(each, name.encode(), started) for each in listeners))
    load = Load(latencies, time.perf_counter() - began, daemon.cpu_seconds() - cpu)
    for connection in [*listeners, submitter]:
        connection.close()
    return load


CASES: dict[str, Callable[[Daemon], Awaitable[Load]]] = {
    "GET /info": partial(measure_calls, "GET", "/info", b""),
    f"GET /jobs, {QUEUED} jobs": partial(measure_calls, "GET", f"/jobs?limit={QUEUED}", b""),
    "POST /jobs": partial(measure_calls, "POST", "/jobs", HELD),
    f"GET /events, {LISTENERS} listeners": measure_events,
}


def start_cpu_seconds(source: Path) -> tuple[float, float]:
    """Return the CPU time until a daemon answers, and its resident memory in MiB then."""
    with run_daemon("--slots", "1", source=source) as daemon:
        return daemon.cpu_seconds(), daemon.resident_mib()


def measure(sources: Sequence[Path]) -> list[list[str]]:
    """Return the rows of the table."""
    rows = []
    starts = [[start_cpu_seconds(source) for source in sources] for _ in range(5)]
    for index, source in enumerate(sources):
        cpu, memory = (statistics.median(one[index][part] for one in starts) for part in range(2))
        rows.append([f"start of {source}", f"{cpu:.2f} s CPU", f"{memory:.1f} MiB", "", ""])
    with ExitStack() as stack:
        daemons = [stack.enter_context(run_daemon("--slots", "1", source=source)) for source in sources]
        for daemon in daemons:
            for _ in range(QUEUED):
                daemon.client.submit(command=["true"], hold=True)
        for name, case in CASES.items():
            print(f"measuring {name} …", file=sys.stderr)
            rounds = [[asyncio.run(_run(case, daemon)) for daemon in daemons] for _ in range(ROUNDS)]
            for index, source in enumerate(sources):
                rows.append([f"{name}, {source}", *_describe([loads[index] for loads in rounds])])
        for source, daemon in zip(sources, daemons, strict=True):
            rows.append([f"memory after that, {source}", f"{daemon.resident_mib():.1f} MiB", "", "", ""])
    return rows


async def _run(case: Callable[[Daemon], Awaitable[Load]], daemon: Daemon) -> Load:
    return await case(daemon)


def _describe(rounds: Sequence[Load]) -> list[str]:
    """Return answers per second, latencies and CPU time per answer: medians of the rounds."""

    def median(of: Callable[[Load], float]) -> float:
        return statistics.median(map(of, rounds))

    return [
        f"{median(lambda load: len(load.latencies) / load.seconds):,.0f} /s",
        f"{median(lambda load: float(np.percentile(load.latencies, 50))) * 1e3:.2f} ms",
        f"{median(lambda load: float(np.percentile(load.latencies, 99))) * 1e3:.2f} ms",
        f"{median(lambda load: load.cpu / len(load.latencies)) * 1e6:.0f} µs",
    ]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.http_calls", description=__doc__)
    parser.add_argument("--source", type=Path, action="append", help="a source tree; can be repeated (default: src)")
    sources = parser.parse_args().source or [REPOSITORY / "src"]
    print(markdown(["what", "answers", "p50", "p99", "CPU of the daemon per answer"], measure(sources)))


if __name__ == "__main__":
    main()
