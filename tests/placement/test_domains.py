"""Gangs are placed in the domains that they request, whenever they fit there: compared with all placements."""

from __future__ import annotations

import pickle
from itertools import combinations_with_replacement, permutations
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from refold.model import WHOLE, Cluster, Demand, Level, Node, NodeSet, Placement, Share, TopologyRequest
from refold.placement import RULES, FreeResources, Placer, Timetable
from refold.simulator.traces import read_cluster

LEVELS = ("block", "rack")
NODES = 7


def make_cluster(paths: list[tuple[int, int]], gpus: list[int]) -> Cluster:
    """A cluster of blocks of racks."""
    nodes = [
        Node(f"n{index}", size, "A" if size else "", rack=f"{block}/{rack}", domains=(f"{block}", f"{block}/{rack}"))
        for index, ((block, rack), size) in enumerate(zip(paths, gpus, strict=True))
    ]
    return Cluster(tuple(nodes), levels=tuple(map(Level, LEVELS)), cpus_known=False, memory_known=False)


paths = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=NODES, max_size=NODES)
clusters = st.builds(make_cluster, paths, st.lists(st.integers(0, 4), min_size=NODES, max_size=NODES))
names = st.sampled_from(["", *LEVELS])
required_names = st.sampled_from(["", *LEVELS, "row"])


@st.composite
def gangs(draw: st.DrawFn) -> Demand:
    segment = draw(st.integers(0, 3))
    instances = draw(st.integers(1, 2)) * segment or draw(st.integers(1, 6))
    most = draw(st.integers(0, 1 if segment else 3))
    request = TopologyRequest(draw(required_names), draw(names), segment, draw(names) if segment else "", most)
    allowed = draw(st.none() | st.sets(st.integers(0, NODES - 1), min_size=4).map(NodeSet.of))
    return Demand(
        instances, draw(st.integers(1, 2)), draw(st.sampled_from([500, 1000])), allowed_nodes=allowed, topology=request
    )


