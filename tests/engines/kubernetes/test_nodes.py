"""Nodes of Kubernetes as a cluster, and the GPU types that pods accept."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_objects import make_node, make_pod, node_json

from refold.engines.kubernetes.constraints import ANY_VALUE, admits, selected_labels, unsupported_fields
from refold.engines.kubernetes.nodes import NodeMap, down_reason, map_nodes
from refold.engines.kubernetes.objects import ApiNode, Pod, PodSpec
from refold.errors import BadValue
from refold.model import Rack

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
RESEARCH = {"key": "team", "value": "research", "effect": "NoSchedule"}
GPU = "nvidia.com/gpu"


def types(nodes: NodeMap) -> dict[str, str]:
    return {node.name: node.gpu_type for node in nodes.cluster.nodes}


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": [expression]} for expression in expressions]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


def test_a_node_has_its_capacity_of_gpus_and_its_allocatable_cpus_and_memory() -> None:
    allocatable = {"cpu": "63500m", "memory": "500Gi", GPU: "7"}
    (node,) = map_nodes([make_node("a", labels=H100, allocatable=allocatable)], {}).cluster.nodes
    assert (node.name, node.gpus, node.gpu_type) == ("a", 8, "H100-80GB")
    assert (node.cpu_milli, node.memory_mib, node.inside.kind) == (63_500, 500 * 1024, "nvlink")


def test_gpus_without_a_product_label_and_nodes_without_gpus() -> None:
    assert types(map_nodes([make_node("a"), make_node("b", gpus=0)], {})) == {"a": "GPU", "b": ""}


def test_a_node_that_reports_no_cpus_and_no_memory_has_none() -> None:
    (node,) = map_nodes([make_node("a", labels=H100, allocatable={GPU: "8"})], {}).cluster.nodes
    assert (node.gpus, node.cpu_milli, node.memory_mib) == (8, 0, 0)


def test_racks_have_the_smallest_power_limit_of_their_nodes() -> None:
    nodes = [
        make_node(
            name, labels={"topology.kubernetes.io/rack": "r1"}, annotations={"refold.dev/rack-limit-watts": watts}
        )
        for name, watts in (("a", "20000"), ("b", "15000"), ("c", "much"))
    ]
    cluster = map_nodes(nodes, {}).cluster
    assert cluster.racks == (Rack("r1", 15000.0),)
    assert [node.rack for node in cluster.nodes] == ["r1"] * 3


def test_mig_slices_are_a_node_of_their_own_with_a_part_of_the_cpus() -> None:
    resources = {
        "cpu": "80",
        "memory": "800Gi",
        GPU: "4",
        "nvidia.com/mig-1g.10gb": "28",
        "nvidia.com/mig-3g.40gb": "8",
    }
    nodes = map_nodes([make_node("a", labels=H100, capacity=resources, allocatable=resources)], {})
    assert [(node.name, node.gpus, node.gpu_type, node.cpu_milli) for node in nodes.cluster.nodes] == [
        ("a", 4, "H100-80GB", 8_000),
        ("a:mig-1g.10gb", 28, "H100-80GB-MIG-1g.10gb", 56_000),
        ("a:mig-3g.40gb", 8, "H100-80GB-MIG-3g.40gb", 16_000),
    ]
    assert nodes.accepted_types([make_pod("p").spec], "nvidia.com/mig-3g.40gb") == ("H100-80GB-MIG-3g.40gb",)
    assert [nodes.kubernetes_name(index) for index in range(3)] == ["a", "a", "a"]


def test_nodes_that_pods_cannot_tell_apart_have_one_type() -> None:
    nodes = [make_node("a", labels={**H100, "pool": "x"}), make_node("b", labels={**H100, "pool": "y"})]
    assert types(map_nodes(nodes, {})) == {"a": "H100-80GB", "b": "H100-80GB"}


def test_labels_that_pods_select_by_and_taints_divide_nodes_into_types() -> None:
    nodes = [
        make_node("a", labels={**H100, "pool": "x"}),
        make_node("b", labels={**H100, "pool": "y"}),
        make_node("c", labels={**H100, "pool": "z"}, taints=[RESEARCH]),
        make_node("d", labels={**H100, "pool": "z"}),
    ]
    selecting = make_pod("p", nodeSelector={"pool": "x"})
    mapped = map_nodes(nodes, selected_labels([selecting.spec]))
    tainted = "H100-80GB/!team=research:NoSchedule"
    assert types(mapped) == {"a": "H100-80GB/pool=x", "b": "H100-80GB", "c": tainted, "d": "H100-80GB"}
    assert mapped.accepted_types([selecting.spec], GPU) == ("H100-80GB/pool=x",)
    assert mapped.accepted_types([make_pod("q").spec], GPU) == ("H100-80GB", "H100-80GB/pool=x")
    tolerating = make_pod("r", tolerations=[{"key": "team", "operator": "Exists"}])
    assert mapped.accepted_types([tolerating.spec], GPU) == ("H100-80GB", tainted, "H100-80GB/pool=x")
    assert mapped.accepted_types([selecting.spec, tolerating.spec], GPU) == ("H100-80GB/pool=x",)


def test_a_taint_of_all_nodes_is_not_part_of_the_type() -> None:
    gpu_taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    mapped = map_nodes([make_node(name, labels=H100, taints=[gpu_taint]) for name in "ab"], {})
    assert types(mapped) == {"a": "H100-80GB", "b": "H100-80GB"}
    assert mapped.accepted_types([make_pod("p").spec], GPU) == ()


def test_more_kinds_of_nodes_than_the_scheduler_can_tell_apart_are_an_error() -> None:
    nodes = [make_node(f"n{number}") for number in range(63)]
    with pytest.raises(BadValue, match=r"63 kinds.*kubernetes.io/hostname"):
        map_nodes(nodes, {"kubernetes.io/hostname": frozenset([ANY_VALUE])})


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ({"key": "pool", "operator": "In", "values": ["x", "y"]}, "ab"),
        ({"key": "pool", "operator": "NotIn", "values": ["x"]}, "bc"),
        ({"key": "pool", "operator": "Exists"}, "ab"),
        ({"key": "pool", "operator": "DoesNotExist"}, "c"),
        ({"key": "year", "operator": "Gt", "values": ["2023"]}, "a"),
        ({"key": "year", "operator": "Lt", "values": ["2024"]}, "b"),
        ({"key": "year", "operator": "Near", "values": ["2024"]}, ""),
    ],
)
def test_node_affinity(expression: dict[str, Any], accepted: str) -> None:
    nodes = [
        make_node("a", labels={"pool": "x", "year": "2024"}),
        make_node("b", labels={"pool": "y", "year": "2023"}),
        make_node("c", labels={"year": "unknown"}),
    ]
    spec = make_pod("p", affinity=affinity(expression)).spec
    assert "".join(node.name for node in nodes if admits(spec, node)) == accepted
    mapped = map_nodes(nodes, selected_labels([spec]))
    by_type = {name for name, gpu_type in types(mapped).items() if gpu_type in mapped.accepted_types([spec], GPU)}
    assert by_type == set(accepted)


def test_one_of_several_affinity_terms_must_match_and_an_empty_one_matches_nothing() -> None:
    spec = make_pod("p", affinity=affinity({"key": "pool", "operator": "In", "values": ["x"]})).spec
    either = make_pod("p", affinity=affinity({"key": "a", "operator": "Exists"}, {"key": "pool", "operator": "Exists"}))
    none = make_pod("p", affinity=affinity())
    node = make_node("a", labels={"pool": "y"})
    assert [admits(each, node) for each in (spec, either.spec, none.spec)] == [False, True, False]


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "team", "operator": "Equal", "value": "research", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "research"}, True),
        ({"key": "team", "value": "other"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], tolerated: bool) -> None:
    pod = make_pod("p", tolerations=[toleration])
    assert admits(pod.spec, make_node("a", taints=[RESEARCH])) == tolerated


def test_a_preference_keeps_no_pod_away() -> None:
    assert admits(make_pod("p").spec, make_node("a", taints=[{**RESEARCH, "effect": "PreferNoSchedule"}]))


def test_hard_constraints_that_are_not_honoured_are_named() -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    pod = make_pod(
        "p",
        resourceClaims=[{"name": "gpu"}],
        affinity={"podAntiAffinity": required, "podAffinity": preferred},
        topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}],
    )
    assert unsupported_fields(pod) == ["resourceClaims", "affinity.podAntiAffinity"]
    assert unsupported_fields(make_pod("p")) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"conditions": [{"type": "Ready", "status": "Unknown", "message": "no heartbeat"}]}, "NotReady: no heartbeat"),
        ({"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletDown"}]}, "NotReady: KubeletDown"),
        ({"conditions": []}, "NotReady"),
    ],
)
def test_nodes_that_are_down(change: dict[str, Any], reason: str) -> None:
    assert down_reason(make_node("a", **change)) == reason


def test_unknown_fields_of_objects_are_skipped() -> None:
    import msgspec

    text = msgspec.json.encode({**node_json("a"), "unknown": {"deep": [1, 2]}})
    assert msgspec.json.decode(text, type=ApiNode).name == "a"
    assert msgspec.json.decode(b'{"metadata":{"name":"p","creationTimestamp":null}}', type=Pod).metadata.name == "p"


def test_pods_with_the_same_constraints_are_compared_with_the_nodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of nodes and many gangs, comparing each pod with each node would take most of the time."""
    compared: list[str] = []

    def admits_all(_: PodSpec, node: ApiNode) -> bool:
        compared.append(node.name)
        return True

    monkeypatch.setattr("refold.engines.kubernetes.nodes.admits", admits_all)
    mapped = map_nodes([make_node("a"), make_node("b")], {})
    for number in range(5):
        gang = [make_pod(f"p{number}-{index}").spec for index in range(4)]
        assert mapped.accepted_types(gang, GPU) == ("GPU",)
    assert compared == ["a", "b"]
    mapped.accepted_types([make_pod("other", nodeSelector={"pool": "x"}).spec], GPU)
    assert compared == ["a", "b"] * 2


