"""Real Kubernetes servers, started once for all tests that need them, and one in memory with two nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_tests import mark_users
from fake_api_server import FakeApiServer
from kubernetes_servers import KubernetesServers, started_servers
from process_kubelet import ProcessKubelet, kubelet_nodes


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the servers."""
    mark_users(items, Path(__file__).parent, ["server_programs"], "kubernetes")


@pytest.fixture(scope="session")
def server_programs() -> Path:
    """The folder of the servers' programs."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip("needs the Kubernetes servers: run `make test-kubernetes`, or set KUBEBUILDER_ASSETS")
    return Path(folder)


@pytest.fixture(scope="session")
def servers(server_programs: Path) -> Iterator[KubernetesServers]:
    with started_servers(server_programs) as found:
        yield found


@pytest.fixture
def fake_server() -> Iterator[FakeApiServer]:
    found = FakeApiServer()
    kubelet = ProcessKubelet(found.api, kubelet_nodes(2), instant=True)
    kubelet.start()
    yield found
    kubelet.stop()
    found.stop()
