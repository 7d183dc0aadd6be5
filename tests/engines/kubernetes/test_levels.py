"""The levels of a Kubernetes cluster: labels of its nodes, Kueue's Topology, and gangs that request domains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fake_api_server import FakeApiServer
from kubernetes_daemon import daemon_of, job_json, wait_for
from kubernetes_objects import make_node, make_pod, node_json
from process_kubelet import ProcessKubelet

from refold.engines.kubernetes import ApiError
from refold.engines.kubernetes.gangs import gang_name
from refold.engines.kubernetes.nodes import KUEUE_GROUP, kueue_levels, map_nodes
from refold.engines.kubernetes.owner_specs import Owner
from refold.engines.kubernetes.pods import gang_submission
from refold.errors import BadInput
from refold.model import TopologyRequest
from refold.server.config.reader import parse_config

ZONE, RACK = "topology.kubernetes.io/zone", "cloud.provider.com/topology-rack"
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
SLICE, SLICE_SIZE = "kueue.x-k8s.io/podset-slice-required-topology", "kueue.x-k8s.io/podset-slice-size"
TOPOLOGIES = f"{KUEUE_GROUP}/v1beta1/topologies"


def labels(zone: str, rack: str) -> dict[str, str]:
    return {label: value for label, value in ((ZONE, zone), (RACK, rack)) if value}


def test_labels_of_nodes_are_levels() -> None:
    nodes = [make_node("a", labels=labels("z0", "r0")), make_node("b", labels=labels("z1", "r0"))]
    found = map_nodes(nodes, levels=(ZONE, RACK)).cluster
    assert (found.level_names, [node.domains for node in found.nodes]) == (
        (ZONE, RACK),
        [("z0", "r0"), ("z1", "r0")],
    )
    assert map_nodes(nodes).cluster.levels == ()


def test_a_node_without_a_label_is_a_domain_by_itself_and_a_label_without_nodes_is_no_level() -> None:
    nodes = [make_node("a", labels=labels("z0", "")), make_node("b"), make_node("cpu", gpus=0, labels={RACK: "r0"})]
    found = map_nodes(nodes, levels=(ZONE, RACK)).cluster
    assert (found.level_names, [node.domains for node in found.nodes]) == (
        (ZONE,),
        [("z0",), ("node/b",), ("node/cpu",)],
    )


def test_a_label_named_rack_is_the_rack() -> None:
    (node,) = map_nodes([make_node("a", labels={"rack": "r0", ZONE: "z0"})], levels=("rack",)).cluster.nodes
    assert (node.rack, node.domains) == ("r0", ("r0",))


class Answers:
    """An API server with these objects."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = {KUEUE_GROUP: {"preferredVersion": {"version": "v1beta1"}}, **objects}

    def call(self, _: str, path: str) -> bytes:
        found = self.objects.get(path, 404)
        if isinstance(found, int):
            raise ApiError(found, "", "no")
        return msgspec.json.encode(found)


def topology(*names: str) -> dict[str, Any]:
    return {"metadata": {"name": "default"}, "spec": {"levels": [{"nodeLabel": name} for name in names]}}


@pytest.mark.parametrize(
    ("objects", "levels"),
    [
        ({TOPOLOGIES: {"items": [topology(ZONE, RACK, "kubernetes.io/hostname")]}}, (ZONE, RACK)),
        ({TOPOLOGIES: {"items": []}}, ()),
        ({TOPOLOGIES: {"items": [topology(ZONE), topology(RACK)]}}, ()),
        ({TOPOLOGIES: 403}, ()),
        ({TOPOLOGIES: 404}, ()),
        ({KUEUE_GROUP: 404}, ()),
    ],
)
def test_the_levels_of_kueue_are_those_of_its_only_topology(objects: dict[str, Any], levels: tuple[str, ...]) -> None:
    assert kueue_levels(cast(Any, Answers(objects))) == levels


def test_a_server_that_does_not_answer_is_not_one_without_levels() -> None:
    with pytest.raises(ApiError):
        kueue_levels(cast(Any, Answers({TOPOLOGIES: 500})))


def test_gangs_request_domains_by_the_annotations_of_kueue_on_clusters_with_levels() -> None:
    def request(annotations: dict[str, str], has_levels: bool = True) -> TopologyRequest | None:
        pods = [make_pod(f"p{number}", annotations=annotations) for number in range(4)]
        return gang_submission(gang_name(pods[0]), pods, Owner(size=4, elastic=True), "", has_levels).topology

    assert request({REQUIRED: RACK}) == TopologyRequest(RACK)
    assert request({REQUIRED: RACK}, has_levels=False) is None
    assert request({SLICE: RACK, SLICE_SIZE: "2"}) == TopologyRequest(segment=2, segment_level=RACK)
    assert request({}) is None
    pods = [make_pod(f"p{number}") for number in range(4)]
    in_group = gang_submission(gang_name(pods[0]), pods, Owner(4, level=RACK), "", True)
    assert in_group.topology == TopologyRequest(RACK)
    with pytest.raises(BadInput, match="podset-slice-size is 'two', expected pods ≥ 1"):
        request({SLICE: RACK, SLICE_SIZE: "two"})
    with pytest.raises(BadInput, match="so it cannot be reshapable"):
        request({REQUIRED: RACK, "refold.dev/gpu-range": "2..4"})


def test_the_configuration_names_labels() -> None:
    assert parse_config(f"kubernetes: {{levels: [{ZONE}, {RACK}]}}", "x").kubernetes.levels == (ZONE, RACK)
    with pytest.raises(BadInput, match="a node label such as topology"):
        parse_config("kubernetes: {levels: [a/b/c]}", "x")


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    """An API server with two racks of two nodes with two GPUs."""
    found = FakeApiServer()
    nodes = [node_json(f"n{number}", 2, labels=labels("z0", f"r{number % 2}")) for number in range(4)]
    kubelet = ProcessKubelet(found.api, nodes, instant=True)
    kubelet.start()
    yield found
    kubelet.stop()
    found.stop()


@pytest.mark.parametrize("from_kueue", [False, True])
def test_a_gang_starts_in_one_rack_and_never_in_two(from_kueue: bool, server: FakeApiServer, tmp_path: Path) -> None:
    if from_kueue:
        server.objects[KUEUE_GROUP] = {"preferredVersion": {"version": "v1beta1"}, "metadata": {"name": "kueue"}}
        server.api.create(TOPOLOGIES, topology(ZONE, RACK))
    config = "policy: {name: fifo}\n" + ("" if from_kueue else f"kubernetes: {{levels: [{ZONE}, {RACK}]}}\n")
    with daemon_of(server, tmp_path, config) as daemon:

        def create(name: str, pods: int) -> None:
            body = job_json(name, pods, 2, 60)
            body["spec"]["template"]["metadata"] = {"annotations": {REQUIRED: RACK}}
            server.api.create("/apis/batch/v1/namespaces/default/jobs", body)

        def nodes(prefix: str) -> set[str]:
            return {pod["spec"].get("nodeName", "") for pod in server.pods(prefix)}

        create("one", 2)
        wait_for(lambda: nodes("one-") in ({"n0", "n2"}, {"n1", "n3"}), "both pods are in one rack")
        create("three", 3)
        daemon.wait_for_state("three", "infeasible")
