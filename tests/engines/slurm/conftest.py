"""A real Slurm, started once for all tests that need it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_accounting
import slurm_servers
from engine_tests import mark_users
from slurm_servers import SlurmServers, missing_programs

SLURM_FIXTURES = ("need_programs", "slurm", "slurm_with_accounting", "slurm_with_preemption", "slurm_with_racks")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Slurm."""
    mark_users(items, Path(__file__).parent, SLURM_FIXTURES, "slurm")


def need(*names: str) -> None:
    """Skip a test unless Slurm is wanted and these programs are installed."""
    if not os.environ.get("REFOLD_TEST_SLURM"):
        pytest.skip("needs Slurm: run `make test-slurm`, or set REFOLD_TEST_SLURM=1")
    if missing := missing_programs(names):
        pytest.skip(f"needs {', '.join(missing)}: run `make engines-slurm`")


@pytest.fixture
def need_programs() -> Callable[..., None]:
    """What skips a test unless Slurm is wanted and some programs are installed."""
    return need


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmServers]:
    """Four nodes with eight GPUs each, without accounting."""
    need(*slurm_servers.PROGRAMS)
    found = SlurmServers()
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(autouse=True)
def no_jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the jobs of a test."""
    yield
    for name in SLURM_FIXTURES[1:]:
        if name in request.fixturenames:
            request.getfixturevalue(name).cancel_all()


@pytest.fixture(scope="session")
def slurm_with_accounting() -> Iterator[slurm_accounting.SlurmWithAccounting]:
    """Two nodes with four GPUs each, whose jobs are recorded."""
    need(*slurm_servers.PROGRAMS, *slurm_accounting.PROGRAMS)
    found = slurm_accounting.SlurmWithAccounting(2, 4)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def slurm_with_preemption() -> Iterator[SlurmServers]:
    """One node with a partition whose jobs preempt those of the other."""
    need(*slurm_servers.PROGRAMS)
    partitions = [
        "PartitionName=gpu Nodes=n0 Default=YES PriorityTier=1 MaxTime=INFINITE State=UP",
        "PartitionName=urgent Nodes=n0 PriorityTier=9 MaxTime=INFINITE State=UP",
    ]
    settings = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    found = SlurmServers(nodes=1, partitions=partitions, settings=settings)
    try:
        found.start()
        yield found
    finally:
        found.stop()


RACKS = {
    "tree": "SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[2-3]\nSwitchName=core Switches=s[0-1]\n",
    "block": "BlockName=s0 Nodes=n[0-1]\nBlockName=s1 Nodes=n[2-3]\nBlockSizes=2\n",
}


@pytest.fixture(scope="session", params=RACKS)
def slurm_with_racks(request: pytest.FixtureRequest) -> Iterator[SlurmServers]:
    """Two racks of two nodes with two GPUs: leaf switches of a tree, or blocks."""
    need(*slurm_servers.PROGRAMS)
    if not any(slurm_servers.plugins(f"topology_{request.param}")):
        pytest.skip(f"needs a Slurm with topology/{request.param}")
    settings = {"TopologyPlugin": f"topology/{request.param}"}
    found = SlurmServers(4, 2, 8, settings=settings, topology=RACKS[request.param])
    try:
        found.start()
        yield found
    finally:
        found.stop()
