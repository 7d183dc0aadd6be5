"""The nodes of Ray as a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from refold.backends.ray.backend import resources_of
from refold.backends.ray.cluster import map_nodes, read_nodes
from refold.errors import BadValue
from refold.model import Share


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


def test_a_cluster_without_gpus_is_rejected() -> None:
    with pytest.raises(BadValue, match="no nodes with GPUs"):
        map_nodes(read_nodes([entry("1", "a", 0.0)]))


def test_what_ray_reserves_for_an_instance() -> None:
    assert resources_of(Share(0, (0, 1), cpu_milli=1500, memory_mib=10)) == {
        "GPU": 2.0,
        "CPU": 1.5,
        "memory": 10 * 2**20,
    }
    assert resources_of(Share(0, (3,), gpu_milli=250)) == {"GPU": 0.25}
    assert resources_of(Share(0, ())) == {"CPU": 0.001}
