"""`/metrics`, `/readyz` and the dashboard that reads the metrics."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from http.client import HTTPConnection
from os import kill
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from real_daemon import RealDaemon, wait_until

from refold.client.client import Client
from refold.errors import Unavailable
from refold.server.metrics import Metric, Sample, format_metrics

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"
LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
NAME = re.compile(r"\b(?:refold|process)_[a-z_]+")

READ_FROM_GPUS = "refold_gpu_"
"""Metrics of GPUs, which the slots of these tests do not have."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    with RealDaemon(tmp_path_factory.mktemp("metrics") / "state", slots=4) as daemon:
        yield daemon


def get(daemon: RealDaemon, path: str, token: str = "") -> tuple[int, str, str]:
    address = urlsplit(daemon.startup.address)
    assert address.hostname
    connection = HTTPConnection(address.hostname, address.port, timeout=30)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    answer = connection.getresponse()
    found = answer.status, answer.headers["content-type"], answer.read().decode()
    connection.close()
    return found


def metrics_of(daemon: RealDaemon) -> dict[str, float]:
    status, media, text = get(daemon, "/metrics", daemon.startup.token)
    assert (status, media) == (200, "text/plain; version=0.0.4; charset=utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_have_a_help_text_a_type_and_escaped_labels() -> None:
    counter = Metric("jobs_total", "counter", "Jobs.", [Sample(3, {"tenant": 'a"\\\n', "state": "x"}), Sample(0.25)])
    assert format_metrics([counter, Metric("nothing", "gauge", "Absent.", [])]) == (
        b"# HELP jobs_total Jobs.\n# TYPE jobs_total counter\n"
        b'jobs_total{tenant="a\\"\\\\\\n",state="x"} 3\njobs_total 0.25\n'
    )


def test_metrics_follow_the_jobs(daemon: RealDaemon) -> None:
    before = metrics_of(daemon)
    with daemon.client() as client:
        running = client.submit(name="train", command=["sleep", "600"], gpus=3).id
        wait_until(lambda: client.job(running).state == "running")
        client.submit(name="next", command=["true"], gpus=2)
        found = metrics_of(daemon)
        names = ('refold_gpus{state="used"}', 'refold_gpus{state="free"}', 'refold_jobs{state="running"}')
        assert [found[name] for name in names] == [3, 1, 1]
        assert found['refold_jobs{state="waiting"}'] == 1
        assert found['refold_tenant_gpus{tenant="default",state="waiting"}'] == 2
        assert found['refold_tenant_jobs{tenant="default",state="running"}'] == 1
        assert found["refold_longest_wait_seconds"] > 0
        client.cancel(running)
    finished = 'refold_jobs_ended_total{state="finished"}'
    wait_until(lambda: metrics_of(daemon)[finished] > before[finished])
    after = metrics_of(daemon)
    changes = {name: after[name] - before[name] for name in before if name.endswith("_total") or "_ended" in name}
    assert changes["refold_runs_started_total"] == 2
    assert changes[finished] == 1
    assert changes['refold_jobs_ended_total{state="cancelled"}'] == 1
    assert after["process_resident_memory_bytes"] > 2**20


def test_metrics_need_a_token_and_readiness_does_not(daemon: RealDaemon) -> None:
    assert get(daemon, "/metrics")[0] == 401
    assert get(daemon, "/readyz") == (200, "application/json", '{"status":"ready"}')


def is_refused(client: Client) -> bool:
    try:
        client.submit(name="job", command=["true"], export="NONE")
    except Unavailable:
        return True
    return False


def test_a_daemon_that_cannot_write_is_not_ready(tmp_path: Path) -> None:
    full = {"max_file_bytes": 4096}
    with RealDaemon(tmp_path / "state", prepare="fault_injection:fill_disk_on_usr1", arguments=full) as daemon:
        kill(daemon.pid, signal.SIGUSR1)
        with daemon.client() as client:
            wait_until(lambda: is_refused(client) and get(daemon, "/readyz")[0] == 503)
        assert get(daemon, "/readyz") == (503, "application/json", '{"status":"the journal cannot be written"}')
        assert metrics_of(daemon)["refold_storage_writable"] == 0
        assert get(daemon, "/healthz")[0] == 200
        kill(daemon.pid, signal.SIGUSR2)
        wait_until(lambda: get(daemon, "/readyz")[0] == 200)


def test_the_dashboard_shows_metrics_that_there_are(daemon: RealDaemon) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    wanted = {name for panel in panels for target in panel["targets"] for name in NAME.findall(target["expr"])}
    with daemon.client() as client:
        held = client.submit(name="held", command=["true"], hold=True).id
        known = {name.partition("{")[0] for name in metrics_of(daemon)}
        client.cancel(held)
    assert len(wanted) > 20
    assert {name for name in wanted - known if not name.startswith(READ_FROM_GPUS)} == set()
