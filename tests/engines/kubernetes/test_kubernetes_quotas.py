"""Quotas on Kubernetes: a tenant is a LocalQueue of Kueue, or else a namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api_server import FakeApiServer
from kubernetes_daemon import KubernetesDaemon, daemon_of, job_json, wait_for

CONFIG = """
policy: {name: fifo-skip}
tenants:
  vision: {limit_gpus: 2}
  team-a: {limit_gpus: 4}
  default: {}
"""
QUEUE = {"kueue.x-k8s.io/queue-name": "vision"}


@pytest.fixture
def daemon(fake_server: FakeApiServer, tmp_path: Path) -> Iterator[KubernetesDaemon]:
    with daemon_of(fake_server, tmp_path, CONFIG) as found:
        yield found


def create(server: FakeApiServer, name: str, gpus: int, namespace: str = "default", **labels: Any) -> None:
    """Create a Job of one pod. `labels`: those of the Job (`job`), or of its pods (`pods`)."""
    body = job_json(name, 1, gpus, 1000.0, labels=labels.get("pods"))
    body["metadata"]["labels"] = labels.get("job", {})
    server.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", body)


def test_queues_and_namespaces_have_limits(fake_server: FakeApiServer, daemon: KubernetesDaemon) -> None:
    create(fake_server, "labelled-job", 1, "team-b", job=QUEUE)
    create(fake_server, "labelled-pods", 1, "team-a", pods=QUEUE)
    create(fake_server, "in-namespace", 4, "team-a")
    create(fake_server, "free", 4)
    for name in ("labelled-job", "labelled-pods", "in-namespace", "free"):
        daemon.wait_for_state(name, "running")
    create(fake_server, "beyond-queue", 1, job=QUEUE)
    create(fake_server, "beyond-namespace", 1, "team-a")
    create(fake_server, "unknown", 1, "team-b")
    for name in ("beyond-queue", "beyond-namespace"):
        daemon.wait_for_state(name, "held")
    with daemon.client() as client:
        tenants = {job.name: (job.tenant, job.reason) for job in client.jobs().jobs if job.state == "held"}
    assert tenants == {
        "beyond-queue": ("vision", "Limit"),
        "beyond-namespace": ("team-a", "Limit"),
    }

    def message() -> str:
        (pod,) = fake_server.pods("unknown-")
        return " ".join(entry["message"] for entry in pod["status"].get("conditions", []))

    assert "unknown tenant 'team-b'" in wait_for(message, "a pod says that its namespace is no tenant")
