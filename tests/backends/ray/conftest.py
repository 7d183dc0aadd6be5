"""A Ray cluster of four nodes, started once for all tests that need it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ray_cluster import RayCluster

from refold.backends.ray import connected


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    if not os.environ.get("REFOLD_TEST_RAY"):
        pytest.skip("needs Ray: run `make test-ray`")
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'refold[ray]'")
    found = RayCluster(4)
    yield found
    found.stop()


@pytest.fixture
def connection(cluster: RayCluster) -> Iterator[RayCluster]:
    """The cluster, with this process connected to it."""
    with connected(cluster.ray, cluster.address):
        yield cluster
        cluster.clear()