def room(free: FreeResources, node: int, demand: Demand) -> int:
    """Return how many instances fit on a node."""
    parts = [gpu // demand.gpu_milli for gpu in free.gpu_milli_of(node)]
    fitting = demand.instances
    while fitting and sum(min(part, fitting) for part in parts) < fitting * demand.gpus:
        fitting -= 1
    return fitting if demand.allowed_nodes is None or node in demand.allowed_nodes else 0


def fits_by_brute_force(free: FreeResources, demand: Demand) -> bool:
    """Whether any way to put the instances on nodes, in any order, meets the request."""
    rooms = [room(free, node, demand) for node in range(NODES)]
    for nodes in combinations_with_replacement(range(NODES), demand.instances):
        if any(nodes.count(node) > rooms[node] for node in nodes):
            continue
        if any(demand.is_met_by(order, free.cluster) for order in set(permutations(nodes))):
            return True
    return False


def take_some(free: FreeResources, taken: set[tuple[int, int]]) -> None:
    for node, gpu in taken:
        if gpu < free.cluster.nodes[node].gpus:
            free.take((Share(node, (gpu,)),))


occupied = st.sets(st.tuples(st.integers(0, NODES - 1), st.integers(0, 3)), max_size=12)
GREEDY = sorted(set(RULES) - {"genetic", "genetic-paper"})


@settings(max_examples=300, deadline=None)
@given(clusters, gangs(), occupied, st.sampled_from(GREEDY))
def test_a_gang_is_placed_if_and_only_if_some_placement_meets_its_request(
    cluster: Cluster, demand: Demand, taken: set[tuple[int, int]], rule: str
) -> None:
    free = FreeResources(cluster)
    take_some(free, taken)
    before = free.nodes.copy()
    expected = fits_by_brute_force(free, demand)
    assert (free.shortage(demand).instances_fit == demand.instances) == expected
    placement = Placer(rule).place(free, demand)
    assert (placement is not None) == expected
    if placement is None:
        assert (free.nodes == before).all()
    else:
        assert demand.is_met_by([share.node for share in placement], cluster)
        assert demand.allowed_nodes is None or all(share.node in demand.allowed_nodes for share in placement)


@settings(max_examples=100, deadline=None)
@given(clusters, gangs())
def test_a_gang_that_fits_on_no_empty_cluster_is_known(cluster: Cluster, demand: Demand) -> None:
    free = FreeResources(cluster)
    assert free.fits_when_empty(demand) == fits_by_brute_force(free, demand)


@settings(deadline=None)
@given(
    clusters,
    gangs(),
    st.lists(
        st.tuples(st.integers(0, NODES - 1), st.integers(0, 3), st.integers(0, 8), st.integers(1, 4)), max_size=10
    ),
    st.integers(1, 5),
)
def test_the_timetable_starts_a_gang_as_soon_as_it_can_be_placed_for_its_duration(
    cluster: Cluster, demand: Demand, bookings: list[tuple[int, int, int, int]], duration: int
) -> None:
    table = Timetable(cluster)
    for node, gpu, start, length in bookings:
        if gpu < cluster.nodes[node].gpus and not table.is_overbooked((Share(node, (gpu,)),), start, start + length):
            table.book((Share(node, (gpu,)),), start, start + length)
    found = table.earliest_start(demand, duration, 0, 100)
    times = [time for time in range(14) if fits_by_brute_force(table.free_during(time, time + duration), demand)]
    assert found == (times[0] if times else float("inf"))
    lengths = [length for length in range(1, 14) if fits_by_brute_force(table.free_during(0, length), demand)]
    longest = table.longest_free_duration(demand, 0)
    assert longest == (lengths[-1] if lengths and lengths[-1] < 13 else float("inf") if lengths else 0.0)


RACKS = make_cluster([(0, 0), (0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0)], [4] * 7)


def place(cluster: Cluster, demand: Demand, taken: tuple[int, ...] = ()) -> list[int] | None:
    """Return the nodes of the instances; `taken` are nodes of which one GPU is in use."""
    free = FreeResources(cluster)
    for node in taken:
        free.take((Share(node, (0,)),))
    placement: Placement | None = Placer().place(free, demand)
    return None if placement is None else [share.node for share in placement]


@pytest.mark.parametrize(
    ("demand", "taken", "nodes"),
    [
        (Demand(1, 1), (), [3]),  # in the smallest rack
        (Demand(1, 1), (0,), [3]),  # a rack with less room is preferred to a node with less room
        (Demand(2, 4), (3,), [5, 6]),  # a whole rack that is large enough
        (Demand(3, 4), (), [0, 1, 2]),
        (Demand(3, 4, topology=TopologyRequest("rack")), (1,), None),
        (Demand(4, 4), (), [0, 1, 2, 3]),  # in one block: the largest rack first
        (Demand(4, 4, topology=TopologyRequest(segment=2)), (), [0, 1, 3, 4]),
        (Demand(4, 4, topology=TopologyRequest("block", segment=2)), (0,), [1, 2, 3, 4]),
        (Demand(4, 4, topology=TopologyRequest("block", segment=2)), (0, 3), None),
        (Demand(2, 4, topology=TopologyRequest(preferred="block")), (), [5, 6]),
        (Demand(6, 4), (0,), [1, 2, 3, 4, 5, 6]),
    ],
)
def test_domains_with_little_room_are_filled_first(
    demand: Demand, taken: tuple[int, ...], nodes: list[int] | None
) -> None:
    assert place(RACKS, demand, taken) == nodes


def test_resources_of_a_cluster_with_levels_can_be_pickled() -> None:
    free = FreeResources(RACKS)
    demand = Demand(3, 4, topology=TopologyRequest("rack"))
    assert Placer().place(pickle.loads(pickle.dumps(free)), demand) == Placer().place(free, demand)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_nodes_of_each_domain_are_counted_by_free_gpus(chance: Random) -> None:
    """The counts are kept up to date by placements, releases and nodes that go down, also those of copies."""
    cluster = read_cluster("2 blocks of 3 racks of 2x4:A100")
    free, placer, held = FreeResources(cluster), Placer("best-fit"), list[Placement]()
    for _ in range(30):
        action = chance.randrange(4)
        if action == 0 and held:
            free.release(held.pop(chance.randrange(len(held))))
        elif action == 1:
            node = chance.randrange(len(cluster.nodes))
            free.set_node_up(node, up=not free.is_up(node))
        elif action == 2:
            free = free.copy()
        elif placement := placer.place(free, Demand(chance.randint(1, 3), chance.randint(1, 4))):
            held.append(placement)
        counts = [[0] * 6 for _ in range(5)]
        for node in range(len(cluster.nodes)):
            if free.is_up(node):
                counts[free.gpu_milli_of(node).count(WHOLE)][node // 2] += 1
        assert free.room.tolist() == counts
