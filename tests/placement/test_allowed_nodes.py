"""Jobs that may be placed on some nodes only: every rule, the timetable, and the counts of what is missing."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, strategies as st

from refold.errors import BadValue
from refold.model import Cluster, Demand, Node, NodeSet
from refold.placement import RULES, FreeResources, Placer, Timetable

NODES = 70
"""More than the bits of a word."""

node_sets = st.sets(st.integers(0, NODES - 1)).map(NodeSet.of)
demands = st.builds(
    Demand,
    instances=st.integers(1, 4),
    gpus=st.integers(0, 4),
    gpu_milli=st.sampled_from([500, 1000]),
    cpu_milli=st.sampled_from([0, 3000]),
    gpu_types=st.sampled_from([(), ("A",), ("B",)]),
    allowed_nodes=st.none() | node_sets,
)


def make_nodes() -> Cluster:
    """A cluster of two types of GPUs, and nodes without any."""
    kinds = [(4, "A"), (2, "B"), (0, "")]
    return Cluster(tuple(Node(f"n{index}", *kinds[index % 3], cpu_milli=8000) for index in range(NODES)))


CLUSTER = make_nodes()


def is_accepted(demand: Demand, node: int) -> bool:
    is_allowed = demand.allowed_nodes is None or node in set(demand.allowed_nodes)
    gpu_type = CLUSTER.nodes[node].gpu_type
    return is_allowed and (not demand.gpus or not demand.gpu_types or gpu_type in demand.gpu_types)


def room(demand: Demand) -> int:
    """Return how many instances fit on the empty cluster, counted node by node."""
    count = 0
    for index, node in enumerate(CLUSTER.nodes):
        limits = [demand.instances]
        limits += [node.gpus * (1000 // demand.gpu_milli) // demand.gpus] if demand.gpus else []
        limits += [node.cpu_milli // demand.cpu_milli] if demand.cpu_milli else []
        count += min(limits) if is_accepted(demand, index) and node.gpus >= demand.gpus else 0
    return count


@given(st.sets(st.integers(0, 200)))
def test_a_set_of_nodes_has_the_nodes_it_was_made_of(nodes: set[int]) -> None:
    found = NodeSet.of(nodes)
    assert (set(found), len(found)) == (nodes, len(nodes))
    assert all((node in found) == (node in nodes) for node in range(-1, 210))
    assert NodeSet(found.bits) == found


def test_equal_sets_have_equal_bytes() -> None:
    with pytest.raises(BadValue, match="the last byte of a set of nodes is 0"):
        NodeSet(b"\1\0")


@pytest.mark.parametrize("rule", RULES)
@given(st.lists(demands, min_size=1, max_size=6))
def test_every_rule_places_instances_on_allowed_nodes_only(rule: str, given_demands: list[Demand]) -> None:
    free, placer = FreeResources(CLUSTER), Placer(rule)
    for demand, placement in zip(given_demands, placer.place_all(free, given_demands), strict=True):
        assert all(is_accepted(demand, share.node) for share in placement or ())
    fresh = FreeResources(CLUSTER)
    placement = Placer(rule).place(fresh, given_demands[0])
    assert (placement is not None) == (room(given_demands[0]) >= given_demands[0].instances)


@given(demands)
def test_what_fits_and_what_is_missing_is_counted_on_allowed_nodes(demand: Demand) -> None:
    free, fits = FreeResources(CLUSTER), room(demand) >= demand.instances
    assert free.fits_when_empty(demand) == fits
    shortage = free.shortage(demand)
    assert shortage.instances_fit == min(room(demand), demand.instances)
    lacking = shortage.wrong_type + shortage.not_allowed + shortage.too_small
    assert (shortage.nodes_fit + lacking, shortage.nodes) == (NODES, NODES)
    table = Timetable(CLUSTER)
    assert (table.earliest_start(demand, 10.0, 0.0) == 0.0) == fits


@given(demands, node_sets)
def test_a_copy_of_free_resources_knows_sets_that_are_met_later(demand: Demand, nodes: NodeSet) -> None:
    free = FreeResources(CLUSTER)
    copy = free.copy()
    for first, second in product((free, copy), repeat=2):
        other = Demand(gpus=1, allowed_nodes=nodes)
        assert first.shortage(demand) == second.shortage(demand)
        assert first.shortage(other) == second.shortage(other)


def test_why_a_job_waits_counts_the_nodes_that_it_may_not_be_placed_on() -> None:
    shortage = FreeResources(CLUSTER).shortage(Demand(gpus=1, allowed_nodes=NodeSet.of([0])))
    assert shortage.text(Demand()).startswith("1 of 70 nodes fit: 69 do not meet the constraints of the job on nodes")


def test_the_gpu_types_of_a_job_are_those_of_its_nodes() -> None:
    def types(nodes: list[int], *gpu_types: str) -> tuple[str, ...]:
        return Demand(gpu_types=gpu_types, allowed_nodes=NodeSet.of(nodes)).usable_types(CLUSTER)

    assert [types([0, 3]), types([0, 1]), types([0, 1, 2], "B"), types([2])] == [("A",), (), ("B",), ()]
    assert Demand(gpu_types=("A",)).usable_types(CLUSTER) == ("A",)
