"""A Ray cluster of four nodes, started once for all tests that need it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_tests import mark_users
from ray_cluster import RayCluster

from refold.engines.ray import connected


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Ray."""
    mark_users(items, Path(__file__).parent, ["ray_is_wanted"], "ray")


@pytest.fixture(scope="session")
def ray_is_wanted() -> None:
    """Skip tests unless they should start Ray, and it is installed."""
    if not os.environ.get("REFOLD_TEST_RAY"):
        pytest.skip("needs Ray: run `make test-ray`")
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")


@pytest.fixture(scope="session")
def cluster(ray_is_wanted: None) -> Iterator[RayCluster]:
    found = RayCluster(4)
    yield found
    found.stop()


@pytest.fixture
def connection(cluster: RayCluster) -> Iterator[RayCluster]:
    """The cluster, with this process connected to it."""
    with connected(cluster.ray, cluster.address):
        yield cluster
        cluster.clear()
