"""Real Kubernetes servers, started once for all tests that need them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_servers import KubernetesServers


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
