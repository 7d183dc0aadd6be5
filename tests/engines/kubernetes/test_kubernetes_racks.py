"""A real API server whose nodes are labelled with racks: gangs get the racks that they require."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_daemon import JOBS, PODS, KubernetesDaemon, apply_rights, job_json, wait_for
from kubernetes_objects import node_json, pod_json
from kubernetes_servers import KubernetesServers, started_servers
from process_kubelet import ProcessKubelet

RACK = "example.com/rack"
PREFIX = "kueue.x-k8s.io/podset-"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"


@pytest.fixture(scope="module")
def rack_servers(server_programs: Path) -> Iterator[KubernetesServers]:
    """Servers of their own: the nodes of others have no racks."""
    with started_servers(server_programs) as found:
        yield found


@pytest.fixture(scope="module")
def racks(rack_servers: KubernetesServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesDaemon]:
    """A daemon on three racks of two nodes with two GPUs; nodes of a rack are not neighbours."""
    folder = tmp_path_factory.mktemp("racks")
    (folder / "refold.yaml").write_text(f"kubernetes: {{image: none, levels: [{RACK}]}}\n")
    nodes = [node_json(f"n{number}", 2, labels={RACK: f"r{number % 3}"}) for number in range(6)]
    kubelet = ProcessKubelet(rack_servers.api, nodes, instant=True)
    kubelet.start()
    apply_rights(rack_servers.api)
    with KubernetesDaemon(rack_servers, folder / "state", "--config", str(folder / "refold.yaml")).serving() as found:
        yield found
    kubelet.stop()


@pytest.fixture
def daemon(racks: KubernetesDaemon) -> Iterator[KubernetesDaemon]:
    yield racks
    racks.delete_all()


def create(daemon: KubernetesDaemon, name: str, pods: int, **annotations: str) -> None:
    """Create a Job whose pods have two GPUs and annotations of Kueue."""
    body = job_json(name, pods, 2, 1000)
    own = {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    body["spec"]["template"]["metadata"] = {"annotations": own}
    daemon.api.create(JOBS, body)


def racks_of(daemon: KubernetesDaemon, name: str) -> list[str]:
    """Return the racks of the pods of a Job, in the order of their instances, when all are bound."""
    wait_for(lambda: (nodes := daemon.nodes_of(name)) and all(nodes), f"{name} is bound")
    pods = sorted(daemon.pods(name), key=lambda pod: int(pod.metadata.annotations["refold.dev/instance"]))
    return [f"r{int(pod.spec.node_name[1:]) % 3}" for pod in pods]


def test_a_gang_that_requires_one_rack_waits_for_it(daemon: KubernetesDaemon) -> None:
    taken = []
    for number in range(3):
        create(daemon, f"one{number}", 1, required_topology=RACK)
        taken += racks_of(daemon, f"one{number}")
    assert taken[0] == taken[1] != taken[2]  # small jobs share a rack
    create(daemon, "three", 3, required_topology=RACK)
    daemon.wait_for_state("three", "infeasible")
    create(daemon, "pair", 2, required_topology=RACK)
    assert len({*racks_of(daemon, "pair")}) == 1
    create(daemon, "next", 2, required_topology=RACK)
    daemon.wait_for_state("next", "waiting")
    daemon.api.delete(f"{JOBS}/one2", {"propagationPolicy": "Background"})
    assert racks_of(daemon, "next") == [taken[2]] * 2


def test_slices_are_in_one_rack_each(daemon: KubernetesDaemon) -> None:
    create(daemon, "one", 1)
    create(daemon, "slices", 4, slice_required_topology=RACK, slice_size="2")
    first, second, third, fourth = racks_of(daemon, "slices")
    assert first == second != third == fourth


def test_a_preferred_rack_is_not_required(daemon: KubernetesDaemon) -> None:
    create(daemon, "one", 2, preferred_topology=RACK)
    assert len({*racks_of(daemon, "one")}) == 1
    create(daemon, "three", 3, preferred_topology=RACK)
    assert len({*racks_of(daemon, "three")}) == 2


def test_a_pod_group_of_kubernetes_requires_a_rack(daemon: KubernetesDaemon, rack_servers: KubernetesServers) -> None:
    if not rack_servers.has_pod_groups:
        pytest.skip("this version of Kubernetes has no PodGroups of the version that is tested")
    create(daemon, "one", 1)
    constraints = {"topology": [{"key": RACK}]}
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "schedulingConstraints": constraints}
    group = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "native"}}
    daemon.api.create(GROUPS, {**group, "spec": spec})
    for number in range(2):
        body = pod_json(f"native-{number}", 2, schedulingGroup={"podGroupName": "native"}, restartPolicy="Never")
        body["spec"]["containers"][0]["command"] = ["sleep", "1000"]
        del body["metadata"]["uid"], body["status"]
        daemon.api.create(PODS, body)
    assert len({*racks_of(daemon, "native")}) == 1
