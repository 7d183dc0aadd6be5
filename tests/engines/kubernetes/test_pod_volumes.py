"""Volume claims: pods wait for those that are missing, and are placed where their volumes can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_api_server import FakeApiServer
from kubernetes_daemon import JOBS, KubernetesDaemon, daemon_of, job_json, wait_for
from kubernetes_objects import Json, make_node, make_pod

from refold.engines.kubernetes.constraints import admits
from refold.engines.kubernetes.volumes import PodVolumes, StorageClass, Volume, VolumeClaim

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
DATA: Json = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


def selector(key: str, *values: str) -> Json:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": values}]}]}


def claim(volume: str = "", phase: str = "Bound", storage: str = "disk", **metadata: Any) -> Json:
    return {
        "metadata": {"name": "data", "namespace": "default", **metadata},
        "spec": {"volumeName": volume, "storageClassName": storage},
        "status": {"phase": phase},
    }


def volume(name: str, zone: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"nodeAffinity": {"required": selector("zone", zone)}}}


def storage(name: str = "disk", mode: str = "WaitForFirstConsumer", **fields: Any) -> Json:
    return {"metadata": {"name": name}, "provisioner": "example.com", "volumeBindingMode": mode, **fields}


def table(*claims: Json, volumes: tuple[Json, ...] = (), classes: tuple[Json, ...] = ()) -> PodVolumes:
    found = PodVolumes()
    found.claims.replace([msgspec.convert(each, VolumeClaim) for each in claims])
    found.volumes.replace([msgspec.convert(each, Volume) for each in volumes])
    found.classes.replace([msgspec.convert(each, StorageClass) for each in classes])
    return found


@pytest.mark.parametrize(
    ("volumes", "problem"),
    [
        (PodVolumes(), ""),
        (table(), 'persistentvolumeclaim "data" not found'),
        (table(claim("pv")), ""),
        (table(claim("pv", deletionTimestamp="2026-01-01T00:00:00Z")), 'persistentvolumeclaim "data" is being deleted'),
        (table(claim(phase="Lost")), 'persistentvolumeclaim "data" has lost its volume'),
        (table(claim(phase="Pending")), 'persistentvolumeclaim "data" has no volume yet'),
        (table(claim(phase="Pending"), classes=(storage(mode="Immediate"),)), 'persistentvolumeclaim "data" has no v'),
        (table(claim(phase="Pending"), classes=(storage(),)), ""),
        (
            table(claim(phase="Pending"), classes=(storage(provisioner="kubernetes.io/no-provisioner"),)),
            'persistentvolumeclaim "data" is of the class disk, which makes no volumes',
        ),
    ],
)
def test_what_a_pod_waits_for(volumes: PodVolumes, problem: str) -> None:
    found = volumes.problem(make_pod("p", **DATA))
    assert found.startswith(problem) if problem else not found
    assert not volumes.problem(make_pod("q"))


def test_a_pod_is_placed_where_its_volumes_can_be_and_where_it_asks_to_be() -> None:
    volumes = table(claim("pv"), volumes=(volume("pv", "a"),))
    nodes = [make_node(f"{zone}{pool}", labels={"zone": zone, "pool": pool}) for zone in "ab" for pool in "xy"]
    affinity: Json = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector("pool", "x")}}
    free, picky = make_pod("p", **DATA), make_pod("p", affinity=affinity, **DATA)
    assert [node.name for node in nodes if admits(volumes.limited(free), node)] == ["ax", "ay"]
    assert [node.name for node in nodes if admits(volumes.limited(picky), node)] == ["ax"]
    none: Json = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
    assert not any(admits(volumes.limited(make_pod("p", affinity=none, **DATA)), node) for node in nodes)
    other = make_pod("q")
    assert volumes.limited(other) is other.spec


def test_a_class_may_make_volumes_for_some_nodes_only() -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]
    volumes = table(claim(phase="Pending"), classes=(storage(allowedTopologies=topologies),))
    pod = make_pod("p", **DATA)
    found = [admits(volumes.limited(pod), make_node("n", labels={"zone": zone})) for zone in "ab"]
    assert found == [False, True]


def test_the_claim_of_an_ephemeral_volume_has_the_name_of_the_pod() -> None:
    pod = make_pod("p", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}, {"name": "x"}])
    assert pod.claim_names == ["p-scratch"]


# A daemon.


@pytest.fixture
def daemon(fake_server: FakeApiServer, tmp_path: Path) -> Iterator[KubernetesDaemon]:
    for number in range(2):
        fake_server.api.patch(f"/api/v1/nodes/n{number}", {"metadata": {"labels": {"zone": f"z{number}"}}})
    fake_server.api.create(CLASSES, storage())
    with daemon_of(fake_server, tmp_path, "") as found:
        yield found


def message(server: FakeApiServer, name: str) -> str:
    conditions = [entry for pod in server.pods(f"{name}-")[:1] for entry in pod["status"].get("conditions", [])]
    return " ".join(entry["message"] for entry in conditions)


def test_a_gang_waits_for_its_claim_and_runs_where_its_volume_is(
    fake_server: FakeApiServer, daemon: KubernetesDaemon
) -> None:
    fake_server.api.create(JOBS, job_json("late", 2, 2, 0.5, pod=DATA))
    wait_for(lambda: 'persistentvolumeclaim "data" not found' in message(fake_server, "late"), "the pod is told")
    assert not daemon.states()
    fake_server.api.create(VOLUMES, volume("pv", "z1"))
    fake_server.api.create(CLAIMS, claim("pv"))
    daemon.wait_for_state("late", "finished")
    assert daemon.nodes_of("late") == ["n1", "n1"]


def test_volumes_are_made_for_the_node_before_any_pod_is_bound(
    fake_server: FakeApiServer, daemon: KubernetesDaemon
) -> None:
    fake_server.api.create(CLAIMS, claim(phase="Pending"))
    fake_server.api.create(JOBS, job_json("first", 2, 8, 0.5, pod=DATA))
    key = "volume.kubernetes.io/selected-node"

    def selected() -> str:
        found: str = fake_server.objects[f"{CLAIMS}/data"]["metadata"].get("annotations", {}).get(key, "")
        return found

    node = wait_for(selected, "the claim names a node")
    assert daemon.nodes_of("first") == ["", ""]
    fake_server.api.create(VOLUMES, {"metadata": {"name": "pv"}, "spec": {}})
    fake_server.api.patch(f"{CLAIMS}/data", {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}})
    daemon.wait_for_state("first", "finished")
    assert node in daemon.nodes_of("first")


def test_a_gang_is_placed_again_if_its_volume_was_made_elsewhere(
    fake_server: FakeApiServer, daemon: KubernetesDaemon
) -> None:
    fake_server.api.create(CLAIMS, claim(phase="Pending"))
    fake_server.api.create(JOBS, job_json("moved", 1, 8, 0.5, pod=DATA))
    path = f"{CLAIMS}/data"
    wait_for(lambda: fake_server.objects[path]["metadata"].get("annotations"), "the claim names a node")
    node = fake_server.objects[path]["metadata"]["annotations"]["volume.kubernetes.io/selected-node"]
    other = {"n0": "n1", "n1": "n0"}[node]
    fake_server.api.create(VOLUMES, volume("pv", other.replace("n", "z")))
    fake_server.api.patch(path, {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}})
    daemon.wait_for_state("moved", "finished")
    assert daemon.nodes_of("moved") == [other]
