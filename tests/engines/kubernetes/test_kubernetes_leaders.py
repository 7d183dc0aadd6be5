"""Two daemons on a real API server: one schedules, the other takes over, and nothing is bound twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_daemon import PODS, KubernetesDaemon, apply_rights, wait_for
from kubernetes_servers import KubernetesServers
from process_kubelet import ProcessKubelet, kubelet_nodes

from refold.engines.kubernetes.api_server import ApiServer, ObjectList
from refold.engines.kubernetes.objects import Pod

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


@pytest.fixture
def kubelet(servers: KubernetesServers) -> Iterator[ProcessKubelet]:
    found = ProcessKubelet(servers.api, kubelet_nodes(2), instant=True)
    found.start()
    apply_rights(servers.api)
    yield found
    found.stop()


@pytest.fixture
def replicas(
    servers: KubernetesServers, kubelet: ProcessKubelet, tmp_path: Path
) -> Iterator[tuple[KubernetesDaemon, KubernetesDaemon]]:
    """Two daemons that share a state folder, of which the first schedules."""
    del kubelet
    folder = tmp_path / "state"
    first, second = (
        KubernetesDaemon(servers, folder, "--policy", "fifo", "--standby", host=host) for host in ("a", "b")
    )
    try:
        first.start()
        second.launch()
        wait_for(lambda: second.is_waiting, "the second daemon waits")
        yield first, second
    finally:
        for daemon in (first, second):
            daemon.kill()
        servers.api.delete(f"{LEASES}/refold")


def lease_holder(api: ApiServer) -> str:
    found = api.get(f"{LEASES}/refold", dict[str, object])
    spec = found["spec"]
    assert isinstance(spec, dict)
    return str(spec.get("holderIdentity", ""))


def test_the_second_daemon_takes_over_when_the_first_is_killed(
    replicas: tuple[KubernetesDaemon, KubernetesDaemon],
) -> None:
    first, second = replicas
    assert lease_holder(first.api).startswith("a_")
    first.create_job("going", pods=2, gpus=4, seconds=30)
    first.wait_for_state("going", "running")
    first.create_job("waits", pods=2, gpus=8, seconds=0.5)
    first.wait_for_state("waits", "waiting")
    bound = {pod.metadata.uid for pod in first.pods("going")}
    first.kill()
    second.wait_until_serving()
    assert lease_holder(second.api).startswith("b_")
    second.wait_for_state("waits", "finished")
    assert {pod.metadata.uid for pod in second.pods("going")} == bound
    second.wait_for_state("going", "finished")
    with second.client() as client:
        runs = {job.name: (job.state, job.runs) for job in client.jobs(ended=True).jobs}
    assert runs == {"going": ("finished", 1), "waits": ("finished", 1)}


def test_the_second_daemon_takes_over_at_once_when_the_first_is_stopped(
    replicas: tuple[KubernetesDaemon, KubernetesDaemon],
) -> None:
    first, second = replicas
    first.kill(signal.SIGTERM)
    second.wait_until_serving()
    assert "stopped; pods continue" in first.log()


def test_a_daemon_that_is_not_a_standby_refuses_to_start_beside_another(
    replicas: tuple[KubernetesDaemon, KubernetesDaemon], servers: KubernetesServers, tmp_path: Path
) -> None:
    assert replicas[0].is_serving
    other = KubernetesDaemon(servers, tmp_path / "other", host="c")
    other.launch()
    wait_for(lambda: "the cluster is scheduled by another daemon: a_" in other.log(), "it says why")
    other.kill()


def test_leaders_that_are_killed_at_any_moment_bind_each_gang_once(
    servers: KubernetesServers, kubelet: ProcessKubelet, tmp_path: Path
) -> None:
    del kubelet
    draw = random.Random(1)
    daemon = KubernetesDaemon(servers, tmp_path / "state", "--policy", "fifo", "--standby", host="a")
    names = [f"gang{number}" for number in range(8)]
    try:
        daemon.start()
        for name in names:
            daemon.create_job(name, pods=4, gpus=2, seconds=1)
            if draw.random() < 0.5:
                time.sleep(draw.uniform(0.0, 0.6))
                daemon.kill()
                assert_no_gpu_is_allocated_twice(servers.api)
                daemon.start()
        for name in names:
            daemon.wait_for_state(name, "finished")
            pods = daemon.pods(name)
            assert sorted(pod.metadata.annotations["refold.dev/instance"] for pod in pods) == ["0", "1", "2", "3"]
        with daemon.client() as client:
            assert {job.name: job.runs for job in client.jobs(ended=True).jobs} == dict.fromkeys(names, 1)
    finally:
        daemon.kill()
        servers.api.delete(f"{LEASES}/refold")


def assert_no_gpu_is_allocated_twice(api: ApiServer) -> None:
    used = {"n0": 0, "n1": 0}
    for pod in api.get(PODS, ObjectList[Pod]).items:
        if pod.is_bound and not pod.has_ended:
            used[pod.spec.node_name] += int(pod.spec.containers[0].resources.limits["nvidia.com/gpu"])
    assert max(used.values()) <= 8
