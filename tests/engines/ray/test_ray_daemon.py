"""`refold serve --on ray`: jobs, restarts of the daemon, and lost nodes, on a real Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import HELPERS, RayCluster
from ray_daemon import RayDaemon

from refold.client.api import NodeStatus
from refold.engines.ray import connected
from refold.errors import NoDaemon

NO_HEAD = "ray: the head node does not answer"


@pytest.fixture
def daemon(cluster: RayCluster, tmp_path: Path) -> Iterator[RayDaemon]:
    found = RayDaemon(cluster, tmp_path / "state", "--policy", "fifo")
    found.start()
    yield found
    with found.client() as client:
        for job in list(client.queue()):
            client.cancel(job.id, now=True)
    found.wait_until(lambda: not any(node.jobs for node in nodes_of(found)), "all runs have ended")
    found.kill()


def submit(daemon: RayDaemon, shell: str, **fields: Any) -> str:
    with daemon.client() as client:
        return client.submit(command=["sh", "-c", shell], **fields).id


def nodes_of(daemon: RayDaemon) -> list[NodeStatus]:
    """Return the nodes that are scheduled; none while the daemon continues with other nodes."""
    try:
        with daemon.client() as client:
            return client.nodes()
    except NoDaemon:
        return []


def test_a_gang_runs_on_several_nodes_and_its_output_is_shown(daemon: RayDaemon) -> None:
    job = submit(daemon, 'echo rank $RANK of $WORLD_SIZE; [ -n "$CUDA_VISIBLE_DEVICES" ]', gpus=8, instances=3)
    daemon.wait_for_state(job, "finished")
    with daemon.client() as client:
        output = [client.read_logs(job, instance=instance).text for instance in range(3)]
    assert output == [f"rank {instance} of 3\n" for instance in range(3)]


RAY_PROGRAM = """\
import os, ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

ray.init(log_to_driver=False)

@ray.remote(num_gpus=1, num_cpus=0)
def device():
    return os.environ["CUDA_VISIBLE_DEVICES"]

group = placement_group([{"GPU": 1}, {"GPU": 1}])
assert group.wait(60), "as Tune and Train reserve what they use"
found = ray.get([device.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)).remote()
                 for index in (0, 1)])
print("own", sorted(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
print("used", sorted(found))
print("all", ray.cluster_resources()["GPU"], ray.cluster_resources()["CPU"])
"""


def test_a_ray_program_in_a_job_uses_the_gpus_of_the_job(daemon: RayDaemon, tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(RAY_PROGRAM)
    jobs = [submit(daemon, f"{sys.executable} {tmp_path}/tune.py", gpus=2, cpus=1) for _ in range(2)]
    outputs = []
    for job in jobs:
        daemon.wait_for_state(job, "finished")
        with daemon.client() as client:
            outputs.append(dict(line.split(" ", 1) for line in client.read_logs(job).text.splitlines()[-3:]))
    for output in outputs:
        assert (output["used"], output["all"]) == (output["own"], "2.0 1.0")
    wait_until_free(daemon)


def wait_until_free(daemon: RayDaemon) -> None:
    """Wait until nothing is reserved in the Ray of the cluster: programs have reserved nothing there."""
    daemon.wait_until(lambda: sorted(free_gpus(daemon)) == [8, 8, 8, 8], "all GPUs are free")


def test_plain_launchers_of_a_gang_form_one_job(daemon: RayDaemon) -> None:
    command = f"exec {sys.executable} {HELPERS}/fake_torchrun.py"
    job = submit(daemon, command, gpus=2, instances=2)
    daemon.wait_for_state(job, "finished")
    with daemon.client() as client:
        output = [client.read_logs(job, instance=instance).text for instance in range(2)]
    assert output == ["node 0: world size 4\n", "node 1: world size 4\n"]


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
    daemon.wait_until(lambda: len(nodes_of(daemon)) == 5, "the new node is scheduled")
    job = submit(daemon, f"echo >>{tmp_path}/starts; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", gpus=8)
    daemon.wait_until((tmp_path / "starts").exists, "it runs on the new node")
    cluster.kill_node(node)
    daemon.wait_until(lambda: daemon.states().get(job) in ("waiting", "held"), "it was queued again")
    with daemon.client() as client:
        client.cancel(others[0])
    daemon.wait_until(lambda: (tmp_path / "starts").read_text() == "\n\n", "it runs again")
    (tmp_path / "go").touch()
    daemon.wait_for_state(job, "finished")


def test_gpus_that_others_use_are_not_offered(cluster: RayCluster, daemon: RayDaemon) -> None:
    ray = cluster.ray
    with connected(ray, cluster.address):
        group = ray.util.placement_group([{"GPU": 3}])
        daemon.wait_until(lambda: sorted(free_gpus(daemon)) == [5, 8, 8, 8], "three GPUs are used")
        job = submit(daemon, "true", gpus=8, instances=4)
        with daemon.client() as client:
            assert client.job(job).state == "waiting"
        ray.util.remove_placement_group(group)
        daemon.wait_for_state(job, "finished")


@pytest.mark.usefixtures("ray_is_wanted")
def test_the_daemon_outlives_the_head_node_and_jobs_run_again_on_the_next(tmp_path: Path) -> None:
    cluster = RayCluster(1)
    daemon = RayDaemon(cluster, tmp_path / "state", "--policy", "fifo")
    try:
        daemon.start()
        job = submit(daemon, f"echo >>{tmp_path}/starts; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", gpus=8)
        daemon.wait_until((tmp_path / "starts").exists, "it runs")
        cluster.kill_head()
        daemon.wait_until(lambda: [node.reason for node in nodes_of(daemon)] == [NO_HEAD], "the loss is known")
        waiting = submit(daemon, "true", gpus=1)
        assert daemon.states()[waiting] == "waiting"
        cluster.replace_head()
        daemon.wait_until(lambda: (tmp_path / "starts").read_text() == "\n\n", "it runs again")
        (tmp_path / "go").touch()
        for name in (job, waiting):
            daemon.wait_for_state(name, "finished")
    finally:
        daemon.kill()
        cluster.stop()


def free_gpus(daemon: RayDaemon) -> list[float]:
    return [node.free_gpus for node in nodes_of(daemon)]