def disk(amount: str) -> list[dict[str, Any]]:
    return [{"name": "c", "resources": {"limits": {GPU: "1"}, "requests": {"ephemeral-storage": amount}}}]


def with_disk(name: str, amount: str) -> ApiNode:
    return make_node(name, allocatable={"cpu": "64", "memory": "512Gi", GPU: "8", "ephemeral-storage": amount})


def test_nodes_with_too_little_of_a_resource_are_of_another_type() -> None:
    spec = make_pod("p", containers=disk("100Gi")).spec
    large, small = with_disk("large", "200Gi"), with_disk("small", "50Gi")
    mapped = map_nodes([large, small, make_node("none")], selected_labels([spec]))
    assert types(mapped) == {"large": f"GPU/ephemeral-storage>={100 * 2**30}", "small": "GPU", "none": "GPU"}
    assert mapped.accepted_types([spec], GPU) == (f"GPU/ephemeral-storage>={100 * 2**30}",)
    assert len(mapped.accepted_types([make_pod("q").spec], GPU)) == 2


def test_a_resource_that_all_nodes_have_does_not_divide_them() -> None:
    spec = make_pod("p", containers=disk("1Gi")).spec
    mapped = map_nodes([with_disk("a", "200Gi"), with_disk("b", "50Gi")], selected_labels([spec]))
    assert types(mapped) == {"a": "GPU", "b": "GPU"}


def test_amounts_of_other_pods_that_are_out_of_range_are_ignored() -> None:
    assert selected_labels([make_pod("p", containers=disk("9e40")).spec]) == {}
