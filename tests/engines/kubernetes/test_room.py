"""What is checked before pods are bound: that nodes are as they were when they were chosen, and have room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kubernetes_objects import make_node, make_pod

from refold.engines.kubernetes.objects import ApiNode, Pod
from refold.engines.kubernetes.room import NodeRoom, Unfit
from refold.engines.kubernetes.volumes import PodVolumes

GPU = "nvidia.com/gpu"


def make_room(*bound: Pod, node: ApiNode | None = None, **allocatable: str) -> NodeRoom:
    """Return the room of a node n0 with these resources and pods."""
    amounts = {name.replace("_", "-"): amount for name, amount in allocatable.items()}
    pods = {pod.key: pod for pod in bound}
    nodes = {"n0": node or make_node("n0", allocatable={"cpu": "64", GPU: "8", **amounts})}
    return NodeRoom(cast(Any, SimpleNamespace(volumes=PodVolumes(), nodes=nodes, pods_on_node=lambda _: pods)))


def pod(name: str, disk: str = "", **fields: Any) -> Pod:
    requests = {"ephemeral-storage": disk} if disk else {}
    return make_pod(name, containers=[{"name": "c", "resources": {"requests": requests}}], **fields)


def why(found: Unfit | None) -> str:
    assert found is not None
    return found.why


def test_pods_of_a_gang_on_one_node_need_room_together() -> None:
    room = make_room(ephemeral_storage="100")
    assert room.claim(("a", 1), [(pod("p", "50"), "n0"), (pod("q", "50"), "n0")]) is None
    problem = room.claim(("a", 1), [(pod("p", "50"), "n0"), (pod("q", "51"), "n0")])
    assert problem == Unfit("node n0 has 100 of ephemeral-storage left, and 101 are needed")


def test_pods_that_run_there_take_room_and_those_that_have_ended_do_not() -> None:
    ended = pod("e", "90", status={"phase": "Succeeded"})
    assert make_room(pod("r", "40"), ended, ephemeral_storage="100").claim(("a", 1), [(pod("p", "60"), "n0")]) is None
    assert "has 60 of" in why(
        make_room(pod("r", "40"), ephemeral_storage="100").claim(("a", 1), [(pod("p", "61"), "n0")])
    )


def test_runs_that_are_being_bound_at_the_same_time_share_the_room() -> None:
    room = make_room(ephemeral_storage="100")
    assert room.claim(("a", 1), [(pod("p", "60"), "n0")]) is None
    assert "has 40 of" in why(room.claim(("b", 1), [(pod("q", "60"), "n0")]))
    room.release(("a", 1))
    assert room.claim(("b", 1), [(pod("q", "60"), "n0")]) is None


def test_a_node_accepts_a_number_of_pods() -> None:
    room = make_room(pod("r"), pods="2")
    assert room.claim(("a", 1), [(pod("p"), "n0")]) is None
    assert room.claim(("a", 1), [(pod("p"), "n0"), (pod("q"), "n0")]) == Unfit(
        "node n0 has 1 of pods left, and 2 are needed"
    )
    assert make_room(pod("r")).claim(("a", 1), [(pod("p"), "n0")]) is None, "a node that does not say has no limit"


def test_a_node_with_an_amount_that_cannot_be_read_has_none_of_it() -> None:
    assert "has fewer than 1 ephemeral-storage" in why(
        make_room(ephemeral_storage="9e40").claim(("a", 1), [(pod("p", "1"), "n0")])
    )


@pytest.mark.parametrize(
    ("fields", "node", "problem"),
    [
        ({"nodeSelector": {"pool": "x"}}, make_node("n0", labels={"pool": "y"}), "n0 does not match the node selector"),
        (
            {},
            make_node("n0", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}]),
            "n0 has the taint a=b:NoSch",
        ),
        ({}, make_node("n0", conditions=[]), "node n0 is down: NotReady"),
        ({}, make_node("n1"), "node n0 does not exist any more"),
        ({"gpus": 5}, make_node("n0", gpus=4), "node n0 has 4 of nvidia.com/gpu left, and 5 are needed"),
    ],
)
def test_a_node_that_has_changed_since_it_was_chosen_is_refused_for_good(
    fields: dict[str, Any], node: ApiNode, problem: str
) -> None:
    mirror = SimpleNamespace(volumes=PodVolumes(), nodes={node.name: node}, pods_on_node=lambda _: {})
    found = NodeRoom(cast(Any, mirror)).claim(("a", 1), [(make_pod("p", **fields), "n0")])
    assert problem in why(found)
    assert found is not None
    assert found.lasting


def test_gpus_that_others_have_taken_since_are_seen() -> None:
    mirror = SimpleNamespace(
        volumes=PodVolumes(), nodes={"n0": make_node("n0")}, pods_on_node=lambda _: {"r": make_pod("r", gpus=6)}
    )
    room = NodeRoom(cast(Any, mirror))
    assert room.claim(("a", 1), [(make_pod("p", gpus=2), "n0")]) is None
    room.release(("a", 1))
    assert room.claim(("a", 1), [(make_pod("p", gpus=2), "n0"), (make_pod("q", gpus=1), "n0")]) == Unfit(
        "node n0 has 2 of nvidia.com/gpu left, and 3 are needed", lasting=True
    )


def test_parts_of_a_gpu_share_it() -> None:
    half: dict[str, Any] = {"annotations": {"refold.dev/gpu-fraction": "0.5"}, "gpus": 0}
    mirror = SimpleNamespace(
        volumes=PodVolumes(), nodes={"n0": make_node("n0", gpus=1)}, pods_on_node=lambda _: {"r": make_pod("r", **half)}
    )
    assert NodeRoom(cast(Any, mirror)).claim(("a", 1), [(make_pod("p", **half), "n0")]) is None
    both = [(make_pod("p", **half), "n0"), (make_pod("q", **half), "n0")]
    assert "has 0.5 of nvidia.com/gpu" in why(NodeRoom(cast(Any, mirror)).claim(("a", 1), both))


def test_a_pod_that_is_being_bound_is_not_counted_twice_once_the_mirror_shows_it() -> None:
    first, shown = make_pod("p", gpus=4), dict[str, Pod]()
    mirror = SimpleNamespace(volumes=PodVolumes(), nodes={"n0": make_node("n0")}, pods_on_node=lambda _: shown)
    room = NodeRoom(cast(Any, mirror))
    assert room.claim(("a", 1), [(first, "n0")]) is None
    assert "has 4 of nvidia.com/gpu left" in why(room.claim(("b", 1), [(make_pod("q", gpus=5), "n0")]))
    shown["p"] = make_pod("p", gpus=4, nodeName="n0")
    assert room.claim(("b", 1), [(make_pod("q", gpus=4), "n0")]) is None
