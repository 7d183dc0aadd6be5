"""Levels of a cluster, the links between nodes, and what jobs request of domains."""

from collections.abc import Callable

import msgspec
import pytest

from refold.errors import BadValue, UnknownName
from refold.model import ETHERNET, Cluster, Demand, Job, Level, Link, Node, TopologyRequest

NVLINK = Link("nvlink", 900.0)
FABRIC = Link("infiniband", 50.0)


def make_node(name: str, block: str, rack: str) -> Node:
    return Node(name, 4, "GB200", rack=rack, domains=(block, rack))


CLUSTER = Cluster(
    (make_node("a", "b0", "r0"), make_node("b", "b0", "r0"), make_node("c", "b0", "r1"), make_node("d", "b1", "r2")),
    levels=(Level("block", FABRIC), Level("rack", NVLINK)),
)


def test_the_slowest_link_between_nodes_is_that_of_the_domain_that_contains_them() -> None:
    assert CLUSTER.link_between([0, 1]) == NVLINK
    assert CLUSTER.link_between([0, 1, 2]) == FABRIC
    assert CLUSTER.link_between([0, 3]) == ETHERNET
    unknown = msgspec.structs.replace(CLUSTER, levels=(Level("block", FABRIC), Level("rack")))
    assert unknown.link_between([0, 1]) == FABRIC


def test_levels_are_found_by_name() -> None:
    assert [CLUSTER.level(name) for name in ("block", "rack", "")] == [0, 1, 1]
    with pytest.raises(UnknownName, match="level 'rak'"):
        CLUSTER.level("rak")
    with pytest.raises(UnknownName, match="level ''"):
        Cluster((Node("a"),)).level("")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Level("node"), "a level is named 'node', expected a name such as rack or block"),
        (
            lambda: Cluster((Node("a", domains=("r0",)),)),
            "node 'a': domains are ('r0',), expected one for each of the levels ()",
        ),
        (
            lambda: Cluster((Node("a", rack="r1", domains=("r0",)),), levels=(Level("rack"),)),
            "node 'a': rack is 'r1', but its domains are ('r0',)",
        ),
        (
            lambda: Cluster((Node("a", domains=("x", "y")),), levels=(Level("row"), Level("row"))),
            "cluster 'cluster': levels are ('row', 'row'), expected at most 8 different names",
        ),
        (lambda: TopologyRequest(segment=-1), "segment is -1, expected instances ≥ 1"),
        (lambda: TopologyRequest(segment_level="rack"), "segment_level is 'rack', but no segment is given"),
        (lambda: TopologyRequest(segment=2, most=2), "most is 2, expected 1 for a job with segments"),
        (lambda: TopologyRequest(most=-1), "most is -1, expected domains ≥ 1"),
        (lambda: TopologyRequest(wait=60.0), "wait is 60.0, expected seconds ≥ 0 for a job with a required level"),
        (
            lambda: Demand(6, topology=TopologyRequest(segment=4)),
            "a job has 6 instances, which cannot be divided into segments of 4",
        ),
        (
            lambda: Demand(topology=TopologyRequest(segment=2)),
            "a job has 1 instance, which cannot be divided into segments of 2",
        ),
        (
            lambda: Job("j", demand=Demand(2, topology=TopologyRequest("rack")), reshapable=True),
            "job 'j': it requires its instances in one rack, so it cannot be reshapable",
        ),
    ],
)
def test_what_cannot_be_is_rejected(build: Callable[[], object], message: str) -> None:
    with pytest.raises(BadValue) as raised:
        build()
    assert str(raised.value) == message


def test_a_request_is_formatted_for_users() -> None:
    request = TopologyRequest("block", "rack", 4, "rack")
    assert str(request) == "in one block, preferably in one rack, in segments of 4 in one rack each"
    assert request.levels == ("block", "rack", "rack")
    assert str(TopologyRequest("rack", most=2)) == "in at most 2 racks"
    assert str(TopologyRequest(most=1)) == "in one domain"


def test_after_a_limited_wait_a_required_level_is_preferred() -> None:
    assert TopologyRequest("rack", most=2, wait=60.0).relaxed() == TopologyRequest(preferred="rack")
    assert TopologyRequest("block", "rack", wait=60.0).relaxed() == TopologyRequest(preferred="rack")


@pytest.mark.parametrize(
    ("request_", "nodes", "is_met"),
    [
        (TopologyRequest("rack"), [0, 1], True),
        (TopologyRequest("rack"), [0, 2], False),
        (TopologyRequest("block"), [0, 2], True),
        (TopologyRequest(most=1), [0, 2], False),
        (TopologyRequest(most=2), [0, 2, 1], True),
        (TopologyRequest(most=2), [0, 2, 3], False),
        (TopologyRequest("block", most=2), [0, 2, 3], True),
        (TopologyRequest(preferred="rack"), [0, 3], True),
        (TopologyRequest(segment=2), [0, 1, 2, 2], True),
        (TopologyRequest(segment=2), [0, 2, 1, 2], False),
        (TopologyRequest("block", segment=2, segment_level="rack"), [0, 1, 3, 3], False),
        (TopologyRequest(segment=2, segment_level="block"), [0, 2, 3, 3], True),
        (TopologyRequest("row"), [0, 0], False),
    ],
)
def test_placements_meet_requests_or_not(request_: TopologyRequest, nodes: list[int], is_met: bool) -> None:
    assert Demand(len(nodes), 1, topology=request_).is_met_by(nodes, CLUSTER) is is_met


def test_one_instance_meets_every_request() -> None:
    assert Demand(topology=TopologyRequest("row")).is_met_by([0], Cluster((Node("a"),)))
