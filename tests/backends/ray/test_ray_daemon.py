"""`refold serve --on ray`: jobs, restarts of the daemon, and lost nodes, on a real Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import RayCluster
from ray_daemon import RayDaemon

from refold.errors import NoDaemon


@pytest.fixture
def daemon(cluster: RayCluster, tmp_path: Path) -> Iterator[RayDaemon]:
    found = RayDaemon(cluster, tmp_path / "state", "--policy", "fifo")
    found.start()
    yield found
    with found.client() as client:
        for job in list(client.queue()):
            client.cancel(job.id, now=True)
    found.wait_until(lambda: not set(found.states().values()) & {"running", "waiting", "held"}, "all jobs have ended")
    found.kill()


def submit(daemon: RayDaemon, shell: str, **fields: Any) -> str:
    with daemon.client() as client:
        return client.submit(command=["sh", "-c", shell], **fields).id


def node_count(daemon: RayDaemon) -> int:
    """Return how many nodes are scheduled; 0 while the daemon continues with other nodes."""
    try:
        with daemon.client() as client:
            return len(client.nodes())
    except NoDaemon:
        return 0


def test_a_gang_runs_on_several_nodes_and_its_output_is_shown(daemon: RayDaemon) -> None:
    job = submit(daemon, 'echo rank $RANK of $WORLD_SIZE; [ -n "$CUDA_VISIBLE_DEVICES" ]', gpus=8, instances=3)
    daemon.wait_for_state(job, "finished")
    with daemon.client() as client:
        output = [client.read_logs(job, instance=instance).text for instance in range(3)]
    assert output == [f"rank {instance} of 3\n" for instance in range(3)]


def test_a_job_survives_the_daemon(daemon: RayDaemon, tmp_path: Path) -> None:
    job = submit(daemon, f"echo >>{tmp_path}/starts; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", gpus=1)
    daemon.wait_for_state(job, "running")
    daemon.wait_until((tmp_path / "starts").exists, "it has started")
    daemon.kill()
    daemon.start()
    (tmp_path / "go").touch()
    daemon.wait_for_state(job, "finished")
    assert (tmp_path / "starts").read_text() == "\n"


def test_a_job_whose_node_is_lost_runs_again_elsewhere(cluster: RayCluster, daemon: RayDaemon, tmp_path: Path) -> None:
    others = [submit(daemon, "sleep 1000", gpus=8) for _ in range(4)]
    for other in others:
        daemon.wait_for_state(other, "running")
    node = cluster.add_node()
    daemon.wait_until(lambda: node_count(daemon) == 5, "the new node is scheduled")
    job = submit(daemon, f"echo >>{tmp_path}/starts; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", gpus=8)
    daemon.wait_until((tmp_path / "starts").exists, "it runs on the new node")
    cluster.kill_node(node)
    daemon.wait_until(lambda: daemon.states().get(job) in ("waiting", "held"), "it was queued again")
    with daemon.client() as client:
        client.cancel(others[0])
    daemon.wait_until(lambda: (tmp_path / "starts").read_text() == "\n\n", "it runs again")
    (tmp_path / "go").touch()
    daemon.wait_for_state(job, "finished")
