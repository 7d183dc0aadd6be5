"""Resources that the scheduler does not count: pods are bound only where these are left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kubernetes_objects import make_node, make_pod

from refold.engines.kubernetes.objects import ApiNode, Pod
from refold.engines.kubernetes.room import NodeRoom

GPU = "nvidia.com/gpu"


def make_room(*bound: Pod, node: ApiNode | None = None, **allocatable: str) -> NodeRoom:
    """Return the room of a node n0 with these resources and pods."""
    amounts = {name.replace("_", "-"): amount for name, amount in allocatable.items()}
    pods = {pod.key: pod for pod in bound}
    nodes = {"n0": node or make_node("n0", allocatable={"cpu": "64", GPU: "8", **amounts})}
    return NodeRoom(cast(Any, SimpleNamespace(nodes=nodes, pods_on_node=lambda _: pods)))


def pod(name: str, disk: str = "", **fields: Any) -> Pod:
    requests = {"ephemeral-storage": disk} if disk else {}
    return make_pod(name, containers=[{"name": "c", "resources": {"requests": requests}}], **fields)


def test_pods_of_a_gang_on_one_node_need_room_together() -> None:
    room = make_room(ephemeral_storage="100")
    assert room.claim(("a", 1), [(pod("p", "50"), "n0"), (pod("q", "50"), "n0")]) == ""
    problem = room.claim(("a", 1), [(pod("p", "50"), "n0"), (pod("q", "51"), "n0")])
    assert problem == "node n0 has 100 of ephemeral-storage left, and 101 are needed"


def test_pods_that_run_there_take_room_and_those_that_have_ended_do_not() -> None:
    ended = pod("e", "90", status={"phase": "Succeeded"})
    assert make_room(pod("r", "40"), ended, ephemeral_storage="100").claim(("a", 1), [(pod("p", "60"), "n0")]) == ""
    assert "has 60 of" in make_room(pod("r", "40"), ephemeral_storage="100").claim(("a", 1), [(pod("p", "61"), "n0")])


def test_runs_that_are_being_bound_at_the_same_time_share_the_room() -> None:
    room = make_room(ephemeral_storage="100")
    assert room.claim(("a", 1), [(pod("p", "60"), "n0")]) == ""
    assert "has 40 of" in room.claim(("b", 1), [(pod("q", "60"), "n0")])
    room.release(("a", 1))
    assert room.claim(("b", 1), [(pod("q", "60"), "n0")]) == ""


def test_a_node_accepts_a_number_of_pods() -> None:
    room = make_room(pod("r"), pods="2")
    assert room.claim(("a", 1), [(pod("p"), "n0")]) == ""
    assert room.claim(("a", 1), [(pod("p"), "n0"), (pod("q"), "n0")]) == "node n0 has 1 of pods left, and 2 are needed"
    assert make_room(pod("r")).claim(("a", 1), [(pod("p"), "n0")]) == "", "a node that does not say has no limit"


def test_a_node_that_is_gone_is_no_reason_to_wait() -> None:
    assert make_room().claim(("a", 1), [(pod("p", "1"), "elsewhere")]) == ""


def test_a_node_with_an_amount_that_cannot_be_read_has_none_of_it() -> None:
    assert "has 0 of ephemeral-storage" in make_room(ephemeral_storage="9e40").claim(("a", 1), [(pod("p", "1"), "n0")])
