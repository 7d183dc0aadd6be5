"""Nodes of Kubernetes as a cluster, and those that pods may be on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from kubernetes_objects import make_node, make_pod, node_json

from refold.engines.kubernetes.constraints import NodeIndex, admits, refusals, unsupported_fields
from refold.engines.kubernetes.nodes import NodeMap, PodConstraints, down_reason, map_nodes
from refold.engines.kubernetes.objects import ApiNode, Pod, PodSpec
from refold.model import Rack

H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
RESEARCH = {"key": "team", "value": "research", "effect": "NoSchedule"}
GPU = "nvidia.com/gpu"


def types(nodes: NodeMap) -> dict[str, str]:
    return {node.name: node.gpu_type for node in nodes.cluster.nodes}


def allowed(nodes: NodeMap, *pods: Pod, resource: str = GPU) -> str:
    """Return the nodes that pods may be on, by name."""
    found = nodes.allowed_nodes(PodConstraints([pod.spec for pod in pods], resource))
    return "all" if found is None else "".join(nodes.cluster.nodes[index].name for index in found)


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": [expression]} for expression in expressions]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


def test_a_node_has_its_capacity_of_gpus_and_its_allocatable_cpus_and_memory() -> None:
    allocatable = {"cpu": "63500m", "memory": "500Gi", GPU: "7"}
    (node,) = map_nodes([make_node("a", labels=H100, allocatable=allocatable)]).cluster.nodes
    assert (node.name, node.gpus, node.gpu_type) == ("a", 8, "H100-80GB")
    assert (node.cpu_milli, node.memory_mib, node.inside.kind) == (63_500, 500 * 1024, "nvlink")


def test_gpus_without_a_product_label_and_nodes_without_gpus() -> None:
    assert types(map_nodes([make_node("a"), make_node("b", gpus=0)])) == {"a": "GPU", "b": ""}


def test_a_node_that_reports_no_cpus_and_no_memory_has_none() -> None:
    (node,) = map_nodes([make_node("a", labels=H100, allocatable={GPU: "8"})]).cluster.nodes
    assert (node.gpus, node.cpu_milli, node.memory_mib) == (8, 0, 0)


def test_racks_have_the_smallest_power_limit_of_their_nodes() -> None:
    nodes = [
        make_node(
            name, labels={"topology.kubernetes.io/rack": "r1"}, annotations={"refold.dev/rack-limit-watts": watts}
        )
        for name, watts in (("a", "20000"), ("b", "15000"), ("c", "much"))
    ]
    cluster = map_nodes(nodes).cluster
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
    nodes = map_nodes([make_node("a", labels=H100, capacity=resources, allocatable=resources)])
    assert [(node.name, node.gpus, node.gpu_type, node.cpu_milli) for node in nodes.cluster.nodes] == [
        ("a", 4, "H100-80GB", 8_000),
        ("a:mig-1g.10gb", 28, "H100-80GB-MIG-1g.10gb", 56_000),
        ("a:mig-3g.40gb", 8, "H100-80GB-MIG-3g.40gb", 16_000),
    ]
    assert allowed(nodes, make_pod("p"), resource="nvidia.com/mig-3g.40gb") == "a:mig-3g.40gb"
    assert allowed(nodes, make_pod("p"), resource="") == "all"
    assert [nodes.kubernetes_name(index) for index in range(3)] == ["a", "a", "a"]


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
    assert allowed(map_nodes(nodes), make_pod("p", affinity=affinity(expression))) == accepted


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


def test_why_no_node_admits_a_pod_is_counted_by_cause() -> None:
    pod = make_pod("p", nodeSelector={"pool": "x"})
    tainted = make_node("a", labels={"pool": "x"}, taints=[RESEARCH])
    others = [make_node("b"), make_node("c", labels={"pool": "y"})]
    assert refusals(pod.spec, [tainted, *others]) == (
        "2 do not match the node selector, 1 has the taint team=research:NoSchedule"
    )
    without = make_node("d", gpus=0, labels={"pool": "x"})
    assert refusals(pod.spec, [without, make_node("e", labels={"pool": "x"})]) == ""
    assert refusals(pod.spec, [without], "nvidia.com/gpu") == "1 has no nvidia.com/gpu"


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


def disk(amount: str) -> list[dict[str, Any]]:
    return [{"name": "c", "resources": {"limits": {GPU: "1"}, "requests": {"ephemeral-storage": amount}}}]


def with_disk(name: str, amount: str) -> ApiNode:
    return make_node(name, allocatable={"cpu": "64", "memory": "512Gi", GPU: "8", "ephemeral-storage": amount})


def test_pods_may_be_on_the_nodes_whose_labels_taints_and_resources_they_ask_for() -> None:
    nodes = map_nodes(
        [
            make_node("a", labels={"pool": "x"}),
            make_node("b", labels={"pool": "y"}),
            make_node("c", labels={"pool": "z"}, taints=[RESEARCH]),
            with_disk("d", "200Gi"),
        ]
    )
    selecting, tolerating = (
        make_pod("p", nodeSelector={"pool": "x"}),
        make_pod("r", tolerations=[{"operator": "Exists"}]),
    )
    assert allowed(nodes, make_pod("q")) == "abd"
    assert allowed(nodes, selecting) == "a"
    assert allowed(nodes, tolerating) == "all"
    assert allowed(nodes, selecting, tolerating) == "a"
    assert allowed(nodes, make_pod("p", containers=disk("100Gi"))) == "d"
    assert allowed(nodes, make_pod("p", nodeSelector={"gone": "x"})) == ""
    assert types(nodes) == dict.fromkeys("abcd", "GPU")


def test_pods_may_be_on_the_nodes_as_they_are_now() -> None:
    nodes = map_nodes([make_node("a"), make_node("b")])
    selecting = make_pod("p", nodeSelector={"pool": "x"})
    assert (allowed(nodes, make_pod("q")), allowed(nodes, selecting)) == ("all", "")
    nodes.update(make_node("a", labels={"pool": "x"}))
    nodes.update(make_node("b", taints=[RESEARCH]))
    assert (allowed(nodes, make_pod("q")), allowed(nodes, selecting)) == ("a", "a")
    nodes.update(make_node("a"))
    nodes.update(with_disk("b", "200Gi"))
    assert (allowed(nodes, make_pod("q")), allowed(nodes, selecting)) == ("all", "")


def test_pods_pinned_to_more_nodes_than_there_may_be_gpu_types() -> None:
    nodes = map_nodes([make_node(f"n{number}") for number in range(70)])
    for number in range(70):
        by_label = make_pod("p", nodeSelector={"kubernetes.io/hostname": f"n{number}"})
        field = {"key": "metadata.name", "operator": "In", "values": [f"n{number}"]}
        terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        by_name = make_pod("p", affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
        assert [allowed(nodes, pod) for pod in (by_label, by_name)] == [f"n{number}"] * 2


def test_a_cluster_with_more_gpu_types_than_can_be_told_apart_has_its_rarest_ones_in_common() -> None:
    names = [f"kind-{number}" for number in range(70)]
    nodes = [make_node(f"n{number}", labels={"nvidia.com/gpu.product": name}) for number, name in enumerate(names)]
    found = types(map_nodes([*nodes, make_node("again", labels={"nvidia.com/gpu.product": "kind-69"})]))
    assert len(set(found.values())) == 62
    assert (found["n69"], found["n68"]) == ("kind-69", "GPU")


def test_amounts_that_nobody_can_have_do_not_hide_a_node() -> None:
    odd = {"cpu": "many", GPU: "8", "memory": "9e99", "nvidia.com/mig-1g.10gb": "-1"}
    (node,) = map_nodes([make_node("a", capacity=odd, allocatable=odd)]).cluster.nodes
    assert (node.gpus, node.cpu_milli, node.memory_mib) == (8, 0, 0)


KEYS, VALUES = ("pool", "zone"), ("x", "y", "3")
requirements = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    st.sampled_from([*KEYS, "gone"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"]),
    st.lists(st.sampled_from([*VALUES, "2"]), max_size=2),
)
terms = st.builds(
    lambda labels, fields: {
        "matchExpressions": labels,
        "matchFields": [{**one, "key": "metadata.name"} for one in fields],
    },
    st.lists(requirements, max_size=2),
    st.lists(requirements, max_size=1),
)
taints = st.builds(
    lambda key, value, effect: {"key": key, "value": value, "effect": effect},
    st.sampled_from(["a", "node.kubernetes.io/x"]),
    st.sampled_from(["", "v"]),
    st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
)
tolerations = st.builds(
    lambda key, operator, value: {"key": key, "operator": operator, "value": value},
    st.sampled_from(["", "a"]),
    st.sampled_from(["Exists", "Equal", ""]),
    st.sampled_from(["", "v"]),
)
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))


@st.composite
def specs(draw: st.DrawFn) -> PodSpec:
    fields: dict[str, Any] = {
        "nodeSelector": draw(labels),
        "tolerations": draw(st.lists(tolerations, max_size=2)),
        "containers": disk(draw(st.sampled_from(["0", "60Gi"]))),
    }
    if draw(st.booleans()):
        selector = {"nodeSelectorTerms": draw(st.lists(terms, max_size=2))}
        fields["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    return make_pod("p", **fields).spec


node_changes = st.lists(st.tuples(labels, st.lists(taints, max_size=2), st.sampled_from(["50Gi", "100Gi"])), min_size=1)


@given(st.lists(specs(), min_size=1, max_size=3), st.lists(node_changes, min_size=1, max_size=4))
def test_the_nodes_that_admit_a_pod_are_those_found_one_by_one(
    given_specs: list[PodSpec], histories: list[list[tuple[Any, ...]]]
) -> None:
    """Also after labels, taints and resources of nodes have changed."""

    def state(name: str, change: tuple[Any, ...]) -> ApiNode:
        amounts = {"cpu": "64", "memory": "512Gi", GPU: "8", "ephemeral-storage": change[2]}
        return make_node(name, labels=change[0], taints=change[1], allocatable=amounts)

    index = NodeIndex(state(str(number), changes[0]) for number, changes in enumerate(histories))
    for number, changes in enumerate(histories):
        for change in changes[1:]:
            index.replace(number, state(str(number), change))
    last = [state(str(number), changes[-1]) for number, changes in enumerate(histories)]
    for spec in given_specs:
        assert index.admitting(spec) == sum(1 << number for number, node in enumerate(last) if admits(spec, node))
