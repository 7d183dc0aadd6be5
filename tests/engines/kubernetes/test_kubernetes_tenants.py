"""Constraints on nodes, tenants that do not trust each other, and pods that are gone, on a real API server.

All bindings are checked by a watch of their own (`placement_checker`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kubernetes_daemon import JOBS, PODS, KubernetesDaemon, apply_rights, job_json, wait_for
from kubernetes_objects import Json, node_json, pod_json
from kubernetes_servers import ADMIN_TOKEN, KubernetesServers
from placement_checker import PlacementChecker
from process_kubelet import ProcessKubelet

from refold.engines.kubernetes.api_server import ApiError

NODES = "/api/v1/nodes"
COUNT = 66
"""More nodes than there may be types of GPUs."""

BACKGROUND = {"propagationPolicy": "Background"}


@pytest.fixture(scope="module")
def daemon(servers: KubernetesServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesDaemon]:
    """A daemon on 66 nodes of one GPU; those with even numbers are in zone z0."""
    nodes = [node_json(f"t{number}", gpus=1, labels={"zone": f"z{number % 2}"}) for number in range(COUNT)]
    kubelet = ProcessKubelet(servers.api, nodes, instant=True)
    kubelet.start()
    apply_rights(servers.api)
    folder = tmp_path_factory.mktemp("tenants")
    checker = PlacementChecker(f"https://127.0.0.1:{servers.port}", ADMIN_TOKEN)
    with checker.checking(), KubernetesDaemon(servers, folder / "state", "--policy", "fifo").serving() as found:
        yield found
        assert checker.bindings >= COUNT
    kubelet.stop()
    for node in nodes:
        with suppress(ApiError):
            servers.api.delete(f"{NODES}/{node['metadata']['name']}", {})


@pytest.fixture(autouse=True)
def empty(daemon: KubernetesDaemon) -> Iterator[None]:
    yield
    daemon.delete_all()


def plain_pod(name: str, **fields: Any) -> Json:
    body = pod_json(name, **fields)
    body["spec"]["containers"][0]["command"] = ["sleep", "1000"]
    del body["metadata"]["uid"], body["status"]
    return body


def test_more_pods_pinned_to_nodes_than_there_may_be_gpu_types(daemon: KubernetesDaemon) -> None:
    for number in range(COUNT):
        pin = {"kubernetes.io/hostname": f"t{number}"}
        daemon.api.create(JOBS, job_json(f"pin{number}", 1, 1, 1000.0, pod={"nodeSelector": pin}))
    wait_for(lambda: all(daemon.nodes_of(f"pin{number}") == [f"t{number}"] for number in range(COUNT)), "all are bound")
    assert not daemon.has_ended


def test_a_label_that_no_pod_has_used_before(daemon: KubernetesDaemon) -> None:
    daemon.api.patch(f"{NODES}/t5", {"metadata": {"labels": {"new": "yes"}}})
    for number in range(3):
        daemon.api.create(JOBS, job_json(f"new{number}", 1, 1, 1000.0, pod={"nodeSelector": {"new": "yes"}}))
    bound = [f"new{number}" for number in range(3)]
    wait_for(lambda: [daemon.nodes_of(name) for name in bound].count(["t5"]) == 1, "one of them is bound")
    daemon.api.patch(f"{NODES}/t6", {"metadata": {"labels": {"new": "yes"}}})
    wait_for(lambda: ["t6"] in [daemon.nodes_of(name) for name in bound], "another one is bound to the next such node")
    assert sorted(daemon.nodes_of(name)[0] for name in bound) == ["", "t5", "t6"]


def test_a_taint_that_is_added_while_a_job_waits(daemon: KubernetesDaemon) -> None:
    daemon.create_job("all", pods=COUNT, gpus=1)
    daemon.wait_for_state("all", "running")
    daemon.create_job("behind", pods=COUNT - 1, gpus=1)
    daemon.wait_for_state("behind", "waiting")
    daemon.api.patch(f"{NODES}/t0", {"spec": {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}})
    daemon.api.delete(f"{JOBS}/all", BACKGROUND)
    daemon.wait_for_state("behind", "running")
    assert "t0" not in daemon.nodes_of("behind")
    daemon.api.patch(f"{NODES}/t0", {"spec": {"taints": None}})


def test_pods_without_gpus_are_kept_to_their_zone(daemon: KubernetesDaemon) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["z1"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    daemon.api.create(JOBS, job_json("cpu", 8, 0, 1000.0, pod={"affinity": {"nodeAffinity": required}}))
    daemon.wait_for_state("cpu", "running")
    assert all(int(node[1:]) % 2 == 0 for node in daemon.nodes_of("cpu"))


def test_a_pod_of_another_namespace_with_copied_annotations_ends_nothing(daemon: KubernetesDaemon) -> None:
    daemon.create_job("victim", pods=2, gpus=1)
    daemon.wait_for_state("victim", "running")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mallory"}}
    daemon.api.create("/api/v1/namespaces", namespace)
    copied = dict(daemon.pods("victim")[0].metadata.annotations)
    attack = plain_pod("attack", gpus=0, namespace="mallory", annotations=copied, nodeName="t9")
    attack["spec"]["containers"][0]["command"] = ["false"]

    def attacks() -> bool:
        with suppress(ApiError):  # until the namespace has a service account
            daemon.api.create("/api/v1/namespaces/mallory/pods", attack)
            return True
        return False

    wait_for(attacks, "a pod with copied annotations exists")
    daemon.create_job("after", pods=1, gpus=1, seconds=0.5)
    daemon.wait_for_state("after", "finished")
    assert daemon.states()["victim"] == "running"


def test_pods_that_are_deleted_hold_nothing(daemon: KubernetesDaemon) -> None:
    for number in range(8):
        daemon.api.create(PODS, plain_pod(f"web{number}"))
    with daemon.client() as client:
        wait_for(lambda: client.info().free_gpus == COUNT - 8, "all are bound")
        for number in range(8):
            daemon.api.delete(f"{PODS}/web{number}", {"gracePeriodSeconds": 1})
        wait_for(lambda: client.info().free_gpus == COUNT, "their GPUs are free")
        assert client.jobs().jobs == [] or all(job.state == "cancelled" for job in client.jobs().jobs)


def test_a_pod_with_nonsense_is_told_so_and_others_run(daemon: KubernetesDaemon) -> None:
    daemon.api.create(PODS, plain_pod("odd", annotations={"refold.dev/gpu-range": f"1..{'9' * 5000}"}))
    daemon.api.create(PODS, plain_pod("run", annotations={"refold.dev/run": "9" * 5000}))
    daemon.create_job("fine", pods=1, gpus=1, seconds=0.5)
    daemon.wait_for_state("fine", "finished")
    assert not daemon.has_ended
