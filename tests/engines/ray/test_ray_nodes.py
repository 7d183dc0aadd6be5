"""The nodes of Ray as a cluster."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from ray_cluster import RayCluster

from refold.core import Event, NodeLost, NodeReturned, NodeUsed, Scheduler
from refold.engines.ray.backend import own_ray, resources_of
from refold.engines.ray.cluster import (
    FORGET_SECONDS,
    KnownNodes,
    RayNodeReports,
    Use,
    map_nodes,
    others_use,
    read_nodes,
)
from refold.errors import BadValue
from refold.model import Share
from refold.simulator.registry import make_policy


def entry(name: str, host: str, gpus: float = 8.0, alive: bool = True, other: str = "x") -> dict[str, Any]:
    amounts = {"GPU": gpus, "CPU": 64.0, "memory": 512 * 2.0**30, f"node:{host}": 1.0, other: 1.0}
    return {
        "NodeID": name,
        "Alive": alive,
        "NodeManagerHostname": host,
        "NodeManagerAddress": f"10.0.0.{len(host)}",
        "Resources": {key: value for key, value in amounts.items() if value},
    }


def test_nodes_with_gpus_that_are_alive() -> None:
    entries = [entry("1", "b"), entry("2", "a", 4.0), entry("3", "head", 0.0), entry("4", "dead", alive=False)]
    found = map_nodes(read_nodes([*entries, {"NodeID": "5", "Alive": False, "NodeManagerAddress": "x"}]))
    assert [(node.name, node.gpus, node.cpu_milli, node.memory_mib) for node in found.cluster.nodes] == [
        ("b", 8, 64000, 512 * 1024),
        ("a", 4, 64000, 512 * 1024),
    ]
    assert [node.id for node in found.nodes] == ["1", "2"]


def test_nodes_of_one_machine_have_different_names() -> None:
    found = read_nodes([entry("0123456789", "host"), entry("9876543210", "host")])
    assert [node.name for node in found] == ["host-01234567", "host-98765432"]


def test_gpu_types_are_those_of_ray() -> None:
    (node,) = read_nodes([entry("1", "a", other="accelerator_type:H100")])
    assert node.gpu_type == "H100"


def test_labels_of_nodes_are_levels() -> None:
    labels = {"1": {"zone": "z0", "rack": "r0"}, "2": {"zone": "z0", "rack": "r1"}, "3": {"zone": "z1"}}
    nodes = read_nodes([{**entry(name, f"host{name}"), "Labels": own} for name, own in labels.items()])
    found = map_nodes(nodes, levels=("zone", "row", "rack")).cluster
    assert found.level_names == ("zone", "rack")
    assert [node.domains for node in found.nodes] == [("z0", "r0"), ("z0", "r1"), ("z1", "node/host3")]
    assert map_nodes(nodes).cluster.levels == ()


def test_ray_reports_the_labels_of_its_nodes(connection: RayCluster) -> None:
    node = connection.add_node(labels={"rack": "r7"})
    try:
        found = map_nodes(read_nodes(connection.ray.nodes()), levels=("rack",)).cluster
    finally:
        connection.kill_node(node)
    assert found.level_names == ("rack",)
    assert [node.domains for node in found.nodes].count(("r7",)) == 1


def test_a_cluster_without_gpus_is_rejected() -> None:
    with pytest.raises(BadValue, match="no nodes with GPUs"):
        map_nodes(read_nodes([entry("1", "a", 0.0)]))


def test_nodes_that_stay_away_leave_the_cluster() -> None:
    first, second = ({node.name: node} for node in read_nodes([entry("1", "a"), entry("2", "b")]))
    known = KnownNodes({**first, **second})
    assert [known.update(first, now) for now in (0.0, FORGET_SECONDS)] == [False, False]
    assert known.update({**first, **second}, FORGET_SECONDS + 1) is False  # it is back
    assert known.update(first, FORGET_SECONDS + 2) is False
    assert known.update(first, 2 * FORGET_SECONDS + 3) is True
    assert known.nodes == first
    assert known.update({}, 9 * FORGET_SECONDS) is False and known.update({}, 99 * FORGET_SECONDS) is False
    assert known.nodes == first  # a cluster has nodes


def test_a_node_that_was_started_again_is_another_one() -> None:
    (before,), (after,) = read_nodes([entry("1", "a")]), read_nodes([entry("2", "a")])
    known = KnownNodes({"a": before})
    assert known.update({"a": after}, 0.0) is True
    assert (known.nodes, known.update({"a": after}, 1.0)) == ({"a": after}, False)


def test_a_ray_program_has_what_its_instance_has() -> None:
    (node,) = read_nodes([entry("1", "a")])
    half = own_ray(Share(0, (0, 1, 2, 3)), node)
    assert (half["RAY_ADDRESS"], json.loads(half["RAY_OVERRIDE_RESOURCES"])) == ("local", {"CPU": 32, "GPU": 4})
    requested = own_ray(Share(0, (), cpu_milli=1500, memory_mib=1000), node)
    assert json.loads(requested["RAY_OVERRIDE_RESOURCES"]) == {
        "CPU": 2,
        "GPU": 0,
        "memory": 1000 * 2**20 - 314572800,
        "object_store_memory": 314572800,
    }


def test_what_ray_reserves_for_an_instance() -> None:
    assert resources_of(Share(0, (0, 1), cpu_milli=1500, memory_mib=10)) == {
        "GPU": 2.0,
        "CPU": 1.5,
        "memory": 10 * 2**20,
    }
    assert resources_of(Share(0, (3,), gpu_milli=250)) == {"GPU": 0.25}
    assert resources_of(Share(0, ())) == {"CPU": 0.001}


def test_what_others_use_is_what_is_reserved_and_not_for_runs() -> None:
    (node,) = read_nodes([entry("1", "a")])
    free = {"GPU": 2.5, "CPU": 60.0, "memory": 500 * 2.0**30}
    shares = [Share(0, (0, 1, 2), cpu_milli=1000, memory_mib=2048), Share(0, (3,), gpu_milli=500)]
    assert others_use(node, free, shares) == Use(2.0, 3.0, 10 * 1024.0)
    assert others_use(node, {"GPU": 8.0, "CPU": 63.999, "memory": 512 * 2.0**30}, shares) == Use(0.0, 0.0, 0.0)


def test_nodes_and_use_become_events_once() -> None:
    """What others use counts when it was read twice: Ray releases what a run had a moment after its end."""
    nodes = map_nodes(read_nodes([entry("1", "a"), entry("2", "b")]))
    scheduler = Scheduler(nodes.cluster, make_policy("fifo"))
    state: Any = SimpleNamespace(view=scheduler.view)
    reports = RayNodeReports(state, nodes.nodes)

    def read(present: str, **free_gpus: float) -> tuple[Event, ...]:
        free = {
            node.id: {"GPU": free_gpus.get(node.name, 8.0), "CPU": 64.0, "memory": 512 * 2.0**30}
            for node in nodes.nodes
        }
        events = tuple(reports.events(set(present), free, []))
        scheduler.step(scheduler.view.now + 1.0, events)
        return events

    assert read("ab") == ()
    assert read("ab", a=5.0) == ()
    assert read("ab", a=5.5) == (NodeUsed(0, (5, 6, 7)),)
    assert read("b", a=5.0, b=7.0) == (NodeLost(0, "ray: it is gone"),)
    assert read("ab") == (NodeReturned(0), NodeUsed(0))
    assert reports.lost("no head") == [NodeLost(0, "ray: no head"), NodeLost(1, "ray: no head")]
