"""A real Slurm whose administrator has configured switches or blocks: gangs get the domains that they require."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_daemon import SlurmDaemon
from slurm_servers import VERSION, SlurmServers

from refold.errors import RefoldError
from refold.model import TopologyRequest


@pytest.fixture
def daemon(slurm_with_racks: SlurmServers, tmp_path: Path) -> Iterator[SlurmDaemon]:
    found = SlurmDaemon(slurm_with_racks, tmp_path / "state")
    try:
        found.start()
        yield found
    finally:
        found.kill(signal.SIGTERM)


def level_of(daemon: SlurmDaemon) -> str:
    """Return the level of the cluster."""
    with daemon.client() as client:
        (level,) = client.nodes()[0].domains
    return level


def submit(daemon: SlurmDaemon, nodes: int, topology: TopologyRequest | None = None) -> str:
    with daemon.client() as client:
        return client.submit(command=["sleep", "600"], instances=nodes, gpus=2, topology=topology).id


def nodes_of(daemon: SlurmDaemon, job: str) -> list[str]:
    """Return where a job runs, as Slurm says, after its start."""
    daemon.wait_for_state(job, "running")
    with daemon.client() as client:
        return sorted(part.node for part in client.job(job).placement)


def test_the_levels_are_those_of_slurm(daemon: SlurmDaemon) -> None:
    level = level_of(daemon)
    assert level in ("switch", "block")
    with daemon.client() as client:
        found = {node.name: node.domains for node in client.nodes()}
    assert found == {f"n{number}": {level: f"s{number // 2}"} for number in range(4)}


def test_a_gang_waits_for_one_rack_and_gets_it(daemon: SlurmDaemon) -> None:
    level = level_of(daemon)
    one = [submit(daemon, 1) for _ in range(3)]
    places = {job: nodes_of(daemon, job) for job in one}
    with daemon.client() as client:
        client.cancel(next(job for job in one if places[job] == ["n0"]), now=True)
        daemon.wait_until(lambda: len(client.jobs(state=["running"]).jobs) == 2, "one has ended")
        gang = submit(daemon, 2, TopologyRequest(level))
        daemon.wait_until(lambda: "1 of 2 instances fit in one" in client.job(gang).message, "it waits for one rack")
        client.cancel(next(job for job in one if places[job] == ["n1"]), now=True)
    assert nodes_of(daemon, gang) == ["n0", "n1"]
    with daemon.client() as client:
        assert client.job(gang).domains == {level: ["s0"]}


def test_a_gang_that_waits_for_one_rack_for_some_time_starts_across_two(daemon: SlurmDaemon) -> None:
    if level_of(daemon) == "block" and VERSION == "24.11":
        pytest.skip("Slurm 24.11 refuses jobs in more blocks than they need; later ones accept --segment=1")
    one = [submit(daemon, 1) for _ in range(3)]
    places = {job: nodes_of(daemon, job) for job in one}
    with daemon.client() as client:
        client.cancel(next(job for job in one if places[job] == ["n0"]), now=True)
        daemon.wait_until(lambda: len(client.jobs(state=["running"]).jobs) == 2, "one has ended")
        gang = submit(daemon, 2, TopologyRequest(most=1, wait=3.0))
    assert nodes_of(daemon, gang) == ["n0", "n3"]


def test_a_gang_that_is_larger_than_its_rack_is_rejected(daemon: SlurmDaemon) -> None:
    level = level_of(daemon)
    with pytest.raises(RefoldError, match="2 of 3 instances fit in one"):
        submit(daemon, 3, TopologyRequest(level))
