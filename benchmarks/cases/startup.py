"""Start-up time: `refold --help` and `refold queue`, and the first placement in a fresh process."""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from benchmarks.measure import AS_INSTALLED, cpu_seconds_of_command
from benchmarks.table import Row, at_most
from refold.client.api import DaemonInfo, Jobs, JobStatus

FIRST_PLACEMENT = """
from refold.model import Demand
from refold.placement import FreeResources, Placer
from refold.simulator.traces import read_cluster
assert Placer("best-fit").place(FreeResources(read_cluster("16x8:A100")), Demand(gpus=4))
"""


def rows(quick: bool) -> list[Row]:
    """Measure the CPU time (user and system) of whole processes."""
    times = 3 if quick else 7
    refold = [str(Path(sys.executable).with_name("refold"))]
    command = refold if Path(refold[0]).exists() else [sys.executable, "-m", "refold.cli.app"]
    with _canned_daemon() as address:
        daemon = {"REFOLD_ADDRESS": address, "REFOLD_TOKEN": "rf_x", **AS_INSTALLED}
        help_seconds, queue_seconds = (_median([*command, word], times, daemon) for word in ("--help", "queue"))
    placement = _median([sys.executable, "-c", FIRST_PLACEMENT], times)
    return [
        at_most("refold --help", help_seconds, 0.3, f"{help_seconds:.2f} s", "s"),
        at_most("refold queue, 20 jobs", queue_seconds, 0.15, f"{queue_seconds:.2f} s", "s"),
        Row("first placement in a fresh process", f"{placement:.2f} s", placement),
    ]


@contextmanager
def _canned_daemon() -> Iterator[str]:
    """Serve the answers of a daemon with 20 jobs, and yield its address."""
    info = DaemonInfo("0", "cluster", "easy", 1, 8, 0.0, 8, 12, 0.0, 0.0)
    jobs = [JobStatus(f"train-{n}", "train", "waiting", "a", "ann", "", 0, "1 GPU", 1.0, 0.0) for n in range(20)]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = msgspec.json.encode(info if self.path.endswith("info") else Jobs(jobs, len(jobs)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _median(command: list[str], times: int, environment: Mapping[str, str] | None = None) -> float:
    """Return the median CPU time of a command that has been run before."""
    cpu_seconds_of_command(command, environment)
    return statistics.median(cpu_seconds_of_command(command, environment) for _ in range(times))
