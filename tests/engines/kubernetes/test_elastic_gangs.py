"""Elastic gangs of unknown speed: they give GPUs to others and take them back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_api_server import FakeApiServer
from kubernetes_daemon import JOBS, KubernetesDaemon, daemon_of, job_json, wait_for

CONFIG = "tenants: {default: {quota_gpus: 8}}\n"


@pytest.fixture
def daemon(fake_server: FakeApiServer, tmp_path: Path) -> Iterator[KubernetesDaemon]:
    with daemon_of(fake_server, tmp_path, CONFIG) as found:
        yield found


def bound(daemon: KubernetesDaemon, name: str) -> int:
    """Return the number of pods of a gang that run."""
    return sum(pod.is_bound and pod.status.phase == "Running" and not pod.is_deleted for pod in daemon.pods(name))


@pytest.mark.long
def test_a_gang_without_a_workload_shrinks_for_a_guaranteed_job_and_grows_again(
    fake_server: FakeApiServer, daemon: KubernetesDaemon
) -> None:
    body = job_json("wide", 16, 1, 1000.0, labels={"refold.dev/class": "best-effort"})
    body["spec"]["template"]["metadata"]["annotations"] = {"refold.dev/gpu-range": "4..16"}
    fake_server.api.create(JOBS, body)
    wait_for(lambda: bound(daemon, "wide") == 16, "the gang has all GPUs")
    daemon.create_job("fixed", 1, 8, 20.0)
    wait_for(lambda: bound(daemon, "fixed") == 1, "the guaranteed job runs", 200.0)
    wait_for(lambda: 4 <= bound(daemon, "wide") <= 8, "the gang has shrunk")
    fake_server.api.delete(f"{JOBS}/fixed")
    wait_for(lambda: bound(daemon, "wide") == 16, "the gang has all GPUs again", 200.0)
