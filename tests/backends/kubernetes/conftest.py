"""Real Kubernetes servers, started once for all tests that need them, and one in memory with two nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_api_server import FakeApiServer
from kubernetes_servers import KubernetesServers
from process_kubelet import ProcessKubelet, kubelet_nodes


@pytest.fixture(scope="session")
def servers() -> Iterator[KubernetesServers]:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip("needs the Kubernetes servers: run `make test-kubernetes`, or set KUBEBUILDER_ASSETS")
    found = KubernetesServers(Path(folder))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def fake_server() -> Iterator[FakeApiServer]:
    found = FakeApiServer()
    kubelet = ProcessKubelet(found.api, kubelet_nodes(2), instant=True)
    kubelet.start()
    yield found
    kubelet.stop()
    found.stop()
